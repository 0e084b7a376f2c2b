"""Plots of a trade-off, as SVG: value against cost with the frontier, and value against a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from tamis.core.language import Value
from tamis.evaluate.budget import Cost, Point, frontier
from tamis.evaluate.grid import Setting, spelled
from tamis.evaluate.plot import INK, Scale, element, line, link, polyline, svg, text, widened, x_axis, y_axis
from tamis.evaluate.tradeoff import Tradeoff, described, milliseconds

# Okabe and Ito's colours, which colour-blind people can tell apart; each also has its own shape, for print
# without colours.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00")
_SHAPES = ("circle", "square", "triangle", "diamond")
_OTHER = ("#555", "circle")  # of a setting without the parameter that has separate lines
_WITHOUT = "without"  # its name
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 148, 34, 66
_LABEL = 34  # below an axis: room for the larger letters that a phone gets
_FINGER = 14
_LOG_FROM = 100  # times the smallest value: a wider range has a logarithmic axis

_LABELS: Mapping[Cost, str] = {
    "inferences": "inferences per query",
    "latency": "p95 of a query, ms",
}


def plots(found: Tradeoff, lines: str | None = None, *, links: bool = False) -> dict[str, str]:
    """All plots of a trade-off by name: `inferences`, `latency` if it was measured, and the parameters that
    have several values. The values of the parameter `lines` have separate lines (unless it is on the x axis).
    With `links` each mark links to its setting in the page, where the setting's id is its `place_of`."""
    made = {"inferences": cost_plot(found, "inferences", lines, links=links)} if found.alone else {}
    if found.timing is not None:
        made["latency"] = cost_plot(found, "latency", lines, links=links)
    for name in found.names:
        if len(_values(found.points, name)) > 1:
            made[name] = parameter_plot(found, name, lines, links=links)
    return made


def place_of(number: int) -> str:
    """
    >>> place_of(0)
    'setting-1'
    """
    return f"setting-{number + 1}"


def cost_plot(found: Tradeoff, cost: Cost, lines: str | None = None, *, links: bool = False) -> str:
    """Every setting that was tried on all queries, by its cost and value. Settings that differ only in the
    first parameter are joined by a thin line, the frontier by a black one."""
    lines = lines if lines in found.names else _told_apart(found, next(iter(found.names), ""))
    # the mean of a dropped setting is over other queries and cannot be compared
    left = [point for point in found.points if point.dropped_after is None] or found.points
    shown = [point for point in left if point.latency or cost == "inferences"]
    up = _up([point.value for point in shown])
    costs = [point.cost(cost) for point in shown]
    low, high = min(costs), max(costs)
    log = low > 0 and high >= _LOG_FROM * low
    across = Scale(*((low, high) if log else widened(min(0.0, low), high)), _LEFT, _WIDTH - _RIGHT, log=log)
    place = {id(point): (across(point.cost(cost)), up(point.value)) for point in shown}
    looks = _looks(found, lines)
    best = frontier(found.points, cost)
    parts = [_frame(up, found.measure), x_axis(across, _HEIGHT - _BOTTOM, _LABELS[cost], _LABEL)]
    parts += [
        polyline((place[id(point)] for point in joined), colour=looks[_named(joined[0], lines)][0], width=0.6)
        for joined in _joined(shown, found.names, cost)
    ]
    parts.append(polyline(_stairs([place[id(found.points[n])] for n in best]), colour=INK, width=1.5))
    marked = {id(found.points[number]) for number in best}
    drawn = sorted(shown, key=lambda point: id(point) in marked)  # the frontier is drawn on top
    marks = []
    for point in drawn:
        on, look = id(point) in marked, looks[_named(point, lines)]
        marks.append(_mark(*place[id(point)], *look, 5 if on else 3.5, on, _tooltip(found, point)))
    parts += _linked(found, drawn, marks, place) if links else marks
    parts += [
        _chosen(found, place),
        _legend(looks, lines, shown),
        _note("Thick line: the frontier. Ring: the choice."),
    ]
    return svg(_WIDTH, _HEIGHT, parts, title=f"{found.measure} against {_LABELS[cost]}", links=links)


def parameter_plot(found: Tradeoff, name: str, lines: str | None = None, *, links: bool = False) -> str:
    """A parameter's values against the measure: one line per value of `lines`; the other parameters are as in
    the choice, or, if the choice does not have this parameter, as in the best setting that has it."""
    shown, others, lines = _slice(found, name, lines)
    up = _up([point.value for point in shown])
    values = _values(shown, name)
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    at = {value: float(value) if numeric else float(i) for i, value in enumerate(values)}  # type: ignore[arg-type]
    low, high = (min(at.values()), max(at.values())) if numeric else (-0.5, len(values) - 0.5)
    across = Scale(*(widened(min(low, 0.0), high) if numeric else (low, high)), _LEFT, _WIDTH - _RIGHT)
    place = {id(point): (across(at[point.setting[name]]), up(point.value)) for point in shown}
    looks = _looks(found, lines)
    bottom = _HEIGHT - _BOTTOM
    worse = _worse(found)
    axis = x_axis(across, bottom, name, _LABEL) if numeric else _categories(across, bottom, name, values)
    parts = [_frame(up, found.measure), axis]
    for value, (colour, shape) in looks.items():
        if not any(_named(point, lines) == value and value != _WITHOUT for point in shown):
            continue
        # a setting without the parameter, such as k1=0 without an aggregation, belongs to all lines
        own = [point for point in shown if _named(point, lines) in (value, _WITHOUT)]
        own.sort(key=lambda point: at[point.setting[name]])
        if numeric:
            parts.append(polyline((place[id(point)] for point in own), colour=colour))
        marks = [_mark(*place[id(p)], colour, shape, 4, id(p) not in worse, _tooltip(found, p)) for p in own]
        parts += _linked(found, own, marks, place) if links else marks
    own_lines = [point for point in shown if lines is None or lines in point.setting]
    parts += [_chosen(found, place), _legend(looks, lines, own_lines)]
    said = [f"With {described(others)}."] if others else []
    if any(id(point) in worse for point in shown):
        said.append("Hollow: significantly worse than the choice.")
    parts.append(_note(" ".join(said)))
    return svg(_WIDTH, _HEIGHT, parts, title=f"{found.measure} against {name}", links=links)


# -- parts
# ------------------------------------------------------------------------------------------------------------

Look = tuple[str, str]  # colour, shape


def _slice(found: Tradeoff, name: str, lines: str | None) -> tuple[list[Point], Setting, str | None]:
    """The points of a plot against a parameter, the values that they have in common, and the parameter that
    has separate lines."""
    lines = lines if lines in found.names and lines != name else _told_apart(found, name)
    having = [number for number, point in enumerate(found.points) if name in point.setting]
    left = [number for number in having if found.points[number].dropped_after is None] or having
    best = max(left, key=lambda number: found.points[number].value)
    if found.choice is not None and found.choice.number in left:
        best = found.choice.number
    others = {key: value for key, value in found.points[best].setting.items() if key not in (name, lines)}
    shown = [
        point
        for point in map(found.points.__getitem__, left)
        if all(point.setting.get(key, value) == value for key, value in others.items())
    ]
    if not any(lines in point.setting for point in shown):
        lines = None
    return shown, others, lines


def _up(values: Sequence[float]) -> Scale:
    return Scale(*widened(min(values), max(values)), _HEIGHT - _BOTTOM, _TOP)


def _frame(up: Scale, label: str) -> str:
    return y_axis(up, _LEFT, _WIDTH - _RIGHT, label) + line(_LEFT, _TOP, _LEFT, _HEIGHT - _BOTTOM)


def _categories(across: Scale, y: float, label: str, values: Sequence[Value]) -> str:
    names = [
        text(across(i), y + 15, _short(spelled(value)), anchor="middle", size=10)
        for i, value in enumerate(values)
    ]
    middle = (across.start + across.stop) / 2
    return (
        line(across.start, y, across.stop, y)
        + "".join(names)
        + text(middle, y + _LABEL, label, anchor="middle")
    )


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The frontier as steps: between the costs of two settings, the cheaper one is the best available."""
    corners = []
    for (x, y), (next_x, _) in zip(points, [*points[1:], points[-1]] if points else [], strict=True):
        corners += [(x, y), (next_x, y)]
    return corners


def _joined(points: Sequence[Point], names: Sequence[str], cost: Cost) -> list[list[Point]]:
    def rest(point: Point) -> str:
        return repr([(name, point.setting.get(name)) for name in names[1:]])

    groups = (
        sorted(group, key=lambda point: point.cost(cost))
        for _, group in groupby(sorted(points, key=rest), rest)
    )
    return [group for group in groups if len(group) > 1]


def _mark(x: float, y: float, colour: str, shape: str, size: float, full: bool, tooltip: str) -> str:
    look = {"fill": colour if full else "white", "stroke": colour, "stroke-width": 1.2}
    if shape == "circle":
        return element("circle", {"cx": x, "cy": y, "r": size, **look}, tooltip=tooltip)
    corners = {
        "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "triangle": [(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        "diamond": [(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
    }[shape]
    path = " ".join(f"{x + size * dx:.2f},{y + size * dy:.2f}" for dx, dy in corners)
    return element("polygon", {"points": path, **look}, tooltip=tooltip)


def _linked(
    found: Tradeoff,
    points: Sequence[Point],
    marks: Sequence[str],
    place: Mapping[int, tuple[float, float]],
) -> list[str]:
    """The marks of these points as links, above larger circles that a finger can hit."""
    numbers = {id(point): number for number, point in enumerate(found.points)}
    around, above = [], []
    for point, mark in zip(points, marks, strict=True):
        x, y = place[id(point)]
        to = f"#{place_of(numbers[id(point)])}"
        finger = element("circle", {"cx": x, "cy": y, "r": _FINGER, "fill": "transparent"})
        around.append(element("a", {"href": to, "tabindex": -1, "aria-hidden": "true"}, inside=finger))
        above.append(link(to, _tooltip(found, point), mark))
    return [*around, *above]


def _worse(found: Tradeoff) -> set[int]:
    """The points that are significantly worse than the choice. The plot marks them, since small differences
    look large on an axis that is scaled to them."""
    if found.choice is None:
        return set()
    near = {found.choice.number, *found.choice.within_noise}
    return {id(found.points[number]) for number in found.choice.share if number not in near}


def _chosen(found: Tradeoff, place: Mapping[int, tuple[float, float]]) -> str:
    if found.choice is None or (at := place.get(id(found.points[found.choice.number]))) is None:
        return ""
    ring = {"cx": at[0], "cy": at[1], "r": 9, "fill": "none", "stroke": INK, "stroke-width": 1.5}
    # the mark below the ring has the tooltip
    return element("circle", {**ring, "pointer-events": "none"})


def _legend(looks: Mapping[str, Look], lines: str | None, shown: Sequence[Point]) -> str:
    if lines is None:
        return ""
    x, parts = _WIDTH - _RIGHT + 30, [text(_WIDTH - _RIGHT + 24, _TOP + 4, _short(lines), weight="bold")]
    present = {_named(point, lines) for point in shown}
    for row, value in enumerate((value for value in looks if value in present), start=1):
        y = _TOP + 4 + 18 * row
        parts += [_mark(x, y - 4, *looks[value], 4, True, ""), text(x + 10, y, _short(value))]
    return "".join(parts)


def _note(what: str) -> str:
    return text(_WIDTH - _RIGHT, _HEIGHT - 6, what, anchor="end", size=10)


def _tooltip(found: Tradeoff, point: Point) -> str:
    costs = f"{point.inferences:,.0f} inferences"
    if point.latency is not None:
        p50, p95 = map(milliseconds, point.latency)
        costs += f", p50 {p50} ms, p95 {p95} ms"
    dropped = f" (dropped after {point.dropped_after} queries)" if point.dropped_after else ""
    return f"{described(point.setting)}: {found.measure} {point.value:.4f}, {costs}{dropped}"


def _looks(found: Tradeoff, lines: str | None) -> dict[str, Look]:
    """The look of each value of a parameter, the same in all plots; settings without it have another look."""
    if lines is None:
        return {"": (_COLOURS[0], _SHAPES[0])}
    looks: dict[str, Look] = {_WITHOUT: _OTHER}
    for i, value in enumerate(_values(found.points, lines)):
        looks[spelled(value)] = (_COLOURS[i % len(_COLOURS)], _SHAPES[i % len(_SHAPES)])
    return looks


def _named(point: Point, lines: str | None) -> str:
    """The name of a setting's line in a plot."""
    if lines is None:
        return ""
    return spelled(point.setting[lines]) if lines in point.setting else _WITHOUT


def _told_apart(found: Tradeoff, other_than: str) -> str | None:
    """The last parameter with several values, other than `other_than`: the one that acts last in a
    pipeline."""
    several = [name for name in found.names if name != other_than and len(_values(found.points, name)) > 1]
    return several[-1] if several else None


def _values(points: Sequence[Point], name: str) -> list[Value]:
    return list(dict.fromkeys(point.setting[name] for point in points if name in point.setting))


def _short(name: str, most: int = 15) -> str:
    """A short form of a long name, such as a model's folder: its end.

    >>> _short("models/a-rather-long-name")
    '…ther-long-name'
    """
    return name if len(name) <= most else f"…{name[1 - most :]}"
