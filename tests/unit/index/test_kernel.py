"""The compiled kernel where it once went wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, QueryLikelihood, Retriever

pytest.importorskip("numba")


def test_terms_that_add_nothing_are_not_counted_as_candidates(tmp_path: Path) -> None:
    """Query likelihood clips what a common word adds to a long document to zero. With several such words in
    all documents of a window, counting these for each word once ran past the kernel's list of candidates."""
    common = "alpha beta gamma"
    documents = [
        Document(f"d{n:06d}", f"{common} " + "filler " * (30 if n % 5000 else 1)) for n in range(70_000)
    ]
    index = Index.build(documents, tmp_path / "idx")
    clipped = index.explain(index.weights(common), QueryLikelihood(), "d000001")
    assert [line.contribution for line in clipped] == [0, 0, 0]
    for k in (20, 1000):
        fast, slow = (
            Retriever(index, QueryLikelihood(), backend=backend) % k for backend in ("numba", "numpy")
        )
        for query in (common, f"{common} filler"):
            found, expected = fast(query), slow(query)
            assert found.ids == expected.ids
            assert np.array_equal(found.scores, expected.scores)
