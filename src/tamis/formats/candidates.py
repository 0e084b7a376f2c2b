"""Candidates with their texts: the lines `qid pid query passage` of MS MARCO's top1000 files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tamis.base.documents import Document, Query
from tamis.base.errors import InputError, quoted
from tamis.formats.lines import SkipReport, check_column, located, read_lines, skip_or_raise
from tamis.storage.files import PathLike

_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Candidates:
    """Queries, the ids of each query's candidates in ascending order, and the candidates' texts, each stored
    once."""

    queries: dict[str, Query]
    ids: dict[str, tuple[str, ...]]
    documents: dict[str, Document]


def read_candidates(path: PathLike, *, skipped: SkipReport | None = None) -> Candidates:
    """The candidates of a file whose lines are `qid docid query text`, separated by tabs.

    The lines can be in any order; the order has no meaning, and in MS MARCO it is not that of a ranking. An
    id must always have the same text.

    >>> file = getfixture("tmp_path") / "top1000.dev.tsv"
    >>> _ = file.write_text("q1\\td7\\twhich sieve\\tA tamis.\\nq1\\td3\\twhich sieve\\tA drum.\\n")
    >>> found = read_candidates(file)
    >>> found.ids, found.documents["d7"].text
    ({'q1': ('d3', 'd7')}, 'A tamis.')
    """
    found = Candidates({}, {}, {})
    ids: dict[str, set[str]] = {}
    begun = False
    for number, line in read_lines(path, skipped=skipped):
        if not begun:
            _refuse_run(line, path, number)
            begun = True
        try:
            query, document = _parse(line, found)
            if document.id in ids.get(query.id, ()):
                problem = f"the document {quoted(document.id)} comes twice for {quoted(query.id)}"
                raise InputError(problem, remedy="keep one of them")
        except InputError as error:
            skip_or_raise(located(error, path, number), skipped)
        else:
            found.queries[query.id], found.documents[document.id] = query, document
            ids.setdefault(query.id, set()).add(document.id)
    found.ids.update((qid, tuple(sorted(some))) for qid, some in ids.items())
    return found


def _parse(line: str, found: Candidates) -> tuple[Query, Document]:
    """The query and the document of a line. Existing objects are reused: a passage can occur for a hundred
    queries, and its text is stored only once."""
    cells, columns = line.split("\t", _WIDTH), line.count("\t") + 1
    if columns != _WIDTH:
        problem = f"{columns} tab-separated columns where candidates have {_WIDTH}"
        raise InputError(problem, remedy="write qid, docid, query and text, with tabs only between them")
    qid, docid, asked, text = cells
    asked = asked.strip()
    query, document = found.queries.get(qid), found.documents.get(docid)
    if query is None:
        check_column(qid, "query id")
        query = Query(qid, asked)
    elif query.text != asked:
        raise InputError(
            f"the query {quoted(qid)} has another text above", remedy="give every query its own id"
        )
    if document is None:
        check_column(docid, "document id")
        document = Document(docid, text)
    elif document.text != text:
        raise InputError(
            f"the document {quoted(docid)} has another text above", remedy="give every text its own id"
        )
    return query, document


def _refuse_run(first_line: str, path: PathLike, number: int) -> None:
    if first_line.count("\t") != _WIDTH - 1 and len(first_line.split(None, 6)) in (3, 6):
        raise InputError(
            "a run, which has no texts",
            remedy="give the corpus and the queries too (--corpus, --queries)",
            path=os.fspath(path),
            line=number,
        )
