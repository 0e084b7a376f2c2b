"""Plots as SVG, written by hand: readable in print, with values in tooltips, and no package to install."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from tamis.evaluate.compare import Comparison, PairedTest
from tamis.evaluate.significance import NOISE

# Blue and orange: colour-blind people can tell them apart; in grey, one is darker.
BETTER, WORSE = "#1f5f99", "#e08a1e"
INK, FAINT = "#222", "#ccc"
FONT = "Helvetica, Arial, sans-serif"

_MOST_BARS = 500  # with more, each is thinner than a printer's dot
_PANEL_WIDTH, _PANEL_HEIGHT = 300, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 44, 34
_TEXT = 10  # where the lines above and below a panel start


# -- helpers that any plot needs
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels, on a linear or logarithmic scale.

    >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 200, log=True)(10)
    (150.0, 100.0)
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """About `count` round values within the scale; powers of ten if it is logarithmic.

        >>> Scale(-0.13, 0.31, 0, 1).ticks()
        [-0.1, 0.0, 0.1, 0.2, 0.3]
        >>> Scale(5, 2000, 0, 1, log=True).ticks()
        [10.0, 100.0, 1000.0]
        """
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        step = _round_step(self.low, self.high, count)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]


def widened(low: float, high: float, count: int = 5) -> tuple[float, float]:
    """A range that begins and ends at ticks.

    >>> widened(-0.84, 0.36)
    (-1.0, 0.4)
    """
    step = _round_step(low, high, count)
    start, stop = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    # a wider range may have coarser ticks
    same = stop == start or _round_step(start, stop, count) == step
    return (start, stop) if same else widened(start, stop, count)


def _round_step(low: float, high: float, count: int) -> float:
    """The step size closest to `count` steps: 1, 2 or 5 times a power of ten."""
    exact = (high - low) / count if high > low else 1.0
    power = 10.0 ** math.floor(math.log10(exact))
    return min((power * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / exact)))


def element(name: str, attributes: Mapping[str, object], *, tooltip: str = "", inside: str = "") -> str:
    """An SVG element; browsers show its tooltip. `inside` is SVG, and is not escaped.

    >>> element("rect", {"x": 1.25, "class": "bar"}, tooltip="q1 & q2")
    '<rect x="1.25" class="bar"><title>q1 &amp; q2</title></rect>'
    """
    given = "".join(f" {key}={quoteattr(_number(value))}" for key, value in attributes.items())
    inside = (f"<title>{_escaped(tooltip)}</title>" if tooltip else "") + inside
    return f"<{name}{given}>{inside}</{name}>" if inside else f"<{name}{given}/>"


def text(
    x: float, y: float, content: str, *, anchor: str = "start", size: float = 11, weight: str = "normal"
) -> str:
    """
    >>> text(10, 20, "nDCG@10 < 1")
    '<text x="10" y="20" text-anchor="start" font-size="11" font-weight="normal">nDCG@10 &lt; 1</text>'
    """
    where = {"x": x, "y": y, "text-anchor": anchor, "font-size": size, "font-weight": weight}
    return element("text", where, inside=_escaped(content))


def line(x1: float, y1: float, x2: float, y2: float, *, colour: str = INK, width: float = 1) -> str:
    """
    >>> line(0, 0, 10, 0)
    '<line x1="0" y1="0" x2="10" y2="0" stroke="#222" stroke-width="1"/>'
    """
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return element("line", {**ends, "stroke": colour, "stroke-width": width})


def polyline(points: Iterable[tuple[float, float]], *, colour: str, width: float = 1.5) -> str:
    """A line through points given in pixels.

    >>> polyline([(0, 1), (2, 3.5)], colour="red")
    '<polyline points="0,1 2,3.5" fill="none" stroke="red" stroke-width="1.5"/>'
    """
    path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return element("polyline", {"points": path, "fill": "none", "stroke": colour, "stroke-width": width})


def x_axis(scale: Scale, y: float, label: str, below: float = 28) -> str:
    """The x axis: a line below the plot with ticks and, centred below them, its label."""
    parts = [line(scale.start, y, scale.stop, y)]
    for value in scale.ticks():
        at = scale(value)
        parts += [line(at, y, at, y + 4), text(at, y + 15, f"{value:g}", anchor="middle", size=10)]
    return "".join([*parts, text((scale.start + scale.stop) / 2, y + below, label, anchor="middle")])


def y_axis(scale: Scale, left: float, right: float, label: str = "") -> str:
    """The y axis: ticks at the left, with faint lines across the plot, and its label above them."""
    parts = []
    for value in scale.ticks():
        at = scale(value)
        parts += [
            line(left, at, right, at, colour=FAINT, width=0.5),
            text(left - 5, at + 3.5, f"{value:g}".replace("-", "−"), anchor="end", size=10),
        ]
    return "".join([*parts, text(left, min(scale.start, scale.stop) - 8, label) if label else ""])


def link(to: str, name: str, inside: str) -> str:
    """A link around a part of a picture embedded in a page; its name is for screen readers.

    >>> link("#d1", "d1", "<g/>")
    '<a href="#d1" aria-label="d1"><g/></a>'
    """
    return element("a", {"href": to, "aria-label": _shown(name)}, inside=inside)


def svg(width: float, height: float, parts: Iterable[str], *, title: str, links: bool = False) -> str:
    """A complete picture, on white so that it is readable on any page. The title is for screen readers; with
    `links` they look for links in the picture.

    >>> svg(10, 10, [], title="nothing")[:64]
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10" widt'
    """
    size = f'viewBox="0 0 {_number(width)} {_number(height)}" width="{_number(width)}"'
    role = "group" if links else "img"
    background = element("rect", {"width": width, "height": height, "fill": "white"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} height="{_number(height)}" role="{role}" '
        f'aria-label="{_escaped(title)}" fill="{INK}" font-family="{FONT}">\n'
        + "\n".join([background, *parts])
        + "\n</svg>\n"
    )


def _escaped(content: str) -> str:
    """Text escaped for XML."""
    return escape(_shown(content), {'"': "&quot;"})


def _shown(content: str) -> str:
    """Text without control characters, which an id may contain but XML does not allow."""
    return "".join(c if c.isprintable() else "\ufffd" for c in content)


def _number(value: object) -> str:
    """A number of pixels, rounded to a hundredth."""
    return f"{round(value, 2):.10g}" if isinstance(value, float) else str(value)


# -- per-query differences
# ------------------------------------------------------------------------------------------------------------


def difference_plot(comparison: Comparison) -> str:
    """One panel per test: the differences of all queries, from the best to the worst.

    Each row of panels is a run against a baseline, each column a measure; the panels of a measure share a
    scale.
    """
    pairs = list(dict.fromkeys((t.run, t.baseline) for t in comparison.tests))
    panels = []
    for column, measure in enumerate(comparison.measures):
        tests = {(t.run, t.baseline): t for t in comparison.tests if t.measure == measure}
        found = {pair: comparison.differences(tests[pair]) for pair in pairs}
        all_values = [value for differences in found.values() for value in differences.values()]
        low, high = min(0.0, *all_values), max(0.0, *all_values)
        low, high = widened(low, high) if high - low > NOISE else (-1.0, 1.0)
        for row, pair in enumerate(pairs):
            panel = _panel(comparison, tests[pair], found[pair], low, high)
            move = f"translate({column * _PANEL_WIDTH} {row * _PANEL_HEIGHT})"
            panels.append(element("g", {"transform": move}, inside=panel))
    bottom = len(pairs) * _PANEL_HEIGHT
    panels.append(text(_TEXT, bottom + 12, "A bar is a query, largest difference first.", size=10))
    title = "Differences per query: " + ", ".join(f"{run} minus {baseline}" for run, baseline in pairs)
    return svg(len(comparison.measures) * _PANEL_WIDTH, bottom + 20, panels, title=title)


def _panel(
    comparison: Comparison, test: PairedTest, differences: Mapping[str, float], low: float, high: float
) -> str:
    ranked = sorted(differences.items(), key=lambda item: -item[1])
    across = Scale(0, len(ranked), _LEFT, _PANEL_WIDTH - _RIGHT)
    up = Scale(low, high, _PANEL_HEIGHT - _BOTTOM, _TOP)
    if len(ranked) <= _MOST_BARS:
        ours = comparison.evaluations[test.run].per_query[test.measure]
        theirs = comparison.evaluations[test.baseline].per_query[test.measure]
        marks = [
            _bar(i, value, across, up, f"{qid}: {theirs[qid]:.4f} → {ours[qid]:.4f} ({_signed(value)})")
            for i, (qid, value) in enumerate(ranked)
        ]
    else:
        marks = _areas([value for _, value in ranked], across, up)
    p = f"p {test.corrected_p:.4f}" if test.corrected_p >= 0.0001 else "p < 0.0001"
    how = comparison.settings.correction
    below = f"mean {_signed(test.difference)}, {p}{'' if how == 'none' else f' ({how.capitalize()})'}"
    return "".join(
        [
            text(_TEXT, 16, _short(f"{test.measure}: {test.run}"), weight="bold"),
            text(_TEXT, 30, _short(f"minus {test.baseline}")),
            y_axis(up, _LEFT, _PANEL_WIDTH - _RIGHT),
            *marks,
            line(_LEFT, up(0), _PANEL_WIDTH - _RIGHT, up(0)),
            text(_TEXT, _PANEL_HEIGHT - 16, f"{below}; W/T/L {'/'.join(map(str, test.counts))}", size=10),
        ]
    )


def _bar(i: int, value: float, across: Scale, up: Scale, tooltip: str) -> str:
    x, wide = across(i), across(i + 1) - across(i)
    top, bottom = up(max(value, 0)), up(min(value, 0))
    if bottom - top < 1:  # too flat to point at: a query without a difference needs a tooltip too
        top, bottom = up(0) - 0.5, up(0) + 0.5
    colour = FAINT if abs(value) <= NOISE else BETTER if value > 0 else WORSE
    gap = 0.15 * wide if wide > 2 else -0.3  # without room for gaps, bars overlap to avoid pale seams
    place = {"x": x + gap / 2, "y": top, "width": wide - gap, "height": bottom - top}
    return element("rect", {**place, "fill": colour}, tooltip=tooltip)


def _areas(values: Sequence[float], across: Scale, up: Scale) -> list[str]:
    """Two areas in place of thousands of bars, which look the same; one corner per half pixel."""
    step = max(1, len(values) // (2 * (_PANEL_WIDTH - _LEFT - _RIGHT)))
    kept = [*range(0, len(values), step), len(values) - 1]
    made = []
    for colour, side in ((BETTER, max), (WORSE, min)):
        edge = [(across(i + 0.5), up(side(values[i], 0.0))) for i in kept]
        ends = [(across(0), up(0)), *edge, (across(len(values)), up(0))]
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in ends)
        made.append(element("polygon", {"points": path, "fill": colour}))
    return made


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _short(label: str, most: int = 38) -> str:
    """A label that fits above a panel; the middle of a longer name is cut out.

    >>> _short("a-run-with-a-very-long-name-of-forty-two-letters")
    'a-run-with-a-very-l…f-forty-two-letters'
    """
    return label if len(label) <= most else f"{label[: most // 2]}…{label[-(most // 2) :]}"
