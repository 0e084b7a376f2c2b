"""How the tokens of an index's documents lie beside it: one folder per tokenizer and segment,

    IDX/tokens/TOKENIZER/SEGMENT/    tokens.json, and the columns ids, ends, lengths, digests

where TOKENIZER is the tokenizer's fingerprint. Here is what needs no tokenizer: the files, their checksums,
and which of them are replaced and removed. `tamis.infer.tokens` makes tokens and finds those of a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from tamis.base.arrays import Array, ranges
from tamis.base.errors import CorruptError
from tamis.index.manifest import Manifest
from tamis.index.remains import has_tokens, is_begun, is_tokens_file
from tamis.index.segment import Segment
from tamis.storage.columns import CHUNK, Column, ColumnInfo
from tamis.storage.files import atomic_write, sync_folder, unreadable
from tamis.storage.markers import is_marked, mark, remove_marked

FORMAT = 2


@dataclass(frozen=True, slots=True)
class TokensInfo:
    """What a segment's tokens.json says: the columns, what they were made from and how much was kept."""

    texts: str  # the digest of the texts that these are the tokens of
    limit: int
    columns: dict[str, ColumnInfo]

    def write(self, path: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        with atomic_write(path, "w") as file:
            file.write(f"{xxhash.xxh3_128_hexdigest(text.encode())}\n{text}\n")

    @classmethod
    def read(cls, path: Path) -> TokensInfo | None:
        """None where there is none, or one of another format."""
        try:
            digest, _, rest = path.read_bytes().partition(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        if digest != xxhash.xxh3_128_hexdigest(rest[:-1]).encode():
            raise CorruptError(f"{path} is corrupt")
        body = json.loads(rest)
        if body["format"] != FORMAT:
            return None
        columns = {name: ColumnInfo(**info) for name, info in body["columns"].items()}
        return cls(body["texts"], body["limit"], columns)


class Texts(NamedTuple):
    """Tokens as they are kept: the text n has ids[offsets[n]:offsets[n + 1]]."""

    ids: Array  # int32[tokens]
    offsets: Array  # int64[texts + 1]
    lengths: Array  # int64[texts]: of the whole texts


class SegmentTokens:
    """The tokens of one segment's documents, by number. It must not refer to the segment: whoever keeps it
    open does so as long as there is the segment."""

    def __init__(self, folder: Path, description: TokensInfo) -> None:
        self._folder = folder
        columns = {name: Column(folder / name, info) for name, info in description.columns.items()}
        self._ids, self._offsets, self._lengths = columns["ids"], columns["ends"], columns["lengths"]
        self._digests = columns["digests"]
        # chunks of the ids known to be as written; a column can be asked that only one range at a time
        self._checked = np.zeros(self._ids.unchecked.nbytes // CHUNK + 1, dtype=bool)

    @classmethod
    def open(cls, folder: Path, segment: Segment, limit: int) -> SegmentTokens | None:
        """The tokens of a segment, None where there are none or too few of each document."""
        own = folder / segment.info.name
        with _rebuild_if_corrupt(own):
            while True:
                description = TokensInfo.read(own / "tokens.json")
                if description is None or description.texts != texts_digest(segment):
                    return None
                if description.limit < limit:
                    return None
                try:
                    return cls(own, description)
                except (FileNotFoundError, CorruptError) as error:
                    # unless a builder has just put other tokens in their place
                    if TokensInfo.read(own / "tokens.json") == description:
                        raise CorruptError(getattr(error, "problem", f"{error}")) from error

    def check(self) -> None:
        """Read everything, and compare it with its checksums."""
        with _rebuild_if_corrupt(self._folder):
            for column in (self._ids, self._offsets, self._lengths, self._digests):
                column.all()

    @property
    def digests(self) -> Array:
        """uint64[documents, 2]: of the texts that these are the tokens of."""
        return self._digests.unchecked.reshape(-1, 2)

    def texts(self, numbers: Array, limit: int) -> Texts:
        """The tokens of the documents with these numbers, at most `limit` of each."""
        with _rebuild_if_corrupt(self._folder):
            for column in (self._ids, self._offsets, self._lengths):
                column.check_size()
            offsets, lengths = self._offsets.all(), self._lengths.all()
            starts = offsets[numbers].astype(np.int64)
            counts = np.minimum(offsets[numbers + 1].astype(np.int64) - starts, limit)
            self._check(starts, counts)
        offsets_here = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets_here[1:])
        ids = self._ids.unchecked[ranges(starts, counts)].astype(np.int32)
        return Texts(ids, offsets_here, lengths[numbers].astype(np.int64))

    def _check(self, starts: Array, counts: Array) -> None:
        """Verify the checksums of what is about to be read."""
        size = self._ids.unchecked.itemsize
        stops = starts + counts
        # a document has fewer tokens than a chunk: it lies in one, or in two that are neighbours
        first, last = starts * size // CHUNK, (stops * size - 1) // CHUNK
        unknown = (counts > 0) & ~(self._checked[first] & self._checked[last])
        for i in np.flatnonzero(unknown).tolist():
            self._ids.slice(int(starts[i]), int(stops[i]))
            self._checked[first[i]] = self._checked[last[i]] = True


def whole(folder: Path, limit: int) -> Iterator[SegmentTokens]:
    """All that is kept in a tokenizer's folder, but for what is damaged or too short."""
    for path in sorted(folder.glob("*")):
        try:
            description = TokensInfo.read(path / "tokens.json")
            if description is not None and description.limit >= limit:
                kept = SegmentTokens(path, description)
                kept.check()
                yield kept
        except (CorruptError, FileNotFoundError):
            continue


def damaged_tokens(index: Path) -> list[Path]:
    """The folders of tokens beside an index that are not as they were written.

    >>> damaged_tokens(getfixture("tmp_path"))
    []
    """
    found = []
    for path in sorted(index.glob("tokens/*/*")):
        if has_tokens(path):
            try:
                description = TokensInfo.read(path / "tokens.json")
                if description is not None:
                    SegmentTokens(path, description).check()
            except (CorruptError, FileNotFoundError):
                found.append(path)
    return found


def is_whole(folder: Path, segment: Segment, limit: int) -> bool:
    """Whether a segment's tokens are there and every byte of them is as it was written."""
    try:
        kept = SegmentTokens.open(folder, segment, limit)
        if kept is not None:
            kept.check()
        return kept is not None
    except CorruptError:
        return False


@contextmanager
def _rebuild_if_corrupt(folder: Path) -> Iterator[None]:
    """Tokens can be made again from the texts, which is a better remedy than a column knows."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(
            error.problem, remedy=f"build the tokens again with `tamis tokens`, or remove {folder}"
        ) from error


def texts_digest(segment: Segment) -> str:
    """What tells the texts of a segment from others: tokens of other texts are not its tokens."""
    return segment.info.columns["store.frames"].digest


def replace_folder(path: Path, new: Path) -> None:
    """Give a finished folder its name; a reader sees the old one whole, none, or the new one whole."""
    old = new.with_name(f"{new.name}-old")
    sync_folder(new)
    if path.exists():
        mark(path, path.name, old.name)  # it may have none, or one that does not know its next name
        path.rename(old)
    new.rename(path)
    sync_folder(path.parent)
    remove_marked(old, is_tokens_file)


def remove_unneeded(index: Path, in_use: Iterable[Segment]) -> None:
    """Remove the tokens of segments that are in no commit any more, but for those `in_use`, which may be of
    an older commit. Only the holder of the lock may call this."""
    named = {segment.name for segment in Manifest.read(index).segments}
    named |= {segment.info.name for segment in in_use}
    remove_tokens(path for path in index.glob("tokens/*/*") if path.name not in named)


def remove_tokens(folders: Iterable[Path]) -> None:
    """Remove those of the folders that are ours; what cannot be removed stays for the next time."""
    for folder in list(folders):
        if has_tokens(folder) and not is_marked(folder):
            with suppress(OSError):
                mark(folder)
        remove_marked(folder, is_tokens_file, empty_too=is_begun(folder))
