"""What a model of long documents learns from: groups of documents as batches, and the gains of passages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.formats.json_lines import parse_object, to_id
from tamis.formats.lines import located
from tamis.models.config import EncoderConfig
from tamis.models.long_plan import LongDoc
from tamis.models.longdoc import Layout, Read, read
from tamis.models.templates import Inputs, Special
from tamis.storage.files import read_text
from tamis.train.batch import RankingBatch, portion
from tamis.train.sets import Group, TrainingSet, offsets_of

Gains = Mapping[tuple[str, str], Array]  # by query and document: the gain after each passage

_FIRST = 0  # the number of the passage that is always kept


@dataclass(frozen=True, slots=True)
class LongBatch(RankingBatch):
    """A batch whose inputs are documents, or for MaxP passages. `gains` are those that are known of each
    document's passages, -1 where one is not; `known` is their portion (see `Portion`)."""

    gains: Array | None = None  # int64[documents, passages]
    known: float = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How groups become batches."""

    plan: LongDoc
    special: Special
    config: EncoderConfig | None
    in_rounds: bool  # of MaxP: whether the loss compares documents
    gains: Gains | None = None

    def batch(self, group: Group, data: TrainingSet, seed: int) -> LongBatch:
        """One group's; `seed` decides which of their passages are read."""
        made = read(
            data.queries.take([group.query]),
            np.zeros(len(group.documents), np.int64),
            data.documents.take(group.documents),
            self.special,
            self.plan,
            self.config,
            seed=seed,
        )
        if self.plan.kind == "maxp":
            return self._passages(group, made, np.random.default_rng(seed))
        offsets = np.array([0, len(group.documents)])
        weights = np.array([group.weight], np.float32)
        gains = None if self.gains is None else self._known(group, data, made)
        return LongBatch(made.inputs, offsets, _labels(group), _teacher(group), weights, gains)

    def _passages(self, group: Group, made: Read, rng: np.random.Generator) -> LongBatch:
        """Every passage that is kept, with its document's label. In each round every document shows one; who
        kept fewer than others shows some again."""
        kept = (made.numbers == _FIRST) | (rng.random(len(made.numbers)) < self.plan.keep)
        own = [
            rng.permutation(np.flatnonzero(kept[start:stop]) + start) for start, stop in _pairs(made.offsets)
        ]
        if self.in_rounds:
            count = max(map(len, own))
            shown = np.stack([np.resize(each, count) for each in own], axis=1)  # [rounds, documents]
            documents = np.tile(np.arange(len(own)), (count, 1))
        else:
            shown = np.concatenate(own)[:, None]
            documents = np.repeat(np.arange(len(own)), [len(each) for each in own])[:, None]
        passages = Layout.of(made.inputs, self.special).passages.take(shown.ravel())
        rounds, size = shown.shape
        teacher = _teacher(group)
        return LongBatch(
            passages,
            np.arange(rounds + 1) * size,
            _labels(group)[documents.ravel()],
            None if teacher is None else teacher[documents.ravel()],
            np.full(rounds, group.weight, np.float32),
        )

    def check_gains(self, sets: Sequence[TrainingSet]) -> None:
        """Before anything is learned: whether the gains are of these data, and of windows that there are."""
        assert self.gains is not None
        found = False
        for data in sets:
            queries = _places(data.query_ids, {query for query, _ in self.gains})
            documents = _places(data.document_ids, {document for _, document in self.gains})
            for query, document in self.gains:
                if query in queries and document in documents:
                    found = True
                    alone = Group(queries[query], np.array([documents[document]]), np.ones(1, np.float32))
                    self.batch(alone, data, seed=0)
        if not found:
            raise InputError(
                "none of the gains is of a query and a document of the data",
                remedy="check that their ids are alike, or leave out `gains`",
            )

    def _known(self, group: Group, data: TrainingSet, made: Read) -> Array:
        assert self.gains is not None
        found = np.full((len(group.documents), int(np.diff(made.offsets).max())), -1, np.int64)
        for row, (start, stop) in enumerate(_pairs(made.offsets)):
            key = data.query_ids[group.query], data.document_ids[int(group.documents[row])]
            gains, numbers = self.gains.get(key, np.zeros(0, np.int64)), made.numbers[start:stop]
            if len(gains) > self._windows(data, int(group.documents[row]), numbers):
                raise InputError(
                    f"document {key[1]!r} has {len(gains)} gains for query {key[0]!r}, and fewer windows",
                    remedy="give a gain for each window at most, as [longdoc] cuts them",
                )
            here = numbers < len(gains)
            found[row, : len(numbers)][here] = gains[numbers[here]]
        return found

    def _windows(self, data: TrainingSet, document: int, numbers: Array) -> float:
        """How many a document has, of which some with these numbers are read: the last is always one of them,
        unless a single one is read, or the document goes on behind what is kept of it."""
        offsets, lengths = data.documents.offsets, data.documents.lengths
        held = min(int(offsets[document + 1] - offsets[document]), self.plan.tokens)
        return np.inf if self.plan.passages < 2 or held < lengths[document] else int(numbers[-1]) + 1


def join(batches: Sequence[LongBatch]) -> LongBatch:
    """Several groups' batches as one in which each group counts alike, however many rounds it has.

    >>> one = Inputs(np.zeros(2, np.int32), np.zeros(2, np.uint8), np.arange(3))
    >>> two = LongBatch(one, np.array([0, 1, 2]), np.array([1, 0]), None, np.ones(2, np.float32))
    >>> join([two, LongBatch(one, np.array([0, 2]), np.array([1, 0]), None, np.ones(1, np.float32))]).weights
    array([0.75, 0.75, 1.5 ], dtype=float32)
    """
    rounds = np.array([len(each.weights) for each in batches])
    # a loss is a mean over all rounds; this makes it a mean over groups
    even = np.repeat(rounds.sum() / (len(batches) * rounds), rounds).astype(np.float32)
    taught = [each.teacher for each in batches if each.teacher is not None]
    return LongBatch(
        Inputs.join([each.inputs for each in batches]),
        offsets_of(np.concatenate([np.diff(each.offsets) for each in batches])),
        np.concatenate([each.labels for each in batches]),
        np.concatenate(taught) if len(taught) == len(batches) else None,
        np.concatenate([each.weights for each in batches]) * even,
        _gains([each.gains for each in batches if each.gains is not None]),
    )


def part(some: Sequence[LongBatch], every: Sequence[LongBatch]) -> LongBatch:
    """Some groups of a step as one batch, which counts as much as they do among every group of it: a step
    that is split learns what it would learn whole (see `portion`).

    >>> one = Inputs(np.zeros(2, np.int32), np.zeros(2, np.uint8), np.arange(3))
    >>> pair = LongBatch(one, np.array([0, 2]), np.array([1, 0]), None, np.ones(1, np.float32))
    >>> known = replace(pair, gains=np.array([[0, 1], [-1, -1]]))
    >>> unknown = replace(pair, gains=np.array([[-1], [-1]]))
    >>> [part([each], [known, unknown]).known for each in (known, unknown)]
    [2.0, 0.0]
    """
    mine, all_of_them = _count_known(some), _count_known(every)
    known = mine * len(every) / (all_of_them * len(some)) if all_of_them else 1.0
    return replace(join(some), portion=portion(_rounds(some), _rounds(every)), known=known)


def _count_known(batches: Sequence[LongBatch]) -> int:
    return sum(int(np.count_nonzero(each.gains >= 0)) for each in batches if each.gains is not None)


def _rounds(batches: Sequence[LongBatch]) -> list[Group]:
    """What a loss takes for the groups of these batches: of MaxP their rounds, of all others they
    themselves. (`join` sees to it that the rounds of a group together weigh as one.)"""
    return [
        Group(0, np.arange(stop - start), each.labels[start:stop])
        for each in batches
        for start, stop in _pairs(each.offsets)
    ]


def _gains(parts: Sequence[Array]) -> Array | None:
    if not parts:
        return None
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-1) for part in parts]
    )


def read_gains(path: str | Path, grades: int) -> Gains:
    """Cumulative gains from JSON lines: what is known after each window of a document, a grade from 0 on.

    >>> file = getfixture("tmp_path") / "gains.jsonl"
    >>> _ = file.write_text('{"query": "q1", "document": "d7", "gains": [0, 1, 1, 3]}')
    >>> read_gains(file, grades=4)["q1", "d7"].tolist()
    [0, 1, 1, 3]
    """
    found: dict[tuple[str, str], Array] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parse_object(line)
            gains = record.get("gains")
            if not isinstance(gains, list) or not all(type(g) is int and 0 <= g < grades for g in gains):
                raise InputError("no gains", remedy=f"give a list of whole numbers from 0 to {grades - 1}")
            key = to_id(record.get("query")), to_id(record.get("document"))
            if key in found:
                raise InputError(
                    f"gains of {key[1]!r} for {key[0]!r} again", remedy="keep one of the two lines"
                )
            found[key] = np.array(gains, np.int64)
        except InputError as error:
            raise located(error, path, number) from None
    if not found:
        raise InputError("there are no gains", remedy="give a line a document, or no file", path=path)
    return found


def gains_fingerprint(gains: Gains, queries: Collection[str] | None = None) -> str:
    """Changes with the gains of these queries, by default of all.

    >>> gains = {("q1", "d7"): np.array([0, 1]), ("q2", "d7"): np.array([3])}
    >>> other = {**gains, ("q2", "d7"): np.array([2])}
    >>> gains_fingerprint(gains) == gains_fingerprint(other)
    False
    >>> gains_fingerprint(gains, ["q1"]) == gains_fingerprint(other, ["q1"])
    True
    """
    seen = sorted(
        (key, found.tolist()) for key, found in gains.items() if queries is None or key[0] in queries
    )
    return str(xxhash.xxh3_128_hexdigest(repr(seen).encode()))


def _places(names: Sequence[str], wanted: Collection[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names) if name in wanted}


def _labels(group: Group) -> Array:
    return group.labels.astype(np.float32)


def _teacher(group: Group) -> Array | None:
    return None if group.teacher is None else group.teacher.astype(np.float32)


def _pairs(offsets: Array) -> list[tuple[int, int]]:
    return list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
