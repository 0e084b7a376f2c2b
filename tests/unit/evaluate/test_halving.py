"""Successive halving over queries, on values that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index
from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.evaluate.budget import Budget
from tamis.evaluate.candidates import candidates
from tamis.evaluate.halving import Round, Tried, halve, round_ends
from tamis.evaluate.tradeoff import trade_off

QUERIES = [Query(f"q{number}", "") for number in range(64)]


class Settings:
    """Settings with a true mean each, and noise that is the same whenever it is looked at."""

    def __init__(self, means: Sequence[float], costs: Sequence[int], seed: int = 0) -> None:
        noise = np.random.default_rng(seed).normal(0, 0.1, (len(means), len(QUERIES)))
        self.values = np.array(means)[:, None] + noise
        self.costs = costs
        self.asked: list[tuple[int, int]] = []

    def __call__(self, queries: Sequence[Query], numbers: Sequence[int]) -> Mapping[int, Tried]:
        self.asked.append((len(queries), len(numbers)))
        return {
            number: Tried(
                {query.id: float(self.values[number, int(query.id[1:])]) for query in queries},
                self.costs[number] * len(queries),
            )
            for number in numbers
        }


def test_rounds_double() -> None:
    assert round_ends(64) == [8, 16, 32, 64]
    assert round_ends(100, first=30) == [30, 60, 100]
    assert round_ends(8) == [8]
    with pytest.raises(InputError, match="a first round of 1 queries"):
        round_ends(10, first=1)


def test_the_bad_go_early_and_the_good_see_everything() -> None:
    tried = Settings([0.1, 0.2, 0.6, 0.62], [1, 1, 1, 1])
    seen, rounds = halve(QUERIES, range(4), tried)
    assert [seen[number].dropped_after for number in (0, 1)] == [8, 8]
    assert rounds[0] == Round(8, 4, 2)
    assert tried.asked == [(8, 4), (8, 2), (16, 2), (32, 2)]
    assert [len(seen[number].values) for number in range(4)] == [8, 8, 64, 64]
    assert seen[3].mean == pytest.approx(tried.values[3].mean(), abs=1e-12)
    assert seen[3].inferences == 64


def test_it_finds_the_best_in_most_worlds() -> None:
    """The best of twelve, in 50 worlds: dropped before the end in few of them (5 % a look at the most)."""
    means = [0.5] * 11 + [0.6]
    kept = sum(
        halve(QUERIES, range(12), Settings(means, [1] * 12, seed), seed=seed)[0][11].dropped_after is None
        for seed in range(50)
    )
    assert kept >= 45


def test_settings_over_the_budget_are_no_leaders() -> None:
    tried = Settings([0.9, 0.3, 0.35], [500, 10, 10])
    seen, rounds = halve(QUERIES, range(3), tried, most_inferences=100)
    assert seen[0].dropped_after == 8
    assert rounds[0].dropped == 1
    assert all(seen[number].dropped_after is None for number in (1, 2))
    none, rounds = halve(QUERIES, range(3), tried, most_inferences=5)
    assert [each.dropped_after for each in none.values()] == [8, 8, 8]
    assert rounds == [Round(8, 3, 3)]


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    def orders(seed: int) -> list[str]:
        seen: list[str] = []

        def attempt(queries: Sequence[Query], numbers: Sequence[int]) -> Mapping[int, Tried]:
            seen.extend(query.id for query in queries)
            return Settings([0.5], [1])(queries, numbers)

        halve(QUERIES, [0], attempt, seed=seed)
        return seen

    assert orders(1) == orders(1) != orders(2)
    assert sorted(orders(1)) == sorted(query.id for query in QUERIES)


def test_joint_tuning_of_a_real_pipeline(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Of a model that ranks at random and BM25 that does not, the first is dropped; the choice is the same as
    with all settings on all queries, for fewer inferences."""
    tiny_checkpoint(tmp_path / "mono", layers=1, positions=32, hidden=16)
    words = [f"w{number}" for number in range(30)]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, 12)) for _ in range(150)]
    index = Index.build([Document(f"d{n:03}", text) for n, text in enumerate(texts)], tmp_path / "idx")
    queries = [Query(word, f"{word} {words[(n + 1) % 30]}") for n, word in enumerate(words)]
    best = (index.bm25() % 3).run(queries)
    qrels = {qid: dict.fromkeys(ranking.ids, 1) for qid, ranking in best.items()}
    text = (
        f'bm25 % {{k0}} >> interpolate(mono(model="{tmp_path / "mono"}"), alpha={{alpha}}, normalise=minmax)'
    )

    def found(search: str, budget: Budget | None = None):  # type: ignore[no-untyped-def]
        grid = {"k0": [5, 20], "alpha": [0.0, 1.0]}
        return trade_off(
            candidates(text, grid, index), queries, qrels, "AP", search=search, timed=0, budget=budget
        )

    everything, halved = found("grid"), found("halving")
    assert everything.choice.number == halved.choice.number
    assert halved.points[halved.choice.number].setting == {"k0": 5, "alpha": 1.0}
    assert halved.points[2].setting == {"k0": 20, "alpha": 0.0}
    assert halved.points[2].dropped_after == 8
    assert len(halved.points[2].per_query) == 8
    assert halved.rounds[0].queries == 8 and halved.rounds[-1].queries == 30
    assert halved.alone < everything.alone
    tight = found("halving", Budget.parse("6inf"))
    assert {point.setting["k0"] for point in tight.points if point.dropped_after is None} == {5}
