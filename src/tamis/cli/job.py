"""Shared by `run` and `rerank`: many queries, the journal, the run, and its summary."""

from __future__ import annotations

import json as json_lines
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from tamis.base.documents import Query
from tamis.base.errors import InputError, TamisError, some
from tamis.cli.arguments import ArgumentParser, json_argument, runtime_arguments
from tamis.cli.clusters import cluster_of, on_argument
from tamis.cli.console import counted, doing, duration, note, print_json, progress, warn
from tamis.core.cluster import Cluster
from tamis.core.journal import count
from tamis.core.journal import remove as remove_journal
from tamis.core.plan import rerankers, work_done
from tamis.core.ranking import Run
from tamis.core.stage import Stage
from tamis.formats import TopicField
from tamis.formats.lines import check_columns
from tamis.storage.files import atomic_write


def run_arguments(parser: ArgumentParser, what: str = "the TREC run") -> None:
    """The arguments of every verb that writes a run."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="RUN",
        type=Path,
        required=True,
        help=f"{what}; RUN.json beside it says how it was made",
    )
    parser.add_argument(
        "--field",
        choices=get_args(TopicField),
        default="title",
        help="the part of a TREC topic that is the query (title)",
    )
    parser.add_argument("--tag", default="tamis", help="the run's name, in its last column (tamis)")


def job_arguments(parser: ArgumentParser) -> None:
    run_arguments(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume after an interruption: finished rankings are in RUN.journal until RUN is written",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the plan, the number of inferences and the time they would take",
    )
    on_argument(parser, "rerank", "; --workers is then the number of workers")
    runtime_arguments(parser)
    json_argument(parser)


def cluster_for(on: str | None, workers: int | None, dry_run: bool) -> Cluster | None:
    """The cluster that a job asks for."""
    cluster = cluster_of(on, workers)
    if cluster is not None and dry_run:
        raise InputError("--dry-run measures this machine, not a cluster", remedy="leave --on out")
    return cluster


def journal_of(output: Path, resume: bool) -> Path | None:
    """The path of the journal, if the output is a file. A journal may hold hours of work, perhaps of another
    pipeline: it is resumed or refused, and only the user deletes it."""
    if output.is_dir():
        raise InputError(f"{output} is a folder", remedy="give the name of a file")
    if output.exists() and not output.is_file():
        if resume:
            raise InputError(f"{output} is not a file", remedy="leave out --resume: a pipe has no journal")
        return None
    journal = output.with_name(f"{output.name}.journal")
    if not resume and (done := count(journal)):
        raise InputError(
            f"{journal} has {counted(done, 'query', 'queries')} of an unfinished run",
            remedy="add --resume to continue it, or delete it to start again",
        )
    return journal


def ranked(
    stage: Stage,
    queries: Sequence[Query],
    journal: Path | None,
    doing_what: str,
    on: Cluster | None = None,
) -> Run:
    """The run, with progress shown."""
    check_columns((query.id for query in queries), "query id")
    if on is None:
        with doing("Preparing the pipeline"):
            stage.prepare()
    try:
        with progress(doing_what, "queries", len(queries)) as advance:
            return stage.run(queries, progress=advance, journal=journal, on=on)
    except KeyboardInterrupt:
        if journal is not None:
            note(
                f"{journal} keeps the finished rankings: the same command with --resume continues from there"
            )
        raise


def finish(
    result: Run,
    stage: Stage,
    output: Path,
    about: Mapping[str, Any],
    *,
    tag: str,
    journal: Path | None,
    json: bool,
) -> None:
    """Write the run and what there is to know `about` it, and say what was done."""
    try:
        result.write(output, tag=tag)
    except InputError:  # a document id that no run can hold, so that the journal can never become one
        if journal is not None:
            _remove(journal)
        raise
    silent = [qid for qid, ranking in result.items() if not ranking]
    manifest = {
        **result.manifest,
        **about,
        "tag": tag,
        "results": sum(map(len, result.values())),
        "queries_without_results": len(silent),
    }
    if "models" not in manifest and (models := work_done(stage)):
        manifest["models"] = models
    if output.is_file():  # not a pipe
        with atomic_write(output.with_name(f"{output.name}.json"), "w") as stream:
            stream.write(json_lines.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    if journal is not None:
        _remove(journal)
    if json:
        print_json({"run": str(output), **manifest})
    elif output.is_file():
        _say(manifest, stage, output)
    if silent:
        warn(f"{counted(len(silent), 'query', 'queries')} found nothing: {some(silent)}")


def _say(manifest: Mapping[str, Any], stage: Stage, output: Path) -> None:
    seconds, queries = manifest["seconds"], manifest["queries"]
    what = f"{counted(queries, 'query', 'queries')}, {counted(manifest['results'], 'result')}"
    resumed = manifest.get("resumed")
    if resumed:
        what += f", {resumed:,} of the queries before the interruption,"
    sys.stdout.write(f"{output}: {what} in {duration(seconds)} ({duration(seconds / queries)} per query)\n")
    for each, about in zip(rerankers(stage), manifest.get("models", ()), strict=True):
        since = " since the interruption" if resumed else ""
        sys.stdout.write(f"{each!r} ({about['runs_on']}){since}: {each.tally}\n")


def _remove(journal: Path) -> None:
    try:
        remove_journal(journal)
    except TamisError as error:  # the run is written, so this is not a failure
        warn(f"{journal} is no longer needed but was not deleted ({error.problem})")
