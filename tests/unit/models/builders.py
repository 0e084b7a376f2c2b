"""Small models of every architecture, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tamis.base.arrays import Array
from tamis.models.architecture import Architecture, architecture
from tamis.models.architectures.documents import DocumentArchitecture
from tamis.models.checkpoint import Checkpoint
from tamis.models.config import EncoderConfig, static_config
from tamis.models.documents import Read, read
from tamis.models.legacy import document
from tamis.models.settings import build
from tamis.models.templates import Special, Tokenised

FAMILIES = ["bert", "roberta", "electra", "albert", "distilbert"]
#: Every model of long documents by its full name.
DOCUMENTS = [
    *("maxp", "birch", "vanilla", "cedr-knrm", "cedr-pacrr", "cedr-drmm"),
    *("parade-avg", "parade-sum", "parade-max", "parade-attn", "parade-cnn", "parade-transformer"),
    *("pcgm", "knrm", "pacrr", "drmm"),
]
#: On a table of words.
STATIC = ("knrm", "pacrr", "drmm")
#: Every built-in architecture with settings that are not its defaults.
ALL: list[tuple[str, dict[str, Any]]] = [
    ("mono", {"form": "markers"}),
    ("duo", {}),
    ("listwise", {"n": 3}),
    ("cascade", {"exits": [1, 2], "alpha": 0.5}),
    ("maxp", {"window": 30, "stride": 20, "keep": 0.5}),
    ("birch", {"tokens": 60}),
    *(("cedr", {"kind": kind, "cls": False}) for kind in ("knrm", "pacrr", "drmm")),
    ("cedr", {"kind": "vanilla", "frozen": True}),
    *(("parade", {"kind": kind, "passages": 4}) for kind in ("avg", "sum", "max", "attn", "cnn")),
    ("parade", {"kind": "transformer", "passages": 4}),
    ("pcgm", {"gains": 3}),
    *(("interaction", {"kind": kind, "query": 6}) for kind in STATIC),
]


def of_name(name: str, **settings: Any) -> Architecture:
    """An architecture with settings as a file has them."""
    kind = architecture(name)
    return kind(build(kind.Settings, settings, "settings", name))


def document_model(kind: str, **settings: Any) -> DocumentArchitecture:
    """A model of long documents by its full name."""
    record = document(kind, settings)
    made = of_name(record.architecture, **record.settings)
    assert isinstance(made, DocumentArchitecture)
    return made


def config_of(kind: str, config: EncoderConfig) -> EncoderConfig:
    """The encoder of a model of this kind, or its table of words."""
    return static_config(config.vocabulary, config.hidden) if kind in STATIC else config


def read_documents(
    kind: Architecture,
    texts: Sequence[Sequence[int]],
    special: Special,
    config: EncoderConfig,
    query: Sequence[int] = (7,),
    seed: int = 0,
) -> Read:
    """Documents with one query, as a model of this kind reads them."""
    query_of = np.zeros(len(texts), np.int64)
    asked, held = Tokenised.of([list(query)]), Tokenised.of([list(text) for text in texts])
    return read(asked, query_of, held, special, kind.settings, config, seed=seed)


def larger(checkpoint: Checkpoint, times: float) -> Checkpoint:
    """A model whose head says the more, so that scores differ clearly."""
    head: dict[str, Array] = {name: tensor * np.float32(times) for name, tensor in checkpoint.head.items()}
    return replace(checkpoint, head=head)


def same_tensors(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two models have the same weights, to the last bit."""
    return all(
        mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in ((one.tensors, other.tensors), (one.head, other.head))
    )
