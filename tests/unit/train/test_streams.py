"""Training sets of a few numbers, and what is drawn from them: groups, pairs, curricula, chains, mixtures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import CorruptError, InputError, TamisError
from tamis.models.templates import Tokenised
from tamis.train.examples import (
    Candidates,
    Group,
    Judged,
    Negatives,
    Stream,
    TrainingSet,
    balanced,
    chain,
    curriculum,
    curriculum_weights,
    duo_pairs,
    ease,
    grouped,
    length_matched,
    mixed,
    teacher_pairs,
)


def by_hand(
    positives: dict[int, list[int]],
    *,
    negatives: dict[int, list[int]] | None = None,
    candidates: list[list[int]] | None = None,
    scores: list[float] | None = None,
    documents: int = 3,
) -> TrainingSet:
    """A set of numbers: who is relevant, who was judged and is not, who was found, what a teacher thinks."""
    queries = max(positives) + 1
    rows = [
        [(d, 1) for d in positives.get(q, [])] + [(d, 0) for d in (negatives or {}).get(q, [])]
        for q in range(queries)
    ]
    flat = [entry for row in rows for entry in row]
    offsets = np.cumsum([0, *map(len, rows)])
    judged = Judged(
        offsets, np.array([d for d, _ in flat], np.int32), np.array([g for _, g in flat], np.int32)
    )
    listed = None
    if candidates is not None:
        found = [np.array(each, np.int32) for each in candidates]
        retrieval = [np.arange(len(each), 0, -1, dtype=np.float32) for each in candidates]
        sizes = np.cumsum([0, *map(len, candidates)])
        listed = Candidates(sizes, np.concatenate(found), np.concatenate(retrieval))
    return TrainingSet(
        Tokenised.of([[100 + query] for query in range(queries)]),
        Tokenised.of([[200 + document] * (document + 1) for document in range(documents)]),
        [f"q{query}" for query in range(queries)],
        [f"d{document}" for document in range(documents)],
        judged,
        listed,
        None if scores is None else np.array(scores, np.float32),
    )


# -- the set itself
# ------------------------------------------------------------------------------------------------------------


def test_lists_of_other_queries() -> None:
    with pytest.raises(TamisError, match="of other queries"):
        replace(by_hand({0: [0]}), judged=Judged(np.array([0]), np.zeros(0), np.zeros(0)))
    with pytest.raises(TamisError, match="2 teacher's scores for 3 candidates"):
        replace(by_hand({0: [0]}, candidates=[[0, 1, 2]]), scores=np.zeros(2))


def test_the_fingerprint_is_of_all_that_matters() -> None:
    data = by_hand({0: [1]}, candidates=[[0, 1, 2]], scores=[3.0, 2.0, 1.0])
    assert data.candidates is not None and data.scores is not None
    judged, candidates = data.judged, data.candidates
    changed = [
        replace(data, queries=Tokenised.of([[99]])),
        replace(data, documents=Tokenised.of([[50, 51], [], [52]])),
        replace(data, judged=replace(judged, grades=judged.grades + 1)),
        replace(data, judged=replace(judged, documents=judged.documents + 1)),
        replace(data, candidates=replace(candidates, documents=candidates.documents[::-1])),
        replace(data, candidates=replace(candidates, retrieval=candidates.retrieval + 1)),
        replace(data, scores=data.scores + 1),
        replace(data, scores=None),
        replace(data, relevant=2),
    ]
    fingerprints = [each.fingerprint for each in (data, *changed)]
    assert len(set(fingerprints)) == len(fingerprints)
    assert replace(data, document_ids=["x", "y", "z"]).fingerprint == data.fingerprint


def test_damage_is_found(tmp_path: Path) -> None:
    data = by_hand({0: [1]}, candidates=[[0, 1, 2]])
    data.save(tmp_path / "set")
    for path in sorted((tmp_path / "set").iterdir()):
        copy = tmp_path / f"without-{path.name}"
        shutil.copytree(tmp_path / "set", copy)
        (copy / path.name).unlink()
        with pytest.raises(InputError if path.name == "set.json" else CorruptError, match=r"make|write"):
            TrainingSet.open(copy)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        (copy / path.name).write_bytes(bytes(content))
        with pytest.raises(CorruptError, match="make the training set again"):
            TrainingSet.open(copy)


# -- drawing
# ------------------------------------------------------------------------------------------------------------


def groups(stream: Stream, batches: int, start: int = 0) -> list[Group]:
    return [group for batch in islice(stream.batches(start), batches) for group in batch.groups]


def plain(group: Group) -> tuple[object, ...]:
    teacher = None if group.teacher is None else group.teacher.tolist()
    return group.query, group.documents.tolist(), group.labels.tolist(), teacher, group.weight


def test_balanced_batches_are_half_relevant() -> None:
    data = by_hand({0: [0, 1], 1: [2]}, candidates=[[3, 4, 0], [4, 2]], documents=6)
    for batch in islice(balanced(data, 8, seed=1).batches(), 20):
        labels = np.concatenate([group.labels for group in batch.groups])
        assert len(labels) == 8 and labels.sum() == 4
        for group in batch.groups:
            assert set(group.documents.tolist()) <= ({0, 1, 3, 4} if group.query == 0 else {2, 4})


def test_negatives_are_drawn_from_everywhere_they_may() -> None:
    data = by_hand({0: [1]}, candidates=[[5, 1, 3, 7, 2]], documents=9)

    def drawn(negatives: Negatives) -> set[int]:
        return {int(group.documents[1]) for group in groups(balanced(data, 2, 0, negatives), 200)}

    assert drawn(Negatives()) == {5, 3, 7, 2}
    assert drawn(Negatives(first=3, last=4)) == {3, 7}  # ranks 3 and 4
    assert drawn(Negatives(first=1, last=2)) == {5}  # rank 2 is relevant
    assert drawn(Negatives(first=4)) == {7, 2}
    assert drawn(Negatives(random=1.0)) == {0, 2, 3, 4, 5, 6, 7, 8}


def test_of_long_lists_every_wanted_candidate_is_as_likely_as_another() -> None:
    """Only some of such a list are looked at: 100 wanted ones, of which 2 are relevant."""
    listed = list(range(300))
    data = by_hand({0: [150, 7, 160]}, candidates=[listed], documents=400)
    for size, batches in ((2, 3000), (4, 1000)):
        stream = grouped(data, size, 4, 0, Negatives(first=101, last=200))
        drawn = np.concatenate([group.documents[1:] for group in groups(stream, batches // 4)])
        counts = np.bincount(drawn, minlength=400)
        assert set(np.flatnonzero(counts)) == set(range(100, 200)) - {150, 160}
        expected = len(drawn) / 98
        chi_square = ((counts[counts > 0] - expected) ** 2 / expected).sum()
        assert chi_square < 150  # 97 degrees of freedom: about 97, give or take 14


def test_a_window_with_just_enough_has_no_others() -> None:
    data = by_hand({0: [0]}, candidates=[list(range(40))], documents=60)
    for size in (3, 4, 5, 6):  # of the window's five all but the relevant are wanted, or one more
        stream = grouped(data, size, 1, 0, Negatives(last=5))
        for group in groups(stream, 30):
            assert len(set(group.documents.tolist()) - {0}) == size - 1
            assert len(set(group.documents.tolist()) & {1, 2, 3, 4}) == min(size - 1, 4)


def test_the_share_of_random_documents() -> None:
    data = by_hand({0: [0]}, candidates=[[1]], documents=1000)
    found = groups(balanced(data, 20, 0, Negatives(random=0.25)), 100)
    share = np.mean([group.documents[1] != 1 for group in found])
    assert share == pytest.approx(0.25, abs=0.05)


def test_where_there_are_too_few_others_fill_up() -> None:
    """The window, then the other candidates, then judged documents, then any."""
    data = by_hand({0: [0]}, negatives={0: [5]}, candidates=[[1, 2, 0, 3]], documents=8)

    def of_size(size: int) -> set[int]:
        (group,) = grouped(data, size, 1, seed=4, negatives=Negatives(last=2)).batch(0).groups
        assert len(group.documents) == len(set(group.documents.tolist())) == min(size, 8)
        return set(group.documents[1:].tolist())

    assert of_size(3) == {1, 2}
    assert of_size(4) == {1, 2, 3}
    assert of_size(5) == {1, 2, 3, 5}
    assert of_size(6) > {1, 2, 3, 5}
    assert of_size(20) == {1, 2, 3, 4, 5, 6, 7}


def test_judged_negatives_come_first_where_they_are_wanted() -> None:
    data = by_hand({0: [0]}, negatives={0: [5, 6]}, candidates=[[1, 2]], documents=8)
    judged = grouped(data, 3, 1, seed=0, negatives=Negatives(judged=True)).batch(0).groups[0]
    assert set(judged.documents[1:].tolist()) == {5, 6}


def test_groups_have_as_many_positives_as_are_wanted() -> None:
    data = by_hand({0: [0, 1, 2], 1: [3]}, candidates=[[4, 5, 6, 7], [4, 5, 6, 7]], documents=8)
    for group in groups(grouped(data, 4, 2, seed=0, positives=2), 10):
        assert group.labels.tolist() == ([1, 1, 0, 0] if group.query == 0 else [1, 0, 0, 0])


def test_pairs_come_in_both_orders() -> None:
    data = by_hand({0: [0]}, candidates=[[1, 0, 2]], scores=[0.5, 2.0, -1.0])
    for batch in islice(duo_pairs(data, 4, seed=0).batches(), 5):
        for one, other in zip(batch.groups[0::2], batch.groups[1::2], strict=True):
            assert one.documents.tolist() == other.documents.tolist()[::-1]
            assert (one.labels.tolist(), other.labels.tolist()) == ([1, 0], [0, 1])
            assert one.teacher is not None and other.teacher is not None
            assert one.teacher.tolist() == other.teacher.tolist()[::-1]
            assert one.teacher[0] == 2.0


def test_groups_of_a_taught_set_have_the_teachers_scores() -> None:
    """Query 1 has no relevant document, and comes too; the others of query 0 may be relevant."""
    data = by_hand(
        {0: [0, 1], 1: []}, candidates=[[3, 1, 0, 2], [2, 4, 5]], scores=[3, 1, 0, 2, 12, 14, 15], documents=6
    )
    found = groups(grouped(data, 3, 3, seed=0), 20)
    assert {group.query for group in found} == {0, 1}
    for group in found:
        assert group.teacher is not None
        assert group.teacher.tolist() == [d + 10 * group.query for d in group.documents.tolist()]
        assert group.labels.tolist() == [float(group.query == 0 and d < 2) for d in group.documents.tolist()]
    assert {group.labels.sum() for group in found if group.query == 0} == {1, 2}


def test_random_documents_have_no_teacher() -> None:
    data = by_hand({0: [0]}, candidates=[[1, 0]], scores=[1.0, 2.0])
    with pytest.raises(InputError, match="random documents have no teacher's scores"):
        balanced(data, 2, 0, Negatives(random=0.5))


def test_pairs_of_a_teacher() -> None:
    data = by_hand(
        {0: [], 1: [], 2: []}, candidates=[[0, 1, 2], [2, 1], [1]], scores=[1, 5, 5, 3, 3, 7], documents=3
    )
    stream = teacher_pairs(data, 6, seed=0)
    assert stream.epoch == 1
    found = groups(stream, 20)
    assert {group.query for group in found} == {0}  # the others have no two scores
    assert {tuple(group.documents.tolist()) for group in found} == {(0, 1), (1, 0), (0, 2), (2, 0)}
    for group in found:
        assert group.teacher is not None
        assert (group.labels[0] > group.labels[1]) == (group.teacher[0] > group.teacher[1])
    near = by_hand({0: []}, candidates=[[0, 1, 2]], scores=[1, 5, 9])
    assert {d for group in groups(teacher_pairs(near, 2, 0, last=2), 9) for d in group.documents} == {0, 1}
    with pytest.raises(InputError, match="give a teacher whose scores differ within"):
        teacher_pairs(by_hand({0: [0]}), 2, seed=0)


def test_an_epoch_is_every_positive_once() -> None:
    data = by_hand({0: [0, 1, 2], 1: [3], 2: [0, 4]}, documents=6)
    stream = balanced(data, 4, seed=3)
    assert stream.epoch == 3
    for epoch in range(3):
        seen = [(g.query, int(g.documents[0])) for g in groups(stream, 3, start=3 * epoch)]
        assert sorted(seen) == [(0, 0), (0, 1), (0, 2), (1, 3), (2, 0), (2, 4)]


def test_streams_depend_on_the_seed_and_go_on_anywhere() -> None:
    data = by_hand({0: [0, 1], 1: [2]}, candidates=[list(range(3, 30)), list(range(3, 30))], documents=30)
    for stream in (balanced, duo_pairs, lambda d, n, seed: grouped(d, 4, n, seed)):
        whole = [plain(group) for group in groups(stream(data, 4, 7), 12)]
        again = [plain(group) for group in groups(stream(data, 4, 7), 6, start=6)]
        other = [plain(group) for group in groups(stream(data, 4, 8), 12)]
        assert whole[-len(again) :] == again
        assert whole != other


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda data: balanced(data, 3, 0), "a batch of 3 texts has no two halves: use an even"),
        (lambda data: duo_pairs(data, 0, 0), "a batch of 0 ordered pairs"),
        (lambda data: grouped(data, 1, 4, 0), "4 groups of 1 documents"),
        (lambda data: grouped(data, 4, 1, 0, positives=4), "4 of them relevant"),
        (lambda data: balanced(data, 2, -1).batch(0), "a seed of -1"),
        (lambda data: Negatives(first=0), "ranks 0 to None: count from 1"),
        (lambda data: Negatives(first=5, last=4), "ranks 5 to 4"),
        (lambda data: Negatives(random=1.5), "a share of 1.5"),
        (lambda data: length_matched(data, 0), "cannot cut texts to 0 tokens"),
        (lambda data: chain([]), "a chain"),
        (lambda data: chain([(balanced(data, 2, 0), None), (balanced(data, 2, 0), 3)]), "the last its steps"),
        (lambda data: mixed([(balanced(data, 2, 0), 0.0)]), "a weight above 0"),
        (lambda data: curriculum(balanced(data, 2, 0), 0), "a curriculum of 0 steps"),
    ],
)
def test_what_cannot_be_drawn(make: Callable[[TrainingSet], object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make(by_hand({0: [0]}))


def test_nothing_but_positives() -> None:
    with pytest.raises(InputError, match="no query has both a relevant document and another"):
        balanced(by_hand({0: [0, 1, 2]}), 2, 0)
    taught = by_hand({0: [0, 1]}, candidates=[[1, 0]], scores=[1.0, 2.0])
    with pytest.raises(InputError, match="no query has both"):
        duo_pairs(taught, 2, 0)
    assert len(grouped(taught, 4, 1, 0).batch(0).groups[0].documents) == 2  # which a list can learn from


# -- curricula, chains, mixtures
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("documents", "by_rank", "by_score"),
    [
        ([0, 1], (1 - 1 / 2 + 1) / 2, (1 - 0.75 + 1) / 2),  # scores 5, 4, 1: 1, 3/4, 0
        ([0, 2], (1 - 1 / 3 + 1) / 2, (1 - 0 + 1) / 2),
        ([0, 9], (1 - 0 + 1) / 2, (1 - 0 + 1) / 2),  # 9 was not found
        ([9, 0], (0 - 1 + 1) / 2, (0 - 1 + 1) / 2),
        ([1, 0, 2], (1 / 2 - (1 + 1 / 3) / 2 + 1) / 2, (0.75 - 0.5 + 1) / 2),
    ],
)
def test_ease(documents: list[int], by_rank: float, by_score: float) -> None:
    data = by_hand({0: [0]}, candidates=[[0, 1, 2]], documents=10)
    assert data.candidates is not None
    retrieval = np.array([5, 4, 1], np.float32)
    data = replace(data, candidates=replace(data.candidates, retrieval=retrieval))
    group = Group(0, np.array(documents), np.array([1.0] + [0.0] * (len(documents) - 1)))
    assert ease(data, group, "rank") == pytest.approx(by_rank)
    assert ease(data, group, "score") == pytest.approx(by_score)


def test_equal_scores_say_nothing() -> None:
    data = by_hand({0: [0]}, candidates=[[0]], documents=2)
    group = Group(0, np.array([0, 1]), np.array([1.0, 0.0]))
    assert ease(data, group, "score") == 0.5
    assert ease(by_hand({0: [0]}), group, "rank") == 0.5  # nor does a set without candidates
    with pytest.raises(InputError, match="no curriculum 'kde'"):
        ease(data, group, "kde")  # type: ignore[arg-type]


def test_curriculum_weights_rise_to_one() -> None:
    eases = np.array([0.0, 0.4, 1.0])
    assert curriculum_weights(eases, 0, 10).tolist() == [0.0, 0.4, 1.0]
    assert curriculum_weights(eases, 5, 10) == pytest.approx([0.5, 0.7, 1.0])
    assert curriculum_weights(eases, 10, 10).tolist() == curriculum_weights(eases, 99, 10).tolist() == [1] * 3


def test_a_curriculum_changes_weights_alone() -> None:
    data = by_hand({0: [2]}, candidates=[[0, 1, 2]])
    stream = balanced(data, 4, seed=0)
    eased = curriculum(stream, steps=4, heuristic="rank")
    for number in range(6):
        for before, after in zip(stream.batch(number).groups, eased.batch(number).groups, strict=True):
            easiness = (1 / 3 - 1 / (1 + before.documents[1]) + 1) / 2
            assert after.weight == pytest.approx(min(easiness + (1 - easiness) * number / 4, 1))
            assert plain(replace(after, weight=1.0)) == plain(before)


def test_a_chain_is_one_stream_after_the_other() -> None:
    large, target = by_hand({0: [0, 1]}), by_hand({0: [2]})
    first, second = balanced(large, 2, seed=0), grouped(target, 2, 1, seed=0)
    stream = chain([(first, 3), (second, None)])
    found = list(islice(stream.batches(1), 6))
    assert [batch.data is target for batch in found] == [False, False, True, True, True, True]
    assert [plain(batch.groups[0]) for batch in found] == [
        plain(batch.groups[0])
        for batch in [first.batch(1), first.batch(2), *(second.batch(number) for number in range(4))]
    ]
    assert stream.epoch == 4


def test_a_mixture_goes_through_each_stream_in_order() -> None:
    sets = [by_hand({0: [0, 1]}), by_hand({0: [2]})]
    parts = [balanced(data, 2, seed=0) for data in sets]
    stream = mixed([(parts[0], 3.0), (parts[1], 1.0)])
    seen = [0, 0]
    for number, batch in enumerate(islice(stream.batches(), 3000)):
        which = 0 if batch.data is sets[0] else 1
        if number < 50:
            assert plain(batch.groups[0]) == plain(parts[which].batch(seen[which]).groups[0])
        seen[which] += 1
        assert abs(seen[0] - 0.75 * (number + 1)) <= 1
    assert plain(stream.batch(2999).groups[0]) == plain(batch.groups[0])
