"""tamis tradeoff: what a pipeline's settings are worth, what they cost, and which to take."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tamis.base.errors import InputError, some
from tamis.cli.arguments import (
    ArgumentParser,
    at_least_one,
    index_argument,
    json_argument,
    runtime_arguments,
)
from tamis.cli.candidates import check_given, given_arguments, given_run
from tamis.cli.console import counted, print_json, print_table, printable, progress, stdout, warn
from tamis.cli.outputs import check_cache, check_output, named_in
from tamis.cli.rerank import check_reranks
from tamis.core.runtime import Device, Precision, Runtime
from tamis.evaluate.budget import Budget, frontier
from tamis.evaluate.candidates import candidates, expression_of
from tamis.evaluate.grid import check_holes, parse_grid, settings
from tamis.evaluate.measures import parse_measures
from tamis.evaluate.report import frontier_said, html, method, summary
from tamis.evaluate.tradeoff import TIMED, Search, Tradeoff, cells, milliseconds, trade_off
from tamis.evaluate.tradeoff_plot import plots
from tamis.formats import CorpusFormat, TopicField, read_qrels, read_queries
from tamis.index.index import Index
from tamis.index.place import Place
from tamis.storage.files import atomic_write

if TYPE_CHECKING:
    from rich.table import Table


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = """Settings share their work: the scores of the largest k0 serve the smaller ones, and
        pairs are scored once for all aggregations. The report gives the cost of each setting alone:
        inferences are counted, and times measured on --timed queries, one at a time, with nothing cached."""
    index_argument(parser, "; or use --run and --corpus", optional=True)
    parser.add_argument("queries", metavar="QUERIES", help="JSONL (BEIR), TSV, TREC topics or irds:NAME")
    parser.add_argument("qrels", metavar="QRELS", help="judgments: TREC or BEIR, or irds:NAME")
    parser.add_argument(
        "-p",
        "--pipeline",
        metavar="P",
        required=True,
        help="the stages, with names in braces for what varies: 'bm25 %% {k0} >> mono >> duo(k={k1})'; "
        "with --run, 'given %% {k0} >> ...'",
    )
    parser.add_argument(
        "--grid",
        metavar="NAME=VALUES",
        action="append",
        required=True,
        help="what to try: k0=10,50,100 or k1=0:20:5 (first, last and step); once for each name. "
        "%% 0 and duo(k=0) leave out the stages that get no candidates",
    )
    parser.add_argument(
        "-m", "--measure", default="nDCG@10", metavar="NAME", help="the measure of effectiveness (nDCG@10)"
    )
    parser.add_argument(
        "--budget",
        metavar="B",
        help="budget per query: 50ms or 1.5s (for 95 queries in 100) or 500inf (mean inferences)",
    )
    parser.add_argument(
        "--search",
        choices=get_args(Search),
        default="grid",
        help="grid: every setting on every query; halving: drop those that are clearly worse on the first "
        "queries, and try the others on twice as many (grid)",
    )
    parser.add_argument(
        "--first",
        type=at_least_one,
        metavar="N",
        help="queries of halving's first round (an eighth, 8 or more)",
    )
    parser.add_argument(
        "--timed", type=int, default=TIMED, metavar="N", help=f"how many queries are timed, or 0 ({TIMED})"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the order of queries and of the bootstrap (0)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the report (.html), or everything as .json"
    )
    parser.add_argument(
        "--plots", metavar="DIR", type=Path, help="write each plot to this folder, as an SVG file"
    )
    parser.add_argument(
        "--lines", metavar="NAME", help="the parameter with a line per value in the plots (the last)"
    )
    given_arguments(parser)
    parser.add_argument(
        "--field",
        choices=get_args(TopicField),
        default="title",
        help="the part of a TREC topic that is the query (title)",
    )
    runtime_arguments(parser)
    json_argument(parser)


def main(
    index: Place | None,
    queries: str,
    qrels: str,
    pipeline: str,
    grid: list[str],
    measure: str,
    budget: str | None,
    search: Search,
    first: int | None,
    timed: int,
    seed: int,
    output: Path | None,
    plots: Path | None,
    lines: str | None,
    run: str | None,
    corpus: list[str] | None,
    format: CorpusFormat | None,
    field: TopicField,
    device: Device,
    precision: Precision,
    workers: int | None,
    cache: Path | None,
    json: bool,
) -> None:
    """Measure the effectiveness and cost of a pipeline's settings, and choose one."""
    parse_measures([measure])
    values = parse_grid(grid)
    check_holes(pipeline, values)
    limit = None if budget is None else Budget.parse(budget)
    check_given(index, run, corpus, [queries, qrels])
    reads = (queries, qrels, index, run, *(corpus or []), *named_in(pipeline, values))
    for written in (output, plots):
        check_output(written, *reads)
    check_cache(cache, *reads)
    _check(output, timed)
    if lines is not None and lines not in values:
        raise InputError(f"the grid has no parameter {lines}", remedy=f"use {', '.join(values)}")
    wanted = read_queries(queries, field=field)
    judgments = read_qrels(qrels)
    runtime = Runtime(device, precision, workers, cache)
    if run is None:
        assert index is not None
        tried = candidates(pipeline, values, Index.open(index), runtime=runtime)
    else:
        for setting in settings(values):
            check_reranks(expression_of(pipeline, setting))
        first_stage = given_run(run, corpus or [], format, wanted)
        tried = candidates(pipeline, values, first=first_stage, runtime=runtime)
    found = trade_off(
        tried,
        wanted,
        judgments,
        measure,
        search=search,
        budget=limit,
        timed=timed,
        first=first,
        seed=seed,
        watch=_watch,
    )
    about = {
        "pipeline": pipeline,
        "index": None if index is None else str(index),
        "run": run,
        "corpus": corpus,
        "query_file": queries,
        "qrels": qrels,
        "search": search,
        "seed": seed,
        **found.as_json(),
    }
    _write(found, about, pipeline, output, plots, lines)
    if found.left_out:
        left_out = counted(len(found.left_out), "judged query is", "judged queries are")
        warn(f"{left_out} not given: {some(found.left_out)}")
    if json:
        print_json(about)
    else:
        _print(found)


def _check(output: Path | None, timed: int) -> None:
    if output is not None and (output.is_dir() or output.suffix not in (".html", ".json")):
        raise InputError(
            f"{output} is not a valid name for a report", remedy="use one that ends in .html or .json"
        )
    if timed < 0:
        raise InputError(f"cannot time {timed} queries", remedy="use 0 or more")


def _watch(what: str, of: str, number: int) -> AbstractContextManager[Callable[[int], object]]:
    return progress(what, of, number)


def _write(
    found: Tradeoff,
    about: dict[str, object],
    pipeline: str,
    output: Path | None,
    folder: Path | None,
    lines: str | None,
) -> None:
    import json

    if output is not None:
        command = shlex.join(["tamis", *sys.argv[1:]])
        page = html(found, pipeline=pipeline, command=command, lines=lines)
        with atomic_write(output, "w") as stream:
            stream.write(
                page if output.suffix == ".html" else json.dumps(about, indent=2, ensure_ascii=False) + "\n"
            )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in plots(found, lines).items():
            with atomic_write(folder / f"{name}.svg", "w") as stream:
                stream.write(picture)


def _print(found: Tradeoff) -> None:
    print_table(stdout(), _table(found, frontier(found.points, found.kind)))
    for sentence in filter(None, [frontier_said(found, found.kind), *summary(found)]):
        stdout().print(printable(sentence))
    if found.alone:
        stdout().print(printable(method(found)[0]), style="dim")


def _table(found: Tradeoff, numbers: Sequence[int]) -> Table:
    """The settings that are worth their cost."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in found.names:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    times = ("p50, ms", "p95, ms") if found.timing else ()
    for name in (found.measure, "inferences", *times, "best in"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    share = found.choice.share if found.choice else {}
    for number in numbers:
        point = found.points[number]
        row = [printable(cell) for cell in cells(point.setting, found.names)]
        row += [f"{point.value:.4f}", f"{point.inferences:,.0f}"]
        if found.timing:
            row += list(map(milliseconds, point.latency)) if point.latency else ["–", "–"]
        row.append(f"{share[number]:.1%}" if number in share else "–")
        chosen = found.choice is not None and number == found.choice.number
        table.add_row(*map(Text, row), style="bold" if chosen else None)
    return table
