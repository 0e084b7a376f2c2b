"""Queries: JSONL (BEIR), TSV and TREC topics."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from tamis.base.documents import Query
from tamis.base.errors import InputError, quoted
from tamis.formats import irds
from tamis.formats.json_lines import first_filled, first_present, parse_object, to_id, to_text
from tamis.formats.lines import (
    LONGEST_RECORD,
    SkipReport,
    check_no_header,
    located,
    read_lines,
    skip_or_raise,
    too_long,
    unescaped,
)
from tamis.storage.files import COMPRESSED_SUFFIXES, PathLike
from tamis.text.topics import TopicField, represented

QueryFormat = Literal["jsonl", "tsv", "trec"]

ID_KEYS = ("_id", "id", "qid", "query_id")
TEXT_KEYS = ("text", "query", "title")
TOPIC_FIELDS = ("title", "desc", "narr")

_SUFFIXES: dict[str, QueryFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".tsv": "tsv",
    ".trec": "trec",
    ".topics": "trec",
    ".sgml": "trec",
}
_TOP = re.compile(r"<top>(.*?)(?=</?top>|\Z)", re.IGNORECASE | re.DOTALL)
# The text after a tag extends to the next tag of any kind: most topic files have no closing tags.
_FIELD = re.compile(r"<(num|title|desc|narr)\b[^<>]*>(.*?)(?=</?[a-z][^<>]*>|\Z)", re.IGNORECASE | re.DOTALL)
_OVERHEAD = 100  # bytes of memory per line, besides its text
_LABELS = {"num": "number:", "title": "topic:", "desc": "description:", "narr": "narrative:"}


def read_queries(
    path: PathLike,
    *,
    field: TopicField = "title",
    format: QueryFormat | None = None,
    skipped: SkipReport | None = None,
) -> list[Query]:
    """The queries of a file; the suffix determines the format, or else the first character (`{`, `<`, other).

    - jsonl: id in `_id`, `id`, `qid` or `query_id`, text in `text`, `query` or `title`: the first that
      is not empty.
    - tsv: `qid text`.
    - trec: `<top>` elements with `<num>`, `<title>`, `<desc>` and `<narr>`, with or without closing tags; the
      labels ("Number:", "Topic:", "Description:", "Narrative:") are dropped and line breaks become spaces.

    `field` is the part of a topic that is used as the query, complete or shortened (see `tamis.text.topics`);
    all parts are stored in `Query.fields`. Ids must be unique. `irds:NAME` reads the queries of a dataset of
    ir_datasets.

    >>> file = getfixture("tmp_path") / "topics.txt"
    >>> _ = file.write_text('''<top>
    ... <num> Number: 336
    ... <title> Black Bear Attacks
    ... <desc> Description:
    ... A relevant document discusses attacks
    ... by black bears.
    ... </top>''')
    >>> read_queries(file, field="desc")[0].text
    'A relevant document discusses attacks by black bears.'
    """
    for value, known in ((field, get_args(TopicField)), (format or "trec", get_args(QueryFormat))):
        if value not in known:
            raise InputError(f"no field or format {value!r}", remedy=f"use one of {', '.join(known)}")
    if (name := irds.dataset_name(path)) is not None:
        return irds.queries(name, field, skipped)
    lines = read_lines(path, skipped=skipped)
    first = next(lines, None)
    if first is None:
        return []
    lines = chain([first], lines)
    queries: dict[str, Query] = {}
    format = format or _guess_format(path, first[1])
    parse = _PARSERS[format]
    for number, record in _topics(lines, path) if format == "trec" else lines:
        try:
            if format == "tsv" and not queries:
                check_no_header(record.split("\t", 8), ID_KEYS, TEXT_KEYS, "take the line out")
            query = parse(record, field)
            if query.id in queries:
                raise InputError(f"the query id {quoted(query.id)} comes twice", remedy="remove one")
        except InputError as error:
            skip_or_raise(located(error, path, number), skipped)
        else:
            queries[query.id] = query
    return list(queries.values())


def _guess_format(path: PathLike, first_line: str) -> QueryFormat:
    name = Path(path)
    if name.suffix.lower() in COMPRESSED_SUFFIXES:
        name = name.with_suffix("")
    known = _SUFFIXES.get(name.suffix.lower())
    if known is not None:
        return known
    start = first_line.lstrip()[:1]
    return "jsonl" if start == "{" else "trec" if start == "<" else "tsv"


def _topics(lines: Iterable[tuple[int, str]], path: PathLike) -> Iterator[tuple[int, str]]:
    """Line number and content of each `<top>` element."""
    held: list[tuple[int, str]] = []
    size = 0
    for number, line in lines:
        size += len(line) + _OVERHEAD
        if size > LONGEST_RECORD:
            raise too_long("topics", LONGEST_RECORD, path, number)
        held.append((number, line))
    text = "\n".join(line for _, line in held)
    position = index = 0
    match = None
    for match in _TOP.finditer(text):
        index += text.count("\n", position, match.start())
        position = match.start()
        yield held[index][0], match[1]
    if match is None:
        raise InputError("contains no <top>", remedy="check the format", path=os.fspath(path))


def _parse_json(line: str, field: TopicField) -> Query:
    record = parse_object(line)
    query_id = to_id(record[first_present(record, ID_KEYS)])
    fields = {key: value for key in TOPIC_FIELDS if isinstance(value := record.get(key), str)}
    if field != "title":
        return Query(query_id, represented(fields, field), fields)
    key = first_filled(record, TEXT_KEYS)
    return Query(query_id, to_text(record[key], key), fields)


def _parse_tsv(line: str, field: TopicField) -> Query:
    cells, columns = line.split("\t", 2), line.count("\t") + 1
    if columns != 2:
        problem = f"{columns} tab-separated columns where queries have 2"
        raise InputError(problem, remedy="write the id, one tab and the text")
    if not cells[0].strip():
        raise InputError("the id is empty", remedy="write the id, one tab and the text")
    if field != "title":
        represented({}, field)
    return Query(cells[0].strip(), cells[1].strip())


def _parse_topic(markup: str, field: TopicField) -> Query:
    parts: dict[str, str] = {}
    for match in _FIELD.finditer(markup):
        tag = match[1].lower()
        text = " ".join(match[2].split())
        if text.lower().startswith(_LABELS[tag]):
            text = text[len(_LABELS[tag]) :].strip()
        parts.setdefault(tag, unescaped(text))
    query_id = parts.pop("num", "")
    if not query_id:
        raise InputError("<top> without a <num>", remedy="give every topic a number")
    return Query(query_id, represented(parts, field), parts)


_PARSERS: dict[QueryFormat, Callable[[str, TopicField], Query]] = {
    "jsonl": _parse_json,
    "tsv": _parse_tsv,
    "trec": _parse_topic,
}
