"""A cross-encoder with random weights, as a Hugging Face folder that every engine loads: how long a model
takes does not depend on what its weights are, so no download is needed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT: dict[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
#: layers, hidden, heads
SHAPES = {
    "nano": (2, 128, 2),
    "minilm-l6": (6, 384, 12),
    "minilm-l12": (12, 384, 12),
    "bert-base": (12, 768, 12),
    "bert-large": (24, 1024, 16),
}


def write_model(
    folder: Path, texts: Iterable[str], shape: str | tuple[int, int, int] = "minilm-l6", seed: int = 0
) -> None:
    """Weights drawn from `seed`, and a WordPiece vocabulary learnt from `texts`; `shape` is one of `SHAPES`,
    or layers, hidden and heads."""
    from safetensors.numpy import save_file

    from tamis.models.config import parse_config
    from tamis.models.names import hugging_face_names, shapes

    layers, hidden, heads = SHAPES[shape] if isinstance(shape, str) else shape
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    raw = _BERT | sizes | {"intermediate_size": 4 * hidden}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", raw)
    _write_tokenizer(folder, texts)
    config = parse_config(raw, folder / "config.json")
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, size in shapes(config).items():
        values = generator.standard_normal(size, np.float32) * np.float32(_deviation(name, size))
        if name.endswith("norm.weight"):
            values += 1
        tensors[hugging_face_names(config)[name]] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _deviation(name: str, size: tuple[int, ...]) -> float:
    """As large as in trained models, so that attention attends to something and scores differ."""
    return 1.5 / size[1] ** 0.5 if len(size) == 2 and not name.startswith("embeddings") else 0.05


def _write_tokenizer(folder: Path, texts: Iterable[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_BERT["vocab_size"], special_tokens=list(_SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", _SPECIAL.index("[SEP]")), ("[CLS]", _SPECIAL.index("[CLS]"))
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{token.strip('[]').lower()}_token": token for token in _SPECIAL}
    settings = {"tokenizer_class": "BertTokenizerFast", "model_max_length": 512, "do_lower_case": True}
    _write(folder / "tokenizer_config.json", settings | names)
    _write(folder / "special_tokens_map.json", names)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
