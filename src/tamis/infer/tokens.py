"""The documents of an index as tokens, made once per tokenizer and kept beside it.

Tokenising a thousand candidates takes as long as scoring them on a GPU, so it is done once. An index's
segments never change, so the tokens of each are kept in a folder of their own,

    IDX/tokens/TOKENIZER/SEGMENT/    tokens.json, and the columns ids, ends, lengths, digests

where TOKENIZER is the tokenizer's fingerprint: models with one vocabulary share it. A folder is written under
another name and renamed when it is whole, so a build that was killed goes on where it stopped. Documents
added since are tokenised when they are asked for, until the next build. That takes what was merged into a new
segment from the tokens of the segments that it was merged from, by the texts' digests, and then removes
these. Deleted documents have tokens too: whoever has an older commit open still reads them.

A document is tokenised as its `contents` (title and text), which is what the index analyses.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from tamis.base.arrays import Array, ranges
from tamis.base.errors import CorruptError, InputError, StorageError, UnknownDocumentError
from tamis.core.ranking import Ranking
from tamis.index.compiled import numba_installed
from tamis.index.index import Index
from tamis.index.manifest import Manifest
from tamis.index.remains import has_tokens, is_begun, is_tokens_file
from tamis.index.segment import Segment
from tamis.models.templates import COUNTED, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.storage.columns import CHUNK, Column, ColumnInfo, ColumnWriter, smallest_unsigned, write_column
from tamis.storage.files import TEMPORARY, atomic_write, make_folder, storage_errors, sync_folder, unreadable
from tamis.storage.locks import FolderLock, folder_lock
from tamis.storage.markers import is_marked, mark, remove_marked

FORMAT = 2
KEPT = 512  # tokens of a document: no input of the models we know is longer
_BATCH = 1024  # documents tokenised at a time


class TokenStore:
    """The tokens of an index's documents, by id: those that are kept beside it, however recently they were
    built, and for other documents made now.

    `TokenStore.open` and `build_tokens` return one; so does the plain constructor, for an index that may have
    no tokens yet.
    """

    def __init__(self, index: Index, tokenizer: Tokenizer, *, limit: int = KEPT) -> None:
        self.index, self.tokenizer, self.limit = index, tokenizer, limit

    @classmethod
    def open(cls, index: Index, tokenizer: Tokenizer, *, limit: int = KEPT) -> TokenStore | None:
        """The tokens kept beside `index`, or None if there are none; what was kept with less than `limit`
        tokens a document does not count."""
        store = cls(index, tokenizer, limit=limit)
        return store if any(store._kept(segment) for segment in index.segments) else None

    @property
    def documents(self) -> int:
        """How many of the index's documents have their tokens kept."""
        return sum(segment.documents for segment in self.index.segments if self._kept(segment))

    def prepare(self) -> None:
        """Load what finds many ids fast, so that it is never part of a query's time."""
        if numba_installed():
            import tamis.index.kernel  # noqa: F401 (the stores use it once it is loaded)

            for segment in self.index.segments:
                segment.store.numbers([""] * 100)

    def texts(self, ids: Sequence[str]) -> Tokenised:
        """The tokens of the documents with these ids, in this order; those that have none here are tokenised
        now."""
        left = np.arange(len(ids))
        found: list[tuple[Array, Tokenised]] = []
        for segment in self.index.segments:
            if not len(left):
                break
            wanted = ids if len(left) == len(ids) else [ids[place] for place in left.tolist()]
            numbers = segment.store.numbers(wanted)
            here = numbers >= 0
            if segment.deleted is not None:
                here &= ~segment.deleted[numbers]
            if here.any():
                found.append((left[here], self._of(segment, numbers[here])))
                left = left[~here]
        if len(left):
            raise UnknownDocumentError(
                f"the index holds no document {ids[int(left[0])]!r}",
                remedy="check the id, or add the document",
            )
        texts = Tokenised.join([part for _, part in found])
        if len(found) < 2:
            return texts
        return texts.take(np.argsort(np.concatenate([places for places, _ in found])))

    def _of(self, segment: Segment, numbers: Array) -> Tokenised:
        kept = self._kept(segment)
        if kept is not None:
            return kept.texts(numbers, self.limit)
        contents = [segment.store.document(number).contents for number in numbers.tolist()]
        return self.tokenizer.encode(contents, limit=self.limit)

    def _kept(self, segment: Segment) -> _SegmentTokens | None:
        opened = _OPENED.setdefault(segment, {})
        known = opened.get((self.tokenizer.fingerprint, self.limit))
        if known is None:
            folder = self.index.path / "tokens" / self.tokenizer.fingerprint
            known = _SegmentTokens.open(folder, segment, self.limit)
            if known is not None:
                opened[self.tokenizer.fingerprint, self.limit] = known
        return known


def texts_of(ranking: Ranking, tokenizer: Tokenizer, *, limit: int = KEPT) -> Tokenised:
    """The tokens of a ranking's candidates, in their order; from beside the index that they come from, where
    they are kept there. Others are made anew each time: candidates differ from query to query, and those that
    go through two stages take far less time to tokenise than to score. Of each text the first `limit` are
    there, or more.

    >>> from tamis import Document
    >>> from tokenizers import Tokenizer as Library, models, pre_tokenizers
    >>> library = Library(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "?": 2, "sieve": 3}, unk_token="?"))
    >>> library.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> library.save(str(getfixture("tmp_path") / "tokenizer.json"))
    >>> tokenizer = Tokenizer(getfixture("tmp_path"))
    >>> index = Index.build([Document("d1", "the sieve")], getfixture("tmp_path") / "idx")
    >>> texts_of(index.bm25()("sieve"), tokenizer).ids.tolist()
    [2, 3]
    """
    limit = max(limit, KEPT)  # what is kept serves those who need less of it
    if isinstance(ranking.texts, Index):
        return TokenStore(ranking.texts, tokenizer, limit=limit).texts(ranking.ids)
    return tokenizer.encode([document.contents for document in ranking.documents()], limit=limit)


def build_tokens(
    index: Index,
    tokenizer: Tokenizer,
    *,
    limit: int = KEPT,
    progress: Callable[[int], object] | None = None,
) -> TokenStore:
    """Tokenise what has no tokens yet, keep at most `limit` of each document, and remove what no segment
    needs; `progress` is told how many more documents are done. One process builds at a time; the index can be
    searched and written meanwhile.

    >>> from tamis import Document
    >>> from tokenizers import Tokenizer as Library, models, pre_tokenizers
    >>> library = Library(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "?": 2, "sieve": 3}, unk_token="?"))
    >>> library.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> library.save(str(getfixture("tmp_path") / "tokenizer.json"))
    >>> index = Index.build([Document("d1", "the sieve")], getfixture("tmp_path") / "idx")
    >>> store = build_tokens(index, Tokenizer(getfixture("tmp_path")))
    >>> store.documents, store.texts(["d1"]).ids.tolist()
    (1, [2, 3])
    """
    if not 1 <= limit <= COUNTED:
        raise InputError(f"cannot keep {limit} tokens a document", remedy=f"use 1 to {COUNTED}")
    folder = index.path / "tokens" / tokenizer.fingerprint
    with folder_lock(index.path / "tokens") as lock:
        _remove(index.path.glob(f"tokens/*/{TEMPORARY}*"))
        lacking = [segment for segment in index.segments if not _is_whole(folder, segment, limit)]
        there = sum(map(len, index.segments)) - sum(map(len, lacking))
        if progress and there:
            progress(there)
        if lacking:
            known = _Known(folder, limit)
            for segment in lacking:
                _write(folder, segment, tokenizer, limit, known, lock, progress)
                _OPENED.pop(segment, None)
        _remove_unneeded(index)
    return TokenStore(index, tokenizer, limit=limit)


def untokenised(index: Index, tokenizer: Tokenizer, *, limit: int = KEPT) -> int:
    """How many documents a build would tokenise, or a few more or less: those of segments without tokens, but
    for as many as there are tokens of segments that were merged away."""
    folder = index.path / "tokens" / tokenizer.fingerprint
    store = TokenStore(index, tokenizer, limit=limit)
    lacking = sum(len(segment) for segment in index.segments if not store._kept(segment))
    if not lacking:
        return 0
    named = {segment.info.name for segment in index.segments}
    merged = (TokensInfo.read(path / "tokens.json") for path in folder.glob("*") if path.name not in named)
    kept = sum(each.columns["lengths"].count for each in merged if each is not None and each.limit >= limit)
    return max(lacking - kept, 0)


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


class _SegmentTokens:
    """The tokens of one segment's documents, by number. It must not refer to the segment, with which it goes
    (see `_OPENED`)."""

    def __init__(self, folder: Path, description: TokensInfo) -> None:
        self._folder = folder
        columns = {name: Column(folder / name, info) for name, info in description.columns.items()}
        self._ids, self._offsets, self._lengths = columns["ids"], columns["ends"], columns["lengths"]
        self._digests = columns["digests"]
        # chunks of the ids known to be as written; a column can be asked that only one range at a time
        self._checked = np.zeros(self._ids.unchecked.nbytes // CHUNK + 1, dtype=bool)

    @classmethod
    def open(cls, folder: Path, segment: Segment, limit: int) -> _SegmentTokens | None:
        """The tokens of a segment, None where there are none or too few of each document."""
        own = folder / segment.info.name
        with _rebuild_if_corrupt(own):
            while True:
                description = TokensInfo.read(own / "tokens.json")
                if description is None or description.texts != _texts_digest(segment):
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

    def texts(self, numbers: Array, limit: int) -> Tokenised:
        with _rebuild_if_corrupt(self._folder):
            for column in (self._ids, self._offsets, self._lengths):
                column.check_size()
            offsets, lengths = self._offsets.all(), self._lengths.all()
            starts = offsets[numbers].astype(np.int64)
            counts = np.minimum(offsets[numbers + 1].astype(np.int64) - starts, limit)
            self._check(starts, counts)
        new_ends = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(counts, out=new_ends[1:])
        ids = self._ids.unchecked[ranges(starts, counts)].astype(np.int32)
        return Tokenised(ids, new_ends, lengths[numbers].astype(np.int64))

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


class _Known:
    """The tokens that are kept for a tokenizer, by their texts' digests, whichever segments they are of."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._limit = limit
        self._kept = list(_whole(folder, limit))
        parts = [np.zeros((0, 2), np.uint64), *(each.digests for each in self._kept)]
        digests, self._starts = np.concatenate(parts), np.cumsum([len(part) for part in parts])[:-1]
        self._order = np.argsort(digests[:, 0], kind="stable")
        self._sorted = digests[self._order]

    def encode(self, contents: Sequence[str], digests: Array, tokenizer: Tokenizer) -> Tokenised:
        """The tokens of texts; those that are not known are made."""
        places = self._find(digests)
        here = np.flatnonzero(places >= 0)
        new = np.flatnonzero(places < 0)
        if not len(here):
            return tokenizer.encode(contents, limit=self._limit)
        parts, order = [], []
        if len(new):
            parts.append(tokenizer.encode([contents[i] for i in new.tolist()], limit=self._limit))
            order.append(new)
        owners = np.searchsorted(self._starts, places[here], side="right") - 1
        for owner in np.unique(owners).tolist():
            own = here[owners == owner]
            parts.append(self._kept[owner].texts(places[own] - self._starts[owner], self._limit))
            order.append(own)
        return Tokenised.join(parts).take(np.argsort(np.concatenate(order)))

    def _find(self, digests: Array) -> Array:
        """Where each text's tokens are, -1 where nowhere; of texts that share half a digest, one is found."""
        if not len(self._order):
            return np.full(len(digests), -1)
        at = np.minimum(np.searchsorted(self._sorted[:, 0], digests[:, 0]), len(self._order) - 1)
        return np.where((self._sorted[at] == digests).all(axis=1), self._order[at], -1)


def _whole(folder: Path, limit: int) -> Iterator[_SegmentTokens]:
    """All that is kept in a tokenizer's folder, but for what is damaged or too short."""
    for path in sorted(folder.glob("*")):
        try:
            description = TokensInfo.read(path / "tokens.json")
            if description is not None and description.limit >= limit:
                kept = _SegmentTokens(path, description)
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
                    _SegmentTokens(path, description).check()
            except (CorruptError, FileNotFoundError):
                found.append(path)
    return found


def _digests(contents: Sequence[str]) -> Array:
    """uint64[texts, 2].

    >>> _digests(["a", "b"]).shape, bool((_digests(["a"]) == _digests(["b"])).any())
    ((2, 2), False)
    """
    found = b"".join(xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass")) for text in contents)
    return np.frombuffer(found, "<u8").reshape(-1, 2)


@contextmanager
def _rebuild_if_corrupt(folder: Path) -> Iterator[None]:
    """Tokens can be made again from the texts, which is a better remedy than a column knows."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(
            error.problem, remedy=f"build the tokens again with `tamis tokens`, or remove {folder}"
        ) from error


# by tokenizer and limit, for every segment that some index has open
_OPENED: WeakKeyDictionary[Segment, dict[tuple[str, int], _SegmentTokens]] = WeakKeyDictionary()


def _texts_digest(segment: Segment) -> str:
    return segment.info.columns["store.frames"].digest


def _is_whole(folder: Path, segment: Segment, limit: int) -> bool:
    """Whether a segment's tokens are there and every byte of them is as it was written."""
    try:
        kept = _SegmentTokens.open(folder, segment, limit)
        if kept is not None:
            kept.check()
        return kept is not None
    except CorruptError:
        return False


def _write(
    folder: Path,
    segment: Segment,
    tokenizer: Tokenizer,
    limit: int,
    known: _Known,
    lock: FolderLock,
    progress: Callable[[int], object] | None,
) -> None:
    """Tokenise a segment's documents into a folder that takes its name when it is whole."""
    path, new = folder / segment.info.name, folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    if path.exists() and not has_tokens(path):
        problem = f"{path} holds no tokens, and its name is needed for some"
        raise StorageError(problem, remedy="move it elsewhere")
    with storage_errors(new):
        make_folder(folder)
        new.mkdir()
        mark(new, new.name, path.name)
        try:
            columns = _write_columns(new, segment, tokenizer, known, progress)
            TokensInfo(_texts_digest(segment), limit, columns).write(new / "tokens.json")
            lock.check()
            _replace(path, new)
        except BaseException:
            remove_marked(new, is_tokens_file)
            raise


def _write_columns(
    folder: Path,
    segment: Segment,
    tokenizer: Tokenizer,
    known: _Known,
    progress: Callable[[int], object] | None,
) -> dict[str, ColumnInfo]:
    writer = ColumnWriter(folder / "ids", "u2" if tokenizer.vocabulary <= 1 << 16 else "u4")
    offsets, lengths = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
    digests = [np.zeros((0, 2), np.uint64)]
    try:
        for start in range(0, len(segment), _BATCH):
            numbers = range(start, min(start + _BATCH, len(segment)))
            contents = [segment.store.document(number).contents for number in numbers]
            digests.append(_digests(contents))
            batch = known.encode(contents, digests[-1], tokenizer)
            offsets.append(batch.offsets[1:] + writer.count)
            lengths.append(batch.lengths)
            writer.append(batch.ids)
            if progress:
                progress(len(numbers))
        columns = {"ids": writer.close()}
    except BaseException:
        writer.discard()
        raise
    columns["ends"] = write_column(folder / "ends", np.concatenate(offsets), smallest_unsigned(writer.count))
    columns["lengths"] = write_column(folder / "lengths", np.concatenate(lengths), "u2")
    columns["digests"] = write_column(folder / "digests", np.concatenate(digests).ravel(), "u8")
    return columns


def _replace(path: Path, new: Path) -> None:
    """Give a finished folder its name; a reader sees the old one whole, none, or the new one whole."""
    old = new.with_name(f"{new.name}-old")
    sync_folder(new)
    if path.exists():
        mark(path, path.name, old.name)  # it may have none, or one that does not know its next name
        path.rename(old)
    new.rename(path)
    sync_folder(path.parent)
    remove_marked(old, is_tokens_file)


def _remove_unneeded(index: Index) -> None:
    """Remove the tokens of segments that are in no commit any more. Only the holder of the lock may call
    this."""
    named = {segment.name for segment in Manifest.read(index.path).segments}
    named |= {segment.info.name for segment in index.segments}  # which may be an older commit
    _remove(path for path in index.path.glob("tokens/*/*") if path.name not in named)


def _remove(folders: Iterable[Path]) -> None:
    for folder in list(folders):
        if has_tokens(folder) and not is_marked(folder):
            with suppress(OSError):
                mark(folder)
        remove_marked(folder, is_tokens_file, empty_too=is_begun(folder))
