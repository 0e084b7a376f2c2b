"""The sequential dependence model, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index
from tamis.errors import InputError, TamisError
from tamis.ranking import ScoreKind
from tamis.retrieve.dependence import SDM, Dependence, count_ordered, count_unordered

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
    unordered (in d1 and d2). Each term weighs half of 0.85, the bigrams 0.10 and 0.05."""
    found = SDM(index, Dependence(mu=10.0))("a b")
    assert found.ids == ("d1", "d2", "d3")
    assert found.scores.tolist() == pytest.approx(
        [
            # 0.425 log(4/13) + 0.425 log(3/13) + 0.1 log(2/13) + 0.05 log(3/13)
            -0.500928 - 0.623193 - 0.187180 - 0.073317,
            # in d2 b comes before a: 0.1 log(1/13)
            -0.500928 - 0.623193 - 0.256495 - 0.073317,
            # 0.425 log(4/11) + 0.425 log(2/11) + 0.1 log(1/11) + 0.05 log(2/11)
            -0.429930 - 0.724518 - 0.239790 - 0.085237,
        ],
        abs=2e-6,
    )
    assert found.kind is ScoreKind.RETRIEVAL


def test_one_term_has_no_bigrams(index: Index) -> None:
    # 0.85 * log((1 + 3) / (1 + 10)) and 0.85 * log((1 + 3) / (3 + 10))
    found = SDM(index, Dependence(mu=10.0))("a")
    assert found.ids == ("d3", "d1", "d2")
    assert found.scores.tolist() == pytest.approx([-0.8598612, -1.0018575, -1.0018575], rel=1e-5)


def test_repeated_terms_weigh_more_and_make_no_bigram(index: Index) -> None:
    # of d3 0.6 log(4/11) + 0.3 log(2/11), of d1 and d2 0.6 log(4/13) + 0.3 log(3/13)
    found = SDM(index, Dependence(terms=0.9, ordered=0.0, unordered=0.0, mu=10.0))("a a b")
    assert found.ids == ("d3", "d1", "d2")
    assert found.scores.tolist() == pytest.approx([-1.1183850, -1.1470941, -1.1470941], rel=1e-6)
    assert SDM(index)("a a").scores.tolist() == pytest.approx(SDM(index)("a").scores.tolist())


def test_unknown_terms_and_empty_queries(index: Index) -> None:
    # an unknown term is no feature of its own, but its share of the weight is gone
    found = SDM(index, Dependence(mu=10.0))("a zebra")
    assert found.scores.tolist() == pytest.approx([-0.8598612 / 2, -1.0018575 / 2, -1.0018575 / 2], rel=1e-5)
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
        lambda: Dependence(terms=-0.1),
        lambda: Dependence(ordered=-0.1),
        lambda: Dependence(unordered=-0.1),
    ],
)
def test_impossible_parameters(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="use a window of at least 2, mu > 0 and weights of at least 0"):
        make()
