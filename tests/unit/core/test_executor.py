"""Pipelines carried out: their steps, the tree of many, and what stages beside each other share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from tamis import Query, Ranking, ScoreKind, Span, Stage
from tamis.base.errors import InputError
from tamis.core.executor import Memo, PrefixTree, Work, each_stage, ranked, steps
from tamis.core.language import Call
from tamis.core.ledger import ledger, record
from tamis.core.stage import Pipeline
from tamis.evaluate.candidates import Candidate
from tamis.evaluate.folds import Fold
from tamis.evaluate.sweep import Sweep
from tamis.evaluate.tradeoff import trade_off
from tamis.evaluate.tune import cross_validate
from tamis.rank.combine import Fuse, Interpolate, Normalise

IDS = ("a", "b", "c", "d")
QUERIES = [Query("q1", "one"), Query("q2", "two")]
QRELS = {"q1": {"c": 1}, "q2": {"c": 1}}


class Foreign(Stage):
    """A stage of somebody else, which knows nothing of sharing: it finds four candidates and puts one
    first. Whoever asks for fewer makes less work."""

    seen: ClassVar[Counter[str]] = Counter()
    asked: ClassVar[Counter[int | None]] = Counter()

    def __init__(self, best: str = "a", at_once: int = 64) -> None:
        self.best, self.at_once = best, at_once

    @property
    def expression(self) -> Call:
        return Call("foreign", (), (("best", self.best),))

    @property
    def queries_at_once(self) -> int:
        return self.at_once

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.seen[repr(self)] += len(rankings)
        self.asked[depth] += len(rankings)
        ids = (self.best, *(each for each in IDS if each != self.best))
        return [
            replace(each, ids=ids, scores=np.arange(4.0, 0, -1), kind=ScoreKind.RETRIEVAL)
            for each in rankings
        ]


class Reads(Stage):
    """A stage with a model, which tells the ledger of an input a candidate."""

    uses_depth = False
    done = 0

    @property
    def expression(self) -> Call:
        return Call("reads")

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        record((each.query, SimpleNamespace(inferences=len(each), cached=0)) for each in rankings)
        self.done += sum(map(len, rankings))
        spans = [{doc_id: (Span(0, 1, 0.5),) for doc_id in each.ids} for each in rankings]
        return [replace(each, evidence=own) for each, own in zip(rankings, spans, strict=True)]


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    Foreign.seen.clear()
    Foreign.asked.clear()
    yield


def bare() -> list[Ranking]:
    return list(map(Ranking, QUERIES))


# -- one pipeline
# ------------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_pipeline_are_flat_and_have_their_cuts_apart() -> None:
    find, read = Foreign(), Reads()
    nested = Pipeline([Pipeline([find % 3, Normalise()]), read % 2])
    found = [(step.stage, step.k) for step in steps(nested)]
    assert found[0] == (find, 3) and found[2] == (read, 2) and found[1][1] is None
    assert [repr(step.whole) for step in steps(nested)] == ["foreign(best=a) % 3", "normalise", "reads % 2"]
    assert steps(find) == [(find, find, None)]


def test_a_ranking_after_each_stage_is_that_of_the_pipeline() -> None:
    pipeline = Foreign("b") % 3 >> Normalise() >> Reads() % 2
    after = each_stage(pipeline, Ranking(QUERIES[0]))
    assert [(repr(stage), found.ids) for stage, found in after] == [
        ("foreign(best=b) % 3", ("b", "a", "c")),
        ("normalise", ("b", "a", "c")),
        ("reads % 2", ("b", "a")),
    ]
    assert after[-1][1] == pipeline(QUERIES[0])


def test_batches_are_as_large_as_the_stage_wants_them() -> None:
    found, work = ranked(Foreign(at_once=1), bare() * 2)
    assert len(found) == 4 and work == Work()
    assert [ranking.query for ranking in found] == QUERIES * 2


# -- many
# ------------------------------------------------------------------------------------------------------------


def test_cuts_are_apart_where_they_cost_nothing() -> None:
    """One that searches does less for a smaller k, so each k is another search."""
    find, read = Foreign(), Reads()
    pipelines = [find % k >> read % cut for k in (2, 3) for cut in (1, 2)]
    runs = {number: run for number, run, _ in Sweep(pipelines).score(QUERIES)}
    assert Foreign.asked == {2: 2, 3: 2}
    assert read.done == 2 * (2 + 3)
    for number, pipeline in enumerate(pipelines):
        alone = pipeline.run(QUERIES)
        assert list(runs[number].values()) == list(alone.values())
    assert all(set(each.evidence) == set(each.ids) for run in runs.values() for each in run.values())


def test_what_a_pipeline_would_have_read_alone_is_counted_whoever_has_read_it() -> None:
    find, read = Foreign(), Reads()
    alphas = [find >> Interpolate(read, alpha) for alpha in (0.0, 0.5, 1.0)]
    sweep = Sweep([*alphas, find >> Fuse(read, read), find >> read, find])
    spent = {number: inferences for number, _, inferences in sweep.score(QUERIES)}
    assert spent == {0: 8, 1: 8, 2: 8, 3: 16, 4: 8, 5: 0}
    assert sweep.work.inferences == read.done == 16, "inside of others once, and by itself"


def test_memos_remember_each_ranking_once_and_finish_each_time() -> None:
    worked: list[str] = []

    def work(rankings: Sequence[Ranking]) -> list[str]:
        worked.extend(each.query.id for each in rankings)
        record((each.query, SimpleNamespace(inferences=3, cached=1)) for each in rankings)
        return [each.query.id for each in rankings]

    memo, (one, two) = Memo(), Foreign()(QUERIES)
    first, second = (
        memo.once(Foreign(), "alike", work, lambda each, made, depth: each.head(depth or 4)) for _ in "ab"
    )
    with ledger() as entries:
        assert [len(each) for each in first.apply([two], 1)] == [1]
        assert [len(each) for each in second.apply([one, two])] == [4, 4]
    assert worked == ["q2", "q1"]
    assert Work.of(entries) == Work(inferences=6, cached=2 + 4), "what is known counts as cached"
    other = memo.once(Foreign(), "other", work, lambda each, made, depth: each)
    other.apply([one])
    assert worked == ["q2", "q1", "q1"]


def test_a_tree_uses_the_first_of_stages_that_are_alike() -> None:
    reads = [Reads() for _ in range(4)]
    pipelines = [Foreign(best) >> read for best, read in zip("aabb", reads, strict=True)]
    tree = PrefixTree(pipelines)
    paths = dict(tree.walk((), lambda branch, before: (*before, branch.stage)))
    assert [path[1] for path in paths.values()] == [reads[0]] * 4
    assert paths[0] == paths[1] and paths[2][0] is paths[3][0]
    assert dict(tree.walk(0, lambda branch, before: before + 1, only=[3])) == {3: 2}


# -- stages of others
# ------------------------------------------------------------------------------------------------------------


def test_a_foreign_stage_can_be_tuned() -> None:
    folds = [Fold(("q1",), ("q2",)), Fold(("q2",), ("q1",))]
    grid = {"best": ["a", "c"], "alpha": [0.0, 1.0]}
    found = cross_validate(
        lambda setting: Foreign() >> Interpolate(Foreign(str(setting["best"])), float(str(setting["alpha"]))),
        grid, QUERIES, QRELS, folds, "RR",
    )  # fmt: skip
    assert [choice.setting for choice in found.choices] == [{"best": "c", "alpha": 0.0}] * 2
    assert Foreign.seen == {"foreign(best=a)": 2 + 2, "foreign(best=c)": 2}


def test_a_foreign_stage_can_be_traded_off_and_timed() -> None:
    read = Reads()
    tried = [Candidate({"best": best, "k": k}, Foreign(best) >> read % k) for best in "ac" for k in (1, 3)]
    found = trade_off(tried, QUERIES, QRELS, "RR", timed=2)
    assert [(point.value, point.inferences) for point in found.points] == [(0, 4), (1 / 3, 4), (1, 4), (1, 4)]
    assert found.work.inferences == 2 * 8
    # scored once a query; then timed once for both cuts, on a query to warm up and on each
    assert Foreign.seen == {"foreign(best=a)": 2 + 3, "foreign(best=c)": 2 + 3}
    assert all(point.latency is not None for point in found.points)


def test_stages_that_read_alike_are_timed_once() -> None:
    class Settings(Reads):
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def expression(self) -> Call:
            return Call("settings", (), (("number", self.number),))

        @property
        def reads(self) -> str:
            return "the same"

    first, *others = made = [Settings(number) for number in range(3)]
    times = Sweep([Foreign() >> each for each in made]).time(QUERIES)
    assert times[0] == times[1] == times[2]
    assert first.done == 3 * 4 and not any(each.done for each in others)


def test_scores_from_a_cache_are_not_taken_for_the_time_of_a_model() -> None:
    class Cached(Reads):
        def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
            record((each.query, SimpleNamespace(inferences=0, cached=len(each))) for each in rankings)
            return list(rankings)

    cached, plain = Foreign() >> Cached(), Foreign() >> Reads()
    with pytest.raises(
        InputError, match=r"took scores from a cache: give .* without a cache as Candidate.timed"
    ):
        Sweep([cached]).time(QUERIES)
    found = trade_off([Candidate({"k": 1}, cached, timed=plain)], QUERIES, QRELS, "RR", timed=1)
    assert found.points[0].latency is not None and found.points[0].inferences == 4


def test_a_journal_of_a_pipeline_names_its_stages_with_their_cuts(tmp_path: Path) -> None:
    journal = tmp_path / "run.journal"
    (Foreign() % 3 >> Normalise()).run(QUERIES, journal=journal)
    header = journal.read_bytes().split(b"\n")[0]
    assert b'["foreign(best=a) % 3",' in header and b'["normalise",' in header
