"""tamis compare: runs against baselines, and whether their differences are significant."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser, check_standard_input, json_argument
from tamis.cli.console import PLAIN_WIDTH, doing, note, print_table, stdout
from tamis.cli.eval import relevant_judgments
from tamis.cli.outputs import check_output
from tamis.core.ranking import Run
from tamis.evaluate.compare import Comparison, Family, compare
from tamis.evaluate.measures import DEFAULT_MEASURES
from tamis.evaluate.plot import difference_plot
from tamis.evaluate.significance import Correction, IntervalMethod, Test
from tamis.evaluate.tables import Format, terminal, written
from tamis.storage.files import COMPRESSED_SUFFIXES, atomic_write

if TYPE_CHECKING:
    from rich.console import Console

_SUFFIXES = (".txt", ".run", ".trec", ".tsv")  # that say nothing: the room is wanted for numbers


def add_arguments(parser: ArgumentParser) -> None:
    defaults = " ".join(DEFAULT_MEASURES)
    parser.add_argument("qrels", metavar="QRELS", help="judgments: TREC or BEIR, or irds:NAME")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="TREC or MS MARCO runs")
    parser.add_argument(
        "--baseline",
        dest="baselines",
        action="append",
        metavar="RUN",
        help="a run that the others are tested against; may be repeated (the first run)",
    )
    parser.add_argument(
        "-m",
        "--measure",
        dest="measures",
        action="append",
        metavar="NAME",
        help=f"such as nDCG@20 or AP(rel=2), or trec_eval's ndcg_cut_20; may be repeated ({defaults})",
    )
    parser.add_argument(
        "--test", choices=get_args(Test), default="t", help="paired t-test or randomisation test (t)"
    )
    parser.add_argument(
        "--correction",
        choices=get_args(Correction),
        default="holm",
        help="correction for multiple tests (holm)",
    )
    parser.add_argument(
        "--family",
        type=_family,
        default="all",
        metavar="all|measure|N",
        help="tests that the correction covers: all, those of each measure, or N, of which some were made "
        "elsewhere (all)",
    )
    parser.add_argument(
        "--alpha", type=float, default=0.05, metavar="A", help="significance level for the corrected p (0.05)"
    )
    parser.add_argument(
        "--interval", choices=get_args(IntervalMethod), default="bca", help="kind of bootstrap interval (bca)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of randomisation and bootstrap (0)"
    )
    parser.add_argument(
        "--format", choices=get_args(Format), default="table", help="format of the result (table)"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="plot the difference per query to this file"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result to this file")
    json_argument(parser)


def main(
    qrels: str,
    runs: list[str],
    baselines: list[str] | None,
    measures: list[str] | None,
    test: Test,
    correction: Correction,
    family: Family,
    alpha: float,
    interval: IntervalMethod,
    seed: int,
    format: Format,
    plot: Path | None,
    output: Path | None,
    json: bool,
) -> None:
    """Test the differences between runs for significance."""
    # ./bm25.run is bm25.run: a run against itself would be one more test to correct for
    files = {os.path.realpath(path): path for path in reversed([*runs, *(baselines or [])])}
    first, others = ([files[os.path.realpath(p)] for p in each] for each in (baselines or [], runs))
    paths = list(dict.fromkeys([*(path for path in first if path not in others), *others]))
    check_standard_input(qrels, *paths)
    for written_to in (output, plot):
        check_output(written_to, qrels, *paths)
    if plot is not None and plot.suffix != ".svg":
        raise InputError(
            f"plots are SVG files, and {plot} has another suffix", remedy="use a name that ends in .svg"
        )
    judgments = relevant_judgments(qrels)
    names = _names(paths)
    with doing("Comparing"):
        comparison = compare(
            judgments,
            {name: Run.read(path) for path, name in names.items()},
            measures or DEFAULT_MEASURES,
            baselines=[names[path] for path in first],
            test=test,
            correction=correction,
            alpha=alpha,
            family=family,
            interval=interval,
            seed=seed,
        )
    _write(comparison, "json" if json else format, output)
    if plot is not None:
        with atomic_write(plot, "w") as stream:
            stream.write(difference_plot(comparison))
        note(f"plotted the difference per query in {plot}")


def _write(comparison: Comparison, format: Format, output: Path | None) -> None:
    if format != "table":
        made = written(comparison, format)
        if output is None:
            sys.stdout.write(made)
        else:
            with atomic_write(output, "w") as stream:
                stream.write(made)
    elif output is None:
        _print(stdout(), comparison)
    else:
        from rich.console import Console

        with atomic_write(output, "w") as stream:
            _print(Console(file=stream, width=PLAIN_WIDTH, markup=False, highlight=False), comparison)


def _print(console: Console, comparison: Comparison) -> None:
    from rich.table import Table

    for part in terminal(comparison, unicode=console.encoding.startswith("utf")):
        if isinstance(part, Table):
            print_table(console, part)
        else:
            console.print(part)


def _names(paths: list[str]) -> dict[str, str]:
    """Short names for the runs, where they differ.

    >>> _names(["a/bm25.txt", "a/mono.run.gz"]), _names(["a/bm25.txt", "b/bm25.txt"])
    ({'a/bm25.txt': 'bm25', 'a/mono.run.gz': 'mono'}, {'a/bm25.txt': 'a/bm25.txt', 'b/bm25.txt': ...})
    """
    names = list(map(_short, paths))
    return dict(zip(paths, names if len(set(names)) == len(names) else paths, strict=True))


def _short(path: str) -> str:
    name = Path(path).name
    for suffix in (*COMPRESSED_SUFFIXES, *_SUFFIXES):
        name = name.removesuffix(suffix) or name
    return name


def _family(text: str) -> Family:
    """
    >>> _family("measure"), _family("12")
    ('measure', 12)
    """
    if text == "all":
        return "all"
    if text == "measure":
        return "measure"
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not all, measure or a number of tests")
