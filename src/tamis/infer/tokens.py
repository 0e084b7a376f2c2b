"""The documents of an index as tokens, computed once per tokenizer and stored with the index.

Tokenising a thousand candidates takes as long as scoring them on a GPU, so it is done once. An index's
segments never change, so the tokens of each segment are in a separate folder,

    IDX/tokens/TOKENIZER/SEGMENT/    as `tamis.index.tokens` lays them out

where TOKENIZER is the tokenizer's fingerprint: models with the same vocabulary share it. A folder is written
under another name and renamed when it is complete, so a build that was killed resumes where it stopped.
Documents added after a build are tokenised on demand until the next build. The next build copies the tokens
of merged segments to the new segment, by the texts' digests, and then removes the old tokens. Deleted
documents have tokens too, because readers of an older commit still need them.

A document is tokenised as its `contents` (title and text), which is what the index analyses.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError, StorageError, UnknownDocumentError
from tamis.core.cluster import Cluster
from tamis.core.ranking import Ranking, each_document
from tamis.index.compiled import numba_installed
from tamis.index.embedded import EmbeddedIndex
from tamis.index.index import Index
from tamis.index.remains import has_tokens, is_tokens_file
from tamis.index.segment import Segment
from tamis.index.tokens import (
    SegmentTokens,
    TokensInfo,
    is_whole,
    remove_tokens,
    remove_unneeded,
    replace_folder,
    texts_digest,
    whole,
)
from tamis.infer.token_memory import TokenMemory
from tamis.models.templates import COUNTED, Tokenised
from tamis.models.tokenizer import FILES, Tokenizer
from tamis.storage.columns import ColumnInfo, ColumnWriter, smallest_unsigned, write_column
from tamis.storage.files import TEMPORARY, make_folder, storage_errors
from tamis.storage.locks import FolderLock, folder_lock
from tamis.storage.markers import mark, remove_marked

KEPT = 512  # tokens of a document: no known model has longer inputs
_BATCH = 1024  # documents tokenised at a time


class TokenStore:
    """The tokens of an index's documents, by id. Stored tokens are used as soon as they are built; other
    documents are tokenised on demand, as are all documents of an index in a cluster.

    `TokenStore.open` and `build_tokens` return one; so does the plain constructor, for an index that may have
    no tokens yet.
    """

    def __init__(self, index: Index, tokenizer: Tokenizer, *, limit: int = KEPT) -> None:
        self.index, self.tokenizer, self.limit = index, tokenizer, limit

    @classmethod
    def open(cls, index: Index, tokenizer: Tokenizer, *, limit: int = KEPT) -> TokenStore | None:
        """The tokens stored with `index`, or None if there are none; tokens stored with less than `limit`
        tokens per document do not count."""
        store = cls(index, tokenizer, limit=limit)
        return store if any(store._kept(segment) for segment in store._segments) else None

    @property
    def _segments(self) -> Sequence[Segment]:
        """The segments of an index on disk; no other index stores tokens."""
        return self.index.segments if isinstance(self.index, EmbeddedIndex) else ()

    @property
    def documents(self) -> int:
        """The number of documents whose tokens are stored."""
        return sum(segment.documents for segment in self._segments if self._kept(segment))

    def prepare(self) -> None:
        """Load the fast lookup of many ids in advance, so that no query has to wait for it."""
        if numba_installed():
            import tamis.index.kernel  # noqa: F401 (the stores use it once it is loaded)

            for segment in self._segments:
                segment.store.numbers([""] * 100)

    def texts(self, ids: Sequence[str]) -> Tokenised:
        """The tokens of the documents with these ids, in this order; documents without stored tokens are
        tokenised now."""
        if not isinstance(self.index, EmbeddedIndex):
            contents = [document.contents for document in each_document(self.index, ids)]
            return self.tokenizer.encode(contents, limit=self.limit)
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
            return Tokenised(*kept.texts(numbers, self.limit))
        contents = [segment.store.document(number).contents for number in numbers.tolist()]
        return self.tokenizer.encode(contents, limit=self.limit)

    def _kept(self, segment: Segment) -> SegmentTokens | None:
        if not isinstance(self.index, EmbeddedIndex):
            return None
        opened = _OPENED.setdefault(segment, {})
        known = opened.get((self.tokenizer.fingerprint, self.limit))
        if known is None:
            folder = self.index.path / "tokens" / self.tokenizer.fingerprint
            known = SegmentTokens.open(folder, segment, self.limit)
            if known is not None:
                opened[self.tokenizer.fingerprint, self.limit] = known
        return known


def texts_of(ranking: Ranking, tokenizer: Tokenizer, *, limit: int = KEPT) -> Tokenised:
    """The tokens of a ranking's candidates, in order; at least the first `limit` of each text. They are read
    from the candidates' index if they are stored there. Others are computed each time: candidates differ
    between queries, and tokenising those that go through two stages takes far less time than scoring them.

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
    limit = max(limit, KEPT)  # stored tokens also serve smaller limits
    if isinstance(ranking.texts, TokenMemory):
        return ranking.texts.tokens(ranking.ids, tokenizer, limit)
    if isinstance(ranking.texts, EmbeddedIndex):
        return TokenStore(ranking.texts, tokenizer, limit=limit).texts(ranking.ids)
    return tokenizer.encode([document.contents for document in ranking.documents()], limit=limit)


def build_tokens(
    index: EmbeddedIndex,
    tokenizer: Tokenizer,
    *,
    limit: int = KEPT,
    progress: Callable[[int], object] | None = None,
    on: Cluster | None = None,
) -> TokenStore:
    """Tokenise the segments that have no tokens yet, store at most `limit` tokens per document, and remove
    tokens that no segment needs. `progress` is called with the number of newly finished documents. Only one
    process builds at a time; the index can be searched and written meanwhile. `on` is a cluster whose workers
    tokenise the texts, such as `tamis.RayRuntime()`; the files are the same.

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
        remove_tokens(index.path.glob(f"tokens/*/{TEMPORARY}*"))
        lacking = [segment for segment in index.segments if not is_whole(folder, segment, limit)]
        there = sum(map(len, index.segments)) - sum(map(len, lacking))
        if progress and there:
            progress(there)
        if lacking:
            known = _Known(folder, limit)
            with _encoding(tokenizer, limit, on) as encoded:
                for segment in lacking:
                    _write(folder, segment, tokenizer, limit, known, lock, encoded, progress)
                    _OPENED.pop(segment, None)
        remove_unneeded(index.path, index.segments)
    return TokenStore(index, tokenizer, limit=limit)


def untokenised(index: EmbeddedIndex, tokenizer: Tokenizer, *, limit: int = KEPT) -> int:
    """Approximately how many documents a build would tokenise: the documents of segments without tokens,
    minus the documents with tokens of segments that were merged."""
    folder = index.path / "tokens" / tokenizer.fingerprint
    store = TokenStore(index, tokenizer, limit=limit)
    lacking = sum(len(segment) for segment in index.segments if not store._kept(segment))
    if not lacking:
        return 0
    named = {segment.info.name for segment in index.segments}
    merged = (TokensInfo.read(path / "tokens.json") for path in folder.glob("*") if path.name not in named)
    kept = sum(each.columns["lengths"].count for each in merged if each is not None and each.limit >= limit)
    return max(lacking - kept, 0)


class _Batch(NamedTuple):
    """Some texts: their digests, where their tokens are kept (-1 where nowhere), and those to tokenise."""

    digests: Array
    places: Array
    new: list[str]


class _Known:
    """The stored tokens of a tokenizer in all segments, by their texts' digests."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._limit = limit
        self._kept = list(whole(folder, limit))
        parts = [np.zeros((0, 2), np.uint64), *(each.digests for each in self._kept)]
        digests, self._starts = np.concatenate(parts), np.cumsum([len(part) for part in parts])[:-1]
        self._order = np.argsort(digests[:, 0], kind="stable")
        self._sorted = digests[self._order]

    def batch(self, contents: Sequence[str]) -> _Batch:
        """A batch of texts, with those that are unknown and must be tokenised."""
        digests = _digests(contents)
        places = self._find(digests)
        return _Batch(digests, places, [contents[i] for i in np.flatnonzero(places < 0).tolist()])

    def whole(self, batch: _Batch, made: Tokenised) -> Tokenised:
        """The tokens of all texts of a batch: those that are known, and those that were made."""
        places = batch.places
        here = np.flatnonzero(places >= 0)
        if not len(here):
            return made
        parts, order = [made], [np.flatnonzero(places < 0)]
        owners = np.searchsorted(self._starts, places[here], side="right") - 1
        for owner in np.unique(owners).tolist():
            own = here[owners == owner]
            kept = self._kept[owner].texts(places[own] - self._starts[owner], self._limit)
            parts.append(Tokenised(*kept))
            order.append(own)
        return Tokenised.join(parts).take(np.argsort(np.concatenate(order)))

    def _find(self, digests: Array) -> Array:
        """The location of each text's tokens, or -1 if there are none; of texts that share half a digest,
        only one is found."""
        if not len(self._order):
            return np.full(len(digests), -1)
        at = np.minimum(np.searchsorted(self._sorted[:, 0], digests[:, 0]), len(self._order) - 1)
        return np.where((self._sorted[at] == digests).all(axis=1), self._order[at], -1)


def _digests(contents: Sequence[str]) -> Array:
    """uint64[texts, 2].

    >>> _digests(["a", "b"]).shape, bool((_digests(["a"]) == _digests(["b"])).any())
    ((2, 2), False)
    """
    found = b"".join(xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass")) for text in contents)
    return np.frombuffer(found, "<u8").reshape(-1, 2)


# -- who tokenises
# ------------------------------------------------------------------------------------------------------------

#: The tokens of lists of texts, in their order.
_Encoded = Callable[[Iterable[list[str]]], Iterator[Tokenised]]


@contextmanager
def _encoding(tokenizer: Tokenizer, limit: int, on: Cluster | None) -> Iterator[_Encoded]:
    if on is None:
        yield lambda texts: (tokenizer.encode(each, limit=limit) for each in texts)
        return
    with on.start(Tokenising.of(tokenizer, limit)) as workers:
        yield lambda texts: (done.value for done in workers.map(texts))


@dataclass(frozen=True)
class Tokenising:
    """The job: a tokenizer, as the files that it is read from, so that workers need no folder.

    >>> from tamis.models.bundled import bundled_tokenizer
    >>> Tokenising.of(bundled_tokenizer(), limit=512).start(cores=1)(["a sieve"]).ids.tolist()
    [1037, 9033, 18697]
    """

    files: Mapping[str, bytes]
    limit: int
    uses_gpu = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, limit: int) -> Tokenising:
        paths = (tokenizer.folder / name for name in FILES)
        return cls({path.name: path.read_bytes() for path in paths if path.is_file()}, limit)

    def start(self, cores: int) -> Callable[[Sequence[str]], Tokenised]:
        with TemporaryDirectory() as folder:
            for name, content in self.files.items():
                (Path(folder) / name).write_bytes(content)
            tokenizer = Tokenizer(folder)
        return partial(tokenizer.encode, limit=self.limit)


# by tokenizer and limit, for every segment of an open index
_OPENED: WeakKeyDictionary[Segment, dict[tuple[str, int], SegmentTokens]] = WeakKeyDictionary()


def _write(
    folder: Path,
    segment: Segment,
    tokenizer: Tokenizer,
    limit: int,
    known: _Known,
    lock: FolderLock,
    encoded: _Encoded,
    progress: Callable[[int], object] | None,
) -> None:
    """Tokenise a segment's documents into a folder that gets its name when it is complete."""
    path, new = folder / segment.info.name, folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    if path.exists() and not has_tokens(path):
        problem = f"{path} holds no tokens, and its name is needed for some"
        raise StorageError(problem, remedy="move it elsewhere")
    with storage_errors(new):
        make_folder(folder)
        new.mkdir()
        mark(new, new.name, path.name)
        try:
            columns = _write_columns(new, segment, tokenizer, known, encoded, progress)
            TokensInfo(texts_digest(segment), limit, columns).write(new / "tokens.json")
            lock.check()
            replace_folder(path, new)
        except BaseException:
            remove_marked(new, is_tokens_file)
            raise


def _write_columns(
    folder: Path,
    segment: Segment,
    tokenizer: Tokenizer,
    known: _Known,
    encoded: _Encoded,
    progress: Callable[[int], object] | None,
) -> dict[str, ColumnInfo]:
    writer = ColumnWriter(folder / "ids", "u2" if tokenizer.vocabulary <= 1 << 16 else "u4")
    offsets, lengths = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
    digests = [np.zeros((0, 2), np.uint64)]
    try:
        under_way: deque[_Batch] = deque()

        def texts() -> Iterator[list[str]]:
            for start in range(0, len(segment), _BATCH):
                numbers = range(start, min(start + _BATCH, len(segment)))
                under_way.append(known.batch([segment.store.document(n).contents for n in numbers]))
                yield under_way[-1].new

        for made in encoded(texts()):
            batch = under_way.popleft()
            tokens = known.whole(batch, made)
            digests.append(batch.digests)
            offsets.append(tokens.offsets[1:] + writer.count)
            lengths.append(tokens.lengths)
            writer.append(tokens.ids)
            if progress:
                progress(len(tokens))
        columns = {"ids": writer.close()}
    except BaseException:
        writer.discard()
        raise
    columns["ends"] = write_column(folder / "ends", np.concatenate(offsets), smallest_unsigned(writer.count))
    columns["lengths"] = write_column(folder / "lengths", np.concatenate(lengths), "u2")
    columns["digests"] = write_column(folder / "digests", np.concatenate(digests).ravel(), "u8")
    return columns
