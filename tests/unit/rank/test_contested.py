"""Only the pairs that matter: which they are and what the others count, by hand, and duo over tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Duo, Index, Mono, Query, Ranking, ScoreKind
from tamis.base.arrays import Array
from tamis.base.errors import ExpressionError, InputError, TamisError
from tamis.core.plan import counts, plan
from tamis.core.registry import build
from tamis.rank.aggregate import Aggregate, aggregate, order
from tamis.rank.contested import check_contested, completed, contested, within

SCORES = np.array([0.9, 0.85, 0.5, 0.45, 0.1])
WHOLE: tuple[Aggregate, ...] = ("sum", "binary", "min", "max")


def names(pairs: list[list[int]]) -> str:
    return " ".join("abcde"[i] + "abcde"[j] for i, j in pairs)


# -- which pairs


@pytest.mark.parametrize(
    ("window", "margin", "read"),
    [
        (1, None, "ab ba bc cb cd dc de ed"),
        (2, None, "ab ac ba bc bd ca cb cd ce db dc de ec ed"),
        (None, 0.1, "ab ba cd dc"),
        (None, 0.401, "ab ac ba bc bd ca cb cd ce db dc de ec ed"),
        (1, 0.36, "ab ba bc cb cd dc de ed"),
        (1, 0.35, "ab ba cd dc"),  # b and c are 0.35 apart, d and e: not less than that
        (4, 0.0, ""),
    ],
)
def test_pairs_within_a_window_and_a_margin(window: int | None, margin: float | None, read: str) -> None:
    # in floats 0.85 - 0.5 is 0.35, and 0.45 - 0.1 is 0.35
    assert names(contested(SCORES, window, margin).tolist()) == read


def test_neither_is_every_pair() -> None:
    assert (
        len(contested(SCORES)) == len(contested(SCORES, window=4)) == len(contested(SCORES, margin=1)) == 20
    )
    assert contested(np.zeros(0), window=2).shape == contested(np.zeros(1), window=2).shape == (0, 2)


def test_pairs_within_a_window_are_counted() -> None:
    # k = 10: 9 pairs of neighbours, 8 two places apart, 7 three; each in both orders
    assert [within(10, window) for window in (1, 2, 3, 9, 50, None)] == [18, 34, 48, 90, 90, 90]
    for k in range(7):
        for window in range(1, 8):
            assert within(k, window) == len(contested(np.zeros(k), window))


# -- what the others count


def test_pairs_that_are_not_read_count_as_the_order_says() -> None:
    #                       ab   ba    bc   cb
    margins, pairs = np.log([4.0, 1.5, 0.25, 9.0]), contested(np.zeros(3), window=1)
    found = completed(margins, pairs, 3)
    assert names(found.pairs.tolist()) == "ab ac ba bc ca cb"
    #                                                    ab   ac   ba   bc   ca   cb
    assert found.probabilities.tolist() == pytest.approx([0.8, 1.0, 0.6, 0.2, 0.0, 0.9])
    # sums: a 1.8, b 0.8, c 0.9
    assert aggregate(*found, 3, "sum").tolist() == pytest.approx([1.8, 0.8, 0.9])
    assert order(*found, 3, "sum").tolist() == [0, 2, 1]
    assert aggregate(*found, 3, "binary").tolist() == [2, 1, 1]
    assert order(*found, 3, "min").tolist() == [0, 1, 2]  # 0.8, 0.2, and 0 of c, which is below a
    assert order(*found, 3, "max").tolist() == [0, 2, 1]  # 1 of a, 0.6, 0.9


def test_pairs_that_are_not_read_count_by_their_log_odds_and_the_models_mean_margin() -> None:
    margins, pairs = np.array([3.0, 1.0, 2.5, -0.5]), contested(np.zeros(3), window=1)
    odds = np.array([2.0, 1.5, -1.0])
    # the mean margin is 6 / 4 = 1.5: ac is sigmoid(1.5 + 3), ca sigmoid(1.5 - 3)
    found = completed(margins, pairs, 3, odds).probabilities
    sigmoid = [1 / (1 + np.exp(-x)) for x in (3.0, 4.5, 1.0, 2.5, -1.5, -0.5)]
    assert found.tolist() == pytest.approx(sigmoid, abs=1e-15)


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.parametrize("odds", [None, np.array([4.0, 1.0, 1.0, -2.0])])
def test_where_no_pair_is_read_the_order_stays(how: Aggregate, odds: Array | None) -> None:
    found = completed(np.zeros(0), np.zeros((0, 2), np.int64), 4, odds)
    assert order(*found, 4, how).tolist() == [0, 1, 2, 3]


def test_a_model_that_prefers_the_first_text_favours_nobody() -> None:
    """Whichever of two texts stands first gets 4: no pair says anything, so nothing may move."""
    odds = np.array([0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    pairs = contested(odds, window=1)
    margins = 4.0 + odds[pairs[:, 0]] - odds[pairs[:, 1]]
    found = completed(margins, pairs, 6, odds)
    assert order(*found, 6, "sum").tolist() == [0, 1, 2, 3, 4, 5]
    whole = contested(odds)
    everything = completed(4.0 + odds[whole[:, 0]] - odds[whole[:, 1]], whole, 6, odds)
    np.testing.assert_allclose(found.probabilities, everything.probabilities, rtol=1e-12)


# -- what is refused


@pytest.mark.parametrize(
    ("how", "window", "margin", "message"),
    [
        ("sum", 0, None, "a window of 0 places: use a whole number of at least 1"),
        ("min", -3, None, "a window of -3 places: use a whole number of at least 1"),
        ("sum", None, -0.1, "a margin of -0.1: use a number of at least 0"),
        ("sum", 2, float("nan"), "a margin of nan: use a number of at least 0"),
        ("sum", None, float("inf"), "a margin of inf: use a number of at least 0"),
        ("sample", 3, None, "sample draws its pairs and has no window: leave it out, or use sum"),
        ("sample", None, 0.5, "sample draws its pairs and has no margin: leave it out, or use sum"),
    ],
)
def test_what_makes_no_sense(how: Aggregate, window: int | None, margin: float | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_contested(how, window, margin)
    assert str(caught.value).startswith(message)
    with pytest.raises(InputError):
        Duo(aggregate=how, m=2 if how == "sample" else None, window=window, margin=margin)


def test_it_is_refused_in_the_language_too() -> None:
    with pytest.raises(ExpressionError, match=r"in duo\(window=0\): a window of 0 places"):
        build("duo(window=0)")
    with pytest.raises(ExpressionError, match=r"window of duo cannot be 1\.5: give a whole number or none"):
        build("duo(window=1.5)")


# -- duo


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "mono", labels=1)
    tiny_checkpoint(folder / "duo", segments=3, labels=2, seed=3)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    generator = np.random.default_rng(5)
    words = ["river", "castle", "song", "war", "music", "bridge", "film", "king"]
    texts = [" ".join(generator.choice(words, generator.integers(3, 12))) for _ in range(40)]
    documents = [Document(f"d{number:02}", f"castle {text}") for number, text in enumerate(texts)]
    return Index.build(documents, tmp_path_factory.mktemp("index") / "idx")


@pytest.mark.parametrize("how", WHOLE)
def test_a_window_as_wide_as_k_is_all_pairs(index: Index, models: Path, how: Aggregate) -> None:
    found = (index.bm25() % 12 >> Mono(str(models / "mono")))(["castle song", "river war"])
    expected = Duo(str(models / "duo"), aggregate=how, k=8)(found)
    for options in ({"window": 7}, {"window": 50}, {"margin": 2.0}):
        stage = Duo(str(models / "duo"), aggregate=how, k=8, **options)  # type: ignore[arg-type]
        assert stage(found) == expected
        assert stage.tally.inferences == 2 * 8 * 7


def test_no_more_is_read_than_is_contested(index: Index, models: Path) -> None:
    found = (index.bm25() % 12 >> Mono(str(models / "mono")))("castle song")
    near = Duo(str(models / "duo"), k=8, window=2)
    settled = near(found)
    assert near.tally.inferences == near.inferences(12) == within(8, 2) == 26
    assert settled.ids[8:] == found.ids[8:]
    assert set(settled.ids) == set(found.ids)
    apart = float(found.scores[0] - found.scores[7]) / 2
    close = Duo(str(models / "duo"), k=8, margin=apart)
    close(found)
    assert close.tally.inferences == len(contested(found.scores[:8], None, apart)) < 56
    assert Duo(str(models / "duo"), k=8, margin=0)(found).ids == found.ids, "none is read"


def test_the_cache_serves_windows_of_every_size(index: Index, models: Path, tmp_path: Path) -> None:
    found = (index.bm25() % 8 >> Mono(str(models / "mono")))("castle song")
    file = tmp_path / "scores.db"
    Duo(str(models / "duo"), cache=file)(found)
    near = Duo(str(models / "duo"), window=2, cache=file)
    assert near(found) == Duo(str(models / "duo"), window=2)(found)
    assert (near.tally.inferences, near.tally.cached) == (0, 26)


def test_a_search_counts_by_its_order_and_a_model_by_its_scores(index: Index, models: Path) -> None:
    scored = (index.bm25() % 6 >> Mono(str(models / "mono")))("castle song")
    plain = Ranking(scored.query, scored.ids, scored.scores, ScoreKind.RETRIEVAL, index)
    stage = Duo(str(models / "duo"), window=1)
    inputs, cuts, (pairs,) = stage.build_inputs([scored])
    (margins,) = stage.margins([scored], inputs, cuts)
    for ranking, odds in ((scored, scored.log_odds()), (plain, None)):
        expected = aggregate(*completed(margins, pairs, 6, odds), 6, "sum")
        assert sorted(stage(ranking).scores.tolist()) == sorted(expected.tolist())
    assert stage(scored).scores.tolist() != stage(plain).scores.tolist()


def test_a_margin_needs_scores(index: Index, models: Path) -> None:
    bare = Ranking(Query("q", "castle"), ("d00", "d01"), np.array([2.0, 1.0]), ScoreKind.NONE, index)
    stage = Duo(str(models / "duo"), margin=0.5)
    with pytest.raises(TamisError, match="the candidates of query 'q' have no scores for a margin: put a st"):
        stage(bare)
    assert len(stage(bare.head(1))) == 1
    assert len(Duo(str(models / "duo"), window=1)(bare)) == 2
    stage.prepare()


def test_plans_fingerprints_and_expressions_know_the_options(models: Path) -> None:
    name = f'model="{models}/duo"'
    stages = [
        build(f"duo({name}{options})")
        for options in (
            "",
            ", k=10",
            ", k=10, window=3",
            ", k=10, margin=0.5",
            ", k=10, window=3, margin=0.5",
        )
    ]
    assert [repr(stage) for stage in stages[2:]] == [
        f"duo({name}, k=10, window=3)",
        f"duo({name}, k=10, margin=0.5)",
        f"duo({name}, k=10, window=3, margin=0.5)",
    ]
    assert len({stage.fingerprint for stage in stages}) == 5
    assert [plan(stage, [100, 3])[0].inferences.tolist() for stage in stages] == [
        [2450, 6],
        [90, 6],
        [48, 6],
        [90, 6],
        [48, 6],
    ]
    assert [counts(stage) for stage in stages] == ["exact", "exact", "exact", "most", "most"]
