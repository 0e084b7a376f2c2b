"""Relevance judgments: TREC's four columns and BEIR's three."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tamis.errors import InputError
from tamis.files import PathLike, atomic_write
from tamis.formats import irds
from tamis.formats.lines import SkipReport, check_column, located, read_lines, skip_or_raise, split_columns

Qrels = dict[str, dict[str, int]]
"""Grade of each judged document: `qrels[qid][docid]`."""

QrelsFormat = Literal["trec", "beir"]

_BEIR_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: PathLike, *, skipped: SkipReport | None = None) -> Qrels:
    """Judgments from TREC's `qid iteration docid grade`, or BEIR's tab-separated `qid docid grade`.

    The first line tells which, and may be BEIR's header. A judgment may be repeated, but not with another
    grade. `irds:NAME` are the judgments of a dataset of ir_datasets.

    >>> file = getfixture("tmp_path") / "qrels.txt"
    >>> _ = file.write_text("q1 0 d1 2\\nq1 0 d2 0\\n")
    >>> read_qrels(file)
    {'q1': {'d1': 2, 'd2': 0}}
    """
    if (name := irds.dataset_name(path)) is not None:
        return irds.judgments(name, skipped)
    qrels: Qrels = {}
    format: QrelsFormat | None = None
    for number, line in read_lines(path, skipped=skipped):
        if format is None:
            format = "beir" if line.count("\t") == 2 else "trec"
            if line.split("\t") == _BEIR_HEADER:
                continue
        try:
            qid, docid, grade = _parse(line, format)
            judged = qrels.setdefault(qid, {})
            if judged.setdefault(docid, grade) != grade:
                problem = f"{docid!r} is judged {grade} for {qid!r}, and {judged[docid]} above"
                raise InputError(problem, remedy="keep one of them")
        except InputError as error:
            skip_or_raise(located(error, path, number), skipped)
    return qrels


def _parse(line: str, format: QrelsFormat) -> tuple[str, str, int]:
    cells = line.split("\t") if format == "beir" else split_columns(line)
    expected = 3 if format == "beir" else 4
    if len(cells) != expected:
        problem = f"{len(cells)} columns where these qrels have {expected}"
        raise InputError(problem, remedy="write qid, 0, docid and grade")
    try:
        grade = int(cells[-1])
    except ValueError:
        raise InputError(f"the grade {cells[-1]!r} is not a whole number") from None
    return cells[0], cells[-2], grade


def write_qrels(
    path: PathLike, qrels: Mapping[str, Mapping[str, int]], *, format: QrelsFormat = "trec"
) -> None:
    """Write judgments, all or nothing: TREC's four columns or BEIR's three with their header.

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
