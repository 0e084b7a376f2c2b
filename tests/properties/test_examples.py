"""For any training set: what the streams promise about every batch."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tamis.base.errors import InputError
from tamis.models.templates import Tokenised
from tamis.train.examples import (
    Candidates,
    Group,
    Judged,
    Negatives,
    Stream,
    TrainingSet,
    balanced,
    curriculum,
    duo_pairs,
    ease,
    grouped,
    length_matched,
    teacher_pairs,
)

SEEDS = st.integers(0, 2**32)
SIZES = st.sampled_from([2, 4, 6, 10])
NEGATIVES = st.builds(
    lambda first, more, judged, random: Negatives(
        first, None if more is None else first + more, judged, random
    ),
    first=st.integers(1, 6),
    more=st.none() | st.integers(0, 4),
    judged=st.booleans(),
    random=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
)


@st.composite
def training_sets(draw: st.DrawFn, taught: bool | None = None) -> TrainingSet:
    """Up to 5 queries over up to 14 documents; in a taught set all that is judged is a candidate."""
    documents = draw(st.integers(2, 14))
    taught = draw(st.booleans()) if taught is None else taught
    listed = taught or draw(st.booleans())
    number = st.integers(0, documents - 1)
    judged, candidates = [], []
    for _ in range(draw(st.integers(1, 5))):
        grades = draw(st.dictionaries(number, st.integers(0, 2), max_size=6))
        found = draw(st.lists(number, unique=True, max_size=documents)) if listed else []
        if taught:
            found += [document for document in grades if document not in found]
        judged.append(grades)
        candidates.append(found)
    total = sum(map(len, candidates))
    scores = draw(st.lists(st.integers(-3, 3), min_size=total, max_size=total)) if taught else None
    return TrainingSet(
        Tokenised.of([[100 + query] for query in range(len(judged))]),
        Tokenised.of([[200 + document] * (document % 4) for document in range(documents)]),
        [f"q{query}" for query in range(len(judged))],
        [f"d{document}" for document in range(documents)],
        Judged(
            np.cumsum([0, *map(len, judged)]),
            np.array([document for grades in judged for document in grades], np.int32),
            np.array([grade for grades in judged for grade in grades.values()], np.int32),
        ),
        Candidates(
            np.cumsum([0, *map(len, candidates)]),
            np.array([document for found in candidates for document in found], np.int32),
            np.arange(total, 0, -1).astype(np.float32),
        )
        if listed
        else None,
        None if scores is None else np.array(scores, np.float32),
        relevant=draw(st.integers(1, 2)),
    )


def made(make: Callable[[], Stream]) -> Stream:
    """The stream, of a set that has something to draw."""
    try:
        return make()
    except InputError:
        assume(False)
        raise


def groups(stream: Stream, batches: int, start: int = 0) -> list[Group]:
    return [group for batch in islice(stream.batches(start), batches) for group in batch.groups]


def plain(group: Group) -> tuple[object, ...]:
    teacher = None if group.teacher is None else group.teacher.tolist()
    return group.query, group.documents.tolist(), group.labels.tolist(), teacher, group.weight


def check(data: TrainingSet, group: Group) -> None:
    """Labels and the teacher's scores are those of the documents, none of which comes twice."""
    relevant = set(data.positives(group.query).tolist())
    numbers = group.documents.tolist()
    assert len(set(numbers)) == len(numbers)
    assert group.labels.tolist() == [float(number in relevant) for number in numbers]
    assert (group.documents.dtype, group.labels.dtype) == (np.int64, np.float32)
    if data.scores is None:
        assert group.teacher is None
    else:
        scores = dict(
            zip(data.candidates_of(group.query).tolist(), data.scores_of(group.query).tolist(), strict=True)  # type: ignore[union-attr]
        )
        assert group.teacher is not None
        assert group.teacher.tolist() == [scores[number] for number in numbers]


@settings(deadline=None, max_examples=80)
@given(data=training_sets(), size=SIZES, seed=SEEDS, negatives=NEGATIVES)
def test_balanced_batches_are_exactly_balanced(
    data: TrainingSet, size: int, seed: int, negatives: Negatives
) -> None:
    stream = made(lambda: balanced(data, size, seed, negatives))
    for batch in islice(stream.batches(), 4):
        assert [group.labels.tolist() for group in batch.groups] == [[1, 0]] * (size // 2)
        for group in batch.groups:
            check(data, group)


@settings(deadline=None, max_examples=80)
@given(data=training_sets(), size=SIZES, seed=SEEDS, negatives=NEGATIVES)
def test_no_pair_has_equal_labels(data: TrainingSet, size: int, seed: int, negatives: Negatives) -> None:
    stream = made(lambda: duo_pairs(data, size, seed, negatives))
    for batch in islice(stream.batches(), 4):
        assert len(batch.groups) == size
        pairs = Counter((group.query, *group.documents.tolist()) for group in batch.groups)
        for query, one, other in pairs:
            assert pairs[query, one, other] == pairs[query, other, one]
        for group in batch.groups:
            assert sorted(group.labels.tolist()) == [0, 1]
            check(data, group)


@settings(deadline=None, max_examples=80)
@given(
    data=training_sets(),
    size=st.integers(2, 6),
    queries=st.integers(1, 4),
    seed=SEEDS,
    negatives=NEGATIVES,
    positives=st.integers(1, 3),
)
def test_groups_are_as_large_as_they_can_be(
    data: TrainingSet, size: int, queries: int, seed: int, negatives: Negatives, positives: int
) -> None:
    stream = made(lambda: grouped(data, size, queries, seed, negatives, positives))
    for group in groups(stream, 4):
        check(data, group)
        relevant = len(data.positives(group.query))
        wanted = min(positives, relevant)
        if data.scores is None:
            others = len(data.documents) - relevant
            assert group.labels.sum() == wanted >= 1
            assert len(group.documents) == wanted + min(size - wanted, others)
        else:
            assert group.labels.sum() >= wanted
            assert len(group.documents) == min(size, len(data.candidates_of(group.query))) > 1


@settings(deadline=None, max_examples=60)
@given(data=training_sets(taught=True), size=SIZES, seed=SEEDS)
def test_pairs_of_a_teacher_are_in_its_order(data: TrainingSet, size: int, seed: int) -> None:
    stream = made(lambda: teacher_pairs(data, size, seed, first=1, last=3))
    for group in groups(stream, 3):
        assert group.teacher is not None
        assert group.teacher[0] != group.teacher[1]
        assert (group.labels[0] == 1) == (group.teacher[0] > group.teacher[1])
        assert sorted(group.labels.tolist()) == [0, 1]


@settings(deadline=None, max_examples=60)
@given(data=training_sets(), size=SIZES, seed=SEEDS, skipped=st.integers(0, 20))
def test_a_stream_goes_on_where_it_was_left(data: TrainingSet, size: int, seed: int, skipped: int) -> None:
    streams: list[Callable[[], Stream]] = [
        lambda: balanced(data, size, seed),
        lambda: duo_pairs(data, size, seed),
        lambda: grouped(data, 3, size, seed),
        lambda: curriculum(balanced(data, size, seed), steps=7, heuristic="score"),
    ]
    for make in streams:
        stream = made(make)
        per_batch = len(stream.batch(0).groups)
        whole = [plain(group) for group in groups(stream, skipped + 3)]
        assert whole == [plain(group) for group in groups(make(), skipped + 3)]
        assert whole[skipped * per_batch :] == [plain(group) for group in groups(make(), 3, start=skipped)]


@settings(deadline=None, max_examples=60)
@given(data=training_sets(taught=False), size=SIZES, seed=SEEDS)
def test_an_epoch_sees_every_positive(data: TrainingSet, size: int, seed: int) -> None:
    """All that have a negative at all: as often as each other, give or take the batch across the end."""
    able = [q for q in range(len(data)) if 0 < len(data.positives(q)) < len(data.documents)]
    every = {(q, document) for q in able for document in data.positives(q).tolist()}
    for stream in (
        made(lambda: balanced(data, size, seed)),
        made(lambda: grouped(data, 3, size, seed)),
    ):
        seen = Counter((group.query, int(group.documents[0])) for group in groups(stream, stream.epoch))
        assert set(seen) == every
        assert max(seen.values()) - min(seen.values()) <= 1


@settings(deadline=None, max_examples=25)
@given(data=training_sets(), seed=SEEDS)
def test_streams_from_disk_are_those_from_memory(data: TrainingSet, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data.save(Path(folder) / "set")
        stored = TrainingSet.open(Path(folder) / "set")
        assert stored.fingerprint == data.fingerprint
        stream = made(lambda: grouped(data, 4, 3, seed))
        from_disk = grouped(stored, 4, 3, seed)
        for one, other in zip(groups(stream, 4), groups(from_disk, 4), strict=True):
            assert plain(one) == plain(other)
            mine, theirs = data.documents.take(one.documents), stored.documents.take(other.documents)
            assert np.array_equal(mine.ids, theirs.ids) and np.array_equal(mine.offsets, theirs.offsets)


@settings(deadline=None, max_examples=60)
@given(data=training_sets(), seed=SEEDS)
def test_ease_is_between_0_and_1_and_falls_with_the_positives_rank(data: TrainingSet, seed: int) -> None:
    for group in groups(made(lambda: balanced(data, 4, seed)), 3):
        for heuristic in ("rank", "score"):
            value = ease(data, group, heuristic)  # type: ignore[arg-type]
            swapped = Group(group.query, group.documents[::-1], group.labels)
            assert 0 <= value <= 1
            assert abs(value + ease(data, swapped, heuristic) - 1) < 1e-12  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(data=training_sets(), limit=st.integers(1, 5))
def test_length_matching_cuts_every_text_and_nothing_else(data: TrainingSet, limit: int) -> None:
    cut = length_matched(data, limit)
    for number in range(len(data.documents)):
        whole = data.documents.take([number])
        assert cut.documents.take([number]).ids.tolist() == whole.ids[:limit].tolist()
    assert cut.documents.lengths.tolist() == data.documents.lengths.tolist()
    assert (cut.judged, cut.candidates, cut.scores) == (data.judged, data.candidates, data.scores)
