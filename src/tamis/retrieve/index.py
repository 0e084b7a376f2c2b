"""The index: build, open, add, update, delete, merge; many readers while one writer commits."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from tamis.columns import Array
from tamis.corpus import Keep
from tamis.documents import Document
from tamis.errors import CorruptError, InputError, UnknownDocumentError
from tamis.files import storage_errors, sync_folder
from tamis.retrieve.manifest import Manifest, remove_unnamed, writer_lock
from tamis.retrieve.retriever import Retriever
from tamis.retrieve.score import BM25, Collection, Model, QueryLikelihood, Terms, TfIdf, Variant
from tamis.retrieve.search import Backend, Found, collection_of, search, statistics
from tamis.retrieve.segment import Segment, SegmentInfo, SegmentWriter, merge_segments, with_deleted
from tamis.text.analyze import Analyzer, get_analyzer

if TYPE_CHECKING:
    from tamis.retrieve.dependence import SDM, Dependence
    from tamis.stage import Stage

SEGMENTS_KEPT = 8  # a commit that leaves more merges the smallest ones
OnDuplicate = Literal["error", "replace", "skip"]
_KEEP: dict[str, Keep | None] = {"error": None, "replace": "last", "skip": "first"}


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

    def __init__(self, path: Path, manifest: Manifest, segments: Sequence[Segment]) -> None:
        self.path = path
        self._load(manifest, segments)

    def _load(self, manifest: Manifest, segments: Sequence[Segment]) -> None:
        self.manifest = manifest
        self.segments = tuple(segments)
        self.analyzer: Analyzer = get_analyzer(manifest.analyzer)
        self.collection: Collection = collection_of(segments)

    # -- opening and changing
    # -----------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """The index at `path` as last committed."""
        folder = Path(path)
        manifest, segments = _open_segments(folder, {})
        return cls(folder, manifest, segments)

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        path: str | Path,
        *,
        analyzer: str = "english",
        positions: bool = False,
        overwrite: bool = False,
        on_duplicate: OnDuplicate = "error",
        commit_every: int | None = None,
    ) -> Index:
        """Index `documents` into a new folder; `positions` are needed by the sequential dependence model."""
        folder = Path(path)
        with create(
            folder, analyzer=analyzer, positions=positions, overwrite=overwrite, on_duplicate=on_duplicate
        ) as writer:
            for document in documents:
                writer.add(document)
                if commit_every and writer.pending >= commit_every:
                    writer.commit()
            writer.commit()
        return cls.open(folder)

    def refresh(self) -> bool:
        """Move to the newest commit; True if there was one."""
        if Manifest.read(self.path).generation == self.manifest.generation:
            return False
        opened = {segment.info.name: segment for segment in self.segments}
        self._load(*_open_segments(self.path, opened))
        return True

    @contextmanager
    def writer(self, *, on_duplicate: OnDuplicate = "error") -> Iterator[IndexWriter]:
        """The index's one writer; leave the block without `commit` and nothing has happened. A document whose
        id is known is an error, replaces the old one, or is skipped."""
        with writer_lock(self.path):
            manifest, segments = _open_segments(self.path, {})
            remove_unnamed(self.path)
            yield from _discarding(IndexWriter(self.path, manifest, segments, on_duplicate))
        self.refresh()

    def add(self, documents: Iterable[Document], *, on_duplicate: OnDuplicate = "error") -> None:
        """Add documents and commit; for `on_duplicate` see `writer`."""
        with self.writer(on_duplicate=on_duplicate) as writer:
            for document in documents:
                writer.add(document)
            writer.commit()

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents and commit."""
        with self.writer() as writer:
            for identity in ids:
                writer.delete(identity)
            writer.commit()

    def merge(self) -> None:
        """Make one segment of all, without the deleted documents: the fastest and smallest form."""
        with self.writer() as writer:
            writer.merge()

    # -- documents
    # ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(segment.documents for segment in self.segments)

    def __contains__(self, identity: str) -> bool:
        return self._find(identity) is not None

    def __iter__(self) -> Iterator[Document]:
        for segment in self.segments:
            for number in range(len(segment)):
                if segment.deleted is None or not segment.deleted[number]:
                    yield segment.store.document(number)

    def document(self, identity: str) -> Document:
        """The document with this id."""
        segment, number = self._located(identity)
        return segment.store.document(number)

    def ids(self) -> Iterator[str]:
        for segment in self.segments:
            numbers = np.arange(len(segment)) if segment.live is None else np.flatnonzero(segment.live)
            for start in range(0, len(numbers), 10_000):
                yield from segment.store.ids(numbers[start : start + 10_000])

    def _find(self, identity: str) -> tuple[Segment, int] | None:
        for segment in self.segments:
            number = segment.store.number(identity)
            if number >= 0 and (segment.deleted is None or not segment.deleted[number]):
                return segment, number
        return None

    def _located(self, identity: str) -> tuple[Segment, int]:
        found = self._find(identity)
        if found is None:
            raise UnknownDocumentError(
                f"the index holds no document {identity!r}", remedy="check the id, or add the document"
            )
        return found

    # -- first stages
    # -------------------------------------------------------------------------------------------

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
        from tamis.retrieve.dependence import SDM

        return SDM(self, parameters)

    def pipeline(self, expression: str) -> Stage:
        """The stages that an expression names, over this index.

        >>> import tempfile
        >>> index = Index.build([Document("d1", "sieve")], tempfile.mkdtemp() + "/idx")
        >>> index.pipeline("bm25(k1=1.2) >> rm3 % 10")
        bm25(k1=1.2) >> rm3 % 10
        """
        from tamis.stages import build

        return build(expression, self)

    # -- searching
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """What exactly is searched: the index and its commit."""
        return f"{self.manifest.identity}@{self.manifest.generation}"

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
        allowed = self._allowed(only, without)
        found = search(self.segments, model, weights, k, self.collection, allowed=allowed, backend=backend)
        return self._ids_of(found), found.scores

    def _ids_of(self, found: Found) -> list[str]:
        if len(self.segments) == 1:
            return self.segments[0].store.ids(found.documents)
        ids: list[str] = [""] * len(found.documents)
        for number, segment in enumerate(self.segments):
            places = np.flatnonzero(found.segments == number)
            for place, identity in zip(
                places.tolist(), segment.store.ids(found.documents[places]), strict=True
            ):
                ids[place] = identity
        return ids

    def _allowed(
        self, only: Iterable[str] | None, without: Iterable[str] | None
    ) -> list[Array | None] | None:
        if only is None and without is None:
            return None
        masks: list[Array | None] = []
        wanted, unwanted = list(only or ()), list(without or ())
        for segment in self.segments:
            mask = np.full(len(segment), only is None)
            for ids, value in ((wanted, True), (unwanted, False)):
                numbers = np.array([segment.store.number(identity) for identity in ids], dtype=np.int64)
                mask[numbers[numbers >= 0]] = value
            masks.append(mask if segment.live is None else mask & segment.live)
        return masks

    def explain(self, weights: Mapping[str, float], model: Model, identity: str) -> list[TermContribution]:
        """What each query term adds to a document's score, the largest first."""
        from tamis.retrieve.lengths import LENGTH_OF_NORM

        segment, number = self._located(identity)
        terms = statistics(self.segments, weights)
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
            one = Terms(terms.weight[i : i + 1], terms.df[i : i + 1], terms.cf[i : i + 1])
            value = model.contribution(tfs[at : at + 1], np.array([length]), one, self.collection)
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
        return sum(entry.df for segment in self.segments if (entry := segment.term(term)))


class IndexWriter:
    """Collects changes; `commit` makes them visible all at once. Made by `create` and `Index.writer`."""

    def __init__(
        self, folder: Path, manifest: Manifest, segments: Sequence[Segment], on_duplicate: OnDuplicate
    ) -> None:
        if on_duplicate not in _KEEP:
            raise InputError(f"no rule {on_duplicate!r} for duplicates", remedy="use error, replace or skip")
        self._folder = folder
        self._manifest = manifest
        self._on_duplicate: OnDuplicate = on_duplicate
        self._index = Index(folder, manifest, segments)
        self._deleted: dict[str, Array] = {}  # segment name -> bits to be committed
        self._open: SegmentWriter | None = None

    @property
    def pending(self) -> int:
        """Documents added since the last commit."""
        return self._open.count if self._open else 0

    def add(self, document: Document) -> None:
        """Add a document; ids repeated since the last commit are found when it is committed."""
        if self._index.segments:
            found = self._index._find(document.id)
            if found is not None and not self._is_deleted(*found):
                if self._on_duplicate == "skip":
                    return
                if self._on_duplicate == "error":
                    raise InputError(
                        f"the index already holds a document {document.id!r}",
                        remedy="delete it first, or add with on_duplicate='replace' or 'skip'",
                    )
                self._mark(*found)
        if self._open is None:
            name = f"{self._manifest.generation + 1:08d}-{secrets.token_hex(4)}"
            analyzer = self._index.analyzer
            with storage_errors(self._folder):
                self._open = SegmentWriter(
                    self._folder / "segments" / name,
                    analyzer,
                    positions=self._manifest.positions,
                    keep=_KEEP[self._on_duplicate],
                )
        self._open.add(document)

    def delete(self, identity: str) -> None:
        """Delete a committed document."""
        found = self._index._find(identity)
        if found is None or self._is_deleted(*found):
            raise UnknownDocumentError(
                f"the index holds no document {identity!r}",
                remedy="check the id; documents just added must be committed",
            )
        self._mark(*found)

    def _bits(self, segment: Segment) -> Array:
        bits = self._deleted.get(segment.info.name)
        if bits is None:
            bits = np.zeros(len(segment), dtype=bool) if segment.deleted is None else segment.deleted.copy()
            self._deleted[segment.info.name] = bits
        return bits

    def _is_deleted(self, segment: Segment, number: int) -> bool:
        bits = self._deleted.get(segment.info.name)
        return bits is not None and bool(bits[number])

    def _mark(self, segment: Segment, number: int) -> None:
        self._bits(segment)[number] = True

    def commit(self) -> None:
        """Write what is pending, make it durable, and replace the manifest."""
        if self._open is None and not self._deleted:
            if self._manifest.generation == 0:  # an index with nothing in it is an index
                self._publish(())
            return
        infos = []
        for segment in self._index.segments:
            bits = self._deleted.get(segment.info.name)
            info = segment.info
            if bits is not None:
                folder = self._folder / "segments" / info.name
                info = with_deleted(folder, info, bits, f"deleted-{self._manifest.generation + 1:08d}")
            if bits is None or not bits.all():
                infos.append(info)
        if self._open is not None:
            infos.append(self._open.close())
            self._open = None
        self._publish(infos)
        if len(self._index.segments) > SEGMENTS_KEPT:
            by_size = sorted(self._index.segments, key=len)
            self._merge(by_size[: len(by_size) - SEGMENTS_KEPT // 2])

    def merge(self) -> None:
        """Commit, then make one segment of all."""
        self.commit()
        if len(self._index.segments) > 1 or any(s.deleted is not None for s in self._index.segments):
            self._merge(self._index.segments)

    def _merge(self, chosen: Sequence[Segment]) -> None:
        name = f"{self._manifest.generation + 1:08d}-{secrets.token_hex(4)}"
        with storage_errors(self._folder):
            merged = merge_segments(self._folder / "segments" / name, chosen)
        gone = {segment.info.name for segment in chosen}
        kept = [segment.info for segment in self._index.segments if segment.info.name not in gone]
        self._publish([*kept, merged] if merged.documents else kept)

    def _publish(self, infos: Sequence[SegmentInfo]) -> None:
        for info in infos:
            sync_folder(self._folder / "segments" / info.name)
        if infos:
            sync_folder(self._folder / "segments")
        manifest = replace(self._manifest, generation=self._manifest.generation + 1, segments=tuple(infos))
        manifest.write(self._folder)
        self._manifest = manifest
        self._deleted = {}
        opened = {segment.info.name: segment for segment in self._index.segments}
        self._index = Index(self._folder, manifest, _segments_of(self._folder, manifest, opened))
        remove_unnamed(self._folder)

    def discard(self) -> None:
        """Forget what was not committed."""
        self._open = None
        remove_unnamed(self._folder)


def _segments_of(folder: Path, manifest: Manifest, opened: Mapping[str, Segment]) -> list[Segment]:
    """The manifest's segments, those already open and unchanged taken over."""
    segments = []
    for info in manifest.segments:
        known = opened.get(info.name)
        unchanged = known is not None and known.info.deleted == info.deleted
        segments.append(known if known and unchanged else Segment(folder / "segments" / info.name, info))
    return segments


def _open_segments(folder: Path, opened: Mapping[str, Segment]) -> tuple[Manifest, list[Segment]]:
    """Open the last commit. A writer may replace it, and remove its segments, between our reading the
    manifest and opening them: then the manifest has changed, and we start over."""
    while True:
        manifest = Manifest.read(folder)
        try:
            return manifest, _segments_of(folder, manifest, opened)
        except FileNotFoundError as error:
            if Manifest.read(folder).generation == manifest.generation:
                raise CorruptError(
                    f"{error.filename} is missing", remedy="restore it from a copy, or build the index again"
                ) from error


@contextmanager
def create(
    path: str | Path,
    *,
    analyzer: str = "english",
    positions: bool = False,
    overwrite: bool = False,
    on_duplicate: OnDuplicate = "error",
) -> Iterator[IndexWriter]:
    """Begin an index in a new or empty folder; until the first commit there is none."""
    folder = Path(path)
    get_analyzer(analyzer)  # an unknown name should fail before anything is written
    if (folder / "manifest.json").exists() and not overwrite:
        raise InputError(f"{folder} already holds an index", remedy="add to it, or overwrite it")
    if folder.is_file() or (folder.is_dir() and not _ours(folder)):
        raise InputError(f"{folder} is not empty and is not an index", remedy="choose another folder")
    with writer_lock(folder):
        generation = Manifest.read(folder).generation if (folder / "manifest.json").exists() else 0
        manifest = Manifest(secrets.token_hex(8), generation, analyzer, positions, ())
        remove_unnamed(folder)
        yield from _discarding(IndexWriter(folder, manifest, (), on_duplicate))


def _ours(folder: Path) -> bool:
    return {entry.name for entry in folder.iterdir()} <= {"manifest.json", "segments", "lock"}


def _discarding(writer: IndexWriter) -> Iterator[IndexWriter]:
    try:
        yield writer
    finally:
        writer.discard()
