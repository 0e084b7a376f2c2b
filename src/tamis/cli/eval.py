"""tamis eval: runs against judgments."""

from __future__ import annotations

import csv as csv_rows
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tamis.base.errors import NAMED, InputError, some
from tamis.cli.arguments import ArgumentParser, check_standard_input
from tamis.cli.console import counted, print_json, print_table, printable, stdout, warn
from tamis.core.ranking import Run
from tamis.evaluate.formulae import ShortLists
from tamis.evaluate.measures import (
    DEFAULT_MEASURES,
    LEAST,
    Evaluation,
    Mean,
    Missing,
    Unjudged,
    evaluate,
    parse_measures,
    with_companions,
)
from tamis.evaluate.ties import TIE_RULE, TieEffect, tie_effect
from tamis.evaluate.trials import Trials, over_trials
from tamis.formats import Qrels, read_qrels

if TYPE_CHECKING:
    from rich.table import Table


def add_arguments(parser: ArgumentParser) -> None:
    defaults = " ".join(DEFAULT_MEASURES)
    parser.epilog = f"""Judged@k beside a measure @k is the share of the first k documents that are judged:
        compare it before the measure. Queries without a relevant document do not count; judged queries
        missing from a run count as zero unless they are left out. Equal scores are ordered {TIE_RULE}."""
    parser.add_argument("qrels", metavar="QRELS", help="judgments: TREC or BEIR, or irds:NAME")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="TREC or MS MARCO runs")
    parser.add_argument(
        "-m",
        "--measure",
        dest="measures",
        action="append",
        metavar="NAME",
        help=f"such as nDCG@20 or AP(rel=2), or trec_eval's ndcg_cut_20; may be repeated ({defaults})",
    )
    parser.add_argument("--per-query", action="store_true", help="show the values per query")
    parser.add_argument(
        "--unjudged",
        choices=get_args(Unjudged),
        default="nonrelevant",
        help="count unjudged documents as not relevant, or remove them from the lists (nonrelevant)",
    )
    parser.add_argument(
        "--short-lists",
        choices=get_args(ShortLists),
        default="k",
        help="divide P@k of a list of l < k documents by k, as trec_eval does, or by l (k)",
    )
    parser.add_argument(
        "--missing",
        choices=get_args(Missing),
        default="zero",
        help="count judged queries missing from a run as zero, or leave them out of its means (zero)",
    )
    parser.add_argument(
        "--mean",
        choices=get_args(Mean),
        default="arithmetic",
        help="mean over queries; the geometric mean of AP is GMAP (arithmetic)",
    )
    parser.add_argument(
        "--trials",
        action="store_true",
        help="the runs are trials of one system: also show their mean, its 95 %% interval and their median",
    )
    parser.add_argument(
        "--only", action="store_true", help="show only these measures, without Judged@k beside them"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the result as JSON")
    output.add_argument("--csv", action="store_true", help="print the result as CSV")


def main(
    qrels: str,
    runs: list[str],
    measures: list[str] | None,
    per_query: bool,
    unjudged: Unjudged,
    short_lists: ShortLists,
    missing: Missing,
    mean: Mean,
    trials: bool,
    only: bool,
    json: bool,
    csv: bool,
) -> None:
    """Evaluate runs against relevance judgments."""
    asked = list(map(str, parse_measures(measures or DEFAULT_MEASURES)))
    names = asked if only else with_companions(asked)
    check_standard_input(qrels, *runs)
    judgments = relevant_judgments(qrels)
    evaluations: dict[str, Evaluation] = {}
    ties: dict[str, TieEffect] = {}
    for path in dict.fromkeys(runs):
        run = Run.read(path)
        try:
            evaluations[path] = evaluate(
                judgments,
                run,
                names,
                unjudged=unjudged,
                short_lists=short_lists,
                missing=missing,
                mean=mean,
            )
        except InputError as error:
            raise InputError(error.problem, remedy=error.remedy, path=path) from error
        ties[path] = tie_effect(
            judgments, run, evaluations[path], asked, unjudged=unjudged, short_lists=short_lists, mean=mean
        )
        del run  # or there would be two of them while the next is read
    irrelevant = next(iter(evaluations.values())).irrelevant
    _warn({qrels: _counted("queries without a relevant document (not counted)", irrelevant)})
    how, remedy = "left out", ""
    if missing == "zero":
        how, remedy = "counted as zero", "; if they were not run, leave them out: --missing left-out"
    absent = f"judged queries missing from the run ({how})"
    _warn({path: _counted(absent, each.missing, remedy) for path, each in evaluations.items()})
    unknown = "queries of the run without judgments (not counted)"
    _warn({path: _counted(unknown, each.unjudged) for path, each in evaluations.items()})
    _warn({path: _of_ties(each, ties[path]) for path, each in evaluations.items()})
    over = _over_trials(evaluations, names) if trials else None
    if json:
        settings = {
            "unjudged_documents": unjudged,
            "short_lists": short_lists,
            "missing_queries": missing,
            "mean_over_queries": mean,
            "tie_rule": TIE_RULE,
        }
        made = [
            _as_json(path, evaluation, ties[path], per_query) | settings
            for path, evaluation in evaluations.items()
        ]
        print_json(made if over is None else {"runs": made, "trials": _trials_json(over)})
    elif csv:
        _print_csv(evaluations, names, per_query, over)
    else:
        _print(evaluations, names, per_query, over)
        if unjudged == "condensed":
            sys.stdout.write("condensed lists: unjudged documents are removed\n")
        if mean != "arithmetic":
            sys.stdout.write(f"{mean} means over queries; values below {LEAST:.5f} count as {LEAST:.5f}\n")


def relevant_judgments(path: str) -> Qrels:
    """The judgments of a file, which must have a relevant document."""
    judgments = read_qrels(path)
    if not judgments:
        raise InputError("contains no judgments", remedy="check the file", path=path)
    if not any(grade > 0 for grades in judgments.values() for grade in grades.values()):
        raise InputError(
            "contains no relevant document (no grade above 0)", remedy="check the file", path=path
        )
    return judgments


def _over_trials(evaluations: Mapping[str, Evaluation], names: Sequence[str]) -> dict[str, Trials]:
    return {name: over_trials([each.mean[name] for each in evaluations.values()]) for name in names}


# -- what a person sees
# ------------------------------------------------------------------------------------------------------------


def _print(
    evaluations: Mapping[str, Evaluation],
    names: Sequence[str],
    per_query: bool,
    over: Mapping[str, Trials] | None,
) -> None:
    console = stdout()
    if per_query:
        for path, evaluation in evaluations.items():
            if len(evaluations) > 1:
                console.print(printable(path), style="bold")
            print_table(console, _queries(evaluation, names))
    if not per_query or over is not None:
        made = table("run", _labels(evaluations), names)
        if over is not None:
            made.add_section()
            made.add_row("mean", *(f"{over[name].mean:.4f}" for name in names))
            made.add_row("95 % interval", *(f"± {over[name].margin:.4f}" for name in names))
            made.add_row("median", *(f"{over[name].median:.4f}" for name in names))
        print_table(console, made)


def table(what: str, evaluations: Mapping[str, Evaluation], measures: Sequence[str]) -> Table:
    """A line per run, a column per measure, the best of each column in bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column(what, overflow="fold")
    best = {}
    for name in measures:
        made.add_column(name, justify="right", no_wrap=True, style=_style(name))
        if not _style(name):
            best[name] = f"{max(evaluation.mean[name] for evaluation in evaluations.values()):.4f}"
    for label, evaluation in evaluations.items():
        values = [f"{evaluation.mean[name]:.4f}" for name in measures]
        many = len(evaluations) > 1
        made.add_row(
            Text(printable(label)),
            *(
                Text(value, style="bold" if many and value == best.get(name) else "")
                for name, value in zip(measures, values, strict=True)
            ),
        )
    return made


def _style(measure: str) -> str:
    """What only says how far to trust the others is not printed as loud as they are, and is never best."""
    return "dim" if measure.startswith(("Judged", "RBPResidual")) else ""


def _queries(evaluation: Evaluation, measures: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    made.add_column("query", footer="all", overflow="fold")
    for name in measures:
        footer = f"{evaluation.mean[name]:.4f}"
        made.add_column(name, justify="right", no_wrap=True, footer=footer, style=_style(name))
    for qid in evaluation.per_query[measures[0]]:
        made.add_row(Text(printable(qid)), *(f"{evaluation.per_query[name][qid]:.4f}" for name in measures))
    return made


def _labels(evaluations: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Short names for the runs, where they differ."""
    names = [Path(path).name for path in evaluations]
    short = len(set(names)) == len(names)
    return dict(zip(names if short else evaluations, evaluations.values(), strict=True))


def _warn(of: Mapping[str, str]) -> None:
    """What there is to say of each file, once for all files of which it is the same."""
    files: dict[str, list[str]] = {}
    for path, said in of.items():
        files.setdefault(said, []).append(path)
    for said, paths in files.items():
        if said:
            warn(f"{some(paths)}: {said}")


def _counted(what: str, qids: Sequence[str], remedy: str = "") -> str:
    if not qids:
        return ""
    all_of_them = ": --json names all" if len(qids) > NAMED else ""
    return f"{what}: {len(qids):,} ({some(qids)}{all_of_them}){remedy}"


def _of_ties(evaluation: Evaluation, ties: TieEffect) -> str:
    if not ties.queries:
        return ""
    ranges = [
        f"{name} {evaluation.mean[name]:.4f} ({ties.low[name]:.4f} to {ties.high[name]:.4f})"
        for name in ties.low
        if f"{ties.low[name]:.4f}" != f"{ties.high[name]:.4f}"
    ]
    affected = counted(len(ties.queries), "query", "queries")
    means = f"could be {', '.join(ranges)}" if ranges else "changes no mean in its fourth decimal"
    return f"the order of equal scores matters in {affected} (they are ordered {TIE_RULE}): {means}"


# -- what a machine reads
# ------------------------------------------------------------------------------------------------------------


def _print_csv(
    evaluations: Mapping[str, Evaluation],
    names: Sequence[str],
    per_query: bool,
    over: Mapping[str, Trials] | None,
) -> None:
    """A line per run, or per query of a run; the line of all queries has "all" as the query. Lines of all
    trials have "trials" as the run."""
    writer = csv_rows.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["run", "query", *names])
    for path, evaluation in evaluations.items():
        if per_query:
            for qid in evaluation.per_query[names[0]]:
                writer.writerow([path, qid, *(evaluation.per_query[name][qid] for name in names)])
        writer.writerow([path, "all", *(evaluation.mean[name] for name in names)])
    if over is not None:
        writer.writerow(["trials", "mean", *(over[name].mean for name in names)])
        writer.writerow(["trials", "low", *(over[name].interval.low for name in names)])
        writer.writerow(["trials", "high", *(over[name].interval.high for name in names)])
        writer.writerow(["trials", "median", *(over[name].median for name in names)])


def _as_json(path: str, evaluation: Evaluation, ties: TieEffect, per_query: bool) -> dict[str, object]:
    made: dict[str, object] = {
        "run": path,
        "mean": evaluation.mean,
        "queries": len(next(iter(evaluation.per_query.values()))),
        "missing": evaluation.missing,
        "unjudged": evaluation.unjudged,
        "irrelevant": evaluation.irrelevant,
        "ties": {"queries": ties.queries, "low": ties.low, "high": ties.high},
    }
    if per_query:
        made["per_query"] = evaluation.per_query
    return made


def _trials_json(over: Mapping[str, Trials]) -> dict[str, object]:
    return {name: {**asdict(each), "interval": list(each.interval)} for name, each in over.items()}
