"""A trade-off as a self-contained page: plots, tables, and how it was measured. It loads nothing from the
network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tamis.base.errors import some
from tamis.evaluate.budget import Cost, Point, frontier
from tamis.evaluate.engines import cutoff
from tamis.evaluate.measures import parse_measures
from tamis.evaluate.plot import FAINT, INK
from tamis.evaluate.tradeoff import Tradeoff, cells, described, milliseconds
from tamis.evaluate.tradeoff_plot import place_of, plots

_NEAR = 5  # settings within noise that are listed by name

#: The plots' colours on black, where the darkest would be invisible.
_DARK = {
    INK: "#ddd",
    FAINT: "#555",
    "white": "#121212",
    "#0072b2": "#3d8fd1",
    "#7a5c00": "#b8923a",
    "#555": "#aaa",
}

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 Helvetica, Arial, sans-serif; margin: 2em auto; max-width: 900px; padding: 0 1em;
  overflow-wrap: break-word }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
figure { margin: 0 0 1.5em }
svg { max-width: 100%; height: auto; display: block }
svg a:focus-visible { outline: 2px solid; outline-offset: 3px }
tr:target { background: Mark; color: MarkText }
tr { scroll-margin: 40vh }
@media (max-width: 600px) {
  svg text { font-size: 17px }
  svg circle[fill="transparent"] { r: 24px }
}
table { border-collapse: collapse; border-top: 1.5px solid; border-bottom: 1.5px solid }
th, td { padding: .15em .7em; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th { border-bottom: 1px solid }
tr.chosen { font-weight: bold } tr.dropped { opacity: .55 }
.wide { overflow-x: auto } .small { font-size: 13px }
code { font-size: .92em; overflow-wrap: anywhere }
@media screen and (prefers-color-scheme: dark) {
  svg { fill: DARK_INK }
DARK_RULES
}
@media print { body { max-width: none; margin: 0 } figure, tr { break-inside: avoid } }
""".strip()
_STYLE = _STYLE.replace("DARK_INK", _DARK[INK]).replace(
    "DARK_RULES",
    "\n".join(
        f'  svg [{what}="{light}"] {{ {what}: {dark} }}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    ),
)


def html(found: Tradeoff, *, pipeline: str = "", command: str = "", lines: str | None = None) -> str:
    """The report. `pipeline` and `command` document its origin; `lines` is the parameter whose values have
    separate lines in the plots."""
    title = f"{len(found.points)} settings, {found.measure} over {found.queries:,} queries"
    pictures = [f"<figure>{picture}</figure>" for picture in plots(found, lines, links=True).values()]
    kinds: list[Cost] = ["inferences"] if found.alone else []
    if found.timing:
        kinds.append("latency")
    tables = []
    for kind in kinds:
        what = "inferences" if kind == "inferences" else "time (p95)"
        on = frontier(found.points, kind)
        tables += [f"<h2>The frontier by {what}</h2>", f"<p>{escape(frontier_said(found, kind))}</p>"]
        tables.append(_table(found, on))
    everything = sorted(range(len(found.points)), key=lambda number: found.points[number].inferences)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f"<p><code>{escape(pipeline)}</code></p>" if pipeline else "",
            *(f"<p>{escape(sentence)}</p>" for sentence in summary(found)),
            '<p class="small">A mark in a plot is a setting: choose it to go to its line below, or point at '
            "it to read it. Wide tables move sideways.</p>",
            *pictures,
            *tables,
            "<h2>All settings</h2>",
            _table(found, everything, places=True),
            "<h2>How this was measured</h2>",
            *(f'<p class="small">{escape(sentence)}</p>' for sentence in method(found)),
            f'<p class="small"><code>{escape(command)}</code></p>' if command else "",
            "</body></html>\n",
        ]
    )


def summary(found: Tradeoff) -> list[str]:
    """The choice and the confidence in it, in sentences."""
    choice, points = found.choice, found.points
    within = f" within {found.budget}" if found.budget else ""
    if choice is None:
        least = min(points, key=lambda point: point.cost(found.kind))
        return [
            f"No setting keeps{within}: the cheapest, {described(least.setting)}, takes {_costs(least)}.",
            *_ceilings(found),
        ]
    best = points[choice.number]
    low, high = choice.interval
    share = f"{choice.share[choice.number]:.0%}"
    said = [
        f"The best setting{within}: {described(best.setting)}, with {found.measure} {best.value:.4f} (95 % "
        f"interval {low:.4f} to {high:.4f}) for {_costs(best)} per query.",
        f"When the queries are resampled, it is the best in {share} of the samples.",
    ]
    if choice.within_noise:
        near = sorted(choice.within_noise, key=lambda number: -points[number].value)
        named = "; ".join(f"{described(points[n].setting)} ({points[n].value:.4f})" for n in near[:_NEAR])
        more = f" and {len(near) - _NEAR} more" if len(near) > _NEAR else ""
        verb = "setting is" if len(near) == 1 else "settings are"
        said.append(f"{len(near)} {verb} not significantly worse: {named}{more}.")
    if choice.thrift != choice.number:
        thrift = points[choice.thrift]
        said.append(
            f"The cheapest of these is {described(thrift.setting)}: {found.measure} {thrift.value:.4f} for "
            f"{_costs(thrift)} per query."
        )
    return said + _ceilings(found)


def frontier_said(found: Tradeoff, kind: Cost) -> str:
    """Which settings are on the frontier, and which are not."""
    every, on = len(found.points), len(frontier(found.points, kind))
    if on == every:
        return "The table has all settings: a setting that costs more is worth more." if on > 1 else ""
    cost = "inferences" if kind == "inferences" else "time"
    return (
        f"The table has the frontier, {on} of {every} settings: each of the others takes at least the {cost} "
        f"of one of these, and has no higher {found.measure}."
    )


def _ceilings(found: Tradeoff) -> list[str]:
    """The best values that settings with short lists can reach."""
    highest = dict(sorted({point.ceiling for point in found.points if point.ceiling}))
    if not highest:
        return []
    told = some(f"{value:.4f} with {documents:,}" for documents, value in highest.items())
    k = cutoff(parse_measures(found.measure)[0])
    return [f"Fewer than {k:,} documents limit {found.measure}, even in the best order: to {told}."]


def method(found: Tradeoff) -> list[str]:
    """How the sweep was run, and its cost."""
    said = []
    if found.alone:
        said.append(_shared(found))
    if found.rounds:
        told = ", ".join(f"{r.settings} on {r.queries} queries ({r.dropped} dropped)" for r in found.rounds)
        said.append(f"Successive halving: {told}. A mean of a dropped setting is over fewer queries.")
    if found.untried:
        said.append(f"{len(found.untried)} settings were over the budget of time, and were not scored.")
    if found.timing is not None:
        said.append(f"Time: {found.timing}")
    said.append(
        f"Significance: paired t-test, {found.alpha:g}, not corrected. Intervals and samples: bootstrap over "
        "the queries. The value of the best of many settings is optimistic: test it on other queries."
    )
    return said


def _shared(found: Tradeoff) -> str:
    work = found.work
    cached = f", and looked up {work.cached:,} scores" if work.cached else ""
    return (
        f"Costs are of each setting alone. The sweep itself shared its work: it ran {work.inferences:,} "
        f"inferences{cached}. The largest setting alone takes {found.largest:,.0f}, all settings one by one "
        f"{found.alone:,.0f}."
    )


def _costs(point: Point) -> str:
    costs = [f"{point.inferences:,.0f} inferences"] if point.inferences or not point.latency else []
    costs += [f"{milliseconds(point.latency.p95)} ms (p95)"] if point.latency else []
    return " and ".join(costs)


def _table(found: Tradeoff, numbers: Sequence[int], *, places: bool = False) -> str:
    """One line per setting; with `places` each line has an anchor for links."""
    timed = found.timing is not None
    head = [*found.names, found.measure, "inferences", *(["p50, ms", "p95, ms"] if timed else []), "best in"]
    share = found.choice.share if found.choice else {}
    rows = ["".join(f"<th>{escape(name)}</th>" for name in head)]
    kinds = [""]
    for number in numbers:
        point = found.points[number]
        row = [*cells(point.setting, found.names), f"{point.value:.4f}", f"{point.inferences:,.0f}"]
        if timed:
            row += list(map(milliseconds, point.latency)) if point.latency else ["–", "–"]
        row.append(f"{share[number]:.1%}" if number in share else "–")
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in row))
        chosen = found.choice is not None and number == found.choice.number
        kind = ' class="chosen"' if chosen else ' class="dropped"' if point.dropped_after else ""
        kinds.append(f'{kind} id="{place_of(number)}"' if places else kind)
    body = "\n".join(f"<tr{kind}>{line}</tr>" for kind, line in zip(kinds, rows, strict=True))
    return f'<div class="wide" tabindex="0"><table>\n{body}\n</table></div>'
