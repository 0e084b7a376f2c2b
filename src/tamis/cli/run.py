"""tamis run: many queries into a TREC run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tamis.base.errors import InputError
from tamis.base.where import where as condition
from tamis.cli.arguments import (
    ArgumentParser,
    at_least_one,
    condition_arguments,
    index_argument,
    pipeline_argument,
)
from tamis.cli.console import warn
from tamis.cli.job import cluster_for, finish, job_arguments, journal_of, ranked
from tamis.cli.outputs import check_cache, check_run_output, named_in
from tamis.core.language import parse
from tamis.core.plan import rerankers
from tamis.core.pool import ModelPool
from tamis.core.query_syntax import QuerySyntax, read_query
from tamis.core.registry import check_searches
from tamis.core.runtime import Device, Precision, Runtime
from tamis.formats import TopicField, read_queries
from tamis.formats.lines import check_column, check_columns
from tamis.index.index import Index
from tamis.index.place import Place


def add_arguments(parser: ArgumentParser) -> None:
    index_argument(parser)
    parser.add_argument(
        "queries", metavar="QUERIES", help="JSONL (BEIR), TSV, TREC topics, irds:NAME; - is standard input"
    )
    pipeline_argument(parser)
    parser.add_argument(
        "-k", type=at_least_one, default=1000, metavar="N", help="how many results per query (1000)"
    )
    condition_arguments(parser)
    job_arguments(parser)


def main(
    index: Place,
    queries: str,
    pipeline: str,
    k: int,
    where: str | None,
    query_syntax: QuerySyntax,
    output: Path,
    field: TopicField,
    tag: str,
    resume: bool,
    dry_run: bool,
    on: str | None,
    device: Device,
    precision: Precision,
    workers: int | None,
    cache: Path | None,
    json: bool,
) -> None:
    """Rank an index's documents for many queries and write a TREC run without ties.

    After a kill, the same command with --resume continues the run.
    """
    check_column(tag, "tag")
    cluster = cluster_for(on, workers, dry_run)
    reads = (queries, str(index), *named_in(pipeline))
    check_run_output(output, *reads)
    check_cache(cache, *reads)
    wanted = read_queries(queries, field=field)
    if not wanted:
        raise InputError("contains no queries", remedy="check the file and its format", path=queries)
    given = None if where is None else condition(where)
    wanted = [read_query(replace(query, where=given), query_syntax) for query in wanted]
    check_searches(parse(pipeline))
    journal = None if dry_run else journal_of(output, resume)
    opened = Index.open(index)
    # a dry run writes nothing, not even scores
    runtime = Runtime(device, precision, workers, None if dry_run else cache, ModelPool())
    stage = opened.pipeline(pipeline, runtime) % k
    if dry_run:
        from tamis.cli.dry_run import dry_run as print_plan

        print_plan(stage, [0] * len(wanted), wanted, stage, json=json)
        return
    if rerankers(stage):  # check now: a run file cannot contain every id, and writing it may be hours away
        check_columns(opened.ids(), "document id")
    result = ranked(stage, wanted, journal, "Searching", cluster)
    about = {
        "index": str(index),
        "index_commit": opened.fingerprint,
        "query_file": queries,
        "field": field,
    }
    if given is not None:
        about["where"] = str(given)
    if query_syntax != "plain":
        about["query_syntax"] = query_syntax
    if opened.is_live and opened.refresh():
        warn(f"{index} has changed meanwhile: some queries were searched in other documents than others")
    finish(result, stage, output, about, tag=tag, journal=journal, json=json)
