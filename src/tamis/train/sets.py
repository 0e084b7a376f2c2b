"""Training sets: queries and documents as tokens, judgments, and candidates.

All data are numbers in flat arrays, made once, so that a step needs no tokenising and no strings. A set is in
memory, or in a folder of columns that are mapped into memory when it is opened:

    SET/set.json      the columns and their checksums, the report; its own checksum
    SET/documents.ids, documents.ends, ..., judged.grades, candidates.documents, scores

A folder is written under another name and renamed when it is complete.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import xxhash

from tamis.base.arrays import Array, ranges
from tamis.base.errors import CorruptError, InputError, TamisError
from tamis.models.inputs import Tokenised
from tamis.models.inputs import offsets_of as offsets_of
from tamis.storage.columns import Column, ColumnInfo, ColumnWriter, write_column
from tamis.storage.files import TEMPORARY, atomic_write, make_folder, storage_errors, sync_folder, unreadable

FORMAT = 1
_SLICE = 1 << 16  # texts written together

Texts = Iterable[tuple[Sequence[str], Tokenised]]  # ids and tokens, in blocks of texts


@dataclass(frozen=True, slots=True)
class Judged:
    """The documents judged for each query: those of query q are `documents[offsets[q] : offsets[q + 1]]`."""

    offsets: Array  # int64[queries + 1]
    documents: Array  # int32[judgments]
    grades: Array  # int32[judgments]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The documents that a first stage found for each query, best first, with its scores."""

    offsets: Array  # int64[queries + 1]
    documents: Array  # int32[candidates]
    retrieval: Array  # float32[candidates]


@dataclass(frozen=True, slots=True)
class Report:
    """What was left out of a set, and what is missing from it.

    >>> print(Report(queries_without_positives=2, unknown_documents=1))
    left out: 2 queries without positives, 1 unknown documents
    >>> print(Report(queries_without_candidates=29))
    29 queries without candidates: any documents stand in for them
    """

    queries_without_positives: int = 0
    unknown_queries: int = 0  # of the qrels
    unknown_documents: int = 0  # of the qrels, the run or the teacher
    unscored_judgments: int = 0  # judged documents without a teacher's score
    unscored_candidates: int = 0
    queries_without_two_candidates_of_the_teacher: int = 0  # if there is a teacher
    wanted_queries_that_are_not_there: int = 0  # named by a recipe's `only`, or by its folds
    queries_without_candidates: int = 0  # they are kept: their negatives are any documents

    def __str__(self) -> str:
        counts = asdict(self)
        bare = counts.pop("queries_without_candidates")
        left_out = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        parts = [f"left out: {', '.join(left_out)}"] if left_out else []
        if bare:
            parts.append(f"{bare:,} queries without candidates: any documents stand in for them")
        return "; ".join(parts) or "nothing was left out"


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Queries, documents and what is known about their relevance. Queries and documents are identified by
    their numbers; their ids are for messages.

    A document with a grade of at least `relevant` is relevant. `scores` are a teacher's scores of the
    candidates; if there are any, every judged document is among the candidates.

    >>> data = TrainingSet(
    ...     queries=Tokenised.of([[7]]),
    ...     documents=Tokenised.of([[8, 9], [5], [6]]),
    ...     query_ids=["q1"],
    ...     document_ids=["d1", "d2", "d3"],
    ...     judged=Judged(np.array([0, 1]), np.array([2]), np.array([1])),
    ... )
    >>> data.positives(0).tolist(), len(data)
    ([2], 1)
    """

    queries: Tokenised
    documents: Tokenised
    query_ids: Sequence[str]
    document_ids: Sequence[str]
    judged: Judged
    candidates: Candidates | None = None
    scores: Array | None = None  # float32[candidates]
    relevant: int = 1
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        lists = (
            [self.judged.offsets]
            if self.candidates is None
            else [self.judged.offsets, self.candidates.offsets]
        )
        if any(len(offsets) != len(self.queries) + 1 for offsets in lists):
            raise TamisError("judgments or candidates of other queries", remedy="give each query a list")
        taught = 0 if self.candidates is None else len(self.candidates.documents)
        if self.scores is not None and len(self.scores) != taught:
            raise TamisError(
                f"{len(self.scores)} teacher's scores for {taught} candidates", remedy="give one for each"
            )

    def __len__(self) -> int:
        return len(self.queries)

    def positives(self, query: int) -> Array:
        """The numbers of the documents that are relevant to a query."""
        return self._judged(query, True)

    def judged_negatives(self, query: int) -> Array:
        """The numbers of the documents that were judged not relevant to a query."""
        return self._judged(query, False)

    def _judged(self, query: int, relevant: bool) -> Array:
        here = slice(int(self.judged.offsets[query]), int(self.judged.offsets[query + 1]))
        chosen = (self.judged.grades[here] >= self.relevant) == relevant
        documents: Array = self.judged.documents[here][chosen].astype(np.int64)
        return documents

    def all_positives(self) -> tuple[Array, Array]:
        """Every query with every document that is relevant to it, as two arrays of numbers."""
        relevant = np.flatnonzero(self.judged.grades >= self.relevant)
        queries = np.searchsorted(self.judged.offsets, relevant, side="right") - 1
        return queries.astype(np.int64), self.judged.documents[relevant].astype(np.int64)

    def candidates_of(self, query: int) -> Array:
        """The numbers of a query's candidates, best first."""
        if self.candidates is None:
            return np.zeros(0, np.int64)
        return self.candidates.documents[self._listed(query)].astype(np.int64)

    def retrieval_of(self, query: int) -> Array:
        """The first stage's scores of a query's candidates."""
        return (
            np.zeros(0, np.float32)
            if self.candidates is None
            else self.candidates.retrieval[self._listed(query)]
        )

    def scores_of(self, query: int) -> Array | None:
        """The teacher's scores of a query's candidates."""
        return None if self.scores is None else self.scores[self._listed(query)]

    def _listed(self, query: int) -> slice:
        assert self.candidates is not None
        return slice(int(self.candidates.offsets[query]), int(self.candidates.offsets[query + 1]))

    @property
    def fingerprint(self) -> str:
        """A fingerprint of everything that is drawn from the set or that a model reads of it. To compute it,
        the whole set is read."""
        seen = xxhash.xxh3_128(f"{self.relevant}".encode())
        for name, (values, dtype) in _lists(self).items():
            seen.update(f"{name} {len(values)}\n".encode())
            seen.update(np.ascontiguousarray(values, dtype=dtype).view(np.uint8).data)
        for texts in (self.queries, self.documents):
            for start in range(0, len(texts), _SLICE):
                part = _part(texts, start, start + _SLICE)
                seen.update(np.ascontiguousarray(np.diff(part.offsets), dtype="<i8").view(np.uint8).data)
                seen.update(np.ascontiguousarray(part.ids, dtype="<i4").view(np.uint8).data)
        return str(seen.hexdigest())

    def save(self, path: str | Path) -> None:
        """Write the set to a new folder."""
        write(path, _slices(self.documents, self.document_ids), lambda: self)

    @classmethod
    def open(cls, path: str | Path) -> TrainingSet:
        """Open the set in a folder, mapped into memory; first the checksums of all bytes are verified.

        >>> from tamis.train.sets import Judged, TrainingSet
        >>> judged = Judged(np.array([0, 1]), np.array([0]), np.array([1]))
        >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8, 9]]), ["q1"], ["d1"], judged)
        >>> data.save(getfixture("tmp_path") / "set")
        >>> TrainingSet.open(getfixture("tmp_path") / "set").fingerprint == data.fingerprint
        True
        """
        folder = Path(path)
        body = _read_description(folder)
        columns: dict[str, Array] = {}
        try:
            for name, info in body["columns"].items():
                columns[name] = Column(folder / name, ColumnInfo(**info)).all()
        except FileNotFoundError as error:
            raise _corrupt(f"{error.filename} is missing") from error
        except CorruptError as error:
            raise _corrupt(error.problem) from error

        def texts(name: str) -> Tokenised:
            return Tokenised(columns[f"{name}.ids"], columns[f"{name}.ends"], columns[f"{name}.lengths"])

        def ids(name: str) -> Sequence[str]:
            return _Strings(columns[f"{name}.names"], columns[f"{name}.name_ends"])

        def lists(name: str, *parts: str) -> list[Array]:
            return [columns[f"{name}.{part}"] for part in parts]

        has_candidates = "candidates.ends" in columns
        return cls(
            texts("queries"),
            texts("documents"),
            ids("queries"),
            ids("documents"),
            Judged(*lists("judged", "ends", "documents", "grades")),
            Candidates(*lists("candidates", "ends", "documents", "retrieval")) if has_candidates else None,
            columns.get("scores"),
            body["relevant"],
            Report(**body["report"]),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """One query with the documents that are scored together, the relevant ones first (in a pair: in the order
    in which they are read)."""

    query: int
    documents: Array  # int64[n]
    labels: Array  # float32[n]: 1 for relevant
    teacher: Array | None = None  # float32[n]
    weight: float = 1.0


def length_matched(data: TrainingSet, tokens: int) -> TrainingSet:
    """The set with every document cut to its first `tokens`, because a model learns more from texts of the
    same length as those it will rank: passages cut to a sentence's length for ranking by sentences
    (Akkalyoncu Yilmaz 2019). The cut documents are kept in memory; `training_set(limit=...)` cuts while
    reading.

    >>> judged = Judged(np.array([0, 1]), np.array([0]), np.array([1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8, 9, 3], [5]]), ["q"], ["d1", "d2"], judged)
    >>> length_matched(data, 2).documents.ids.tolist()
    [8, 9, 5]
    """
    if tokens < 1:
        raise InputError(f"cannot cut texts to {tokens} tokens", remedy="use 1 or more")
    old = data.documents
    counts = np.minimum(np.diff(old.offsets), tokens)
    offsets = offsets_of(counts)
    ids = np.empty(int(offsets[-1]), np.int32)
    for start in range(0, len(old), _SLICE):  # in blocks: the whole may be larger than memory
        some = slice(start, start + _SLICE)
        at = ranges(old.offsets[:-1][some], counts[some])
        ids[offsets[start] : offsets[start] + len(at)] = old.ids[at]
    return replace(data, documents=Tokenised(ids, offsets, old.lengths))


# -- on disk
# ------------------------------------------------------------------------------------------------------------


def write(path: str | Path, documents: Texts, rest: Callable[[], TrainingSet]) -> None:
    """Write a set whose documents may be larger than memory: they are written as they arrive, then `rest`
    returns the set to which they belong; the documents of that set are ignored. It is called last, because a
    caller that numbers documents in the order of arrival does not know the set earlier."""
    folder = Path(path)
    if folder.exists():
        raise InputError(f"{folder} exists", remedy="remove it, or give another name")
    new = folder.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    with storage_errors(folder):
        make_folder(new.parent)
        new.mkdir()
        try:
            columns = _write_texts(new, "documents", documents)
            data = rest()
            columns |= _write_texts(new, "queries", _slices(data.queries, data.query_ids))
            for name, (values, dtype) in _lists(data).items():
                columns[name] = write_column(new / name, values, dtype)
            _write_description(new, data, columns)
            sync_folder(new)
            new.rename(folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync_folder(folder.parent)


def _lists(data: TrainingSet) -> dict[str, tuple[Array, str]]:
    """Everything except the texts, with the types in which it is written."""
    lists = {
        "judged.ends": (data.judged.offsets, "<i8"),
        "judged.documents": (data.judged.documents, "<i4"),
        "judged.grades": (data.judged.grades, "<i4"),
    }
    if data.candidates is not None:
        lists["candidates.ends"] = (data.candidates.offsets, "<i8")
        lists["candidates.documents"] = (data.candidates.documents, "<i4")
        lists["candidates.retrieval"] = (data.candidates.retrieval, "<f4")
    if data.scores is not None:
        lists["scores"] = (data.scores, "<f4")
    return lists


def _write_texts(folder: Path, name: str, texts: Texts) -> dict[str, ColumnInfo]:
    kinds = {"ids": "<i4", "ends": "<i8", "lengths": "<i8", "names": "u1", "name_ends": "<i8"}
    writers: dict[str, ColumnWriter] = {}
    try:
        for part, dtype in kinds.items():
            writers[part] = ColumnWriter(folder / f"{name}.{part}", dtype)
        for part in ("ends", "name_ends"):
            writers[part].append(np.zeros(1, np.int64))
        for ids, tokens in texts:
            encoded = [doc_id.encode("utf-8", "surrogatepass") for doc_id in ids]
            sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
            writers["name_ends"].append(writers["names"].count + np.cumsum(sizes))
            writers["names"].append(b"".join(encoded))
            writers["ends"].append(writers["ids"].count + tokens.offsets[1:])
            writers["ids"].append(tokens.ids)
            writers["lengths"].append(tokens.lengths)
        return {f"{name}.{part}": writer.close() for part, writer in writers.items()}
    except BaseException:
        for writer in writers.values():
            writer.discard()
        raise


def _slices(texts: Tokenised, ids: Sequence[str]) -> Iterator[tuple[Sequence[str], Tokenised]]:
    for start in range(0, len(texts), _SLICE):
        yield ids[start : start + _SLICE], _part(texts, start, start + _SLICE)


def _part(texts: Tokenised, start: int, stop: int) -> Tokenised:
    offsets = texts.offsets[start : stop + 1]
    return Tokenised(
        texts.ids[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0], texts.lengths[start:stop]
    )


def _write_description(folder: Path, data: TrainingSet, columns: dict[str, ColumnInfo]) -> None:
    body = {
        "format": FORMAT,
        "relevant": data.relevant,
        "report": asdict(data.report),
        "columns": {name: asdict(info) for name, info in columns.items()},
    }
    text = json.dumps(body, indent=1)
    with atomic_write(folder / "set.json", "w") as file:
        file.write(f"{xxhash.xxh3_128_hexdigest(text.encode())}\n{text}\n")


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / "set.json"
    try:
        digest, _, rest = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no training set", remedy="write one with its `save`") from None
    except OSError as error:
        raise unreadable(path, error) from error
    if digest != xxhash.xxh3_128_hexdigest(rest[:-1]).encode():
        raise _corrupt(f"{path} is corrupt")
    body: dict[str, Any] = json.loads(rest)
    if body["format"] != FORMAT:
        raise InputError(
            f"{folder} has format {body['format']}, this tamis reads {FORMAT}", remedy="make the set again"
        )
    return body


def _corrupt(problem: str) -> CorruptError:
    return CorruptError(problem, remedy="restore it from a copy, or make the training set again")


class _Strings(Sequence[str]):
    """Concatenated strings, each read when it is accessed."""

    def __init__(self, text: Array, offsets: Array) -> None:
        self._text, self._offsets = text, offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        return self._text[start:stop].tobytes().decode("utf-8", "surrogatepass")
