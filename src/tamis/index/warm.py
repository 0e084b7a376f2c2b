"""Compile the search kernel once per machine, and load it once per process, before any query is timed."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tamis.base.documents import Document
from tamis.index.build import SegmentWriter
from tamis.index.crew import Crew
from tamis.index.parcels import Builder
from tamis.index.score import BM25, Lengths
from tamis.index.search import collection_of, search
from tamis.index.segment import Segment
from tamis.text.analyze import get_analyzer


@cache
def warm(lengths: Lengths = "lucene") -> None:
    """Run the kernel on a one-document index, so that it is compiled (some ten seconds, then cached on disk)
    and loaded. Models with rounded lengths and with exact ones run two forms of it."""
    model = BM25() if lengths == "lucene" else BM25(variant="atire")
    with tempfile.TemporaryDirectory() as folder:
        writer = SegmentWriter(
            Path(folder) / "warm", Crew(Builder(get_analyzer("plain"), positions=False), 1)
        )
        writer.add(Document("1", "warm"))
        segment = Segment(Path(folder) / "warm", writer.close())
        search([segment], model, {"warm": 1.0}, 1, collection_of([segment]), backend="numba")
        segment.store.ids([0] * 100)
        segment.store.numbers(["1"] * 100)
