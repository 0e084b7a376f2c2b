"""tamis run: many queries into a TREC run."""

from __future__ import annotations

import json as json_lines
import sys
from pathlib import Path
from typing import get_args

from tamis.cli.arguments import ArgumentParser, at_least_one, json_argument, pipeline_argument
from tamis.cli.console import counted, doing, duration, print_json, progress, warn
from tamis.errors import InputError
from tamis.files import atomic_write
from tamis.formats import TopicField, read_queries
from tamis.retrieve.index import Index


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="IDX", type=Path, help="an index, made by `tamis index`")
    parser.add_argument(
        "queries", metavar="QUERIES", help="JSONL (BEIR), TSV or TREC topics; - is the standard input"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="RUN",
        type=Path,
        required=True,
        help="the TREC run; RUN.json beside it says how it was made",
    )
    pipeline_argument(parser)
    parser.add_argument(
        "-k", type=at_least_one, default=1000, metavar="N", help="how many results a query (1000)"
    )
    parser.add_argument(
        "--field",
        choices=get_args(TopicField),
        default="title",
        help="the part of a TREC topic that is the query (title)",
    )
    parser.add_argument("--tag", default="tamis", help="the run's name, in its last column (tamis)")
    json_argument(parser)


def main(
    index: Path, queries: str, output: Path, pipeline: str, k: int, field: TopicField, tag: str, json: bool
) -> None:
    """Rank an index's documents for many queries and write a TREC run without ties."""
    wanted = read_queries(queries, field=field)
    if not wanted:
        raise InputError("no query in it", remedy="check the file and its format", path=queries)
    opened = Index.open(index)
    stage = opened.pipeline(pipeline) % k
    with doing("Preparing the pipeline"):
        stage.prepare()
    with progress("Searching", "queries", len(wanted)) as advance:
        result = stage.run(wanted, progress=advance)
    result.write(output, tag=tag)
    silent = [qid for qid, ranking in result.items() if not ranking]
    manifest = {
        **result.manifest,
        "index": str(index),
        "index_commit": opened.fingerprint,
        "query_file": queries,
        "field": field,
        "tag": tag,
        "results": sum(map(len, result.values())),
        "queries_without_results": len(silent),
    }
    if output.is_file():  # not a pipe
        with atomic_write(output.with_name(f"{output.name}.json"), "w") as stream:
            stream.write(json_lines.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    if json:
        print_json({"run": str(output), **manifest})
    elif output.is_file():
        seconds = result.manifest["seconds"]
        what = f"{counted(len(result), 'query', 'queries')}, {counted(manifest['results'], 'result')}"
        sys.stdout.write(
            f"{output}: {what} in {duration(seconds)} ({duration(seconds / len(result))} a query)\n"
        )
    if silent:
        some = ", ".join(silent[:5]) + (", ..." if len(silent) > 5 else "")
        warn(f"{counted(len(silent), 'query', 'queries')} found nothing: {some}")
