"""The collections of ir_datasets by name: `irds:beir/scifact/test` is valid wherever a file is expected.

ir_datasets (MacAvaney et al. 2021, https://ir-datasets.com) downloads missing files into its own folder, and
shows progress and terms of use itself. This module converts its records:

- documents: the text is `default_text()`, which may join several fields, or else `text` or `body`; a `title`
  is kept separately; other string fields are metadata.
- queries: the text is `default_text()`, or else `text`, `title` or `query`; the parts of a topic are `title`
  (or `text` or `query`), `description` and `narrative`. Line breaks become spaces.
- judgments: `relevance`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, Literal

from tamis.base.documents import Document, Query
from tamis.base.errors import InputError, MissingDependencyError, TamisError, quoted
from tamis.base.extras import install
from tamis.formats.lines import SkipReport, skip_or_raise
from tamis.storage.files import PathLike
from tamis.text.topics import TopicField, represented

Part = Literal["docs", "queries", "qrels"]

PREFIX = "irds:"

# Fields with the text, or with the text and markup: it is stored only once.
_TEXTS = {"text", "body", "abstract", "headings", "headline", "extra_text", "source_text"}
_TEXTS |= {"marked_up_doc", "marked_up_text", "html", "source_xml"}
_TOPIC_PARTS = {
    "title": ("title", "text", "query"),
    "desc": ("description", "desc"),
    "narr": ("narrative", "narr"),
}
_LONGEST = 200  # maximum characters of another library's message in an error of one line
#: Messages of ir_datasets about failed downloads, which our error repeats in one line.
_SAID = re.compile(
    r"\[starting\] opening|\[error\] |Download failed|download error: .* Retrying from start\.$"
)


def dataset_name(path: PathLike) -> str | None:
    """The name of a dataset, or None for a file.

    >>> dataset_name("irds:beir/scifact/test"), dataset_name("corpus.jsonl"), dataset_name("./irds:mine.tsv")
    ('beir/scifact/test', None, None)
    """
    text = path.as_posix() if isinstance(path, PurePath) else os.fspath(path)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def dataset_with(name: str, part: Part) -> Any:
    """The dataset with that name; raises an error if it lacks this part, or if its documents have no text."""
    with _one_line(name):
        package = _package(name)
        try:
            dataset = package.load(name)
        except KeyError:
            near = get_close_matches(name, package.registry, 1)
            remedy = f"use {PREFIX}{near[0]}" if near else "see `ir_datasets list`"
            raise _error(name, "ir_datasets has no such dataset", remedy) from None
        if not dataset.has(part):
            beneath = (each for each in package.registry if each.startswith(f"{name}/"))
            other = next((each for each in beneath if package.load(each).has(part)), None)
            remedy = f"use {PREFIX}{other}" if other else "see `ir_datasets list`"
            raise _error(name, f"it has no {part}", remedy)
        if part == "docs" and not _has_text(kind := dataset.docs_cls()):
            raise _error(
                name,
                f"its documents have no text, but {', '.join(kind._fields)}",
                f"write them by `ir_datasets export {name} docs --format jsonl`, and give each a text",
            )
        return dataset


def documents(name: str, skipped: SkipReport | None = None) -> Iterator[Document]:
    """The documents of a dataset, one at a time."""
    dataset = dataset_with(name, "docs")
    with _one_line(name):
        for record in dataset.docs_iter():
            document = to_document(record)
            if document.id:
                yield document
            else:
                skip_or_raise(_error(name, "a document without an id", "report it to ir_datasets"), skipped)


def queries(name: str, field: TopicField = "title", skipped: SkipReport | None = None) -> list[Query]:
    """The queries of a dataset."""
    dataset = dataset_with(name, "queries")
    found: dict[str, Query] = {}
    with _one_line(name):
        for record in dataset.queries_iter():
            try:
                query = to_query(record, field)
                if query.id in found:
                    raise _error(name, f"the query id {quoted(query.id)} comes twice", "use another dataset")
            except InputError as error:
                skip_or_raise(error if error.path else _in_query(error, name, record.query_id), skipped)
            else:
                found[query.id] = query
    return list(found.values())


def judgments(name: str, skipped: SkipReport | None = None) -> dict[str, dict[str, int]]:
    """The judgments of a dataset: `found[qid][docid]`."""
    dataset = dataset_with(name, "qrels")
    found: dict[str, dict[str, int]] = {}
    with _one_line(name):
        for record in dataset.qrels_iter():
            qid, docid, grade = str(record.query_id), str(record.doc_id), int(record.relevance)
            judged = found.setdefault(qid, {})
            if (
                judged.setdefault(docid, grade) != grade
            ):  # for example judgments of the aspects of a topic, or of passages
                problem = f"{quoted(docid)} is judged {grade} for {quoted(qid)}, and {judged[docid]} above"
                remedy = f"write them by `ir_datasets export {name} qrels`, and keep one of each"
                skip_or_raise(_error(name, problem, remedy), skipped)
    return found


def to_document(record: Any) -> Document:
    """Convert a document of ir_datasets, which is a named tuple.

    >>> from collections import namedtuple
    >>> to_document(namedtuple("Doc", "doc_id title text url size")("d1", "Tamis", "A sieve.", "http://a", 3))
    Document(id='d1', text='A sieve.', title='Tamis', metadata={'url': 'http://a'})
    """
    title = _first(record, ("title",))
    if hasattr(record, "default_text"):
        text = record.default_text() or ""
        # most texts start with the title: removing it keeps the indexed text, and the title can be displayed
        if text.startswith(title) and not (rest := text[len(title) :])[:1].strip():
            text = rest.lstrip()
    else:
        text = _first(record, ("text", "body"))
    values = zip(record._fields, record, strict=True)
    metadata = {
        key: value
        for key, value in values
        if isinstance(value, str) and value and key not in _TEXTS and key not in ("doc_id", "title")
    }
    return Document(str(record.doc_id), text, title, metadata)


def to_query(record: Any, field: TopicField = "title") -> Query:
    """Convert a query of ir_datasets.

    >>> from collections import namedtuple
    >>> topic = namedtuple("Topic", "query_id title description")("336", "bears", "Do bears\\nattack?")
    >>> query = to_query(topic, "desc")
    >>> query.id, query.text, query.fields["title"]
    ('336', 'Do bears attack?', 'bears')
    """
    parts = {part: _flat(_first(record, names)) for part, names in _TOPIC_PARTS.items()}
    fields = {part: text for part, text in parts.items() if text}
    text = ""
    if field == "title" and hasattr(record, "default_text"):
        text = _flat(record.default_text() or "")
    return Query(str(record.query_id), text or represented(fields, field), fields)


def _has_text(kind: Any) -> bool:
    return hasattr(kind, "default_text") or any(name in kind._fields for name in ("text", "body"))


def _first(record: Any, names: Sequence[str]) -> str:
    """The first of these fields that is a non-empty string."""
    found = (getattr(record, name, None) for name in names)
    return next((value for value in found if isinstance(value, str) and value), "")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _package(name: str) -> Any:
    if find_spec("ir_datasets") is None:
        raise MissingDependencyError(
            f"{PREFIX}{name} needs ir_datasets, which is not installed", remedy=install("ir-datasets")
        )
    package = import_module("ir_datasets")
    logging.getLogger("ir_datasets").addFilter(_is_news)  # adding it again has no effect
    return package


def _is_news(record: logging.LogRecord) -> bool:
    return not _SAID.match(record.getMessage())


def _error(name: str, problem: str, remedy: str) -> InputError:
    return InputError(problem, remedy=remedy, path=f"{PREFIX}{name}")


def _in_query(error: InputError, name: str, query_id: str) -> InputError:
    return _error(name, f"query {quoted(query_id)}: {error.problem}", error.remedy)


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Convert any exception of ir_datasets to an error of tamis: it has no error classes, and passes on those
    of downloads, archives and parsers."""
    try:
        yield
    except TamisError:
        raise
    except ImportError as error:  # it names the package that a dataset needs, and how to install it
        problem, _, remedy = _flat(str(error)).partition(". ")
        raise MissingDependencyError(
            f"{PREFIX}{name}: {problem}", remedy=remedy or install("ir-datasets")
        ) from error
    except FileNotFoundError as error:
        page = f"https://ir-datasets.com/{name.partition('/')[0]}.html"
        problem = f"{error.filename or error} is not there"
        remedy = f"its owners provide it on request: {page} says how, and where to put it"
        raise _error(name, problem, remedy) from error
    except Exception as error:
        first = _first_of(error)
        said = f"{type(first).__name__}: {_flat(str(first))[:_LONGEST]}"
        home = import_module("ir_datasets").util.home_path()
        remedy = f"check the network, or copy {home} from a machine that has read it"
        raise _error(name, f"cannot be fetched or read ({said})", remedy) from error


def _first_of(error: BaseException) -> BaseException:
    """The original error of the network, which three libraries wrap in their own errors."""
    if isinstance(error, RuntimeError) and len(error.args) == 2 and isinstance(error.args[1], list):
        error = error.args[1][-1][1]  # each source of a download, with its error
    if not isinstance(error, OSError):
        return error
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error
