"""Sweeps over tiny models: the work that is shared, the cost of each setting alone, and the choice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Document, Index, Query
from tamis.base.errors import ExpressionError, InputError
from tamis.core.plan import rerankers
from tamis.core.registry import build
from tamis.core.runtime import Runtime
from tamis.evaluate.budget import Budget, Latency, Point, choose, clearly_worse, frontier, shares_of_best
from tamis.evaluate.candidates import Candidate, candidates, expression_of
from tamis.evaluate.measures import evaluate
from tamis.evaluate.report import html, summary
from tamis.evaluate.sweep import Sweep
from tamis.evaluate.tradeoff import Tradeoff, described, trade_off
from tamis.evaluate.tradeoff_plot import cost_plot, parameter_plot, plots
from tamis.rank.given_run import GivenRun
from tamis.storage.score_cache import ScoreCache

WORDS = [
    "river",
    "castle",
    "song",
    "war",
    "music",
    "bridge",
    "film",
    "singer",
    "city",
    "battle",
    "king",
    "novel",
]
AGGREGATES = ["sum", "binary", "min", "max"]


@pytest.fixture(scope="module")
def place(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tradeoff")
    tiny_checkpoint(folder / "mono", layers=1, positions=48, hidden=16, seed=1)
    tiny_checkpoint(folder / "duo", layers=1, positions=48, hidden=16, segments=3, seed=2)
    generator = np.random.default_rng(5)
    texts = [" ".join(generator.choice(WORDS, generator.integers(4, 12))) for _ in range(1200)]
    Index.build([Document(f"d{n:04}", text) for n, text in enumerate(texts)], folder / "idx")
    return folder


@pytest.fixture(scope="module")
def index(place: Path) -> Index:
    return Index.open(place / "idx")


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    return [Query("q1", "river castle song"), Query("q2", "king war battle city")]


@pytest.fixture(scope="module")
def qrels(index: Index, queries: Sequence[Query]) -> dict[str, dict[str, int]]:
    run = (index.bm25() % 100).run(queries)
    return {qid: dict.fromkeys(ranking.ids[::7], 1) for qid, ranking in run.items()}


def template(place: Path, first: str = "bm25 % {k0}") -> str:
    mono, duo = (f'(model="{place / name}"' for name in ("mono", "duo"))
    return f"{first} >> mono{mono}) >> duo{duo}, k={{k1}}, aggregate={{aggregate}})"


# -- which settings there are
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "setting", "expected"),
    [
        ("bm25 % {k0} >> mono % {k1} >> duo", {"k0": 9, "k1": 0}, "bm25 % 9 >> mono"),
        ("bm25 % {k0} >> mono % {k1} >> duo % 3", {"k0": 9, "k1": 0}, "bm25 % 9 >> mono"),
        ("bm25 % {k0} >> mono % {k1} >> duo", {"k0": 9, "k1": 10}, "bm25 % 9 >> mono % 10 >> duo"),
        ("bm25 >> mono >> duo(k={k1}) % 5", {"k1": 0}, "bm25 >> mono % 5"),
        ("given >> listwise(k={k1}, rounds=3) % 5", {"k1": 0}, "given % 5"),
        ("given >> listwise(k={k1})", {"k1": 4}, "given >> listwise(k=4)"),
        ("fuse(bm25, ql, k={k1})", {"k1": 0}, "fuse(bm25, ql, k=0)"),  # which is no number of candidates
        ("interpolate(mono % {k1} >> duo, alpha=0.5) % 7", {"k1": 0}, "interpolate(mono, alpha=0.5) % 7"),
        ('mono(model="a % 0, b") % {k}', {"k": 3}, 'mono(model="a % 0, b") % 3'),
        ("(bm25 % {k0} >> mono % {k1} >> duo) % 8", {"k0": 9, "k1": 0}, "bm25 % 9 >> mono % 8"),
    ],
)
def test_nothing_to_do_is_no_stage(text: str, setting: Mapping[str, int], expected: str) -> None:
    assert str(expression_of(text, setting)) == expected


def test_a_pipeline_of_nothing() -> None:
    with pytest.raises(ExpressionError, match="nothing is left"):
        expression_of("duo(k={k})", {"k": 0})


def test_settings_with_one_pipeline_are_one(place: Path, index: Index) -> None:
    found = candidates(template(place), {"k0": [5, 9], "k1": [0, 3], "aggregate": AGGREGATES}, index)
    assert len(found) == 2 * (1 + 4)
    assert [each.setting for each in found[:2]] == [
        {"k0": 5, "k1": 0},
        {"k0": 5, "k1": 3, "aggregate": "sum"},
    ]


def test_given_stands_for_a_run(place: Path, index: Index, queries: Sequence[Query]) -> None:
    first = GivenRun((index.bm25() % 30).run(queries), index)
    (one,) = candidates("given % {k}", {"k": [7]}, first=first)
    assert [len(ranking) for ranking in one.stage.run(queries).values()] == [7, 7]
    model = f'mono(model="{place / "mono"}")'
    (other,) = candidates(f"{model} % {{k}}", {"k": [7]}, first=first)
    assert other.stage.stages[0] is first  # type: ignore[attr-defined]


# -- the work
# ------------------------------------------------------------------------------------------------------------


def test_a_sweep_costs_little_more_than_its_largest_setting(
    place: Path, index: Index, queries: Sequence[Query], qrels: Mapping[str, dict[str, int]]
) -> None:
    """With the papers' k0. The tiny mono's scores are unrelated to bm25's, so that the first documents of a
    k0 and of the next have as little in common as can be."""
    grid = {"k0": [50, 100, 200, 500, 1000], "k1": [0, 3, 5, 10], "aggregate": AGGREGATES}
    found = trade_off(candidates(template(place), grid, index), queries, qrels, timed=0)
    assert len(found.points) == 5 * (1 + 3 * 4)
    depths = [len(ranking) for ranking in (index.bm25() % 1000).run(queries).values()]
    assert found.largest == sum(depths) + len(queries) * 10 * 9
    assert found.work.inferences <= 1.3 * found.largest
    assert found.alone > 20 * found.largest


def test_a_setting_is_worth_and_costs_what_it_does_alone(
    place: Path, index: Index, queries: Sequence[Query], qrels: Mapping[str, dict[str, int]]
) -> None:
    def some() -> list[Candidate]:
        exact = template(place).replace("{aggregate}", "min")
        sampled = template(place).replace("{aggregate}", "sample, m=2")
        return [
            *candidates(exact, {"k0": [10, 30], "k1": [0, 4, 6]}, index),
            *candidates(sampled, {"k0": [10, 30], "k1": [4, 6]}, index),
        ]

    found = trade_off(some(), queries, qrels, "AP", timed=0)
    for point, candidate in zip(found.points, some(), strict=True):
        assert point.pipeline == repr(candidate.stage)
        alone = build(point.pipeline, index)
        run = alone.run(queries)
        assert point.value == pytest.approx(evaluate(qrels, run, ["AP"]).mean["AP"], abs=1e-15)
        spent = sum(model.tally.inferences for model in rerankers(alone))
        assert point.inferences == spent / len(queries)


def test_a_cache_that_is_given_is_used(
    place: Path, index: Index, queries: Sequence[Query], qrels: Mapping[str, dict[str, int]], tmp_path: Path
) -> None:
    grid = {"k0": [10, 20], "k1": [0, 4], "aggregate": ["sum"]}
    runtime = Runtime(cache=tmp_path / "scores.db")
    first, second = (
        trade_off(candidates(template(place), grid, index, runtime=runtime), queries, qrels, timed=1)
        for _ in range(2)
    )
    assert first.work.inferences == len(ScoreCache(tmp_path / "scores.db")) > 0
    assert second.work.inferences == 0
    assert [point.inferences for point in second.points] == [point.inferences for point in first.points]
    assert [point.value for point in second.points] == [point.value for point in first.points]


def test_a_model_is_loaded_once_and_timed_without_a_cache(
    place: Path, index: Index, queries: Sequence[Query]
) -> None:
    grid = {"k0": [5, 20], "k1": [0, 4], "aggregate": AGGREGATES}
    tried = candidates(template(place), grid, index)
    sweep = Sweep([each.stage for each in tried], [each.timed for each in tried if each.timed is not None])
    models = [model for pipeline in sweep.pipelines for model in rerankers(pipeline)]
    timed = [model for pipeline in sweep.timed for model in rerankers(pipeline)]
    assert len(sweep.timed) == len(sweep.pipelines)
    assert len({id(model.scorer) for model in (*models, *timed)}) == 2
    runs = {number: run for number, run, _ in sweep.score(queries)}
    before = sweep.work
    seconds = sweep.time(queries)
    # the warm-up and each query: mono once a k0, duo once a k0 for all aggregations
    assert sweep.work.inferences - before.inferences == 3 * (5 + 20 + 2 * 4 * 3)
    assert sweep.work.cached == before.cached
    assert len({id(model.cache) for model in models}) == 1 and models[0].cache is not None
    assert all(model.cache is None for model in timed)
    assert sorted(seconds) == list(range(10))
    assert all(len(taken) == 2 and min(taken) > 0 for taken in seconds.values())
    assert seconds[1] == seconds[2] == seconds[3] == seconds[4]
    assert all(a < b for a, b in zip(seconds[0], seconds[1], strict=True))  # without duo, with it
    again = {number: run for number, run, _ in sweep.score(queries, [0, 7])}
    assert {n: dict(run) for n, run in again.items()} == {n: dict(runs[n]) for n in (0, 7)}


def test_queries_that_do_not_count(place: Path, index: Index, queries: Sequence[Query]) -> None:
    judgments = {"q1": {"d0001": 1}, "q2": {"d0001": 0}, "q9": {"d0001": 1}}
    some = candidates("bm25 % {k}", {"k": [5, 9]}, index)
    found = trade_off(some, queries, judgments, "RR", timed=1)
    assert (found.queries, found.left_out) == (1, ["q9"])
    with pytest.raises(InputError, match="no query has a relevant document"):
        trade_off(some, queries, {"q2": {"d0001": 0}})
    with pytest.raises(InputError, match="no setting to try"):
        trade_off([], queries, judgments)
    with pytest.raises(InputError, match="a time budget, and no query is timed"):
        trade_off(some, queries, judgments, budget=Budget(5, "latency"), timed=0)
    with pytest.raises(InputError, match="the seed -1"):
        trade_off(some, queries, judgments, seed=-1, watch=lambda *_: pytest.fail("it began to work"))


# -- the choice
# ------------------------------------------------------------------------------------------------------------


def point(value: float, inferences: float, p95: float | None = None, spread: float = 0.0) -> Point:
    per_query = {f"q{n}": value + spread * (-1) ** n for n in range(6)}
    latency = None if p95 is None else Latency(p95 / 2, p95)
    return Point({"k0": inferences}, "", value, per_query, inferences, latency)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    points = [point(value / 10, cost) for value, cost in pairs]
    found = [pairs[number] for number in frontier(points)]
    beaten = {
        (value, cost)
        for value, cost in pairs
        for other, price in pairs
        if other >= value and price <= cost and (other, price) != (value, cost)
    }
    assert set(found) == set(pairs) - beaten
    assert len(found) == len(set(found))
    assert found == sorted(found, key=lambda pair: pair[1])


def test_budgets() -> None:
    points = [point(0.3, 10, 90), point(0.5, 100, 60), point(0.7, 1000, 400), point(0.7, 900, 500)]
    assert [choose(points, limit).number for limit in (None, Budget.parse("99inf"))] == [3, 0]  # type: ignore[union-attr]
    assert choose(points, Budget.parse("0.4s")).number == 2  # type: ignore[union-attr]
    assert choose(points, Budget.parse("60 ms")).number == 1  # type: ignore[union-attr]
    assert choose(points, Budget.parse("59.9ms")) is None
    for wrong in ("50", "ms", "-5ms", "0inf", "5 minutes", "infms", ""):
        with pytest.raises(InputError, match="is not a valid budget: write 50ms"):
            Budget.parse(wrong)


@pytest.mark.parametrize(
    ("written", "said"),
    [("0.5s", "500 ms (p95)"), ("12.25ms", "12.25 ms (p95)"), ("1234567inf", "1234567 inferences per query")],
)
def test_a_budget_is_said_as_it_was_given(written: str, said: str) -> None:
    assert str(Budget.parse(written)) == said


def test_what_was_not_timed_keeps_within_no_time() -> None:
    assert choose([point(0.5, 10)], Budget.parse("1000s")) is None


def test_confidence_of_a_clear_choice_and_of_none() -> None:
    clear = choose([point(0.3, 10, spread=0.01), point(0.6, 90, spread=0.02)])
    assert clear is not None
    assert (clear.share, clear.within_noise, clear.thrift) == ({0: 0.0, 1: 1.0}, [], 1)
    noisy = choose([point(0.50, 10, spread=0.3), point(0.51, 90, spread=-0.3)])
    assert noisy is not None
    assert (noisy.number, noisy.within_noise, noisy.thrift) == (1, [0], 0)
    assert noisy.share[1] == pytest.approx(0.5, abs=0.2)
    assert noisy.interval.low < 0.51 < noisy.interval.high


def test_shares_equal_enumeration() -> None:
    """Two queries have three samples: both the first (1/4), both the second (1/4), one of each (1/2)."""
    values = np.array([[0.0, 1.0], [0.6, 0.3], [0.1, 0.1]])
    # means of the samples: 0, 1, 0.5 | 0.6, 0.3, 0.45 | 0.1
    found = shares_of_best(values, resamples=40_000)
    assert found == pytest.approx([0.75, 0.25, 0.0], abs=0.01)
    assert np.array_equal(found, shares_of_best(values, resamples=40_000))


def test_what_is_clear() -> None:
    assert clearly_worse(np.array([-0.1, -0.1]))
    assert not clearly_worse(np.array([-0.1]))
    assert not clearly_worse(np.array([0.1, 0.2, 0.1]))
    assert not clearly_worse(np.zeros(5))


# -- what is shown
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(
    place: Path, index: Index, queries: Sequence[Query], qrels: Mapping[str, dict[str, int]]
) -> Tradeoff:
    grid = {"k0": [10, 30], "k1": [0, 4], "aggregate": ["sum", "min"]}
    return trade_off(candidates(template(place), grid, index), queries, qrels, timed=2)


def test_plots_have_a_mark_a_setting(swept: Tradeoff) -> None:
    assert list(plots(swept)) == ["inferences", "latency", "k0", "k1", "aggregate"]
    for name, picture in plots(swept).items():
        titles = [
            each.text or "" for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("title")
        ]
        assert titles, name
        if name in ("inferences", "latency"):
            assert len(titles) == len(swept.points)
    told = cost_plot(swept, "inferences", "k1")
    assert ">k1</text>" in told
    assert ">min</text>" in parameter_plot(swept, "k1", "aggregate")


@pytest.mark.parametrize(
    "points",
    [
        [point(0.5, 10)],
        [point(1.0, 0), point(1.0, 0)],
        [replace(point(0.5, 10), dropped_after=8), replace(point(0.6, 90), dropped_after=8)],
        [point(0.5, 2), point(0.6, 900)],
    ],
    ids=["one", "equal", "all dropped", "far apart"],
)
def test_any_points_can_be_shown(swept: Tradeoff, points: list[Point]) -> None:
    odd = replace(swept, points=points, names=["k0"], timing=None, choice=choose(points))
    assert html(odd).count("<svg") == len(plots(odd))
    for picture in plots(odd).values():
        ElementTree.fromstring(picture)
        assert "nan" not in picture


def test_what_was_dropped_is_not_compared(swept: Tradeoff) -> None:
    points = [replace(point(0.9, 10), dropped_after=8), point(0.5, 10), point(0.6, 90)]
    halved = replace(swept, points=points, names=["k0"], timing=None, choice=choose(points))
    assert halved.choice is not None and halved.choice.number == 2
    assert frontier(points) == [1, 2]
    assert cost_plot(halved, "inferences").count("<title>") == 2
    assert "dropped" in html(halved)


def test_settings_that_are_clearly_worse_are_hollow(swept: Tradeoff) -> None:
    points = [point(0.2, 5, spread=0.01), point(0.59, 10, spread=0.1), point(0.6, 90, spread=0.02)]
    plotted = parameter_plot(replace(swept, points=points, names=["k0"], choice=choose(points)), "k0")
    marks = [
        each.get("fill") for each in ElementTree.fromstring(plotted).iter() if list(each) and each.get("r")
    ]
    assert marks == ["white", "#0072b2", "#0072b2"]


def test_none_is_a_value_like_others(swept: Tradeoff) -> None:
    """`duo(m=none)` takes all opponents; a setting that has no m at all is another matter."""
    settings = [{"k1": 0}, *({"k1": k1, "m": m} for k1 in (5, 9) for m in (None, 3))]
    points = [replace(point(0.5 + n / 10, 5 + n), setting=setting) for n, setting in enumerate(settings)]
    odd = replace(swept, points=points, names=["k1", "m"], timing=None, choice=choose(points))
    page = html(odd)
    assert "None" not in page
    assert page.count("<td>none</td>") == 2 * 2  # of two settings, in two tables
    assert "k1=5, m=none" in page
    seen = ElementTree.fromstring(cost_plot(odd, "inferences", "m"))
    texts = [each.text for each in seen.iter() if each.tag.endswith("text")]
    assert [name for name in texts if name in ("without", "none", "3")] == ["without", "none", "3"]
    marks = {
        each[0].text.split(":")[0]: each.get("stroke") for each in seen.iter() if list(each) and each.get("r")
    }
    assert marks["k1=0"] != marks["k1=5, m=none"]


def test_the_report_stands_alone(swept: Tradeoff) -> None:
    page = html(swept, pipeline="bm25 % {k0} >> <mono>", command="tamis tradeoff 'a & b'")
    assert page.count("<svg") == 5
    assert "&lt;mono&gt;" in page and "a &amp; b" in page
    assert "src=" not in page and "@import" not in page and "<script" not in page
    links = [part.split('"')[1] for part in page.split("http")[1:] if '"' in part[:40]]
    assert page.count("http") == page.count("http://www.w3.org/2000/svg"), links
    assert "2 queries, drawn at random, one at a time after 1 untimed" in page


def test_the_report_says_what_is_significant(swept: Tradeoff, index: Index, queries: Sequence[Query]) -> None:
    some = candidates("bm25 % {k}", {"k": [5, 9]}, index)
    strict = trade_off(some, queries, {"q1": {"d0001": 1}}, alpha=0.01, timed=0)
    assert "Significance: paired t-test, 0.01, not corrected." in html(strict)
    assert "Significance: paired t-test, 0.05, not corrected." in html(swept)


def test_the_summary_says_when_nothing_fits(swept: Tradeoff) -> None:
    poor = replace(swept, budget=Budget(5, "inferences"), choice=None)
    assert summary(poor)[0].startswith(
        "No setting keeps within 5 inferences per query: the cheapest, k0=10, k1=0,"
    )
    assert summary(swept)[0].startswith("The best setting: ")


def test_everything_is_plain_data(swept: Tradeoff) -> None:
    made = json.loads(json.dumps(swept.as_json(), allow_nan=False))
    assert len(made["points"]) == 6
    assert made["work"]["largest"] == 2 * (30 + 4 * 3)
    assert made["timing"]["queries"] == 2
    assert made["choice"]["setting"] == swept.points[made["choice"]["point"]].setting


# -- the report without a mouse
# ------------------------------------------------------------------------------------------------------------


def test_every_mark_of_the_report_leads_to_its_setting(swept: Tradeoff) -> None:
    page = html(swept)
    places = re.findall(r'<tr[^>]* id="(setting-\d+)"', page)
    assert sorted(places) == sorted(f"setting-{n + 1}" for n in range(len(swept.points)))
    named = re.findall(r'<a href="#(setting-\d+)" aria-label="([^"]+)">', page)
    assert {to for to, _ in named} == set(places)
    for to, name in named:
        setting = swept.points[int(to.removeprefix("setting-")) - 1].setting
        assert name.startswith(f"{described(setting)}: ")
    assert 'role="img"' not in page  # in which no link would be found
    assert "<details" not in page and "<a " not in "".join(plots(swept).values())
