"""The compiled tokenizer gives what `wordbreak.split` gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from tamis.base.documents import Document
from tamis.index import build, invert
from tamis.index.ascii_tokens import AsciiTokens
from tamis.index.build import SegmentWriter
from tamis.index.crew import Crew
from tamis.index.parcels import Builder
from tamis.index.segment import Segment
from tamis.text.analyze import get_analyzer
from tamis.text.wordbreak import split

# few characters, so that separators meet letters, digits and each other
texts = st.text(alphabet="aZ9_.':,; -\n\x00", max_size=60) | st.text(
    alphabet=st.characters(max_codepoint=127)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, min_size=1, max_size=5))
def test_tokens_are_those_of_split(batch: list[str]) -> None:
    table = AsciiTokens(capacity=2)  # so small that it has to grow
    raw = "\n".join(batch).encode()
    offsets = np.cumsum([len(text) + 1 for text in batch])
    offsets[-1] -= 1
    found = table.number(raw, offsets)
    assert found is not None
    tokens, token_ends, long_tokens = found
    words = {place: raw[start:stop].decode() for place, start, stop in long_tokens.tolist()}
    known = table.tokens(0, table.known)
    named = [
        words[place] if place in words else known[number] for place, number in enumerate(tokens.tolist())
    ]
    starts = [0, *token_ends.tolist()[:-1]]
    assert [named[a:b] for a, b in zip(starts, token_ends.tolist(), strict=True)] == [*map(split, batch)]


def test_a_token_too_long_is_left_to_the_plain_way() -> None:
    assert AsciiTokens().number(b"short " + b"x" * 256, np.array([262])) is None


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(texts | st.text(max_size=30) | st.just("x" * 300), min_size=1, max_size=12),
    waiting=st.integers(1, 200),
    positions=st.booleans(),
)
def test_segments_hold_the_same(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], waiting: int, positions: bool
) -> None:
    """Plain from the first document to the last, and compiled from the first."""
    folder = tmp_path_factory.mktemp("segments")
    held = []
    for name, compile_after in (("plain", 10**9), ("compiled", 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(invert, "_WAITING", waiting)
            patch.setattr(invert, "COMPILE_AFTER", compile_after)
            patch.setattr(build, "PARCEL", 200)
            held.append(_held(folder / name, documents, positions))
    assert held[0] == held[1]


def _held(folder: Path, texts: list[str], positions: bool) -> tuple[object, ...]:
    """The documents' lengths, and each term's postings: terms may be numbered in another order."""
    writer = SegmentWriter(folder, Crew(Builder(get_analyzer("english"), positions=positions), 1))
    for number, text in enumerate(texts):
        writer.add(Document(f"d{number:02d}", text.encode("utf-8", "replace").decode()))
    segment = Segment(folder, writer.close())
    lists = {}
    for term in segment.terms():
        entry = segment.term(term)
        assert entry is not None
        documents, tfs = segment.decode(entry)
        places = segment.positions(entry).tolist() if positions else None
        lists[term] = (documents.tolist(), tfs.tolist(), entry.cf, places)
    return segment.lengths.tolist(), lists
