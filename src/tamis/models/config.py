"""The shape of an encoder of the BERT family, as described by a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tamis.base.errors import InputError, quoted
from tamis.base.nested import parse_json
from tamis.storage.files import PathLike, read_text

_LARGEST = 1 << 26  # bytes of a config.json, or of the index of a sharded model

#: `static` is not an encoder but a table of words: see `tamis.models.architectures.interaction`.
Family = Literal["bert", "roberta", "electra", "albert", "distilbert", "static"]
Activation = Literal["gelu", "gelu_tanh", "relu"]
HeadActivation = Literal["tanh", "gelu", "relu"]

#: The model_type in config.json, and the family whose code runs it. MiniLM has the type bert.
FAMILIES: Mapping[str, Family] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "electra": "electra",
    "albert": "albert",
    "distilbert": "distilbert",
    "static": "static",
}

#: "gelu_fast" is the tanh form with its constants multiplied out.
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

_HEAD_ACTIVATIONS: Mapping[Family, HeadActivation] = {
    "bert": "tanh",
    "roberta": "tanh",
    "electra": "gelu",
    "albert": "tanh",
    "distilbert": "relu",
    "static": "tanh",
}

#: The field of config.json with the model's architecture and its settings. Other programs ignore it.
RECORD = "tamis"

#: A table without `quant_method`, so that transformers rejects int8 weights, which it would otherwise load
#: without their scales. tamis itself uses the metadata of the weights.
QUANTISED = "quantization_config"

#: The largest valid sizes: far above those of any encoder, but small enough to compare the names and shapes
#: of all tensors with those of the weights before anything of that size is allocated.
MOST = {
    "vocabulary": 1 << 24,
    "hidden": 1 << 16,
    "layers": 1000,
    "heads": 1 << 12,
    "feed_forward": 1 << 20,
    "positions": 1 << 20,
    "segments": 1 << 10,
    "embedding": 1 << 16,
    "num_hidden_groups": 1000,
    "pad_token_id": 1 << 20,
}

#: Our names and those of config.json, for all families except DistilBERT.
_FIELDS = {
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "embedding": "embedding_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
}
_DISTILBERT_FIELDS = _FIELDS | {
    "hidden": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "feed_forward": "hidden_dim",
    "activation": "activation",
    "dropout": "dropout",
}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Everything that the network depends on, in plain numbers.

    >>> config = EncoderConfig("bert", 30522, hidden=384, layers=6, heads=12, feed_forward=1536)
    >>> config.head_size, config.max_length, config.projected
    (32, 512, False)
    """

    family: Family
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    feed_forward: int
    positions: int = 512  # rows of the position table
    segments: int = 2  # rows of the segment table; 0 where the family has none
    embedding: int = 0  # width of the embedding tables; 0: as wide as the layers
    activation: Activation = "gelu"  # gelu is the erf form
    norm_epsilon: float = 1e-12
    first_position: int = 0
    labels: int = 1
    layer_groups: int = 0  # number of layers with weights of their own; 0: all
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if not self.embedding:
            object.__setattr__(self, "embedding", self.hidden)
        if not self.layer_groups:
            object.__setattr__(self, "layer_groups", self.layers)

    @property
    def static(self) -> bool:
        """Whether it is a table of words without an encoder."""
        return self.family == "static"

    @property
    def head_activation(self) -> HeadActivation:
        """The activation between the two layers of the classification head."""
        return _HEAD_ACTIVATIONS[self.family]

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of an input."""
        return self.positions - self.first_position

    @property
    def projected(self) -> bool:
        """Whether there is a linear layer between the embeddings and the first layer."""
        return self.embedding != self.hidden or self.family == "albert"

    def group(self, layer: int) -> int:
        """The index of the set of weights that a layer uses.

        >>> shared = EncoderConfig("albert", 30000, 768, 12, 12, 3072, embedding=128, layer_groups=1)
        >>> shared.group(11)
        0
        """
        return layer * self.layer_groups // self.layers


def read_config(path: PathLike) -> EncoderConfig:
    """Read the encoder's shape from a config.json.

    >>> path = getfixture("tmp_path") / "config.json"
    >>> _ = path.write_text('{"model_type": "gpt2"}')
    >>> read_config(path)
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: model_type 'gpt2' is not supported: use one of bert, ...
    """
    return parse_config(read_raw_config(path), path)


def read_raw_config(path: PathLike) -> dict[str, Any]:
    """The unchecked content of a config.json."""
    try:
        raw = parse_json(read_text(path, _LARGEST))
    except ValueError as error:
        raise InputError(f"not JSON ({error})", remedy="fetch the model again", path=str(path)) from None
    if not isinstance(raw, dict):
        raise InputError("not a JSON object", remedy="fetch the model again", path=str(path))
    return raw


def parse_config(raw: Mapping[str, Any], path: PathLike, *, labels: int | None = None) -> EncoderConfig:
    """The encoder's shape from the content of a config.json; `labels` overrides its number of labels.

    >>> raw = {"model_type": "distilbert", "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12,
    ...        "hidden_dim": 3072, "max_position_embeddings": 512, "id2label": {"0": "LABEL_0"}}
    >>> config = parse_config(raw, "config.json")
    >>> config.family, config.segments, config.labels
    ('distilbert', 0, 1)
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        problem = (
            "no model_type" if model_type is None else f"model_type {quoted(model_type)} is not supported"
        )
        raise InputError(problem, remedy=f"use one of {', '.join(FAMILIES)}", path=str(path))
    _refuse_variants(raw, path)
    family = FAMILIES[model_type]
    if family == "static":
        sizes = _Fields(raw, path, _FIELDS)
        return static_config(sizes.size("vocabulary"), sizes.size("hidden"))
    fields = _Fields(raw, path, _DISTILBERT_FIELDS if family == "distilbert" else _FIELDS)
    hidden, layers, heads = fields.size("hidden"), fields.size("layers"), fields.size("heads")
    if hidden % heads:
        raise InputError(
            f"a hidden size of {hidden} does not divide into {heads} heads",
            remedy="check the file",
            path=str(path),
        )
    positions = fields.size("positions")
    first_position = fields.count("pad_token_id", 1) + 1 if family == "roberta" else 0
    if positions <= first_position:
        raise InputError(
            f"{positions} positions leave no room for an input", remedy="check the file", path=str(path)
        )
    return EncoderConfig(
        family,
        fields.size("vocabulary"),
        hidden,
        layers,
        heads,
        fields.size("feed_forward"),
        positions=positions,
        segments=0 if family == "distilbert" else fields.count("segments", 2),
        embedding=fields.size("embedding") if family in ("electra", "albert") else hidden,
        activation=fields.activation("gelu_new" if family == "albert" else "gelu"),
        norm_epsilon=1e-12 if family == "distilbert" else fields.number("layer_norm_eps", 1e-12),
        first_position=first_position,
        labels=_labels(raw if labels is None else {"num_labels": labels}, path),
        layer_groups=fields.count("num_hidden_groups", 1) if family == "albert" else layers,
        dropout=fields.number("dropout", 0.0 if family == "albert" else 0.1),
    )


def static_config(words: int, width: int) -> EncoderConfig:
    """The config of a table of words.

    >>> static_config(400, 50).static
    True
    """
    return EncoderConfig(
        "static", words, width, layers=0, heads=1, feed_forward=0, positions=MOST["positions"], segments=0
    )


def write_config(raw: Mapping[str, Any], config: EncoderConfig, dtype: str) -> dict[str, Any]:
    """The content of `raw`, updated with the fields that `config` and `dtype` may have changed.

    >>> config = EncoderConfig("bert", 30522, hidden=384, layers=6, heads=12, feed_forward=1536, segments=3)
    >>> write_config({"type_vocab_size": 2}, config, "float16")["type_vocab_size"]
    3
    """
    if config.static:
        return {"model_type": "static", "vocab_size": config.vocabulary, "hidden_size": config.hidden}
    names = {str(label): f"LABEL_{label}" for label in range(config.labels)}
    if _named_labels(raw) == config.labels:
        names = raw["id2label"]
    written = {key: value for key, value in raw.items() if key not in _REWRITTEN}
    if dtype == "int8":
        dtype = "float16"  # the type of all other tensors
        written[QUANTISED] = {"layout": "int8-rows", "version": 1}
    written |= {
        "architectures": [_ARCHITECTURES[raw.get("model_type", config.family)]],
        "dtype": dtype,
        "id2label": names,
        "label2id": {name: int(label) for label, name in names.items()},
    }
    if config.segments:
        written["type_vocab_size"] = config.segments
    return written


#: Keys to remove, among them those of an older layout, which `tamis.models.legacy` reads.
_REWRITTEN = ("torch_dtype", "num_labels", QUANTISED, RECORD, "tamis_input_form", "tamis_listwise_texts")


_ARCHITECTURES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
    "electra": "ElectraForSequenceClassification",
    "albert": "AlbertForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
}


def _refuse_variants(raw: Mapping[str, Any], path: PathLike) -> None:
    """Reject options of transformers that change the scores but no name or shape."""
    variants = (
        raw.get("position_embedding_type", "absolute") != "absolute" and "position_embedding_type",
        bool(raw.get("is_decoder")) and "is_decoder",
        raw.get("inner_group_num", 1) != 1 and "inner_group_num",
    )
    for option in filter(None, variants):
        problem = f"{option} {quoted(raw[option])} is not supported"
        raise InputError(problem, remedy="use a plain encoder", path=str(path))


def _named_labels(raw: Mapping[str, Any]) -> int | None:
    return len(raw["id2label"]) if isinstance(raw.get("id2label"), dict) else None


def stored_labels(raw: Mapping[str, Any]) -> Any:
    """The number of labels of the head in a config.json, which may be invalid for a ranker.

    >>> stored_labels({"num_labels": 3}), stored_labels({})
    (3, 2)
    """
    # transformers writes neither field for two labels, its default.
    labels = raw.get("num_labels", _named_labels(raw))
    return 2 if labels is None else labels


def _labels(raw: Mapping[str, Any], path: PathLike) -> int:
    labels = stored_labels(raw)
    if labels not in (1, 2) or isinstance(labels, bool):
        remedy = "a ranker has one label (a score) or two (irrelevant, relevant)"
        raise InputError(f"{quoted(labels)} labels", remedy=remedy, path=str(path))
    return int(labels)


class _Fields:
    """The fields of a config.json under our names, each checked when it is read."""

    def __init__(self, raw: Mapping[str, Any], path: PathLike, names: Mapping[str, str]) -> None:
        self._raw, self._path, self._names = raw, path, names

    def _wrong(self, name: str, wanted: str) -> InputError:
        problem = f"{name} is {quoted(self._raw[name])}" if name in self._raw else f"no {name}"
        return InputError(problem, remedy=f"it must be {wanted}", path=str(self._path))

    def size(self, field: str) -> int:
        """A required whole number of at least 1."""
        return self._whole(field, None, least=1)

    def count(self, field: str, default: int) -> int:
        return self._whole(field, default, least=0)

    def _whole(self, field: str, default: int | None, least: int) -> int:
        name = self._names.get(field, field)
        value = self._raw.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")
        if value > MOST[field]:
            raise self._wrong(name, f"at most {MOST[field]:,}")
        return value

    def number(self, field: str, default: float) -> float:
        name = self._names.get(field, field)
        value = self._raw.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise self._wrong(name, "a number from 0 up to 1")
        return float(value)

    def activation(self, default: str) -> Activation:
        name = self._names["activation"]
        value = self._raw.get(name, default)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise self._wrong(name, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]
