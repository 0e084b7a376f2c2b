"""The tensors of an encoder: our names and shapes, and their Hugging Face names in the five families.

Our names are the same in every family, for example `embeddings.word`, `layers.3.attention.query.weight` and
`head.dense.bias`. Linear weights are [out, in].
"""

from __future__ import annotations

from collections.abc import Mapping

from tamis.models.config import EncoderConfig, Family

Shape = tuple[int, ...]

_BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward.norm": "output.LayerNorm",
}
_ALBERT_LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention.norm": "attention.LayerNorm",
    "feed_forward.up": "ffn",
    "feed_forward.down": "ffn_output",
    "feed_forward.norm": "full_layer_layer_norm",
}
_DISTILBERT_LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention.norm": "sa_layer_norm",
    "feed_forward.up": "ffn.lin1",
    "feed_forward.down": "ffn.lin2",
    "feed_forward.norm": "output_layer_norm",
}

#: For each family: the prefix of the layers, their tensors, the projection of the embeddings, the head.
_LAYERS: Mapping[Family, tuple[str, Mapping[str, str]]] = {
    "bert": ("bert.encoder.layer.{}", _BERT_LAYER),
    "roberta": ("roberta.encoder.layer.{}", _BERT_LAYER),
    "electra": ("electra.encoder.layer.{}", _BERT_LAYER),
    "albert": ("albert.encoder.albert_layer_groups.{}.albert_layers.0", _ALBERT_LAYER),
    "distilbert": ("distilbert.transformer.layer.{}", _DISTILBERT_LAYER),
}
_PROJECTIONS: Mapping[Family, str] = {
    "electra": "electra.embeddings_project",
    "albert": "albert.encoder.embedding_hidden_mapping_in",
}
_HEADS: Mapping[Family, tuple[str, str]] = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "electra": ("classifier.dense", "classifier.out_proj"),
    "albert": ("albert.pooler", "classifier"),
    "distilbert": ("pre_classifier", "classifier"),
}

#: Heads of pretraining, and buffers that old versions saved: a checkpoint may have them; ranking ignores
#: them.
_UNUSED_HEADS = (
    "cls.",
    "lm_head.",
    "predictions.",
    "sop_classifier.",
    "discriminator_predictions.",
    "generator_predictions.",
    "generator_lm_head.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
)
_UNUSED_BUFFERS = (".position_ids", ".token_type_ids")


def shapes(config: EncoderConfig) -> dict[str, Shape]:
    """Every tensor of an encoder with its shape.

    >>> config = EncoderConfig("bert", 30522, hidden=384, layers=6, heads=12, feed_forward=1536)
    >>> shapes(config)["layers.5.feed_forward.up.weight"]
    (1536, 384)
    """
    if config.static:
        return {"embeddings.word": (config.vocabulary, config.hidden)}
    hidden, embedding = config.hidden, config.embedding
    found: dict[str, Shape] = {
        "embeddings.word": (config.vocabulary, embedding),
        "embeddings.position": (config.positions, embedding),
    }
    if config.segments:
        found["embeddings.segment"] = (config.segments, embedding)
    found |= _norm("embeddings.norm", embedding)
    if config.projected:
        found |= _linear("embeddings.project", hidden, embedding)
    for group in range(config.layer_groups):
        layer = f"layers.{group}"
        for part in ("query", "key", "value", "output"):
            found |= _linear(f"{layer}.attention.{part}", hidden, hidden)
        found |= _norm(f"{layer}.attention.norm", hidden)
        found |= _linear(f"{layer}.feed_forward.up", config.feed_forward, hidden)
        found |= _linear(f"{layer}.feed_forward.down", hidden, config.feed_forward)
        found |= _norm(f"{layer}.feed_forward.norm", hidden)
    found |= _linear("head.dense", hidden, hidden)
    found |= _linear("head.output", config.labels, hidden)
    return found


def hugging_face_names(config: EncoderConfig) -> dict[str, str]:
    """The name of each of our tensors in a model.safetensors.

    >>> config = EncoderConfig("distilbert", 30522, hidden=768, layers=6, heads=12, feed_forward=3072)
    >>> hugging_face_names(config)["layers.0.attention.query.bias"]
    'distilbert.transformer.layer.0.attention.q_lin.bias'
    """
    family = config.family
    if config.static:
        return {"embeddings.word": "static.embeddings.word"}
    layer, parts = _LAYERS[family]
    modules = {
        "embeddings.norm": f"{family}.embeddings.LayerNorm",
        "embeddings.project": _PROJECTIONS.get(family, ""),
        "head.dense": _HEADS[family][0],
        "head.output": _HEADS[family][1],
    }
    for group in range(config.layer_groups):
        modules |= {f"layers.{group}.{part}": f"{layer.format(group)}.{parts[part]}" for part in parts}
    tables = {
        "embeddings.word": f"{family}.embeddings.word_embeddings.weight",
        "embeddings.position": f"{family}.embeddings.position_embeddings.weight",
        "embeddings.segment": f"{family}.embeddings.token_type_embeddings.weight",
    }
    found = {}
    for name in shapes(config):
        module, _, kind = name.rpartition(".")
        found[name] = tables[name] if name in tables else f"{modules[module]}.{kind}"
    return found


def canonical_name(name: str, family: Family, *, bare: bool) -> str:
    """The current name of a tensor that has another name in old versions, or in an encoder saved without a
    head.

    >>> canonical_name("embeddings.LayerNorm.gamma", "bert", bare=True)
    'bert.embeddings.LayerNorm.weight'
    """
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return f"{family}.{name}" if bare else name


def is_unused(name: str, family: Family) -> bool:
    """Whether a checkpoint may contain a tensor that is not part of a ranker.

    >>> is_unused("cls.predictions.bias", "bert"), is_unused("roberta.pooler.dense.bias", "roberta")
    (True, True)
    >>> is_unused("bert.encoder.layer.24.output.dense.bias", "bert")
    False
    """
    return name.startswith((*_UNUSED_HEADS, f"{family}.pooler.")) or name.endswith(_UNUSED_BUFFERS)


def _linear(name: str, out: int, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (out, width), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
