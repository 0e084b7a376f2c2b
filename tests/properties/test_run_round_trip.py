"""A run that is written and read is the same run."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.formats import read_run, read_run_lines, strictly_decreasing, write_run

# A file that starts with U+FEFF starts with a byte order mark, which is no part of the first id.
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda text: text.split() == [text] and not text.startswith("\ufeff")
)
finite = st.one_of(
    st.floats(-1e30, 1e30),
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 12.3456]),  # so that ties are common
)
scores = st.lists(finite, max_size=30).map(lambda values: sorted(values, reverse=True))


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, list[str], list[float] | np.ndarray]]:
    rows = []
    for qid in draw(st.lists(words, unique=True, max_size=4)):
        values = draw(scores)
        docids = draw(st.lists(words, unique=True, min_size=len(values), max_size=len(values)))
        single = draw(st.booleans())
        rows.append((qid, docids, np.array(values, dtype=np.float32) if single else values))
    return rows


@settings(deadline=None)  # each example waits for the disk
@given(runs(), words, st.sampled_from(["run", "run.gz", "run.zst"]))
def test_writing_then_reading_gives_the_same_order(rows, tag, name) -> None:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as folder:
        file, again = Path(folder, name), Path(folder, f"again-{name}")
        write_run(file, rows, tag)
        run = read_run(file)
        assert [(qid, docids) for qid, (docids, _) in run.items()] == [
            (qid, docids) for qid, docids, _ in rows if docids
        ]
        for qid, _, given_scores in rows:
            if qid in run:
                read = run[qid][1].astype(np.float32)
                assert (read[1:] < read[:-1]).all()
                expected = strictly_decreasing(given_scores)
                assert read.tolist() == expected.astype(np.float32).tolist()
                if isinstance(given_scores, list):
                    assert run[qid][1].tolist() == expected.tolist()
        assert [(row.qid, row.docid, row.rank) for row in read_run_lines(file)] == [
            (qid, docid, rank) for qid, docids, _ in rows for rank, docid in enumerate(docids, 1)
        ]
        write_run(again, [(qid, docids, values) for qid, (docids, values) in run.items()], tag)
        assert again.read_bytes() == file.read_bytes()


@given(scores)
def test_ties_are_broken_by_the_smallest_step_and_nothing_else_moves(values: list[float]) -> None:
    result = strictly_decreasing(values)
    single, given_single = result.astype(np.float32), np.array(values, dtype=np.float32)
    assert (single[1:] < single[:-1]).all()
    assert (result[1:] < result[:-1]).all()
    for i, value in enumerate(values):
        if i == 0 or given_single[i] < single[i - 1]:
            assert result[i] == value
        else:
            assert single[i] == np.nextafter(single[i - 1], np.float32(-np.inf))
    assert strictly_decreasing(result).tolist() == result.tolist()
