"""`if_unsure`: which queries leave early, what the others cost, and what a plan and a trade-off say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, IfUnsure, Index, Mono, Query, Ranking, ScoreKind, Stage
from tamis.base.errors import ExpressionError, InputError, TamisError
from tamis.core.language import Call
from tamis.core.plan import counts, plan
from tamis.core.registry import build
from tamis.evaluate.candidates import candidates
from tamis.evaluate.sweep import Sweep
from tamis.evaluate.tradeoff import trade_off
from tamis.rank.early_exit import leads

WORDS = ["castle", "river", "song", "king", "war", "film"]


class Turned(Stage):
    """Turns a ranking round, and remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    @property
    def expression(self) -> Call:
        return Call("turned")

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.seen.append([ranking.query.id for ranking in rankings])
        return [
            Ranking(r.query, tuple(r.ids[::-1]), -np.arange(len(r), dtype=np.float64), ScoreKind.COMBINED)
            for r in rankings
        ]


def ranking(name: str, *scores: float, kind: ScoreKind = ScoreKind.PROBABILITY) -> Ranking:
    ids = tuple(f"d{number}" for number in range(len(scores)))
    return Ranking(Query(name, name), ids, np.array(scores), kind)


# -- who leaves


def test_queries_that_go_on_are_ranked_together_and_all_come_back_in_their_places() -> None:
    inner = Turned()
    given = [
        ranking("a", 0.9, 0.1),
        ranking("b", 0.5, 0.4),
        ranking("c", 0.8, 0.6, 0.1),
        ranking("d", 0.9, 0.5),
    ]
    found = IfUnsure(inner, margin=0.3).apply(given)
    assert inner.seen == [["b", "c"]], "in one call"
    assert [each.query.id for each in found] == ["a", "b", "c", "d"]
    assert found[0] is given[0] and found[3] is given[3]
    assert found[1].ids == ("d1", "d0") and found[2].ids == ("d2", "d1", "d0")


def test_where_all_are_sure_the_stage_is_not_asked_at_all() -> None:
    inner = Turned()
    given = [ranking("a", 0.9, 0.9), ranking("b"), ranking("c", 0.1)]
    assert IfUnsure(inner, margin=0).apply(given) == given
    assert IfUnsure(inner, margin=1.5).apply(given[1:]) == given[1:], "no rival"
    assert inner.seen == []
    IfUnsure(inner, margin=1.5).apply(given)
    assert inner.seen == [["a"]], "no two probabilities are so far apart"


@pytest.mark.parametrize("kind", [ScoreKind.PROBABILITY, ScoreKind.LOGIT, ScoreKind.LOG_PROBABILITY])
def test_a_margin_is_in_the_unit_of_the_scores(kind: ScoreKind) -> None:
    assert leads(ranking("q", -1.0, -3.5, kind=kind), 2.5)
    assert not leads(ranking("q", -1.0, -3.4375, kind=kind), 2.5)


@pytest.mark.parametrize("kind", [ScoreKind.NONE, ScoreKind.RETRIEVAL, ScoreKind.COMBINED])
def test_scores_that_mean_nothing_beyond_their_list_are_refused(kind: ScoreKind) -> None:
    with pytest.raises(TamisError, match=f"scores of the kind {kind} means something else.*: put a model"):
        IfUnsure(Turned()).apply([ranking("q", 12.0, 3.0, kind=kind)])


def test_any_function_of_a_ranking_is_a_criterion() -> None:
    inner = Turned()

    def is_long(each: Ranking) -> bool:
        return len(each) > 2

    stage = IfUnsure(inner, sure=is_long)
    retrieved = [ranking("a", 9.0, 8.0, kind=ScoreKind.RETRIEVAL), ranking("b", 3.0, 2.0, 1.0)]
    assert stage.apply(retrieved)[1] is retrieved[1] and inner.seen == [["a"]]
    assert repr(stage) == "if_unsure(turned, sure=is_long)"


def test_criteria_that_differ_have_fingerprints_that_differ() -> None:
    def at_least(count: int) -> Callable[[Ranking], bool]:
        return lambda each: len(each) >= count

    made = [at_least(3), at_least(4), lambda each: len(each) > 3, lambda each: len(each) > 4]
    prints = [IfUnsure(Turned(), sure=each).fingerprint for each in made]
    assert len(set(prints)) == 4
    assert IfUnsure(Turned(), sure=at_least(3)).fingerprint == prints[0], "the same again"
    assert IfUnsure(Turned(), 0.2).fingerprint != IfUnsure(Turned(), 0.3).fingerprint


@dataclass(frozen=True)
class AtLeast:
    count: int

    def is_long(self, each: Ranking) -> bool:
        return len(each) >= self.count


FEW = 3


def is_longer_than_few(each: Ranking) -> bool:
    return len(each) > FEW


def test_what_a_criterion_is_made_with_outside_of_its_code_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def known_as(sure: Callable[[Ranking], bool]) -> str:
        return IfUnsure(Turned(), sure=sure).fingerprint

    assert known_as(AtLeast(3).is_long) == known_as(AtLeast(3).is_long) != known_as(AtLeast(4).is_long)
    before = known_as(is_longer_than_few)
    assert known_as(is_longer_than_few) == before
    monkeypatch.setitem(globals(), "FEW", 4)
    assert known_as(is_longer_than_few) != before


def test_a_bare_query_is_refused_and_one_that_found_nothing_is_not() -> None:
    with pytest.raises(TamisError, match="if_unsure has no candidates for query '0': put a stage that finds"):
        IfUnsure(Turned())("sieve")
    nothing = Ranking(Query("q", "sieve"), kind=ScoreKind.RETRIEVAL)
    assert IfUnsure(Turned())(nothing) is nothing


# -- in the language


def test_it_prints_as_it_is_written() -> None:
    for text in (
        "mono % 20 >> if_unsure(duo, margin=0.3)",
        "if_unsure(mono % 5 >> duo)",
        "if_unsure(rm3) % 9",
    ):
        assert repr(build(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("if_unsure", r"if_unsure takes a stage: write if_unsure\(stage\)"),
        (
            "if_unsure(duo, margin=-1)",
            "in if_unsure.*: if_unsure with margin=-1.0: use a number of at least 0",
        ),
        ("if_unsure(duo, sure=f)", "if_unsure has no option 'sure': it takes margin"),
        ("if_unsure(duo, margin=wide)", "margin of if_unsure cannot be 'wide': give a number"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        build(text)


def test_what_is_refused_in_python() -> None:
    with pytest.raises(InputError, match="if_unsure of 'duo': give a stage"):
        IfUnsure("duo")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="margin=nan"):
        IfUnsure(Turned(), margin=float("nan"))


# -- what it costs


def test_a_plan_is_an_upper_bound_and_says_so() -> None:
    stage = build("mono % 20 >> if_unsure(duo(k=5), margin=0.3) % 10")
    steps = plan(stage, [100, 3])
    assert [step.inferences.tolist() for step in steps] == [[100, 3], [5 * 4, 3 * 2], [0, 0]]
    assert [step.leave.tolist() for step in steps] == [[20, 3], [20, 3], [10, 3]]
    assert counts(stage) == "most"
    # a query that is sure keeps what it has, whatever the stage would have left of it
    assert plan(build("if_unsure(mono % 5)"), [20])[-1].leave.tolist() == [20]


@pytest.fixture(scope="module")
def made(
    tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Index, Path]:
    folder = tmp_path_factory.mktemp("early")
    tiny_checkpoint(folder / "one", layers=1, positions=48)
    tiny_checkpoint(folder / "two", layers=2, positions=48, seed=7)
    rng = np.random.default_rng(3)
    documents = [Document(f"d{n:02}", "castle " + " ".join(rng.choice(WORDS, 9))) for n in range(40)]
    return Index.build(documents, folder / "idx"), folder


QUERIES = [Query(f"q{n}", f"castle {word}") for n, word in enumerate(WORDS[1:])]


def test_only_what_is_read_is_counted(made: tuple[Index, Path]) -> None:
    index, folder = made
    first = index.bm25() % 10 >> Mono(str(folder / "one"))
    rankings = first([query.text for query in QUERIES])
    margin = float(np.median([r.scores[0] - r.scores[1] for r in rankings]))
    second = Mono(str(folder / "two"))
    pipeline = first >> IfUnsure(second, margin)
    run = pipeline.run(QUERIES)
    assert second.tally.inferences == 2 * 10, "two of five are below the median"
    for query, before in zip(QUERIES, rankings, strict=True):
        sure = leads(before, margin)
        assert run[query.id].ids == (before if sure else second(before)).ids


def test_a_trade_off_over_margins_reads_no_candidate_twice(made: tuple[Index, Path]) -> None:
    index, folder = made
    one, two = folder / "one", folder / "two"
    template = f'bm25 % 10 >> mono(model="{one}") >> if_unsure(mono(model="{two}"), margin={{margin}})'
    settings = candidates(template, {"margin": [0, 0.05, 2.0]}, index)
    costs = {
        swept.number: swept.inferences for swept in Sweep([each.stage for each in settings]).score(QUERIES)
    }
    assert costs[0] == 50 and costs[2] == 100 and 50 <= costs[1] <= 100
    qrels = {query.id: {"d00": 1, "d01": 1} for query in QUERIES}
    found = trade_off(candidates(template, {"margin": [0, 0.05, 2.0]}, index), QUERIES, qrels, timed=1)
    assert [point.inferences for point in found.points] == [costs[n] / 5 for n in range(3)]
    assert found.work.inferences == 100, "those of the largest serve the others"


def test_a_run_that_was_killed_goes_on(made: tuple[Index, Path], tmp_path: Path) -> None:
    index, folder = made

    def pipeline() -> Stage:
        second = Mono(str(folder / "two"))
        return index.bm25() % 10 >> Mono(str(folder / "one")) >> IfUnsure(second, 0.05)

    class Killed(BaseException):
        pass

    def kill(done: int) -> None:
        raise Killed

    queries = [Query(f"{query.id}-{n}", query.text) for n in range(4) for query in QUERIES]
    whole = pipeline().run(queries)
    with pytest.raises(Killed):
        pipeline().run(queries, progress=kill, journal=tmp_path / "journal")
    resumed = pipeline().run(queries, journal=tmp_path / "journal")
    assert resumed.manifest["resumed"] == 8
    assert [resumed[query.id] for query in queries] == [whole[query.id] for query in queries]
    assert {ranking.kind for ranking in whole.values()} == {ScoreKind.PROBABILITY}
