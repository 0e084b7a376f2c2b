"""A file that is cut short while an index is open: an error, not a process ended by a signal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.base.errors import CorruptError
from tamis.index import tokens
from tamis.index.dependence import SDM
from tamis.index.score import BM25
from tamis.infer.tokens import TokenStore, build_tokens
from tamis.models.tokenizer import Tokenizer
from tamis.storage import columns

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
SMALL_CHUNK = 16  # bytes: what is larger is mapped


@pytest.fixture(autouse=True)
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small columns are mapped too."""
    for module in (columns, tokens):
        monkeypatch.setattr(module, "CHUNK", SMALL_CHUNK)


def built(folder: Path) -> Index:
    words = ["sieve", "flour", "cake", "onion", "soup"]
    documents = [
        Document(f"d{(7 * n) % 50}", " ".join(words[(n * k) % 5] for k in range(9))) for n in range(50)
    ]
    return Index.build(documents, folder, positions=True)


def outcome(act: Callable[[], object]) -> int:
    """What becomes of a child that does this: 0 for an answer, 3 for `CorruptError`, less than 0 for the
    signal that ends it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                act()
                status = 0
            except CorruptError:
                status = 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


READS: dict[str, Callable[[Index], object]] = {
    "numpy": lambda index: index.search({"siev": 1.0, "flour": 1.0}, BM25(), 10, backend="numpy"),
    "explain": lambda index: index.explain({"siev": 1.0}, BM25(), "d1"),
    "sdm": lambda index: SDM(index)("sieve flour"),
    "df": lambda index: index.df("onion"),
    "document": lambda index: index.document("d49"),
    "all": lambda index: [*index],
    "ids": lambda index: [*index.ids()],
    "missing": lambda index: index.missing(["d1", "x"]),
}


@needs_fork
@pytest.mark.parametrize("read", READS)
def test_a_column_cut_short(tmp_path: Path, read: str) -> None:
    index = built(tmp_path / "idx")
    assert outcome(lambda: READS[read](index)) == 0
    seen = set()
    for path in sorted((tmp_path / "idx" / "segments").glob("*/*")):
        whole = path.read_bytes()
        os.truncate(path, 0)
        seen.add(outcome(lambda: READS[read](index)))
        path.write_bytes(whole)
    assert 3 in seen and seen <= {0, 3}


@needs_fork
def test_tokens_cut_short(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path / "model"))
    index = built(tmp_path / "idx")
    build_tokens(index, tokenizer)
    store = TokenStore(index, tokenizer)
    store.texts(["d1"])
    for name in ("ids", "ends", "lengths"):
        (path,) = (tmp_path / "idx" / "tokens").glob(f"*/*/{name}")
        whole = path.read_bytes()
        os.truncate(path, 0)
        assert outcome(lambda: store.texts(["d1", "d2"])) == 3
        path.write_bytes(whole)
