"""The index: build, open, search, explain; many readers while one writer commits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError, quoted
from tamis.formats.records import Documents, documents_of
from tamis.index.commit import Commit
from tamis.index.manifest import Manifest, is_index
from tamis.index.remains import remove_remains
from tamis.index.retriever import Retriever, listed
from tamis.index.score import BM25, LARGEST_WEIGHT, Collection, Model, QueryLikelihood, TfIdf, Variant
from tamis.index.search import Backend, ids_of, search, statistics
from tamis.index.segment import Segment
from tamis.index.writer import IndexWriter, OnDuplicate, create, discarding
from tamis.storage.locks import folder_lock
from tamis.text.analyze import Analyzer

if TYPE_CHECKING:
    from tamis.core.runtime import Runtime
    from tamis.core.stage import Stage
    from tamis.index.backup import Backup
    from tamis.index.dependence import SDM, Dependence

__all__ = ["Index", "IndexWriter", "OnDuplicate", "TermContribution", "create"]


@dataclass(frozen=True, slots=True)
class TermContribution:
    """One line of an explanation: what a query term adds to a document's score."""

    term: str
    weight: float
    tf: int
    df: int
    contribution: float


class Index:
    """A committed state of an index on disk; `refresh` moves on to the newest.

    >>> import tempfile
    >>> docs = [Document("d1", "the cook's sieve"), Document("d2", "a sieve of sieves")]
    >>> index = Index.build(docs, tempfile.mkdtemp() + "/idx")
    >>> index.bm25()("sieves").ids
    ('d2', 'd1')
    """

    def __init__(self, path: Path, commit: Commit) -> None:
        self.path = path
        # one attribute, so that a search in one thread sees the whole of it while another one refreshes
        self._commit = commit
        self._filter: tuple[object, ...] | None = None  # the last one, and the masks it came to

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        """Another process opens the last commit again, because memory maps cannot be sent."""
        return Index.open, (self.path.absolute(),)

    def __copy__(self) -> Index:
        """A copy stays at its commit: refreshing one copy does not change the others."""
        return Index(self.path, self._commit)

    @property
    def manifest(self) -> Manifest:
        return self._commit.manifest

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._commit.segments

    @property
    def collection(self) -> Collection:
        return self._commit.collection

    @property
    def analyzer(self) -> Analyzer:
        return self._commit.analyzer

    # -- opening and changing

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """The index at `path` as last committed."""
        folder = Path(path)
        return cls(folder, Commit.open(folder))

    @classmethod
    def build(
        cls,
        documents: Documents,
        path: str | Path,
        *,
        analyzer: str = "english",
        positions: bool = False,
        overwrite: bool = False,
        on_duplicate: OnDuplicate = "error",
        commit_every: int | None = None,
        workers: int = 1,
    ) -> Index:
        """Index `documents` into a new folder: an iterable of documents or of mappings (`{"id": ..., "text":
        ...}`), or a frame of pandas or polars with such columns. `positions` are needed by the sequential
        dependence model. A large collection is indexed by up to `workers` processes, including this one; the
        result does not depend on their number."""
        folder, documents = Path(path), _several(documents)
        if commit_every is not None and commit_every < 1:
            raise InputError(f"cannot commit every {commit_every} documents", remedy="use 1 or more, or None")
        with create(
            folder,
            analyzer=analyzer,
            positions=positions,
            overwrite=overwrite,
            on_duplicate=on_duplicate,
            workers=workers,
        ) as writer:
            for document in documents:
                writer.add(document)
                if commit_every and writer.pending >= commit_every:
                    writer.commit()
            writer.commit()
        return cls.open(folder)

    def refresh(self) -> bool:
        """Move to the newest commit; True if there was one."""
        newest = Commit.open(self.path, self._commit)
        moved = newest is not self._commit
        self._commit = newest
        return moved

    @contextmanager
    def writer(self, *, on_duplicate: OnDuplicate = "error", workers: int = 1) -> Iterator[IndexWriter]:
        """The only writer of the index; leaving the block without `commit` discards its changes. A document
        with an existing id is an error, replaces the old one, or is skipped. For `workers` see `build`."""
        Manifest.read(self.path)  # or a lock would be made where there is no index
        with folder_lock(self.path) as lock:
            commit = Commit.open(self.path, self._commit)
            remove_remains(self.path)
            yield from discarding(IndexWriter(self.path, commit, on_duplicate, lock, workers=workers))
        self.refresh()

    def add(self, documents: Documents, *, on_duplicate: OnDuplicate = "error", workers: int = 1) -> None:
        """Add documents and commit; for `on_duplicate` see `writer`, for `workers` `build`."""
        documents = _several(documents)
        with self.writer(on_duplicate=on_duplicate, workers=workers) as writer:
            for document in documents:
                writer.add(document)
            writer.commit()

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents and commit."""
        ids = listed(ids)
        with self.writer() as writer:
            writer.delete(*ids)
            writer.commit()

    def merge(self) -> None:
        """Make one segment of all, without the deleted documents: the fastest and smallest form."""
        with self.writer() as writer:
            writer.merge()

    def backup(self, destination: str | Path, *, links: bool = True) -> Backup:
        """Copy the last commit into a new or empty folder: see `tamis.index.backup`."""
        from tamis.index.backup import backup

        return backup(self.path, destination, links=links)

    # -- documents

    def __repr__(self) -> str:
        return f"<Index of {len(self):,} documents: {self.path}>"

    def __len__(self) -> int:
        return sum(segment.documents for segment in self.segments)

    def __contains__(self, identity: str) -> bool:
        return self._commit.find(identity) is not None

    def __iter__(self) -> Iterator[Document]:
        for segment in self.segments:
            for number in range(len(segment)):
                if segment.deleted is None or not segment.deleted[number]:
                    yield segment.store.document(number)

    def document(self, identity: str) -> Document:
        """The document with this id."""
        segment, number = _located(self._commit, identity)
        return segment.store.document(number)

    def missing(self, ids: Iterable[str]) -> list[str]:
        """The ids that are not in the index."""
        left = listed(ids)
        for segment in self.segments:
            numbers = segment.store.numbers(left)
            here = numbers >= 0
            if segment.deleted is not None:
                here &= ~segment.deleted[numbers]
            left = [identity for identity, held in zip(left, here.tolist(), strict=True) if not held]
        return left

    def ids(self) -> Iterator[str]:
        for segment in self.segments:
            numbers = np.arange(len(segment)) if segment.live is None else np.flatnonzero(segment.live)
            for start in range(0, len(numbers), 10_000):
                yield from segment.store.ids(numbers[start : start + 10_000])

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

    # -- searching

    @property
    def fingerprint(self) -> str:
        """What exactly is searched: the index and its commit."""
        manifest = self._commit.manifest
        return f"{manifest.identity}@{manifest.generation}"

    def weights(self, text: str) -> dict[str, float]:
        """A query text as a weighted bag of terms: each occurrence counts one."""
        counts: dict[str, float] = {}
        for term in self.analyzer.tokens(text):
            counts[term] = counts.get(term, 0.0) + 1.0
        return counts

    def search(
        self,
        weights: Mapping[str, float],
        model: Model,
        k: int,
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        backend: Backend = "auto",
    ) -> tuple[list[str], Array]:
        """Ids and scores of the k best documents for a weighted bag of analysed terms."""
        commit = self._commit
        _check(weights, k)
        if k == 0:
            return [], np.zeros(0, np.float32)
        allowed = self._allowed(commit, only, without)
        found = search(
            commit.segments, model, weights, k, commit.collection, allowed=allowed, backend=backend
        )
        return ids_of(commit.segments, found), found.scores

    def _allowed(
        self, commit: Commit, only: Iterable[str] | None, without: Iterable[str] | None
    ) -> list[Array | None] | None:
        """The masks of a filter, made once for the queries that share it (a retriever's are tuples)."""
        last = self._filter
        if last and last[0] is commit and last[1] is only and last[2] is without:
            return last[3]  # type: ignore[return-value]
        masks = _allowed(commit.segments, only, without)
        if isinstance(only, tuple | None) and isinstance(without, tuple | None):
            self._filter = (commit, only, without, masks)
        return masks

    def explain(self, weights: Mapping[str, float], model: Model, identity: str) -> list[TermContribution]:
        """What each query term adds to a document's score, the largest first."""
        from tamis.index.lengths import LENGTH_OF_NORM

        commit = self._commit
        segment, number = _located(commit, identity)
        segment.check_sizes()
        _, terms = statistics(commit.segments, weights)
        rounded = model.lengths == "lucene"
        length = LENGTH_OF_NORM[segment.norms[number]] if rounded else segment.lengths[number]
        lines = []
        for i, (term, weight) in enumerate(weights.items()):
            entry = segment.term(term)
            if entry is None:
                continue
            documents, tfs = segment.decode(entry)
            at = int(np.searchsorted(documents, number))
            if at == len(documents) or documents[at] != number:
                continue
            value = model.contribution(tfs[at : at + 1], np.array([length]), terms.at(i), commit.collection)
            lines.append(TermContribution(term, weight, int(tfs[at]), int(terms.df[i]), float(value[0])))
        return sorted(lines, key=lambda line: (-line.contribution, line.term))

    def document_terms(self, identity: str) -> dict[str, int]:
        """The terms of a document and how often each occurs."""
        counts: dict[str, int] = {}
        for term in self.analyzer.tokens(self.document(identity).contents):
            counts[term] = counts.get(term, 0) + 1
        return counts

    def df(self, term: str) -> int:
        """In how many documents an analysed term occurs."""
        for segment in self.segments:
            segment.check_sizes()
        return sum(entry.df for segment in self.segments if (entry := segment.term(term)))


def _several(documents: Documents) -> Iterator[Document]:
    """Refuse what holds no documents, such as a single one or a path, before anything is written."""
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


def _located(commit: Commit, identity: str) -> tuple[Segment, int]:
    found = commit.find(identity)
    if found is None:
        raise UnknownDocumentError(
            f"the index holds no document {quoted(identity)}", remedy="check the id, or add the document"
        )
    return found


def _check(weights: Mapping[str, float], k: int) -> None:
    if k < 0:
        raise InputError(f"cannot find {k} documents", remedy="use a k of 0 or more")
    for term, weight in weights.items():
        if not abs(weight) <= LARGEST_WEIGHT:  # false for NaN too
            raise InputError(
                f"the weight of {quoted(term)} is {weight}",
                remedy=f"use a number between -{LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}",
            )


def _allowed(
    segments: Sequence[Segment], only: Iterable[str] | None, without: Iterable[str] | None
) -> list[Array | None] | None:
    """For each segment which of its documents may be found; None for all that are not deleted."""
    if only is None and without is None:
        return None
    masks: list[Array | None] = []
    wanted, unwanted = listed(only or ()), listed(without or ())
    for segment in segments:
        mask = np.full(len(segment), only is None)
        for ids, value in ((wanted, True), (unwanted, False)):
            numbers = np.array([segment.store.number(identity) for identity in ids], dtype=np.int64)
            mask[numbers[numbers >= 0]] = value
        masks.append(mask if segment.live is None else mask & segment.live)
    return masks


def index_of(corpus: Sequence[str]) -> Index | None:
    """The index that `corpus` names; None where it names files, or folders of files.

    >>> index_of(["corpus.jsonl"])
    """
    return Index.open(corpus[0]) if len(corpus) == 1 and is_index(corpus[0]) else None
