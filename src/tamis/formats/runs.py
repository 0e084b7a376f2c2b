"""Runs: TREC's six columns and MS MARCO's three, read fast and written with strictly decreasing scores."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis.errors import InputError
from tamis.files import BOM, STDIN, PathLike, atomic_write, not_utf8, open_bytes
from tamis.formats.lines import SkipReport, check_column, skip_or_raise
from tamis.formats.ties import strictly_decreasing

RunRow = tuple[str, Sequence[str], Sequence[float] | npt.NDArray[np.floating]]
"""A query's id, and its documents' ids and scores in rank order."""

_LARGEST_RANK = 2**63 - 1  # what an array holds
_Numbered = Iterator[tuple[int, bytes]]


class RunLine(NamedTuple):
    """One line of a run."""

    qid: str
    docid: str
    rank: int
    score: float
    tag: str


def read_run_lines(path: PathLike, *, skipped: SkipReport | None = None) -> Iterator[RunLine]:
    """The lines of a run in file order, in constant memory.

    Six columns are TREC's `qid Q0 docid rank score tag`; three are MS MARCO's `qid docid rank`, whose scores
    are taken to be 1/rank. The first line tells which. Blank lines do not count.

    >>> file = getfixture("tmp_path") / "bm25.run"
    >>> _ = file.write_text("q1 Q0 d7 1 12.5 bm25\\n")
    >>> list(read_run_lines(file))
    [RunLine(qid='q1', docid='d7', rank=1, score=12.5, tag='bm25')]
    """
    # What RunLine(*row) does, without a Python call for each of what may be ten million lines.
    return map(partial(tuple.__new__, RunLine), _rows(path, skipped))


def read_run(
    path: PathLike, *, skipped: SkipReport | None = None
) -> dict[str, tuple[list[str], npt.NDArray[np.float64]]]:
    """Each query's documents and scores in rank order, queries in the order of the file.

    The order is that of decreasing score; equal scores are ordered by the rank column, then as in the file.
    A document that comes twice for a query is an error; where bad lines are skipped, its first line counts.

    >>> file = getfixture("tmp_path") / "bm25.run"
    >>> _ = file.write_text("q1 Q0 d7 2 10.5 bm25\\nq1 Q0 d3 1 12.5 bm25\\n")
    >>> read_run(file)
    {'q1': (['d3', 'd7'], array([12.5, 10.5]))}
    """
    results: dict[str, _Results] = {}
    current = None
    for qid, docid, rank, score, _ in _rows(path, skipped):
        if qid != current:
            current, found = qid, results.setdefault(qid, _Results())
            add_docid, add_rank, add_score = found.docids.append, found.ranks.append, found.scores.append
        add_docid(docid)
        add_rank(rank)
        add_score(score)
    return {qid: found.in_order(qid, path, skipped) for qid, found in results.items()}


def write_run_lines(path: PathLike, rows: Iterable[RunRow], tag: str) -> None:
    """Write a TREC run, all or nothing; ranks count from 1 and scores are made strictly decreasing.

    Scores are written as the shortest decimal that reads back as the same float64 (or float32, where they
    come as a float32 array). Ids and the tag must not hold white space. Queries without documents leave no
    line.

    >>> file = getfixture("tmp_path") / "bm25.run"
    >>> write_run_lines(file, [("q1", ["d3", "d7"], [12.5, 12.5])], tag="bm25")
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
                raise InputError(f"the query id {qid!r} comes twice", remedy="give each query one ranking")
            written.add(qid)
            _check_docids(qid, docids, len(scores))
            lines = [
                f"{qid} Q0 {docid} {rank} {score} {tag}\n"
                for rank, (docid, score) in enumerate(zip(docids, _decimals(scores), strict=True), 1)
            ]
            stream.write("".join(lines))


def _check_docids(qid: str, docids: Sequence[str], scores: int) -> None:
    if len(docids) != scores:
        raise InputError(f"{len(docids)} documents and {scores} scores for {qid!r}")
    if " ".join(docids).split() != list(docids):
        for docid in docids:
            check_column(docid, "document id")
    if len(set(docids)) < len(docids):
        twice = next(docid for i, docid in enumerate(docids) if docid in docids[:i])
        raise InputError(f"the document {twice!r} comes twice for {qid!r}", remedy="keep one of them")


def _decimals(scores: Sequence[float] | npt.NDArray[np.floating]) -> list[str]:
    distinct = strictly_decreasing(scores)
    if isinstance(scores, np.ndarray) and scores.dtype == np.float32:
        return list(map(str, distinct.astype(np.float32)))
    return list(map(repr, distinct.tolist()))


@dataclass(slots=True)
class _Results:
    """One query's lines, in arrays because a list of numbers is four times as large."""

    docids: list[str] = field(default_factory=list)
    ranks: array[int] = field(default_factory=lambda: array("q"))
    scores: array[float] = field(default_factory=lambda: array("d"))

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
                problem = f"the document {docid!r} comes twice for {qid!r}"
                line = _second_line(path, qid, docid) if skipped is None else None
                error = InputError(problem, remedy="keep one of them", path=os.fspath(path), line=line)
                skip_or_raise(error, skipped)
        return list(first.values())


def _second_line(path: PathLike, qid: str, docid: str) -> int | None:
    """Where a document comes for the second time: read again, rather than keep ten million line numbers."""
    if os.fspath(path) == STDIN:
        return None
    seen = 0
    with open_bytes(path) as stream:
        for number, raw in _numbered_lines(stream):
            fields = raw.split()
            if fields[:1] == [qid.encode()] and docid.encode() == fields[2 if len(fields) == 6 else 1]:
                seen += 1
                if seen == 2:
                    return number
    return None


def _rows(path: PathLike, skipped: SkipReport | None) -> Iterator[tuple[str, str, int, float, str]]:
    with open_bytes(path) as stream:
        lines = _numbered_lines(stream)
        for number, raw in lines:
            if fields := raw.split():
                rows = _msmarco_rows if len(fields) == 3 else _trec_rows
                yield from rows(chain([(number, raw)], lines), path, skipped)


def _numbered_lines(stream: Iterable[bytes]) -> _Numbered:
    lines = iter(stream)
    return enumerate(chain([next(lines, b"").removeprefix(BOM)], lines), 1)


def _trec_rows(
    lines: Iterable[tuple[int, bytes]], path: PathLike, skipped: SkipReport | None
) -> Iterator[tuple[str, str, int, float, str]]:
    # bytes.split() cuts at ASCII white space only, as trec_eval does; str.split() also at no-break spaces.
    # Query and tag are mostly those of the line above: they are decoded once and share their strings.
    qid = tag = ""
    raw_qid = raw_tag = b""
    for number, raw in lines:
        try:
            new_qid, _, docid, rank, score, new_tag = raw.split()
            if new_qid != raw_qid:
                raw_qid, qid = new_qid, new_qid.decode()
            if new_tag != raw_tag:
                raw_tag, tag = new_tag, new_tag.decode()
            row = qid, docid.decode(), int(rank), float(score), tag
            if not math.isfinite(row[3]) or abs(row[2]) > _LARGEST_RANK:
                raise ValueError
        except ValueError:
            if raw.strip():
                skip_or_raise(_complaint(raw, 6, path, number), skipped)
        else:
            yield row


def _msmarco_rows(
    lines: Iterable[tuple[int, bytes]], path: PathLike, skipped: SkipReport | None
) -> Iterator[tuple[str, str, int, float, str]]:
    for number, raw in lines:
        try:
            qid, docid, raw_rank = raw.split()
            rank = int(raw_rank)
            if not 1 <= rank <= _LARGEST_RANK:
                raise ValueError
            row = qid.decode(), docid.decode(), rank, 1 / rank, "msmarco"
        except ValueError:
            if raw.strip():
                skip_or_raise(_complaint(raw, 3, path, number), skipped)
        else:
            yield row


def _complaint(raw: bytes, width: int, path: PathLike, number: int) -> InputError:
    """What is wrong with a line that did not parse."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(error, path=path, line=number)
    fields = [value.decode() for value in raw.split()]
    if len(fields) != width:
        problem = f"{len(fields)} columns where a run has {width}"
    elif width == 3:
        problem = f"the rank {fields[2]!r} is not a whole number from 1"
    elif _is_number(fields[4]):
        problem = f"the rank {fields[3]!r} is not a whole number"
    else:
        problem = f"the score {fields[4]!r} is not a finite number"
    remedy = "write qid docid rank" if width == 3 else "write qid Q0 docid rank score tag"
    return InputError(problem, remedy=remedy, path=os.fspath(path), line=number)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
