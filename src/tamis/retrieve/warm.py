"""Compile the search kernel once per machine, and load it once per process, before any query is timed."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def warm() -> None:
    """Run the kernel on a one-document index, so that it is compiled (a few seconds, then cached on disk) and
    loaded."""
    import tempfile
    from pathlib import Path

    from tamis.documents import Document
    from tamis.retrieve.score import BM25
    from tamis.retrieve.search import collection_of, search
    from tamis.retrieve.segment import Segment, SegmentWriter
    from tamis.text.analyze import get_analyzer

    with tempfile.TemporaryDirectory() as folder:
        writer = SegmentWriter(Path(folder) / "warm", get_analyzer("plain"), positions=False)
        writer.add(Document("1", "warm"))
        segment = Segment(Path(folder) / "warm", writer.close())
        for model in (BM25(), BM25(variant="atire")):  # rounded and exact lengths are two specialisations
            search([segment], model, {"warm": 1.0}, 1, collection_of([segment]), backend="numba")
        search(
            [segment],
            BM25(),
            {"warm": 1.0},
            1,
            collection_of([segment]),
            allowed=[np.ones(1, bool)],
            backend="numba",
        )
