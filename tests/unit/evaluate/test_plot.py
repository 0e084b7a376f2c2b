"""SVG plots: scales and ticks by hand, and what the plot of differences shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tamis import Query, Ranking
from tamis.evaluate.compare import Comparison, compare
from tamis.evaluate.plot import (
    BETTER,
    FAINT,
    WORSE,
    Scale,
    difference_plot,
    svg,
    text,
    widened,
    x_axis,
    y_axis,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_scales() -> None:
    assert Scale(0, 1, 200, 100)(0.25) == 175  # upwards, as on a page
    assert Scale(10, 1000, 0, 100, log=True)(100) == pytest.approx(50)
    assert Scale(3, 3, 0, 100)(3) == 50  # a single value stands in the middle


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.006, [0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006]),
        (-7, 12, [-5, 0, 5, 10]),
        (1000, 1010, [1000, 1002, 1004, 1006, 1008, 1010]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert Scale(low, high, 0, 1).ticks() == pytest.approx(expected)


def test_widened_ranges_hold_the_values() -> None:
    for low, high in [(-0.84, 0.36), (-0.65, 0.66), (0.0, 0.013), (-5.0, 0.0)]:
        start, stop = widened(low, high)
        assert start <= low <= high <= stop
        ticks = Scale(start, stop, 0, 1).ticks()
        assert [ticks[0], ticks[-1]] == pytest.approx([start, stop])
    assert widened(2.0, 2.0) == (2.0, 2.0)


def test_a_picture_is_xml() -> None:
    scale = Scale(0, 10, 40, 200)
    picture = svg(
        240,
        100,
        [x_axis(scale, 80, "<k0>"), y_axis(Scale(0, 1, 80, 10), 40, 200, "AP"), text(1, 2, "a & b")],
        title='"quoted"',
    )
    root = ET.fromstring(picture)
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert words[:7] == ["0", "2", "4", "6", "8", "10", "<k0>"]
    assert words[-1] == "a & b"
    assert root.get("aria-label") == '"quoted"'


def compared(*pairs: tuple[int, int]) -> Comparison:
    """One query a pair: the rank of its relevant document in the baseline and in the run."""
    qrels = {f"q{i}": {"good": 1} for i in range(len(pairs))}
    runs = {
        name: {
            f"q{i}": Ranking(
                Query(f"q{i}", ""),
                (*(f"d{j}" for j in range(1, pair[side])), "good"),
                np.arange(pair[side], 0, -1.0),
            )
            for i, pair in enumerate(pairs)
        }
        for side, name in enumerate(("bm25", "mono"))
    }
    return compare(qrels, runs, ["RR"], resamples=100)


def bars(picture: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(picture).iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]


def test_bars_are_the_queries_from_best_to_worst() -> None:
    drawn = bars(difference_plot(compared((1, 2), (2, 1), (1, 1), (4, 1))))
    assert [bar.findtext(f"{SVG}title") for bar in drawn] == [
        "q3: 0.2500 → 1.0000 (+0.7500)",
        "q1: 0.5000 → 1.0000 (+0.5000)",
        "q2: 1.0000 → 1.0000 (+0.0000)",
        "q0: 1.0000 → 0.5000 (−0.5000)",
    ]
    assert [bar.get("fill") for bar in drawn] == [BETTER, BETTER, FAINT, WORSE]
    heights = [float(bar.get("height", "")) for bar in drawn]
    assert heights[0] == pytest.approx(1.5 * heights[1], abs=0.02)
    assert heights[1] == pytest.approx(heights[3], abs=0.02)
    tops = [float(bar.get("y", "")) for bar in drawn]
    assert tops[3] == pytest.approx(tops[0] + heights[0], abs=0.02)  # one rises from where the other hangs


def test_a_plot_of_equal_runs_is_flat() -> None:
    drawn = bars(difference_plot(compared((1, 1), (2, 2))))
    assert {(bar.get("fill"), bar.get("height")) for bar in drawn} == {(FAINT, "1")}


def test_thousands_of_queries_are_two_areas() -> None:
    picture = difference_plot(compared(*[(1 + i % 3, 1 + i % 5) for i in range(3000)]))
    assert not bars(picture)
    assert [e.get("fill") for e in ET.fromstring(picture).iter(f"{SVG}polygon")] == [BETTER, WORSE]
    assert len(picture) < 60_000


def test_a_panel_for_every_test() -> None:
    found = compared((1, 2), (2, 1))
    words = [e.text for e in ET.fromstring(difference_plot(found)).iter(f"{SVG}text")]
    assert "RR: mono" in words and "minus bm25" in words
    assert "mean +0.0000, p 1.0000 (Holm); W/T/L 1/0/1" in words
