"""The index on disk: build, open, search, explain; many readers while one writer commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import Condition
from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError, quoted
from tamis.base.interrupt import check
from tamis.formats.records import Documents
from tamis.index.commit import Commit
from tamis.index.compiled import numba_installed
from tamis.index.conditions import allowed as allowed_by
from tamis.index.conditions import fields_of
from tamis.index.index import Index, TermContribution, check_search, several
from tamis.index.manifest import NAME, Manifest
from tamis.index.place import Place, is_address
from tamis.index.remains import remove_remains
from tamis.index.retriever import listed
from tamis.index.score import Collection, Model, Terms
from tamis.index.search import Backend, ids_of, search, statistics
from tamis.index.segment import Segment
from tamis.index.writer import IndexWriter, OnDuplicate, create, discarding
from tamis.storage.locks import folder_lock
from tamis.text.analyze import Analyzer

if TYPE_CHECKING:
    from tamis.index.backup import Backup


class EmbeddedIndex(Index):
    """A committed state of an index on disk; `refresh` moves on to the newest.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/idx"
    >>> index = EmbeddedIndex.build([Document("d1", "the cook's sieve")], folder)
    >>> other = EmbeddedIndex.open(folder)
    >>> index.add([Document("d2", "a sieve of sieves")])
    >>> len(other), other.refresh(), len(other)
    (1, True, 2)
    """

    def __init__(self, path: Path, commit: Commit) -> None:
        self.path = path
        # one attribute, so that a search in one thread sees the whole of it while another one refreshes
        self._commit = commit
        self._filter: tuple[object, ...] | None = None  # the last one, and the masks it came to

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        """Another process opens the last commit again, because memory maps cannot be sent."""
        return EmbeddedIndex.open, (self.path.absolute(),)

    def __copy__(self) -> EmbeddedIndex:
        return EmbeddedIndex(self.path, self._commit)

    @property
    def place(self) -> Path:
        return self.path

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
    def open(cls, path: Place) -> EmbeddedIndex:
        """The index in a folder as last committed."""
        if is_address(path):
            raise InputError(
                f"{path} is in a cluster, and this is for an index on disk alone",
                remedy="give the folder of an index",
            )
        folder = Path(path)
        return cls(folder, Commit.open(folder))

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
    ) -> EmbeddedIndex:
        """See `Index.build`."""
        folder, documents = Path(path), several(documents)
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

    def stamp(self) -> tuple[int, int, int] | None:
        """A manifest is a new file each time."""
        try:
            found = (self.path / NAME).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def refresh(self) -> bool:
        newest = Commit.open(self.path, self._commit)
        moved = newest is not self._commit
        self._commit = newest
        return moved

    @contextmanager
    def writer(self, *, on_duplicate: OnDuplicate = "error", workers: int = 1) -> Iterator[IndexWriter]:
        Manifest.read(self.path)  # or a lock would be made where there is no index
        with folder_lock(self.path) as lock:
            commit = Commit.open(self.path, self._commit)
            remove_remains(self.path)
            yield from discarding(IndexWriter(self.path, commit, on_duplicate, lock, workers=workers))
        self.refresh()

    def add(self, documents: Documents, *, on_duplicate: OnDuplicate = "error", workers: int = 1) -> None:
        documents = several(documents)
        with self.writer(on_duplicate=on_duplicate, workers=workers) as writer:
            for document in documents:
                writer.add(document)
            writer.commit()

    def delete(self, ids: Iterable[str]) -> None:
        ids = listed(ids)
        with self.writer() as writer:
            writer.delete(*ids)
            writer.commit()

    def merge(self) -> None:
        with self.writer() as writer:
            writer.merge()

    def backup(self, destination: str | Path, *, links: bool = True) -> Backup:
        from tamis.index.backup import backup

        return backup(self.path, destination, links=links)

    # -- documents

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
        segment, number = _located(self._commit, identity)
        return segment.store.document(number)

    def missing(self, ids: Iterable[str]) -> list[str]:
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

    @property
    def fields(self) -> list[str]:
        """As far as the first documents have them."""
        return fields_of(self.segments)

    def matches(self, ids: Sequence[str], terms: Sequence[str]) -> tuple[Array, Array]:
        known, lengths = np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
        held = np.zeros((len(ids), len(terms)), bool)
        for segment in self.segments:
            numbers = segment.store.numbers(list(ids))
            here = numbers >= 0
            if segment.deleted is not None:
                here &= ~segment.deleted[numbers]
            rows = np.flatnonzero(here)
            own = numbers[rows]
            known |= here
            lengths[rows] = segment.lengths[own]
            for column, term in enumerate(terms):
                check()
                if (entry := segment.term(term)) is not None:
                    holding, _ = segment.decode(entry)
                    at = np.minimum(np.searchsorted(holding, own), len(holding) - 1)
                    held[rows, column] = holding[at] == own
        if not known.all():
            missing = ids[int(np.argmin(known))]
            raise UnknownDocumentError(
                f"the index holds no document {missing!r}", remedy="take the candidates from this index"
            )
        return lengths, held

    # -- searching

    @property
    def fingerprint(self) -> str:
        manifest = self._commit.manifest
        return f"{manifest.identity}@{manifest.generation}"

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
        commit = self._commit
        check_search(weights, k)
        if k == 0:
            return [], np.zeros(0, np.float32)
        allowed = self._allowed(commit, only, without)
        if where is not None:
            allowed = _satisfying(commit, where, allowed)
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

    def df(self, term: str) -> int:
        for segment in self.segments:
            segment.check_sizes()
        return sum(entry.df for segment in self.segments if (entry := segment.term(term)))

    def statistics(self, weights: Mapping[str, float], model: Model) -> Terms:
        return statistics(self.segments, weights)[1]

    def prepare(self, model: Model, backend: Backend) -> None:
        """Compile the search kernel, or load it compiled."""
        if backend != "numpy" and numba_installed():
            from tamis.index.warm import warm

            warm(model.lengths)


def _located(commit: Commit, identity: str) -> tuple[Segment, int]:
    found = commit.find(identity)
    if found is None:
        raise UnknownDocumentError(
            f"the index holds no document {quoted(identity)}", remedy="check the id, or add the document"
        )
    return found


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


def _satisfying(
    commit: Commit, where: Condition, allowed: list[Array | None] | None
) -> list[Array | None] | None:
    """The masks of those that satisfy a condition too."""
    masks = allowed_by(commit.segments, where, commit.analyzer)
    if masks is None:
        return allowed
    others = [segment.live for segment in commit.segments] if allowed is None else allowed
    return [
        mask if other is None else np.logical_and(mask, other)
        for mask, other in zip(masks, others, strict=True)
    ]
