"""tamis tune: a pipeline's parameters, chosen by cross-validation."""

from __future__ import annotations

import json as json_lines
import sys
from collections.abc import Sequence
from pathlib import Path

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
from tamis.cli.job import run_arguments
from tamis.cli.outputs import check_cache, check_output, check_run_output, named_in
from tamis.cli.rerank import check_reranks
from tamis.core.language import parse
from tamis.core.runtime import Device, Precision, Runtime
from tamis.evaluate.folds import Fold, make_folds, read_folds, write_folds
from tamis.evaluate.grid import check_holes, fill, parse_grid, pipelines_of, settings, spelled
from tamis.evaluate.measures import parse_measures
from tamis.evaluate.tune import CrossValidation, cross_validate
from tamis.formats import CorpusFormat, Qrels, TopicField, read_qrels, read_queries
from tamis.formats.lines import check_column, check_columns
from tamis.index.index import Index
from tamis.index.place import Place
from tamis.storage.files import atomic_write


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = """Each fold ranks its test queries with the setting that is best on its training queries
        (ties: the first in the order of the grid, where the last parameter changes fastest); the test folds
        together are the run. Stages that several settings share at the beginning, and those inside
        interpolate and fuse, run once, and birch reads its sentences once for all its settings; with --cache
        the scores of a model survive an interruption."""
    index_argument(parser, "; or use --run and --corpus", optional=True)
    parser.add_argument("queries", metavar="QUERIES", help="JSONL (BEIR), TSV, TREC topics or irds:NAME")
    parser.add_argument("qrels", metavar="QRELS", help="judgments: TREC or BEIR, or irds:NAME")
    parser.add_argument(
        "-p",
        "--pipeline",
        metavar="P",
        required=True,
        help="the stages, with names in braces for what is tuned: 'bm25(k1={k1}, b={b}) %% 1000'; "
        "with --run, 'given %% 100 >> ...'",
    )
    parser.add_argument(
        "--grid",
        metavar="NAME=VALUES",
        action="append",
        required=True,
        help="what to try: k1=0.4,0.9,1.2 or b=0.2:0.8:0.2 (first, last and step); once for each name",
    )
    folds = parser.add_mutually_exclusive_group()
    folds.add_argument(
        "--folds", type=at_least_one, default=5, metavar="N", help="how many folds to make (5)"
    )
    folds.add_argument(
        "--fold-file",
        nargs="+",
        metavar="F",
        help="the folds: JSON as in Anserini or Capreolus, lines of query and fold, or one file per fold",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the folds that are made (0)"
    )
    parser.add_argument(
        "--save-folds", type=Path, metavar="F", help="write the folds that are made to this file"
    )
    parser.add_argument("-m", "--measure", default="AP", metavar="NAME", help="the measure to maximise (AP)")
    parser.add_argument(
        "-k", type=at_least_one, default=1000, metavar="N", help="how many results per query (1000)"
    )
    run_arguments(parser, "the TREC run of the test folds")
    given_arguments(parser)
    runtime_arguments(parser)
    json_argument(parser)


def main(
    index: Place | None,
    queries: str,
    qrels: str,
    pipeline: str,
    grid: list[str],
    folds: int,
    fold_file: list[str] | None,
    seed: int,
    save_folds: Path | None,
    measure: str,
    k: int,
    output: Path,
    field: TopicField,
    tag: str,
    run: str | None,
    corpus: list[str] | None,
    format: CorpusFormat | None,
    device: Device,
    precision: Precision,
    workers: int | None,
    cache: Path | None,
    json: bool,
) -> None:
    """Choose a pipeline's parameters by cross-validation, and write the run of the test folds."""
    check_column(tag, "tag")
    parse_measures([measure])
    values = parse_grid(grid)
    check_holes(pipeline, values)
    inputs = [queries, qrels, *(fold_file or [])]
    check_given(index, run, corpus, inputs)
    reads = (*inputs, index, run, *(corpus or []), *named_in(pipeline, values))
    check_run_output(output, *reads)
    check_output(save_folds, *reads)
    check_cache(cache, *reads)
    if output.is_dir():
        raise InputError(f"{output} is a folder", remedy="give the name of a file")
    wanted = read_queries(queries, field=field)
    judgments = read_qrels(qrels)
    if not wanted:
        raise InputError("contains no queries", remedy="check the file and its format", path=queries)
    check_columns((query.id for query in wanted), "query id")
    chosen = _folds(judgments, [query.id for query in wanted], folds, fold_file, seed)
    if save_folds is not None:
        write_folds(save_folds, chosen)
    runtime = Runtime(device, precision, workers, cache)
    whole = f"({pipeline}) % {k}"
    if run is None:
        assert index is not None
        made = pipelines_of(whole, Index.open(index), runtime)
    else:
        for setting in settings(values):
            check_reranks(parse(fill(whole, setting)))
        made = pipelines_of(whole, runtime=runtime, first=given_run(run, corpus or [], format, wanted))
    with progress("Tuning", "settings", len(settings(values))) as advance:
        result = cross_validate(made, values, wanted, judgments, chosen, measure, progress=advance)
    result.run.write(output, tag=tag)
    about = {
        **result.run.manifest,
        "template": pipeline,
        "index": None if index is None else str(index),
        "reranked": run,
        "corpus": corpus,
        "query_file": queries,
        "field": field,
        "qrels": qrels,
        "fold_file": fold_file,
        "seed": None if fold_file else seed,
        "tag": tag,
        "cross_validation": result.as_json(),
    }
    if output.is_file():  # not a pipe
        with atomic_write(output.with_name(f"{output.name}.json"), "w") as stream:
            stream.write(json_lines.dumps(about, indent=2, ensure_ascii=False) + "\n")
    if result.left_out:
        left_out = counted(len(result.left_out), "query is", "queries are")
        warn(f"{left_out} in no test fold: {some(result.left_out)}")
    asked = {query.id for query in wanted}
    unknown = [qid for qid in _ids_of(chosen) if qid not in asked]
    if unknown:
        left_out = counted(len(unknown), "query of the folds is", "queries of the folds are")
        warn(f"{left_out} not in {queries}, and left out: {some(unknown)}")
    if json:
        print_json({"run": str(output), **about})
    elif output.is_file():
        _print(result, output)


def _folds(
    judgments: Qrels, queries: Sequence[str], number: int, files: Sequence[str] | None, seed: int
) -> list[Fold]:
    if files:
        return read_folds(*files)
    return make_folds(judgments, number, seed=seed, queries=queries)


def _ids_of(folds: Sequence[Fold]) -> list[str]:
    """The queries that folds name, each once."""
    return list(dict.fromkeys(qid for fold in folds for qid in (*fold.test, *fold.seen)))


def _print(result: CrossValidation, output: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    names = list(result.choices[0].setting)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("fold", justify="right", footer="all")
    for name in names:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    table.add_column(f"{result.measure} in training", justify="right", no_wrap=True)
    table.add_column("in the test", justify="right", no_wrap=True, footer=f"{result.mean:.4f}")
    table.add_column("queries", justify="right", no_wrap=True, footer=str(len(result.per_query)))
    for number, choice in enumerate(result.choices, start=1):
        values = [Text(printable(spelled(choice.setting[name]))) for name in names]
        table.add_row(str(number), *values, f"{choice.train:.4f}", f"{choice.test:.4f}", str(choice.queries))
    print_table(stdout(), table)
    what = f"{counted(len(result.run), 'query', 'queries')} of {counted(len(result.choices), 'test fold')}"
    sys.stdout.write(f"{output}: {what}, {counted(len(result.tried), 'setting')} tried\n")
