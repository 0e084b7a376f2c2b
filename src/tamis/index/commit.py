"""An open commit: the manifest and its segments, which never change. A reader that holds one sees one state
of the index, whatever a writer does meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tamis.base.errors import CorruptError
from tamis.index.manifest import Manifest
from tamis.index.score import Collection
from tamis.index.search import collection_of
from tamis.index.segment import Segment
from tamis.text.analyze import Analyzer, get_analyzer


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed state of an index, ready to be read."""

    manifest: Manifest
    segments: tuple[Segment, ...]
    collection: Collection
    analyzer: Analyzer

    @classmethod
    def open(cls, folder: Path, known: Commit | None = None) -> Commit:
        """The last commit; what has not changed since a `known` one is taken over from it.

        A writer may replace it, and remove its segments, between our reading the manifest and opening them:
        then the manifest has changed, and we start over.
        """
        while True:
            manifest = Manifest.read(folder)
            if known is not None and manifest == known.manifest:
                return known
            try:
                return cls.of(folder, manifest, known)
            except FileNotFoundError as error:
                if Manifest.read(folder) == manifest:
                    raise CorruptError(
                        f"{error.filename} is missing",
                        remedy="restore it from a copy, or build the index again",
                    ) from error

    @classmethod
    def of(cls, folder: Path, manifest: Manifest, known: Commit | None = None) -> Commit:
        """The commit that a manifest describes."""
        opened = {segment.info.name: segment for segment in known.segments} if known else {}
        segments = []
        for info in manifest.segments:
            segment = opened.get(info.name)
            if segment is None or segment.info != info:
                if segment is not None and segment.info.columns != info.columns:
                    segment = None
                segment = Segment(folder / "segments" / info.name, info, segment)
            segments.append(segment)
        same = known is not None and known.manifest.analyzer == manifest.analyzer
        analyzer = known.analyzer if known and same else get_analyzer(manifest.analyzer)
        return cls(manifest, tuple(segments), collection_of(segments), analyzer)

    def find(self, doc_id: str) -> tuple[Segment, int] | None:
        """The segment that holds the document with this id, and its number there."""
        for segment in self.segments:
            number = segment.store.number(doc_id)
            if number >= 0 and (segment.deleted is None or not segment.deleted[number]):
                return segment, number
        return None
