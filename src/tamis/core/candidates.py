"""Candidates from elsewhere: the texts, dictionaries, rows and objects of others as documents, and what a
stage says of them.

What they are is told by their fields, keys or attributes alike, so that no framework is imported for it:
hits of Elasticsearch and OpenSearch, documents of LangChain and Haystack, nodes of LlamaIndex, points of
vector stores, rows of pandas and polars, documents of ir_datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tamis.base.documents import Document, Query
from tamis.base.errors import InputError, quoted, some
from tamis.core.ranking import Ranking, ScoreKind, Span

#: A text, a `Document`, or whatever has a text in a field.
Candidate = Any
#: Where a candidate keeps something: the name of a field, or a function of the candidate.
Field = str | Callable[[Any], Any]

_TEXT = ("text", "contents", "content", "page_content", "passage", "body")
_ID = ("id", "_id", "docid", "doc_id", "docno", "node_id", "uuid")
_TITLE = ("title",)
_SCORE = ("_score", "score")
#: Where a hit has the document itself, and where a document has what is known about it.
_RECORD, _NOTES = ("_source", "payload", "properties", "node"), ("metadata", "meta")


class Ranked(NamedTuple):
    """A candidate in its place: `position` is where it stood in the caller's list, `item` the caller's own
    object, untouched; of a table, whose rows are no objects, the row as a dictionary. `evidence` is the best
    passages, of a stage that reads passages."""

    rank: int
    id: str
    score: float
    text: str
    position: int
    item: Candidate
    evidence: tuple[Span, ...] = ()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is known about the candidate beside its text: its own `metadata`, in whatever form it came."""
        if isinstance(self.item, Ranked):  # by another stage
            return self.item.metadata
        own = (self.item, *_within(self.item, _RECORD))
        found = (each for item in own if not isinstance(item, str) for each in _within(item, _NOTES))
        return next((each for each in found if isinstance(each, Mapping)), {})


@dataclass(frozen=True, slots=True)
class Candidates:
    """A caller's objects, and each as a document.

    >>> hit = {"_id": "7", "_score": 3.5, "_source": {"title": "Tamis", "text": "a sieve"}}
    >>> candidates = Candidates.of({"hits": {"hits": [hit]}})
    >>> candidates.documents
    [Document(id='7', text='a sieve', title='Tamis', metadata={})]
    >>> candidates.ranking("sieve").scores.tolist()
    [3.5]
    """

    items: list[Candidate]
    documents: list[Document]
    scores: list[float | None]

    @classmethod
    def of(
        cls,
        candidates: Iterable[Candidate],
        text: Field | None = None,
        id: Field | None = None,
        title: Field | None = None,
    ) -> Candidates:
        """Whatever `Stage.rank` takes; `text`, `id` and `title` name other fields than the usual ones. All
        must have the text; one without an id goes by its place."""
        items = list(_each(candidates))  # of a generator there is one look
        documents = [_document(item, place, text, id, title) for place, item in enumerate(items)]
        return cls(items, documents, [_score(item) for item in items])

    def ranking(self, query: str | Query) -> Ranking:
        """The candidates in the caller's order, with their places as ids. Where all have scores, and these
        descend, they count as those of a search."""
        asked = query if isinstance(query, Query) else Query("", query)
        given = placed(asked, self.documents)
        if self.scores and None not in self.scores:
            scores = np.array(self.scores, dtype=np.float64)
            if np.isfinite(scores).all() and (np.diff(scores) <= 0).all():
                return replace(given, scores=scores, kind=ScoreKind.RETRIEVAL)
        return given

    def ranked(self, found: Ranking, top_k: int | None = None) -> list[Ranked]:
        """What a stage has made of `ranking`, in terms of the caller's objects."""
        if top_k is not None and top_k < 0:
            raise InputError(f"cannot keep {top_k} candidates", remedy="use a top_k of 0 or more")
        ranked = []
        for hit in found.head(len(found) if top_k is None else top_k):
            place = int(hit.id)
            document, spans = self.documents[place], tuple(found.evidence.get(hit.id, ()))
            ranked.append(
                Ranked(hit.rank, document.id, hit.score, document.text, place, self.items[place], spans)
            )
        return ranked


# -- documents by their places
# ------------------------------------------------------------------------------------------------------------


class Placed:
    """Documents by their places in a list: their own ids may occur twice."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def document(self, doc_id: str) -> Document:
        return self._documents[int(doc_id)]


def placed(query: Query, documents: Sequence[Document]) -> Ranking:
    """A caller's documents as a ranking in their order, with their places as ids. Places of one length sort
    as numbers do, so documents that tie keep their order.

    >>> placed(Query("0", "sieve"), [Document("x", "a"), Document("x", "b")]).ids
    ('0000', '0001')
    """
    width = max(4, len(str(len(documents))))
    ids = tuple(f"{place:0{width}d}" for place in range(len(documents)))
    return Ranking(query, ids, -np.arange(len(ids), dtype=np.float64), texts=Placed(documents))


# -- one after the other
# ------------------------------------------------------------------------------------------------------------


def _each(candidates: Any) -> Iterable[Candidate]:
    """The candidates of a list, a table or a search engine's answer."""
    if isinstance(candidates, Ranking):
        raise InputError("a Ranking is not a list of candidates", remedy="call the stage: stage(ranking)")
    if hasattr(candidates, "collect_schema") and hasattr(candidates, "collect"):
        raise InputError("a lazy frame has no rows yet", remedy="give frame.collect()")
    rows = _rows(candidates)
    if rows is not None:
        return rows
    answer = getattr(candidates, "body", candidates)  # Elasticsearch's client wraps it
    if isinstance(answer, Mapping) and "hits" in answer:
        hits = answer["hits"]
        return list(hits["hits"]) if isinstance(hits, Mapping) and "hits" in hits else list(hits)
    if isinstance(candidates, str | bytes | Mapping | Document) or isinstance(_usual_text(candidates), str):
        raise InputError("one candidate where several are wanted", remedy="give a list")
    if not isinstance(candidates, Iterable):
        raise InputError(f"candidates that are {type(candidates).__name__}", remedy="give a list")
    return candidates


def _rows(table: Any) -> list[dict[Any, Any]] | None:
    """The rows of a table of polars, pandas or Arrow: iterating over one gives its columns."""
    if hasattr(table, "iter_rows") and hasattr(table, "columns"):
        return list(table.iter_rows(named=True))
    if hasattr(table, "iloc") and hasattr(table, "columns"):
        return list(table.to_dict("records"))
    if hasattr(table, "to_pylist") and hasattr(table, "column_names"):
        return list(table.to_pylist())
    return None


def _document(
    item: Candidate, place: int, text: Field | None, id: Field | None, title: Field | None
) -> Document:
    if isinstance(item, str):
        return Document(str(place), item)
    if isinstance(item, Ranked):  # by another stage
        before = _document(item.item, item.position, text, id, title)
        return replace(before, id=item.id)
    if isinstance(item, Document) and (text, id, title) == (None, None, None):
        return item
    found = _text(item, place, text)
    doc_id = _own(item, _ID) if id is None else _named(item, id)
    if doc_id is None and id is None:
        doc_id = _first_of(_within(item, _NOTES), _ID)
    heading = _own(item, _TITLE) if title is None else _named(item, title)
    if not isinstance(heading, str | None):
        problem = f"the title of candidate {place} is {type(heading).__name__}"
        raise InputError(problem, remedy="give a str, or none")
    return Document(str(place if doc_id is None else doc_id), found, heading or "")


def _text(item: Candidate, place: int, field: Field | None) -> str:
    text = _usual_text(item) if field is None else _named(item, field)
    if isinstance(text, str):
        return text
    known = _names(item)
    if text is not None:
        raise InputError(f"the text of candidate {place} is {type(text).__name__}", remedy="give a str")
    if callable(field):
        raise InputError(f"{_shown(field)} finds no text in candidate {place}", remedy="let it give a str")
    if any(name in known for name in (_TEXT if field is None else (field,))):
        raise InputError(f"the text of candidate {place} is missing", remedy="leave it out, or give it one")
    if field is not None:
        remedy = f"it has {some(known)}" if known else "give dictionaries, or objects with fields"
        raise InputError(f"candidate {place} has no {field!r}", remedy=remedy)
    texts = [each for each in known if each not in (*_ID, *_TITLE) and isinstance(_named(item, each), str)]
    if texts:
        remedy = f"say which of these is its text, as in text={texts[0]!r}"
        raise InputError(f"candidate {place} has no text, but {some(known)}", remedy=remedy)
    if known or isinstance(item, Mapping):
        raise InputError(f"candidate {place} has no text", remedy="give it a 'text' that is a str")
    remedy = "give a str, a Document, or a dict or an object with a text"
    raise InputError(f"candidate {place} is {type(item).__name__}", remedy=remedy)


def _score(item: Candidate) -> float | None:
    score = None if isinstance(item, str) else _own(item, _SCORE)
    if isinstance(score, bool) or not isinstance(score, int | float | np.number):
        return None
    return float(score)


# -- fields
# ------------------------------------------------------------------------------------------------------------


def _get(item: Any, name: str) -> Any:
    """A field, by key or attribute; None where there is none, where it is a method, and where a table has no
    value."""
    if isinstance(item, Mapping) or hasattr(item, "iloc"):
        value = item.get(name)
    else:
        try:
            value = getattr(item, name, None)
        except Exception:  # a property that this object has no value for
            return None
        if callable(value):
            return None
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else value


def _first_of(places: Iterable[Any], names: Sequence[str]) -> Any:
    """The first field of one of these names, in the first place that has one."""
    found = (value for each in places for name in names if (value := _get(each, name)) is not None)
    return next(found, None)


def _within(item: Any, names: Sequence[str]) -> Iterator[Any]:
    """What a candidate has inside of it, as a hit its document."""
    return (inside for name in names if (inside := _get(item, name)) is not None)


def _own(item: Any, names: Sequence[str]) -> Any:
    """A field by its usual names: of the candidate, or of the document in it."""
    return _first_of((item, *_within(item, _RECORD)), names)


def _named(item: Any, field: Field) -> Any:
    """A field that the caller has named, wherever it is."""
    if callable(field):
        return field(item)
    return _first_of((item, *_within(item, _RECORD), *_within(item, _NOTES)), [field])


def _usual_text(item: Any) -> Any:
    """The text by its usual names, or of an object that has a method for it."""
    for each in (item, *_within(item, _RECORD)):
        if (text := _called(each, "get_content")) is not None:  # a node of LlamaIndex
            return text
        if (text := _first_of([each], _TEXT)) is not None:
            return text
        if (text := _called(each, "default_text")) is not None:  # a document of ir_datasets
            return text
    return None


def _called(item: Any, method: str) -> Any:
    found = None if isinstance(item, Mapping) else getattr(item, method, None)
    return found() if callable(found) else None


def _names(item: Any) -> list[str]:
    """The fields of a candidate, and of the document in it."""
    found: list[Any] = []
    for each in (item, *_within(item, _RECORD)):
        if isinstance(each, Mapping):
            found += each
        elif hasattr(each, "iloc"):
            found += each.index
        else:
            found += getattr(each, "_fields", ()) or getattr(each, "__dict__", ())
    return [name for name in dict.fromkeys(map(str, found)) if name not in _RECORD]


def _shown(field: Field) -> str:
    return quoted(field) if isinstance(field, str) else getattr(field, "__name__", "the function")
