"""tamis eval: runs against judgments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.cli.arguments import ArgumentParser, json_argument
from tamis.cli.console import print_json, printable, stdout, warn
from tamis.errors import InputError
from tamis.evaluate.measures import DEFAULT_MEASURES, Evaluation, evaluate, parse_measures
from tamis.formats import read_qrels
from tamis.ranking import Run

if TYPE_CHECKING:
    from rich.table import Table


def add_arguments(parser: ArgumentParser) -> None:
    defaults = " ".join(DEFAULT_MEASURES)
    parser.add_argument("qrels", metavar="QRELS", help="judgments: TREC or BEIR")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="TREC or MS MARCO runs")
    parser.add_argument(
        "-m",
        "--measure",
        dest="measures",
        action="append",
        metavar="NAME",
        help=f"such as nDCG@20 or AP(rel=2), as ir_measures names them; may be repeated ({defaults})",
    )
    parser.add_argument("--per-query", action="store_true", help="show each query's values")
    json_argument(parser)


def main(qrels: str, runs: list[str], measures: list[str] | None, per_query: bool, json: bool) -> None:
    """Evaluate runs against relevance judgments."""
    names = list(map(str, parse_measures(measures or DEFAULT_MEASURES)))
    judgments = read_qrels(qrels)
    if not judgments:
        raise InputError("no judgment in it", remedy="check the file", path=qrels)
    evaluations = {path: evaluate(judgments, Run.read(path), names) for path in dict.fromkeys(runs)}
    _warn(
        qrels,
        "queries without a relevant document (not counted)",
        next(iter(evaluations.values())).irrelevant,
    )
    for path, evaluation in evaluations.items():
        _warn(path, "judged queries missing from the run (counted as zero)", evaluation.missing)
        _warn(path, "queries of the run without judgments (not counted)", evaluation.unjudged)
    if json:
        print_json([_as_json(path, evaluation, per_query) for path, evaluation in evaluations.items()])
        return
    console = stdout()
    if per_query:
        for path, evaluation in evaluations.items():
            if len(evaluations) > 1:
                console.print(printable(path), style="bold")
            console.print(_queries(evaluation, names))
    else:
        console.print(table("run", _labels(evaluations), names))


def table(what: str, evaluations: Mapping[str, Evaluation], measures: Sequence[str]) -> Table:
    """A line a run, a column a measure, the best of each column in bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column(what, overflow="fold")
    best = {}
    for name in measures:
        made.add_column(name, justify="right", no_wrap=True)
        best[name] = max(f"{evaluation.mean[name]:.4f}" for evaluation in evaluations.values())
    for label, evaluation in evaluations.items():
        values = [f"{evaluation.mean[name]:.4f}" for name in measures]
        many = len(evaluations) > 1
        made.add_row(
            Text(printable(label)),
            *(
                Text(value, style="bold" if many and value == best[name] else "")
                for name, value in zip(measures, values, strict=True)
            ),
        )
    return made


def _queries(evaluation: Evaluation, measures: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    made.add_column("query", footer="all", overflow="fold")
    for name in measures:
        made.add_column(name, justify="right", no_wrap=True, footer=f"{evaluation.mean[name]:.4f}")
    for qid in evaluation.per_query[measures[0]]:
        made.add_row(Text(printable(qid)), *(f"{evaluation.per_query[name][qid]:.4f}" for name in measures))
    return made


def _labels(evaluations: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Short names for the runs, where they differ."""
    names = [Path(path).name for path in evaluations]
    short = len(set(names)) == len(names)
    return dict(zip(names if short else evaluations, evaluations.values(), strict=True))


def _warn(path: str, what: str, qids: Sequence[str]) -> None:
    if qids:
        some = ", ".join(qids[:5]) + (", ..." if len(qids) > 5 else "")
        warn(f"{path}: {what}: {len(qids):,} ({some})")


def _as_json(path: str, evaluation: Evaluation, per_query: bool) -> dict[str, object]:
    made: dict[str, object] = {
        "run": path,
        "mean": evaluation.mean,
        "queries": len(next(iter(evaluation.per_query.values()))),
        "missing": evaluation.missing,
        "unjudged": evaluation.unjudged,
        "irrelevant": evaluation.irrelevant,
    }
    if per_query:
        made["per_query"] = evaluation.per_query
    return made
