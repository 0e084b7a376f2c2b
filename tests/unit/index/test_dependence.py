"""The sequential dependence model, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query
from tamis.base.errors import InputError, TamisError
from tamis.core.ranking import ScoreKind
from tamis.index.dependence import SDM, Dependence, count_ordered, count_unordered

SECOND = 1 << 32  # where the places of the second document begin


def places(*positions: int) -> np.ndarray:
    return np.array(positions, dtype=np.int64)


def test_ordered_is_directly_followed() -> None:
    assert count_ordered(places(0, 5, 9), places(1, 4, 10)).tolist() == [0, 9]
    assert count_ordered(places(3), places(2)).tolist() == []
    assert count_ordered(places(), places(2)).tolist() == []
    # the last position of a document is not followed by the first of the next
    assert count_ordered(places(SECOND - 1), places(SECOND + 1)).tolist() == []


def test_unordered_is_within_the_window_on_either_side() -> None:
    # a window of 8 tokens holds positions 7 apart
    assert count_unordered(places(0), places(7), 8).tolist() == [0]
    assert count_unordered(places(0), places(8), 8).tolist() == []
    assert count_unordered(places(7), places(0), 8).tolist() == [7]
    assert count_unordered(places(8), places(0), 8).tolist() == []
    # each place of the first term counts once, however many of the second are near
    assert count_unordered(places(3, 4), places(2, 5, 6), 8).tolist() == [3, 4]
    assert count_unordered(places(SECOND), places(7), 8).tolist() == []
    # a term beside itself: a place is not its own neighbour
    assert count_unordered(places(3, 4, 30), places(3, 4, 30), 8).tolist() == [3, 4]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [
        Document("d1", "a b c"),
        Document("d2", "b c a"),
        Document("d3", "a"),
        Document("d4", "c c c"),
    ]
    return Index.build(
        documents, tmp_path_factory.mktemp("sdm") / "idx", analyzer="whitespace", positions=True
    )


def test_features_and_score(index: Index) -> None:
    """Ten tokens. With mu = 10, mu P is 3 for a, 2 for b, 1 for the ordered "a b" (in d1) and 2 for the
    unordered (in d1 and d2)."""
    found = SDM(index, Dependence(mu=10.0))("a b")
    assert found.ids == ("d1", "d2", "d3")
    assert found.scores.tolist() == pytest.approx(
        [
            # 0.85 log(4/13) + 0.85 log(3/13) + 0.1 log(2/13) + 0.05 log(3/13)
            -1.001857 - 1.246387 - 0.187180 - 0.073317,
            # in d2 b comes before a: 0.1 log(1/13)
            -1.001857 - 1.246387 - 0.256495 - 0.073317,
            # 0.85 log(4/11) + 0.85 log(2/11) + 0.1 log(1/11) + 0.05 log(2/11)
            -0.859861 - 1.449036 - 0.239790 - 0.085237,
        ],
        abs=2e-6,
    )
    assert found.kind is ScoreKind.RETRIEVAL


def test_each_class_is_a_sum_however_many_terms_there_are(index: Index) -> None:
    """Three terms, two bigrams. mu P is 3, 2 and 5 for a, b and c; of the ordered 1 for "a b" (in d1) and 2
    for "b c" (in d1 and d2); of the unordered 2 for each (in d1 and d2)."""
    found = SDM(index, Dependence(mu=10.0))("a b c")
    assert found.ids == ("d1", "d2", "d3", "d4")
    assert found.scores.tolist() == pytest.approx(
        [
            # 0.85 log(4/13 3/13 6/13) + 0.1 log(2/13 3/13) + 0.05 log(3/13 3/13)
            -2.905455 - 0.333814 - 0.146634,
            # 0.1 log(1/13 3/13)
            -2.905455 - 0.403129 - 0.146634,
            # 0.85 log(4/11 2/11 5/11) + 0.1 log(1/11 2/11) + 0.05 log(2/11 2/11)
            -2.979085 - 0.410264 - 0.170475,
            # 0.85 log(3/13 2/13 8/13) + 0.1 log(1/13 2/13) + 0.05 log(2/13 2/13)
            -3.250100 - 0.443675 - 0.187180,
        ],
        abs=3e-6,
    )


def test_one_term_has_no_bigrams(index: Index) -> None:
    # 0.85 * log((1 + 3) / (1 + 10)) and 0.85 * log((1 + 3) / (3 + 10))
    found = SDM(index, Dependence(mu=10.0))("a")
    assert found.ids == ("d3", "d1", "d2")
    assert found.scores.tolist() == pytest.approx([-0.8598612, -1.0018575, -1.0018575], rel=1e-5)


def test_a_repeated_term_counts_as_often(index: Index) -> None:
    # of d3 0.9 log(4/11 4/11 2/11), of d1 and d2 0.9 log(4/13 4/13 3/13)
    found = SDM(index, Dependence(terms=0.9, ordered=0.0, unordered=0.0, mu=10.0))("a a b")
    assert found.ids == ("d3", "d1", "d2")
    assert found.scores.tolist() == pytest.approx([-3.3551549, -3.4412824, -3.4412824], rel=1e-6)


def test_a_term_beside_itself_is_a_bigram_too(index: Index) -> None:
    """Only d4, "c c c", has two of them: 2 ordered pairs, and 3 places with another in the window. One place
    does not make a pair with itself."""
    found = SDM(index, Dependence(mu=10.0))("c c")
    assert found.ids == ("d4", "d1", "d2")
    # 1.7 log(8/13) + 0.1 log(4/13) + 0.05 log(6/13), and 1.7 log(6/13) + 0.1 log(2/13) + 0.05 log(3/13)
    assert found.scores.tolist() == pytest.approx([-0.9818883, -1.5749199, -1.5749199], rel=1e-6)
    # nowhere is a beside a: it is no feature
    assert SDM(index)("a a").scores.tolist() == pytest.approx((2 * SDM(index)("a").scores).tolist())


def test_unknown_terms_and_empty_queries(index: Index) -> None:
    # an unknown term, and a bigram with it, is no feature
    assert SDM(index)("a zebra") == replace(SDM(index)("a"), query=Query("0", "a zebra"))
    assert len(SDM(index)("zebra")) == 0
    assert len(SDM(index)("")) == 0


def test_positions_count_the_words_that_analysis_drops(tmp_path: Path) -> None:
    documents = [Document("d1", "king of spain"), Document("d2", "king spain now")]
    index = Index.build(documents, tmp_path / "idx", positions=True)  # English: "of" is no term
    only_ordered = SDM(index, Dependence(terms=0.0, ordered=1.0, unordered=0.0))
    assert only_ordered("king spain").ids == ("d2",)


def test_positions_are_needed(tmp_path: Path) -> None:
    index = Index.build([Document("d1", "a")], tmp_path / "idx")
    with pytest.raises(TamisError, match="sdm needs positions: build the index with positions"):
        index.sdm()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dependence(window=1),
        lambda: Dependence(mu=0.0),
        lambda: Dependence(mu=math.nan),
        lambda: Dependence(mu=math.inf),
        lambda: Dependence(mu=1e-320),  # mu P is zero, and has no logarithm
        lambda: Dependence(terms=-0.1),
        lambda: Dependence(ordered=-0.1),
        lambda: Dependence(unordered=-0.1),
        lambda: Dependence(terms=math.nan),
        lambda: Dependence(ordered=math.inf),
        lambda: Dependence(unordered=1e38),  # the score is more than single precision holds
    ],
)
def test_impossible_parameters(make) -> None:  # type: ignore[no-untyped-def]
    said = "use a window of at least 2, 1e-09 <= mu <= 1,000,000 and weights between 0 and "
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize("mu", [1e-9, 1e6])
@pytest.mark.parametrize("weight", [1e-30, 1e30])
def test_extreme_parameters_give_scores(index: Index, mu: float, weight: float) -> None:
    found = SDM(index, Dependence(weight, weight, weight, mu=mu))("a b c")
    assert len(found) and np.isfinite(found.scores).all()
