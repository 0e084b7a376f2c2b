"""An index in a cluster of OpenSearch, with the interface of one on disk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import Condition
from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError, quoted
from tamis.core.options import call_of
from tamis.formats.records import Documents
from tamis.index.index import Index, TermContribution, check_search, several
from tamis.index.opensearch import queries, writer
from tamis.index.opensearch.cluster import Cluster
from tamis.index.opensearch.connection import Connection, connect
from tamis.index.opensearch.errors import AccessError, ClusterError
from tamis.index.opensearch.mapping import CONTENTS, Meta, read_meta
from tamis.index.place import Place
from tamis.index.retriever import listed
from tamis.index.score import BM25, Collection, Model, QueryLikelihood, Terms
from tamis.index.search import Backend
from tamis.index.writer import OnDuplicate
from tamis.text.analyze import Analyzer, get_analyzer

_LOOK_EVERY = 5.0  # seconds between looks at a cluster's state
#: Of one request: hits of however many queries, counts of documents, documents with and without texts.
_HITS, _COUNTS, _TEXTS, _IDS = 20_000, 1000, 500, 10_000
_SAMPLED = 20  # documents that are looked at together for one that has a term
_REMEMBERED = 1 << 20  # terms whose counts are kept


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the explanation of one score tells of all scores."""

    collection: Collection
    times_k1: bool  # whether BM25 is multiplied by k1 + 1, as it was in Lucene 7


@dataclass(slots=True)
class _State:
    """What is known of an index as long as it does not change."""

    fingerprint: str
    documents: int
    df: dict[str, int] = field(default_factory=dict)
    sample: _Sample | None = None


class OpenSearchIndex(Index):
    """An index in a cluster, which threads may share. A cluster has no commits: a search sees the documents
    that are there at that moment, and `fingerprint`, `len` and the statistics are those of the last
    `refresh`."""

    queries_at_once = 10
    is_live = True

    def __init__(self, connection: Connection, meta: Meta, state: _State | None = None) -> None:
        self.connection, self.meta = connection, meta
        self._cluster = Cluster(connection)
        self._analyzer = get_analyzer(meta.analyzer)
        self._state = state or self._newest(meta.shards)

    @classmethod
    def open(cls, path: Place) -> OpenSearchIndex:
        """The index at an address: `opensearch://HOST:9200/NAME`."""
        connection = connect(str(path))
        return cls(connection, _complete(connection))

    @classmethod
    def build(  # type: ignore[override]
        cls,
        documents: Documents,
        path: Place,
        *,
        analyzer: str = "english",
        overwrite: bool = False,
        on_duplicate: OnDuplicate = "error",
    ) -> OpenSearchIndex:
        """See `Index.build`; `tamis.index.opensearch.writer.build` takes shards and similarities too."""
        how: writer.How = "overwrite" if overwrite else "new"
        wanted = writer.Wanted(analyzer=analyzer)
        writer.build(several(documents), str(path), how=how, wanted=wanted, on_duplicate=on_duplicate)
        return cls.open(path)

    def add(self, documents: Documents, *, on_duplicate: OnDuplicate = "error", workers: int = 1) -> None:
        writer.build(several(documents), self.place, how="add", on_duplicate=on_duplicate)
        self.refresh()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Another process connects anew."""
        return OpenSearchIndex.open, (self.place,)

    def __copy__(self) -> OpenSearchIndex:
        return OpenSearchIndex(self.connection, self.meta, self._state)

    @property
    def place(self) -> str:
        return str(self.connection.address)

    @property
    def health(self) -> str:
        """`green`, `yellow` where copies of shards are missing, or `red` where shards are."""
        return self._cluster.health()

    @property
    def analyzer(self) -> Analyzer:
        return self._analyzer

    # -- its state

    @property
    def fingerprint(self) -> str:
        return self._state.fingerprint

    def __len__(self) -> int:
        return self._state.documents

    def refresh(self) -> bool:
        meta = _complete(self.connection)
        newest = self._newest(meta.shards)
        if newest.fingerprint == self._state.fingerprint:
            return False
        self.meta, self._analyzer, self._state = meta, get_analyzer(meta.analyzer), newest
        return True

    def stamp(self) -> int:
        """Another one every few seconds: to look at the cluster takes time."""
        return int(time.monotonic() / _LOOK_EVERY)

    def _newest(self, shards: int) -> _State:
        """The index's own identity, and the number of the last operation on each of its shards."""
        with suppress(AccessError):  # what is written shows then some seconds later
            self._cluster.request("POST", "_refresh")
        about: dict[str, Any] = {}
        numbers: dict[int, int] = {}

        def ask() -> ClusterError | None:
            answer = self._cluster.request(
                "GET", "_stats/docs", params={"level": "shards", "filter_path": queries.STATE}
            )
            about.update(next(iter(answer.get("indices", {}).values()), {}))
            numbers.update(queries.last_operations(about))
            if len(numbers) >= shards:
                return None
            problem = f"only {len(numbers)} of {shards} shards of {self.place} are there"
            remedy = "check the cluster: `GET _cluster/health` says what is missing"
            return ClusterError(problem, remedy=remedy, status=503)

        self._cluster.until_whole(ask)
        operations = ".".join(str(numbers[shard]) for shard in sorted(numbers))
        return _State(f"{about['uuid']}@{operations}", about["primaries"]["docs"]["count"])

    @property
    def collection(self) -> Collection:
        return self._sample().collection

    def _sample(self) -> _Sample:
        """From the explanation of one score: how many documents there are with any term and how long they
        are, which nothing else tells, and how this version multiplies BM25."""
        state = self._state
        if state.sample is None:
            state.sample = self._sampled()
        return state.sample

    def _sampled(self) -> _Sample:
        model = next((each for each in self.meta.fields if isinstance(each, BM25)), None)
        if model is None:
            raise InputError(f"{self.place} has no bm25", remedy="index it again with one")
        for hit in self._every(_SAMPLED, texts=True):
            document = queries.document_of(hit)
            if not (terms := self.analyzer.tokens(document.contents)):
                continue
            explanation = self._explanation(self.meta.fields[model], {terms[0]: 1.0}, document.id)
            documents = queries.value_of(explanation, "N, total number of documents")
            length = queries.value_of(explanation, "avgdl")
            if documents is None or length is None:
                problem = f"{self.place} does not find {quoted(document.id)} by its word {quoted(terms[0])}"
                remedy = "try again if it is changing, or index it again with this version of tamis"
                raise ClusterError(problem, remedy=remedy)
            # what multiplies the idf of a term of weight 1; left out where it is 1
            boost = queries.value_of(explanation, "boost") or 1.0
            collection = Collection(int(documents), round(documents * length))
            return _Sample(collection, bool(np.isclose(boost, 1 + model.k1)))
        return _Sample(Collection(0, 0), False)

    # -- documents

    def __iter__(self) -> Iterator[Document]:
        return map(queries.document_of, self._every(_TEXTS, texts=True))

    def ids(self) -> Iterator[str]:
        return (hit["_id"] for hit in self._every(_IDS, texts=False))

    def _every(self, size: int, *, texts: bool) -> Iterator[Any]:
        """A hit for each document, by id."""
        after = None
        while True:
            body = queries.all_documents(size, texts=texts, after=after)
            (answer,) = self._cluster.search([body], "hits.hits")
            found = queries.hits(answer)
            yield from found
            if len(found) < size:
                return
            after = found[-1]["sort"]
            if None in after:
                raise queries.without_id()

    def document(self, identity: str) -> Document:
        return self.documents([identity])[0]

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """The documents with these ids, in this order, in one request for each few hundred."""
        found = []
        for start in range(0, len(ids), _TEXTS):
            for doc_id, answer in self._cluster.documents(ids[start : start + _TEXTS], texts=True):
                if not answer["found"]:
                    problem = f"the index holds no document {quoted(doc_id)}"
                    raise UnknownDocumentError(problem, remedy="check the id, or add the document")
                found.append(queries.document_of(answer))
        return found

    def missing(self, ids: Iterable[str]) -> list[str]:
        wanted = listed(ids)
        return [
            doc_id
            for start in range(0, len(wanted), _IDS)
            for doc_id, answer in self._cluster.documents(wanted[start : start + _IDS], texts=False)
            if not answer["found"]
        ]

    # -- searching

    def search(
        self,
        weights: Mapping[str, float],
        model: Model,
        k: int,
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        where: Condition | None = None,
        backend: Backend = "auto",
    ) -> tuple[list[str], Array]:
        return self.search_all([weights], model, k, only=only, without=without, where=[where])[0]

    def search_all(
        self,
        bags: Sequence[Mapping[str, float]],
        model: Model,
        k: int,
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        where: Sequence[Condition | None] | None = None,
        backend: Backend = "auto",
    ) -> list[tuple[list[str], Array]]:
        if unsupported := next(filter(None, where or ()), None):
            problem = f"{self.place} is not an index on disk, and cannot apply {quoted(str(unsupported))}"
            remedy = "leave out --where, quotes, + and -, or index the documents into a folder"
            raise InputError(problem, remedy=remedy)
        for bag in bags:
            check_search(bag, k)
        name, factor = self._field(model), self._factor(model)
        some = None if only is None else listed(only)
        others = None if without is None else listed(without)
        asked = {}
        for place, bag in enumerate(bags):
            if k and (terms := queries.clauses(name, bag, factor)):
                asked[place] = queries.query(terms, some, others)
        found: dict[int, list[Any]] = {place: [] for place in range(len(bags))}
        step = max(1, _HITS // max(1, k))
        for start in range(0, len(asked), step):
            together = list(asked)[start : start + step]
            copies = {place: queries.copies(bags[place]) for place in together}
            while together:  # a page of each that has more
                bodies = [
                    queries.best(asked[place], k - len(found[place]), found[place][-1:]) for place in together
                ]
                answers = self._cluster.search(
                    bodies, "hits.hits.sort", copies=[copies[place] for place in together]
                )
                more = []
                for place, body, answer in zip(together, bodies, answers, strict=True):
                    page = [hit["sort"] for hit in queries.hits(answer)]
                    found[place] += page
                    if len(page) == body["size"] and len(found[place]) < k:
                        more.append(place)
                together = more
        return [queries.ids_and_scores(values) for values in found.values()]

    def check_model(self, model: Model) -> None:
        self._field(model)

    def _field(self, model: Model) -> str:
        """The field whose similarity is this model."""
        for each, name in self.meta.fields.items():
            if each == model:
                return name
        there = ", ".join(self.meta.expressions)
        more = ", or index it again with this similarity too"
        possible = isinstance(model, BM25 | QueryLikelihood) and model.variant == "lucene"
        problem = f"the index in the cluster cannot be searched by {call_of(model)}"
        raise InputError(problem, remedy=f"use {there}{more if possible else ''}")

    def _factor(self, model: Model) -> float:
        """What the cluster's scores are to be divided by."""
        return 1 + model.k1 if isinstance(model, BM25) and self._sample().times_k1 else 1.0

    def explain(self, weights: Mapping[str, float], model: Model, identity: str) -> list[TermContribution]:
        explained = queries.terms_explained(self._explanation(self._field(model), weights, identity, model))
        if not explained and self.missing([identity]):
            problem = f"the index holds no document {quoted(identity)}"
            raise UnknownDocumentError(problem, remedy="check the id, or add the document")
        counts = self._counts(explained)
        lines = [
            TermContribution(
                term,
                weights[term],
                int(queries.value_of(node, "freq") or 0),
                counts[term],
                float(node["value"]),
            )
            for term, node in explained.items()
        ]
        return sorted(lines, key=lambda line: (-line.contribution, line.term))

    def _explanation(
        self, name: str, weights: Mapping[str, float], doc_id: str, model: Model | None = None
    ) -> Mapping[str, Any]:
        """Of one document's score; an empty one if it holds no term."""
        if not (terms := queries.clauses(name, weights, 1.0 if model is None else self._factor(model))):
            return {}
        body = queries.explained(queries.query(terms, [doc_id], None))
        (answer,) = self._cluster.search([body], "hits.hits._explanation")
        return queries.explanation_in(answer)

    # -- statistics

    def df(self, term: str) -> int:
        return self._counts([term])[term]

    def look_up(self, terms: Iterable[str]) -> None:
        self._counts(terms)

    def _counts(self, terms: Iterable[str]) -> Mapping[str, int]:
        """How many documents hold these terms, and others that were asked for: those of one state, though
        another thread refreshes."""
        known = self._state.df
        if len(known) > _REMEMBERED:
            known = self._state.df = {}  # other threads still read the old one
        unknown = [term for term in dict.fromkeys(terms) if term not in known]
        for start in range(0, len(unknown), _COUNTS):
            some = unknown[start : start + _COUNTS]
            answers = self._cluster.search([queries.holding(CONTENTS, term) for term in some], "hits.total")
            known.update(zip(some, (answer["hits"]["total"]["value"] for answer in answers), strict=True))
        return known

    def statistics(self, weights: Mapping[str, float], model: Model) -> Terms:
        counts = self._counts(weights)
        df = np.array([counts[term] for term in weights])
        cf = df if not isinstance(model, QueryLikelihood) else self._frequencies(list(weights))
        return Terms(np.array(list(weights.values()), np.float64), df, cf)

    def _frequencies(self, terms: Sequence[str]) -> Array:
        """How often terms occur in the collection, which explanations of query likelihood tell."""
        model = next((each for each in self.meta.fields if isinstance(each, QueryLikelihood)), None)
        if model is None:
            raise InputError(f"{self.place} has no ql", remedy="make it again with one, or use bm25")
        name, tokens = self.meta.fields[model], self.collection.tokens
        bodies = [
            queries.explained(queries.query(queries.clauses(name, {t: 1.0}, 1.0), None, None)) for t in terms
        ]
        found = []
        for answer in self._cluster.search(bodies, "hits.hits._explanation") if bodies else ():
            share = (
                queries.value_of(queries.explanation_in(answer), "P, probability that the current term")
                or 0.0
            )
            found.append(round(share * (tokens + 1) - 1) if share else 0)  # Lucene adds one to both
        return np.array(found)


def _complete(connection: Connection) -> Meta:
    """What is written about the index; `InputError` before all documents of the first command are there."""
    meta = read_meta(connection)
    if meta.runs == 1 and meta.documents is None:
        problem = f"{connection.address} is not complete: `tamis index` still writes it, or was interrupted"
        raise InputError(problem, remedy="wait, or continue it with --resume")
    return meta
