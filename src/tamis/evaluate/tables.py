"""A comparison as tables: for the terminal, Markdown, LaTeX and HTML; as JSON and CSV.

The first table is as in papers: a line per run, a column per measure, a superscript letter for each baseline
that the run is significantly better than, and letters after a down arrow for those that it is worse than. The
second has the tests. Notes describe how everything was computed.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from tamis.base.errors import some
from tamis.evaluate.compare import Comparison, Marks, PairedTest, Settings
from tamis.evaluate.plot import difference_plot
from tamis.evaluate.significance import NOISE
from tamis.evaluate.ties import TIE_RULE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Format = Literal["table", "markdown", "latex", "html", "json", "csv"]

_SUPERSCRIPTS = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
_CORRECTIONS = {"holm": "Holm", "bonferroni": "Bonferroni", "none": "uncorrected"}


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of one cell of a table."""

    text: str
    marks: Marks = Marks("", "")  # noqa: RUF009 (a tuple)
    bold: bool = False


Rows = list[list[Cell]]


# -- the content of the tables
# ------------------------------------------------------------------------------------------------------------


def means_table(comparison: Comparison) -> tuple[list[str], Rows]:
    """The head and the lines of the first table; the best of a column is bold."""
    rows = []
    shown = {
        name: {measure: f"{found.mean[measure]:.4f}" for measure in comparison.measures}
        for name, found in comparison.evaluations.items()
    }
    best = {m: max((values[m] for values in shown.values()), key=float) for m in comparison.measures}
    for name, values in shown.items():
        cells = [
            Cell(values[m], comparison.marks(name, m), bold=values[m] == best[m]) for m in comparison.measures
        ]
        rows.append([Cell(comparison.letters.get(name, "")), Cell(name), *cells])
    return ["", "run", *comparison.measures], rows


def detail_table(comparison: Comparison) -> tuple[list[str], Rows]:
    """The head and the lines of the second table; significant p-values are bold."""
    settings = comparison.settings
    head = ["measure", "run", "vs", "diff.", f"{_percent(1 - settings.alpha)} interval", "p"]
    if settings.correction != "none":
        head.append(f"p ({_CORRECTIONS[settings.correction]})")
    rows = []
    for test in comparison.tests:
        last = Cell(_p(test.corrected_p), bold=test.significant)
        rows.append(
            [
                Cell(test.measure),
                Cell(test.run),
                Cell(comparison.letters[test.baseline]),
                Cell(f"{test.difference:+.4f}"),
                Cell(f"[{test.interval.low:+.4f}, {test.interval.high:+.4f}]"),
                *([Cell(_p(test.p)), last] if settings.correction != "none" else [last]),
                Cell(_effect(test.d)),
                Cell("/".join(map(str, test.counts))),
            ]
        )
    return [*head, "d", "W/T/L"], rows


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know to trust the tables, one or two sentences per note."""
    settings = comparison.settings
    names = ", ".join(f"{letter} {name}" for name, letter in comparison.letters.items())
    p = "p" if settings.correction == "none" else "corrected p"
    method = "BCa" if settings.interval == "bca" else "percentile"
    return [
        f"Baselines: {names}. A superscript letter: significantly better than that baseline; after ↓: "
        f"significantly worse ({p} < {settings.alpha:g}).",
        f"{_test_note(settings)} {_correction_note(comparison)}",
        f"Differences: run minus baseline, mean over queries; {_percent(1 - settings.alpha)} {method} "
        f"bootstrap interval of that mean ({settings.resamples:,} resamples, seed {settings.seed}; not "
        "corrected for other tests). d: Cohen's d_z, mean/deviation of the differences. W/T/L: queries won, "
        f"tied (a difference of at most {NOISE:g}) and lost.",
        f"{_counted(len(comparison.queries), 'query', 'queries')} with a relevant document, the same for all "
        "runs. A query missing from a run counts zero; an unjudged document is not relevant; equal scores "
        f"stand in the order of the run (of a file: {TIE_RULE}).",
        *_judged_notes(comparison),
        *_query_notes(comparison),
        *_undefined_notes(comparison.tests),
    ]


def _judged_notes(comparison: Comparison) -> list[str]:
    made = []
    for measure in next(iter(comparison.judged.values())):
        shares = (f"{run} {judged[measure]:.3f}" for run, judged in comparison.judged.items())
        made.append(f"{measure}, the share that is judged: {', '.join(shares)}.")
    return made


def _query_notes(comparison: Comparison) -> list[str]:
    """Notes on queries missing from runs or judgments, one note for all runs that miss the same queries."""
    missing: dict[tuple[str, ...], list[str]] = {}
    unjudged: dict[tuple[str, ...], list[str]] = {}
    for name, found in comparison.evaluations.items():
        missing.setdefault(tuple(found.missing), []).append(name)
        unjudged.setdefault(tuple(found.unjudged), []).append(name)
    made = [f"Missing from {', '.join(runs)}, counted zero: {some(q)}." for q, runs in missing.items() if q]
    made += [
        f"In {', '.join(runs)}, but without judgments and not counted: {some(q)}."
        for q, runs in unjudged.items()
        if q
    ]
    if irrelevant := next(iter(comparison.evaluations.values())).irrelevant:
        made.append(f"Judged, but without a relevant document and not counted: {some(irrelevant)}.")
    return made


def _test_note(settings: Settings) -> str:
    if settings.test == "t":
        return "Two-tailed paired t-test."
    return (
        "Two-tailed paired randomisation test: all assignments of signs where there are at most "
        f"{settings.permutations:,}, else so many samples and p = (1 + as extreme)/(1 + samples), seed "
        f"{settings.seed}."
    )


def _correction_note(comparison: Comparison) -> str:
    settings, tests = comparison.settings, len(comparison.tests)
    pairs = tests // len(comparison.measures)
    made = f"{_counted(pairs, 'pair')} of runs × {_counted(len(comparison.measures), 'measure')}"
    if settings.correction == "none":
        return f"No correction for {_counted(tests, 'test')} ({made})."
    how = f"{_CORRECTIONS[settings.correction]}'s correction over a family of"
    size = _counted(comparison.family_size, "test")
    if settings.family == "measure":
        return f"{how} {size}, for each measure by itself ({made})."
    if settings.family == "all" or settings.family == tests:
        return f"{how} {size} ({made})."
    return f"{how} {size}, as declared, of which {tests:,} are here ({made})."


def _undefined_notes(tests: Sequence[PairedTest]) -> list[str]:
    says = {
        "no difference": "No query differs, and p is 1",
        "one query": "One query allows no test: p is 1, and the interval has no width",
        "equal differences": "All queries differ by the same, which leaves the t-test undefined: p is 1 (the "
        "randomisation test has a value)",
    }
    made = []
    for reason, sentence in says.items():
        where = [f"{t.measure}, {t.run} vs {t.baseline}" for t in tests if t.undefined == reason]
        if where:
            made.append(f"{sentence}: {some(where, '; ')}.")
    return made


# -- output formats
# ------------------------------------------------------------------------------------------------------------


def terminal(comparison: Comparison, *, unicode: bool = True) -> list[RenderableType]:
    """Tables and notes for rich to print."""
    from rich.text import Text

    tables = [_rich_table(*t, unicode) for t in (means_table(comparison), detail_table(comparison))]
    said = [Text(_one_line(note if unicode else _ascii(note)), style="dim") for note in notes(comparison)]
    return [*tables, *said]


def _ascii(note: str) -> str:
    """
    >>> _ascii("A superscript letter: better; after ↓: worse.")
    'A letter after ^: better; after ^v: worse.'
    """
    return note.replace("superscript letter", "letter after ^").replace("↓", "^v").replace("×", "x")


def _rich_table(head: Sequence[str], rows: Rows, unicode: bool) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    texts = _text_columns(head)
    for i, name in enumerate(head):
        made.add_column(name.rjust(_width(i, head, rows)), overflow="fold", no_wrap=i not in texts)
    previous = rows[0][0].text
    for row in rows:
        if head[0] and row[0].text != previous:
            made.add_section()
        previous = row[0].text
        cells = []
        for i, cell in enumerate(row):
            text = Text(_one_line(cell.text).rjust(_width(i, head, rows)), style="bold" if cell.bold else "")
            cells.append(text.append(_plain_marks(cell, unicode), style="not bold"))
        made.add_row(*cells)
    return made


def _width(i: int, head: Sequence[str], rows: Rows) -> int:
    """The width of the numbers of a column, so that they are aligned whatever marks follow them."""
    return 0 if i in _text_columns(head) else max(len(head[i]), *(len(row[i].text) for row in rows))


def _plain_marks(cell: Cell, unicode: bool) -> str:
    """
    >>> marked = Cell("0.4321", Marks("ab", "c"))
    >>> _plain_marks(marked, True), _plain_marks(marked, False)
    ('ᵃᵇ↓ᶜ', '^ab^vc')
    """
    if unicode:
        return _marks(cell).translate(_SUPERSCRIPTS)
    better, worse = cell.marks
    return (f"^{better}" if better else "") + (f"^v{worse}" if worse else "")


def markdown(comparison: Comparison) -> str:
    """Two pipe tables and the notes as a list."""
    parts = []
    for head, rows in (means_table(comparison), detail_table(comparison)):
        texts = _text_columns(head)
        lines = [
            "| " + " | ".join(map(_markdown_escaped, head)) + " |",
            "|" + "|".join("---" if i in texts else "---:" for i in range(len(head))) + "|",
        ]
        for row in rows:
            lines.append("| " + " | ".join(map(_markdown_cell, row)) + " |")
        parts.append("\n".join(lines))
    parts.append("\n".join(f"- {_markdown_escaped(note)}" for note in notes(comparison)))
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: Cell) -> str:
    shown = _markdown_escaped(cell.text)
    marks = _marks(cell)
    return (f"**{shown}**" if cell.bold else shown) + (f"<sup>{marks}</sup>" if marks else "")


def _markdown_escaped(text: str) -> str:
    text = _one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join("\\" + c if c in "\\`*_[]|" else c for c in text)


def latex(comparison: Comparison) -> str:
    """Two tables for the booktabs package, with the notes under the first."""
    parts = []
    for head, rows in (means_table(comparison), detail_table(comparison)):
        texts = _text_columns(head)
        columns = "".join("l" if i in texts else "r" for i in range(len(head)))
        lines = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule"]
        lines += [" & ".join(map(_latex_escaped, head)) + " \\\\", "\\midrule"]
        lines += [" & ".join(_latex_cell(c, i in texts) for i, c in enumerate(row)) + " \\\\" for row in rows]
        parts.append("\n".join([*lines, "\\bottomrule", "\\end{tabular}"]))
    footnotes = "\\par\\smallskip\n".join(
        f"{{\\footnotesize {_latex_escaped(n)}}}" for n in notes(comparison)
    )
    head_lines = "% \\usepackage{booktabs}"
    return "\n\n".join([f"{head_lines}\n{parts[0]}", parts[1], footnotes]) + "\n"


def _latex_cell(cell: Cell, is_name: bool) -> str:
    if is_name or cell.text[:1] not in ("+", "-", "[", "<"):
        shown = _latex_escaped(cell.text)
    else:
        shown = f"${cell.text}$".replace("∞", "\\infty")
    marks = cell.marks.better + (f"\\downarrow {cell.marks.worse}" if cell.marks.worse else "")
    return (f"\\textbf{{{shown}}}" if cell.bold else shown) + (f"$^{{{marks}}}$" if marks else "")


_LATEX = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {c: f"\\{c}" for c in "&%$#_{}"}
_LATEX |= {c: f"${s}$" for c, s in {"↓": "\\downarrow", "×": "\\times", "<": "<", ">": ">", "–": "-"}.items()}


def _latex_escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in _one_line(text))


_STYLE = """
body { font: 15px/1.45 Helvetica, Arial, sans-serif; color: #222; background: white; margin: 2em auto;
       max-width: 1000px; padding: 0 1em }
table { border-collapse: collapse; margin: 0 0 1.5em; border-top: 1.5px solid; border-bottom: 1.5px solid }
th, td { padding: .2em .7em; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th { border-bottom: 1px solid }
th.text, td.text { text-align: left }
tr.new td { border-top: 1px solid #ccc }
sup { line-height: 0; display: inline-block; text-align: left; font-size: .7em }
ul { font-size: 13px; color: #444; padding-left: 1.2em }
.wide { overflow-x: auto }
svg { max-width: 100%; height: auto }
""".strip()


def html(comparison: Comparison) -> str:
    """A self-contained page: the tables, the notes, and the differences of all queries as a plot."""
    tables = [_html_table(*t) for t in (means_table(comparison), detail_table(comparison))]
    listed = "\n".join(f"<li>{escape(_one_line(note))}</li>" for note in notes(comparison))
    runs, queries = len(comparison.evaluations), _counted(len(comparison.queries), "query", "queries")
    title = f"{runs} runs compared over {queries}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{title}</title>\n<style>\n{_STYLE}\n</style></head><body>\n<h1>{title}</h1>",
            *tables,
            f"<ul>\n{listed}\n</ul>\n<h2>Differences per query</h2>",
            "<p>A bar is a query: its value in the run minus the baseline's. Point at it to read it.</p>",
            f'<div class="wide">{difference_plot(comparison)}</div>\n</body></html>\n',
        ]
    )


def _html_table(head: Sequence[str], rows: Rows) -> str:
    texts = _text_columns(head)
    kinds = [' class="text"' if i in texts else "" for i in range(len(head))]
    # if some cells of a column have marks, the others leave room for them, so that the numbers are aligned
    room = [max(len(_marks(row[i])) for row in rows) for i in range(len(head))]
    names = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    lines = [f"<tr>{names}</tr>"]
    previous = rows[0][0].text
    for row in rows:
        new = ' class="new"' if head[0] and row[0].text != previous else ""
        previous = row[0].text
        cells = (f"<td{k}>{_html_cell(c, r, bool(k))}</td>" for k, c, r in zip(kinds, row, room, strict=True))
        lines.append(f"<tr{new}>{''.join(cells)}</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _html_cell(cell: Cell, room: int, is_name: bool) -> str:
    shown = escape(_one_line(cell.text))
    if not is_name and shown[:1] in ("+", "-", "["):
        shown = shown.replace("-", "−")
    marks = f'<sup style="width: {room}em">{_marks(cell)}</sup>' if room else ""
    return (f"<b>{shown}</b>" if cell.bold else shown) + marks


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything except the values per query, for JSON; infinite numbers and NaN become null."""
    made = {
        "settings": asdict(comparison.settings),
        "family_size": comparison.family_size,
        "baselines": comparison.letters,
        "queries": len(comparison.queries),
        "runs": [
            {
                "run": name,
                "mean": {measure: found.mean[measure] for measure in comparison.measures},
                "judged": comparison.judged[name],
                "missing": found.missing,
                "unjudged": found.unjudged,
                "irrelevant": found.irrelevant,
            }
            for name, found in comparison.evaluations.items()
        ],
        "tests": [_test_json(test) for test in comparison.tests],
        "notes": notes(comparison),
    }
    return made


def _test_json(test: PairedTest) -> dict[str, Any]:
    made = asdict(test)
    numbers = {"difference": made.pop("difference"), **test.interval._asdict()}
    rest = {**made, **test.counts._asdict()}
    del rest["interval"], rest["counts"]
    names = {key: rest.pop(key) for key in ("measure", "run", "baseline")}
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in {**names, **numbers, **rest}.items()
    }


def as_csv(comparison: Comparison) -> str:
    """The tests as CSV, one line per test."""
    stream = io.StringIO()
    rows = [_test_json(test) for test in comparison.tests]
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def written(comparison: Comparison, format: Literal["markdown", "latex", "html", "json", "csv"]) -> str:
    """A comparison in a text format."""
    if format == "json":
        return json.dumps(as_json(comparison), indent=2, ensure_ascii=False) + "\n"
    return {"markdown": markdown, "latex": latex, "html": html, "csv": as_csv}[format](comparison)


# -- numbers and names
# ------------------------------------------------------------------------------------------------------------


def _marks(cell: Cell) -> str:
    """
    >>> _marks(Cell("0.4321", Marks("ab", "c")))
    'ab↓c'
    """
    return cell.marks.better + (f"↓{cell.marks.worse}" if cell.marks.worse else "")


def _text_columns(head: Sequence[str]) -> set[int]:
    return {i for i, name in enumerate(head) if name in ("", "run", "vs") or (name == "measure" and i == 0)}


def _p(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _effect(effect: float) -> str:
    """
    >>> _effect(0.254), _effect(-math.inf), _effect(math.nan)
    ('+0.25', '-∞', '–')
    """
    if math.isnan(effect):
        return "–"
    return f"{effect:+.2f}" if math.isfinite(effect) else f"{'-' if effect < 0 else '+'}∞"


def _percent(share: float) -> str:
    return f"{round(100 * share, 6):g} %"


def _counted(number: int, noun: str, nouns: str = "") -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def _one_line(text: str) -> str:
    """Remove control characters, so that a file name cannot send commands to a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
