"""Relevance judgments: TREC's four columns and BEIR's three."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tamis.base.errors import InputError, quoted
from tamis.formats import irds
from tamis.formats.lines import (
    LONGEST_COLUMNS,
    SkipReport,
    check_column,
    located,
    read_lines,
    skip_or_raise,
    split_columns,
)
from tamis.storage.files import PathLike, atomic_write

Qrels = dict[str, dict[str, int]]
"""Grade of each judged document: `qrels[qid][docid]`."""

QrelsFormat = Literal["trec", "beir"]

_BEIR_HEADER = ["query-id", "corpus-id", "score"]
_OF_A_RUN = 6  # columns
_COLUMNS: dict[QrelsFormat, int] = {"trec": 4, "beir": 3}
_USUAL = ("0", "Q0")
_ITERATION = re.compile(r"Q?[0-9]+(\.[0-9]+)?")  # almost always 0; TREC-COVID's rounds are 0.5, 1, 1.5, ...


def read_qrels(path: PathLike, *, skipped: SkipReport | None = None) -> Qrels:
    """Read judgments from TREC's `qid iteration docid grade`, or BEIR's `qid docid grade`.

    The number of columns of the first line, or BEIR's header, decides which; tabs and spaces can be mixed. An
    id can contain spaces if tabs separate three columns, unless the second word is 0, which is then an
    iteration. A judgment can be repeated, but not with another grade. `irds:NAME` reads the judgments of a
    dataset of ir_datasets.

    >>> file = getfixture("tmp_path") / "qrels.txt"
    >>> _ = file.write_text("q1 0 d1 2\\nq1 0 d2 0\\n")
    >>> read_qrels(file)
    {'q1': {'d1': 2, 'd2': 0}}
    """
    if (name := irds.dataset_name(path)) is not None:
        return irds.judgments(name, skipped)
    qrels: Qrels = {}
    format: QrelsFormat | None = None
    for number, line in read_lines(path, skipped=skipped, limit=LONGEST_COLUMNS):
        if format is None:
            format = _format(line)
            if split_columns(line) == _BEIR_HEADER:
                continue
        try:
            qid, docid, grade = _parse(line, format or "trec")
            judged = qrels.setdefault(qid, {})
            if judged.setdefault(docid, grade) != grade:
                problem = f"{quoted(docid)} is judged {grade} for {quoted(qid)}, and {judged[docid]} above"
                raise InputError(problem, remedy="keep one of them")
        except InputError as error:
            skip_or_raise(located(error, path, number), skipped)
    return qrels


def _format(line: str) -> QrelsFormat | None:
    """The format of a file with this first valid line; None if the line is invalid. With mixed white space a
    TREC line can be `q1<tab>0 d1<tab>1`: read as a line of BEIR, it would judge a document `0 d1` that is in
    no run, and every measure would be 0.
    """
    columns, tabbed = split_columns(line), _tabbed(line)
    if len(columns) == 4 and (not tabbed or columns[1] in _USUAL):
        return "trec"
    # separated by spaces, `q1 0 d1` is probably a TREC line without its grade
    return "beir" if tabbed or (len(columns) == 3 and not _ITERATION.fullmatch(columns[1])) else None


def _tabbed(line: str) -> list[str]:
    """The three columns separated by tabs, which may contain spaces; empty if there are not three."""
    cells = [cell.strip(" \r\f\v") for cell in line.split("\t")]
    return cells if len(cells) == _COLUMNS["beir"] and all(cells) else []


def _parse(line: str, format: QrelsFormat) -> tuple[str, str, int]:
    cells = (format == "beir" and _tabbed(line)) or split_columns(line)
    if len(cells) != _COLUMNS[format]:
        problem = f"{len(cells)} columns where these qrels have {_COLUMNS[format]}"
        iteration = "0, " if format == "trec" else ""
        is_run = "; a run has 6: give the qrels before it" if len(cells) == _OF_A_RUN else ""
        raise InputError(problem, remedy=f"write qid, {iteration}docid and grade{is_run}")
    try:
        grade = int(cells[-1])
    except ValueError:
        raise InputError(f"the grade {quoted(cells[-1])} is not a whole number") from None
    return cells[0], cells[-2], grade


def write_qrels(
    path: PathLike, qrels: Mapping[str, Mapping[str, int]], *, format: QrelsFormat = "trec"
) -> None:
    """Write judgments atomically: TREC's four columns, or BEIR's three with their header.

    >>> file = getfixture("tmp_path") / "qrels.txt"
    >>> write_qrels(file, {"q1": {"d1": 2}})
    >>> file.read_text()
    'q1 0 d1 2\\n'
    """
    separator, iteration = ("\t", []) if format == "beir" else (" ", ["0"])
    with atomic_write(path, "w") as stream:
        if format == "beir":
            stream.write("\t".join(_BEIR_HEADER) + "\n")
        for qid, judged in qrels.items():
            for docid, grade in judged.items():
                check_column(qid, "query id")
                check_column(docid, "document id")
                stream.write(separator.join([qid, *iteration, docid, str(grade)]) + "\n")
