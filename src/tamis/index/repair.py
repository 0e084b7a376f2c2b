"""Repair of a damaged index: intact segments stay, damaged ones are removed, and their documents are indexed
again as far as their texts can be read. The damaged files are kept in a folder beside the index."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import TamisError
from tamis.index.backup import Copier, columns_of
from tamis.index.commit import Commit
from tamis.index.manifest import NAME, Manifest
from tamis.index.remains import is_tokens_file
from tamis.index.segment import SegmentInfo
from tamis.index.tokens import damaged_tokens
from tamis.index.verify import problems_of
from tamis.index.writer import IndexWriter, discarding
from tamis.storage.columns import Column, ColumnInfo
from tamis.storage.document_store import intact_documents
from tamis.storage.files import atomic_write, storage_errors
from tamis.storage.locks import FolderLock, folder_lock
from tamis.storage.markers import files_of, mark, remove_marked

__all__ = ["LOST", "Repair", "repair"]

LOST = "lost-documents.json"  # the lost ids, in the folder of the damaged files


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did."""

    problems: tuple[str, ...]  # none: nothing was to be done
    aside: str | None  # the folder with the damaged files, as they were
    recovered: int  # documents of damaged segments that are in the index again
    lost: tuple[str, ...]  # ids of documents that are not
    unnamed: int  # documents that are lost and whose ids cannot be read; at most, where deletions cannot be


def repair(index: str | Path) -> Repair:
    """Remove the damaged parts of an index, so that it opens and every checksum is valid. A damaged manifest
    cannot be repaired, because only it says what the other files should be.

    >>> from tamis import Document, Index
    >>> folder = getfixture("tmp_path") / "idx"
    >>> _ = Index.build([Document("d1", "a sieve")], folder)
    >>> _ = next(folder.rglob("postings.tfs")).write_bytes(b"damaged")
    >>> report = repair(folder)
    >>> report.recovered, report.lost, Index.open(folder).bm25()("sieve").ids
    (1, (), ('d1',))
    """
    folder = Path(index)
    Manifest.read(folder)  # or a lock would be made where there is no index
    with folder_lock(folder) as lock, storage_errors(folder):
        manifest = Manifest.read(folder)
        damaged = {info.name: found for info in manifest.segments if (found := problems_of(folder, info))}
        tokens = damaged_tokens(folder)
        if not damaged and not tokens:
            return Repair((), None, 0, (), 0)
        aside = _beside(folder)
        copier = Copier()
        copier.folder(aside)
        for path in [*(folder / "segments" / name for name in damaged), *tokens]:
            if path.is_dir():
                copier.folder(aside / path.relative_to(folder))
                for each in files_of(path):
                    copier.file(each, aside / path.relative_to(folder) / each.name)
        copier.file(folder / NAME, aside / NAME)
        copier.sync()
        report = Repair((), str(aside), 0, (), 0)
        if damaged:
            report = _without(folder, manifest, damaged, lock)
            with atomic_write(aside / LOST, "w") as file:
                file.write(json.dumps({"ids": report.lost, "unnamed": report.unnamed}, indent=1) + "\n")
        for path in tokens:  # after the index: they can be made again
            mark(path)
            remove_marked(path, is_tokens_file)
    problems = [problem for each in damaged.values() for problem in each]
    problems += [f"the tokens in {path} are damaged" for path in tokens]
    return replace(report, problems=tuple(problems), aside=str(aside))


def _without(folder: Path, manifest: Manifest, damaged: Collection[str], lock: FolderLock) -> Repair:
    """Commit the index without these segments, but with those of their documents that can be read."""
    kept = tuple(info for info in manifest.segments if info.name not in damaged)
    commit = Commit.of(folder, replace(manifest, segments=kept))
    recovered, lost, unnamed = 0, list[str](), 0
    # a new one commits though nothing is changed
    with contextmanager(discarding)(IndexWriter(folder, commit, "skip", lock, is_new=True)) as writer:
        for info in manifest.segments:
            if info.name not in damaged:
                continue
            for doc_id, document in _documents(folder / "segments" / info.name, info):
                if document is not None:
                    writer.add(document)
                    recovered += 1
                elif doc_id is not None:
                    lost.append(doc_id)
                else:
                    unnamed += 1
        writer.commit()
    return Repair((), None, recovered, tuple(lost), unnamed)


def _documents(folder: Path, info: SegmentInfo) -> Iterator[tuple[str | None, Document | None]]:
    """The documents of a damaged segment that are not deleted: id and text, as far as they can be read."""
    columns = columns_of(info)
    deleted, sure = np.zeros(info.documents, dtype=bool), True
    if info.deleted is not None:
        bits = _column(folder, info.deleted, columns)
        sure = bits is not None
        if bits is not None:
            deleted = np.unpackbits(bits, count=info.documents).astype(bool)
    documents: Iterator[Document | None] = iter([None] * info.documents)
    if sure:  # or a deleted document would come back, perhaps beside the one that replaced it
        documents = intact_documents(folder, columns, info.documents)
    ids = _ids(folder, columns, info.documents)
    for number, document in enumerate(documents):
        if not deleted[number]:
            yield ids[number] if ids else None, document


def _ids(folder: Path, columns: Mapping[str, ColumnInfo], count: int) -> list[str] | None:
    text, ends = (_column(folder, f"store.{name}", columns) for name in ("id_text", "id_ends"))
    if text is None or ends is None:
        return None
    return [text[ends[n] : ends[n + 1]].tobytes().decode() for n in range(count)]


def _column(folder: Path, name: str, columns: Mapping[str, ColumnInfo]) -> Array | None:
    """A whole column; None where it is damaged."""
    try:
        return Column(folder / name, columns[name]).all()
    except (TamisError, OSError):
        return None


def _beside(folder: Path) -> Path:
    """The name of a new folder beside the index."""
    here = Path(folder).absolute()
    number = 1
    while (path := here.with_name(f"{here.name}.damaged{f'-{number}' if number > 1 else ''}")).exists():
        number += 1
    return path if folder.is_absolute() else folder.parent / path.name
