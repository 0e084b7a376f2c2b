"""An index, wherever it is: what can be asked of each, and the one way to open it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import Condition
from tamis.base.documents import Document
from tamis.base.errors import InputError, quoted
from tamis.base.interrupt import check
from tamis.core.ranking import each_document
from tamis.formats.records import Documents, documents_of
from tamis.index.manifest import is_index
from tamis.index.place import Place, is_address
from tamis.index.retriever import Retriever
from tamis.index.score import (
    BM25,
    LARGEST_WEIGHT,
    Collection,
    Model,
    QueryLikelihood,
    Terms,
    TfIdf,
    Variant,
)
from tamis.index.search import Backend
from tamis.text.analyze import Analyzer

if TYPE_CHECKING:
    from tamis.core.runtime import Runtime
    from tamis.core.stage import Stage
    from tamis.index.backup import Backup
    from tamis.index.dependence import SDM, Dependence
    from tamis.index.writer import IndexWriter, OnDuplicate

__all__ = ["Index", "TermContribution", "index_of"]


@dataclass(frozen=True, slots=True)
class TermContribution:
    """One line of an explanation: what a query term adds to a document's score."""

    term: str
    weight: float
    tf: int
    df: int
    contribution: float


class Index(ABC):
    """Documents that can be searched: in a folder (`EmbeddedIndex`), or in a cluster of OpenSearch
    (`OpenSearchIndex`). `open` and `build` return the one that a place asks for.

    >>> import tempfile
    >>> docs = [Document("d1", "the cook's sieve"), Document("d2", "a sieve of sieves")]
    >>> index = Index.build(docs, tempfile.mkdtemp() + "/idx")
    >>> index.bm25()("sieves").ids
    ('d2', 'd1')
    """

    # -- opening

    @classmethod
    def open(cls, path: Place) -> Index:
        """The index in a folder as last committed, or at an address: `opensearch://HOST:9200/NAME`."""
        if is_address(path):
            from tamis.index.opensearch.index import OpenSearchIndex

            return OpenSearchIndex.open(str(path))
        from tamis.index.embedded import EmbeddedIndex

        return EmbeddedIndex.open(path)

    @classmethod
    def build(
        cls,
        documents: Documents,
        path: Place,
        *,
        analyzer: str = "english",
        positions: bool = False,
        overwrite: bool = False,
        on_duplicate: OnDuplicate = "error",
        commit_every: int | None = None,
        workers: int = 1,
    ) -> Index:
        """Index `documents` into a new folder, or at an address: an iterable of documents or of mappings
        (`{"id": ..., "text": ...}`), or a frame of pandas or polars with such columns. `positions` are needed
        by the sequential dependence model. A large collection is indexed by up to `workers` processes,
        including this one; the result does not depend on their number. What concerns a folder alone
        (`positions`, `commit_every`, `workers`) a cluster does not take; `tamis.index.opensearch.writer` has
        what concerns a cluster."""
        if is_address(path):
            from tamis.index.opensearch.index import OpenSearchIndex

            for name, given in (("positions", positions), ("commit_every", commit_every)):
                if given:
                    raise InputError(
                        f"{name} is for an index on disk", remedy="leave it out, or give a folder"
                    )
            return OpenSearchIndex.build(
                documents, str(path), analyzer=analyzer, overwrite=overwrite, on_duplicate=on_duplicate
            )
        from tamis.index.embedded import EmbeddedIndex

        return EmbeddedIndex.build(
            documents,
            path,
            analyzer=analyzer,
            positions=positions,
            overwrite=overwrite,
            on_duplicate=on_duplicate,
            commit_every=commit_every,
            workers=workers,
        )

    # -- what each kind of index says

    @property
    @abstractmethod
    def place(self) -> Place:
        """The folder or the address, which `open` takes."""

    @property
    @abstractmethod
    def analyzer(self) -> Analyzer:
        """What makes terms of its documents, and of queries."""

    @property
    @abstractmethod
    def collection(self) -> Collection:
        """The statistics of its documents."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What exactly is searched: the index and its state."""

    @abstractmethod
    def refresh(self) -> bool:
        """Move to the newest state; True if there was one."""

    @abstractmethod
    def stamp(self) -> object:
        """Changes with the state, and may change more often; it takes no time to ask for."""

    @abstractmethod
    def __copy__(self) -> Index:
        """A copy stays at its state: refreshing one copy does not change the others."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Document]: ...

    @abstractmethod
    def ids(self) -> Iterator[str]:
        """The ids of all documents."""

    @abstractmethod
    def missing(self, ids: Iterable[str]) -> list[str]:
        """The ids that are not in the index."""

    @abstractmethod
    def document(self, identity: str) -> Document:
        """The document with this id."""

    @abstractmethod
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
        """Ids and scores of the k best documents for a weighted bag of analysed terms. Only documents that
        satisfy the condition `where` are found; their scores do not depend on it."""

    @abstractmethod
    def explain(self, weights: Mapping[str, float], model: Model, identity: str) -> list[TermContribution]:
        """What each query term adds to a document's score, the largest first."""

    @abstractmethod
    def df(self, term: str) -> int:
        """In how many documents an analysed term occurs."""

    @abstractmethod
    def statistics(self, weights: Mapping[str, float], model: Model) -> Terms:
        """The statistics of a weighted bag of analysed terms, as far as a model uses them."""

    @property
    def fields(self) -> list[str]:
        """The fields of the documents' metadata that a condition may name, as far as they are known."""
        return []

    #: Whether searches see changes at once, and `refresh` only takes note of them.
    is_live = False

    # -- what those with a slow way to their documents do at once

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
        """`search` for several weighted bags of terms, with one condition per bag."""
        conditions = [None] * len(bags) if where is None else where
        return [
            self.search(bag, model, k, only=only, without=without, where=condition, backend=backend)
            for bag, condition in zip(bags, conditions, strict=True)
        ]

    #: Queries whose documents are worth looking at together.
    queries_at_once = 1

    def look_up(self, terms: Iterable[str]) -> None:  # noqa: B027 (there may be nothing to do)
        """`df` will be asked for these terms."""

    def check_model(self, model: Model) -> None:  # noqa: B027
        """Raise where the index cannot be searched by a model."""

    def prepare(self, model: Model, backend: Backend) -> None:  # noqa: B027
        """Many searches by a model will follow."""

    # -- documents

    def __repr__(self) -> str:
        return f"<Index of {len(self):,} documents: {self.place}>"

    def __contains__(self, identity: str) -> bool:
        return not self.missing([identity])

    def weights(self, text: str) -> dict[str, float]:
        """A query text as a weighted bag of terms: each occurrence counts one."""
        counts: dict[str, float] = {}
        for term in self.analyzer.tokens(text):
            counts[term] = counts.get(term, 0.0) + 1.0
        return counts

    def document_terms(self, identity: str) -> dict[str, int]:
        """The terms of a document and how often each occurs."""
        return self.terms_of([identity])[0]

    def terms_of(self, ids: Sequence[str]) -> list[dict[str, int]]:
        """The terms of documents and how often each occurs."""
        found = []
        for document in each_document(self, ids):
            check()
            found.append(dict(Counter(self.analyzer.tokens(document.contents))))
        return found

    def matches(self, ids: Sequence[str], terms: Sequence[str]) -> tuple[Array, Array]:
        """The documents' lengths in tokens, and a row for each that says which of the terms it holds.

        >>> import tempfile
        >>> index = Index.build([Document("d1", "a sieve, a sieve")], tempfile.mkdtemp() + "/idx")
        >>> [found.tolist() for found in index.matches(["d1"], ["siev", "soup"])]
        [[2], [[True, False]]]
        """
        found = self.terms_of(ids)
        lengths = np.array([sum(each.values()) for each in found], np.int64)
        held = np.array([term in each for each in found for term in terms], bool)
        return lengths, held.reshape(len(ids), len(terms))

    # -- first stages

    def bm25(
        self,
        k1: float = 0.9,
        b: float = 0.4,
        variant: Variant = "lucene",
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        backend: Backend = "auto",
    ) -> Retriever:
        """BM25; `only` and `without` filter by id."""
        return Retriever(self, BM25(k1, b, variant), only=only, without=without, backend=backend)

    def ql(self, mu: float = 1000.0, *, backend: Backend = "auto") -> Retriever:
        """Query likelihood with Dirichlet smoothing; for the other forms give `Retriever` a
        `QueryLikelihood`."""
        return Retriever(self, QueryLikelihood(mu), backend=backend)

    def tfidf(self, *, backend: Backend = "auto") -> Retriever:
        return Retriever(self, TfIdf(), backend=backend)

    def sdm(self, parameters: Dependence | None = None) -> SDM:
        """The sequential dependence model; the index must have positions."""
        from tamis.index.dependence import SDM

        return SDM(self, parameters)

    def pipeline(self, expression: str, runtime: Runtime | None = None) -> Stage:
        """The stages that an expression names, over this index; `runtime` says how models are run.

        >>> import tempfile
        >>> index = Index.build([Document("d1", "sieve")], tempfile.mkdtemp() + "/idx")
        >>> index.pipeline("bm25(k1=1.2) >> rm3 % 10")
        bm25(k1=1.2) >> rm3 % 10
        """
        from tamis.core.registry import build

        return build(expression, self, runtime)

    # -- what only an index on disk can do, unless a kind of index says otherwise

    def writer(
        self, *, on_duplicate: OnDuplicate = "error", workers: int = 1
    ) -> AbstractContextManager[IndexWriter]:
        """The only writer of the index; leaving the block without `commit` discards its changes. A document
        with an existing id is an error, replaces the old one, or is skipped. For `workers` see `build`."""
        _only_on_disk(self, "open a writer of", "use `add`, or `tamis index CORPUS --add -o ADDRESS`")

    @abstractmethod
    def add(self, documents: Documents, *, on_duplicate: OnDuplicate = "error", workers: int = 1) -> None:
        """Add documents and commit; for `on_duplicate` see `writer`, for `workers` `build`."""

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents and commit."""
        _only_on_disk(self, "delete documents of", "delete them with the cluster's own API")

    def merge(self) -> None:
        """Make one segment of all, without the deleted documents: the fastest and smallest form."""
        _only_on_disk(self, "merge", "use the cluster's own _forcemerge")

    def backup(self, destination: str | Path, *, links: bool = True) -> Backup:
        """Copy the last commit into a new or empty folder: see `tamis.index.backup`."""
        _only_on_disk(self, "back up", "use the cluster's own snapshots")


def _only_on_disk(index: Index, what: str, remedy: str) -> NoReturn:
    raise InputError(f"tamis cannot {what} {index.place}: it is not an index on disk", remedy=remedy)


def several(documents: Documents) -> Iterator[Document]:
    """Check that these are several documents, and not a single one or a path, before anything is written."""
    if isinstance(documents, str | PathLike):
        problem = f"{quoted(os.fspath(documents))} is not a list of documents"
        raise InputError(problem, remedy="read a file or a folder with tamis.formats.read_corpus(path)")
    if hasattr(documents, "collect"):  # a lazy frame
        return documents_of(documents)
    try:
        iter(documents)
        return documents_of(documents)
    except TypeError:  # from callers without a type checker
        problem = f"a {type(documents).__name__} is not a list of documents"
        raise InputError(problem, remedy="give an iterable of tamis.Document(id, text)") from None


def check_search(weights: Mapping[str, float], k: int) -> None:
    """Refuse what no index can search for."""
    if k < 0:
        raise InputError(f"cannot find {k} documents", remedy="use a k of 0 or more")
    for term, weight in weights.items():
        if not abs(weight) <= LARGEST_WEIGHT:  # false for NaN too
            raise InputError(
                f"the weight of {quoted(term)} is {weight}",
                remedy=f"use a number between -{LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}",
            )


def index_of(corpus: Sequence[str]) -> Index | None:
    """The index that `corpus` names; None where it names files, or folders of files.

    >>> index_of(["corpus.jsonl"])
    """
    if len(corpus) == 1 and (is_address(corpus[0]) or is_index(corpus[0])):
        return Index.open(corpus[0])
    return None
