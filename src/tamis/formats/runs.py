"""Reads and writes runs: TREC's six columns and MS MARCO's three; written scores decrease strictly."""

from __future__ import annotations

import operator
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis.base.errors import InputError, quoted
from tamis.formats.lines import LONGEST_COLUMNS, SkipReport, check_column, numbered_lines, skip_or_raise
from tamis.formats.run_lines import Block, parse_blocks, parse_rows
from tamis.formats.ties import strictly_decreasing
from tamis.storage.files import STDIN, PathLike, atomic_write, open_bytes

RunRow = tuple[str, Sequence[str], Sequence[float] | npt.NDArray[np.floating]]
"""A query's id, and its documents' ids and scores in rank order."""


class RunLine(NamedTuple):
    """One line of a run."""

    qid: str
    docid: str
    rank: int
    score: float
    tag: str


def read_run_lines(path: PathLike, *, skipped: SkipReport | None = None) -> Iterator[RunLine]:
    """The lines of a run in file order, in constant memory.

    Six columns are TREC's `qid Q0 docid rank score tag`; three are MS MARCO's `qid docid rank`, with 1/rank
    as the score. The first line decides which. Blank lines are ignored.

    >>> file = getfixture("tmp_path") / "bm25.run"
    >>> _ = file.write_text("q1 Q0 d7 1 12.5 bm25\\n")
    >>> list(read_run_lines(file))
    [RunLine(qid='q1', docid='d7', rank=1, score=12.5, tag='bm25')]
    """
    # The same as RunLine(*row), without a Python call per line, because there may be ten million lines.
    return map(partial(tuple.__new__, RunLine), parse_rows(path, skipped))


def read_run(
    path: PathLike, *, skipped: SkipReport | None = None
) -> dict[str, tuple[list[str], npt.NDArray[np.float64]]]:
    """Each query's documents and scores in rank order, queries in the order of the file.

    Documents are sorted by decreasing score, then by the rank column, then by the order of the file. A
    document that occurs twice for a query is an error; if bad lines are skipped, its first line counts.

    >>> file = getfixture("tmp_path") / "bm25.run"
    >>> _ = file.write_text("q1 Q0 d7 2 10.5 bm25\\nq1 Q0 d3 1 12.5 bm25\\n")
    >>> read_run(file)
    {'q1': (['d3', 'd7'], array([12.5, 10.5]))}
    """
    results: dict[bytes, _Results] = {}
    for block in parse_blocks(path, skipped):
        qids = block.qids
        changes = [0, *compress(range(1, len(qids)), map(operator.ne, qids[1:], qids)), len(qids)]
        for start, end in pairwise(changes):
            if start < end:
                results.setdefault(qids[start], _Results()).extend(block, slice(start, end))
    return {qid.decode(): found.in_order(qid.decode(), path, skipped) for qid, found in results.items()}


def write_run(path: PathLike, rows: Iterable[RunRow], tag: str) -> None:
    """Write a TREC run atomically; ranks start at 1, and scores are made strictly decreasing.

    Scores are written as the shortest decimal that reads back as the same float64 (or float32, if they are a
    float32 array). Ids and the tag must not contain white space. Queries without documents have no lines.

    >>> file = getfixture("tmp_path") / "bm25.run"
    >>> write_run(file, [("q1", ["d3", "d7"], [12.5, 12.5])], tag="bm25")
    >>> print(file.read_text(), end="")
    q1 Q0 d3 1 12.5 bm25
    q1 Q0 d7 2 12.499999 bm25
    """
    check_column(tag, "tag")
    written: set[str] = set()
    with atomic_write(path, "w") as stream:
        for qid, docids, scores in rows:
            check_column(qid, "query id")
            if qid in written:
                raise InputError(
                    f"the query id {quoted(qid)} comes twice", remedy="give each query one ranking"
                )
            written.add(qid)
            _check_docids(qid, docids, len(scores))
            lines = [
                f"{qid} Q0 {docid} {rank} {score} {tag}\n"
                for rank, (docid, score) in enumerate(zip(docids, _decimals(qid, scores), strict=True), 1)
            ]
            stream.write("".join(lines))


def _check_docids(qid: str, docids: Sequence[str], scores: int) -> None:
    if len(docids) != scores:
        raise InputError(f"{len(docids)} documents and {scores} scores for {quoted(qid)}")
    if " ".join(docids).split() != list(docids):
        for docid in docids:
            check_column(docid, "document id")
    if len(set(docids)) < len(docids):
        twice = next(docid for i, docid in enumerate(docids) if docid in docids[:i])
        raise InputError(
            f"the document {quoted(twice)} comes twice for {quoted(qid)}", remedy="keep one of them"
        )


def _decimals(qid: str, scores: Sequence[float] | npt.NDArray[np.floating]) -> list[str]:
    try:
        distinct = strictly_decreasing(scores)
    except InputError as error:
        raise InputError(f"query {quoted(qid)}: {error.problem}", remedy=error.remedy) from None
    if isinstance(scores, np.ndarray) and scores.dtype == np.float32:
        # 12.3456 instead of 12.345600128173828; converted to float, so that 1e6 is always written in the same
        # way.
        return [repr(float(str(score))) for score in distinct.astype(np.float32)]
    return list(map(repr, distinct.tolist()))


@dataclass(slots=True)
class _Results:
    """One query's lines, in arrays, because a list of numbers is four times as large."""

    docids: list[str] = field(default_factory=list)
    ranks: array[int] = field(default_factory=lambda: array("q"))
    scores: array[float] = field(default_factory=lambda: array("d"))

    def extend(self, block: Block, rows: slice) -> None:
        self.docids += block.docids[rows]
        self.ranks += block.ranks[rows]
        self.scores += block.scores[rows]

    def in_order(
        self, qid: str, path: PathLike, skipped: SkipReport | None
    ) -> tuple[list[str], npt.NDArray[np.float64]]:
        docids, ranks, scores = self.docids, np.array(self.ranks), np.array(self.scores)
        if len(set(docids)) < len(docids):
            kept = self._first_occurrences(qid, path, skipped)
            docids, ranks, scores = [docids[i] for i in kept], ranks[kept], scores[kept]
        if (scores[1:] < scores[:-1]).all():
            return docids, scores
        order = np.lexsort((ranks, -scores))
        return [docids[i] for i in order.tolist()], scores[order]

    def _first_occurrences(self, qid: str, path: PathLike, skipped: SkipReport | None) -> list[int]:
        first: dict[str, int] = {}
        for i, docid in enumerate(self.docids):
            if first.setdefault(docid, i) != i:
                problem = f"the document {quoted(docid)} comes twice for {quoted(qid)}"
                line = _second_line(path, qid, docid) if skipped is None else None
                error = InputError(problem, remedy="keep one of them", path=os.fspath(path), line=line)
                skip_or_raise(error, skipped)
        return list(first.values())


def _second_line(path: PathLike, qid: str, docid: str) -> int | None:
    """The line where a document occurs for the second time. It reads the file again, which avoids storing ten
    million line numbers."""
    if os.fspath(path) == STDIN:
        return None
    seen = 0
    with open_bytes(path) as stream:
        for number, raw in numbered_lines(stream, path, SkipReport(), LONGEST_COLUMNS):
            fields = raw.split()
            if fields[:1] == [qid.encode()] and docid.encode() == fields[2 if len(fields) == 6 else 1]:
                seen += 1
                if seen == 2:
                    return number
    return None
