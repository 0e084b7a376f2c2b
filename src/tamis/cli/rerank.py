"""tamis rerank: the candidates of a run, in a better order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from tamis.base.errors import ExpressionError, InputError, some
from tamis.cli.arguments import ArgumentParser, at_least_one, check_standard_input
from tamis.cli.console import counted, doing, prepare_kernel
from tamis.cli.dry_run import dry_run as print_plan
from tamis.cli.job import cluster_for, finish, job_arguments, journal_of, ranked
from tamis.cli.outputs import check_cache, check_run_output, named_in
from tamis.core.language import Node, parse
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking, Run
from tamis.core.registry import build, searches
from tamis.core.runtime import Device, Precision, Runtime
from tamis.formats import CorpusFormat, LeftOut, TopicField, read_candidates, read_corpus, read_queries
from tamis.formats.lines import check_column, check_columns
from tamis.index.index import Index, index_of
from tamis.rank.given_run import Corpus, Documents, GivenRun

_MANY = 50_000  # ids, which are looked up faster by compiled code than its loading takes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run: TREC's six columns, or MS MARCO's three; or candidates with "
        "their texts, MS MARCO's `qid pid query passage`, without --corpus and --queries",
    )
    parser.add_argument(
        "--corpus",
        metavar="C",
        nargs="+",
        help="the texts of the run: an index, or files and folders as `tamis index` takes them",
    )
    parser.add_argument(
        "--format", choices=get_args(CorpusFormat), help="format of the corpus, if its suffix does not say"
    )
    parser.add_argument("--queries", metavar="Q", help="JSONL (BEIR), TSV, TREC topics or irds:NAME")
    parser.add_argument(
        "-p",
        "--pipeline",
        default="mono",
        metavar="P",
        help="the stages after the first, such as 'mono %% 50 >> duo' (mono)",
    )
    parser.add_argument("-k", type=at_least_one, metavar="N", help="how many results per query (all)")
    job_arguments(parser)


def main(
    run: str,
    corpus: list[str] | None,
    format: CorpusFormat | None,
    queries: str | None,
    pipeline: str,
    k: int | None,
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
    """Rerank the candidates of a run, of any system, and write a TREC run without ties.

    A file of candidates with their texts (MS MARCO's top1000 files) needs no corpus and no queries.
    After a kill, the same command with --resume continues the run.
    """
    check_column(tag, "tag")
    cluster = cluster_for(on, workers, dry_run)
    check_standard_input(run, *(corpus or []), queries)
    reads = (run, *(corpus or []), queries, *named_in(pipeline))
    check_run_output(output, *reads)
    check_cache(cache, *reads)
    check_reranks(parse(pipeline))
    # a dry run writes nothing, not even scores
    runtime = Runtime(device, precision, workers, None if dry_run else cache, ModelPool())
    stage = build(pipeline, runtime=runtime)
    if k is not None:
        stage = stage % k
    journal = None if dry_run else journal_of(output, resume)
    if corpus is None or queries is None:
        _check_neither(run, corpus, queries, format, field)
        first = _with_texts(run)
    else:
        first = _without_texts(run, corpus, format, queries, field)
    waiting = [ranking.query for ranking in first.given.values()]
    if dry_run:
        print_plan(stage, list(map(len, first.given.values())), waiting, first, json=json)
        return
    for ranking in first.given.values():
        check_columns(ranking.ids, "document id")
    whole = first >> stage
    result = ranked(whole, waiting, journal, "Reranking", cluster)
    about = {
        "reranked": run,
        "corpus": corpus or [run],
        "corpus_fingerprint": first.texts.fingerprint,
        "query_file": queries or run,
        "field": field,
    }
    finish(result, whole, output, about, tag=tag, journal=journal, json=json)


def _without_texts(
    run: str, corpus: Sequence[str], format: CorpusFormat | None, queries: str, field: TopicField
) -> GivenRun:
    """The candidates of a run, with texts from a corpus."""
    known = read_queries(queries, field=field)
    given = Run.read(run, queries=known)
    if not given:
        raise InputError("contains no results", remedy="check the file and its format", path=run)
    _check_queries(given, {query.id for query in known}, queries)
    return GivenRun(given, texts_of_run(given, corpus, format))


def _with_texts(path: str) -> GivenRun:
    """Candidates that come with their texts. They have no scores, and no order that a stage could use."""
    with doing("Reading the candidates"):
        found = read_candidates(path)
    if not found.ids:
        raise InputError("contains no candidates", remedy="check the file and its format", path=path)
    rankings = (Ranking(found.queries[qid], ids, np.zeros(len(ids))) for qid, ids in found.ids.items())
    return GivenRun(Run(rankings), Documents(found.documents.values(), only=found.documents))


def _check_neither(
    run: str,
    corpus: Sequence[str] | None,
    queries: str | None,
    format: CorpusFormat | None,
    field: TopicField,
) -> None:
    """Candidates with their texts need no corpus: refuse options that name one."""
    if corpus is not None or queries is not None:
        missing = "--corpus" if corpus is None else "--queries"
        raise InputError(
            f"the following arguments are required: {missing}",
            remedy="give both, or for candidates with their texts neither",
        )
    if format is not None:
        raise InputError("--format applies to a corpus, and there is none", remedy="leave it out")
    if field != "title":
        raise InputError(f"the queries have no {field}", remedy="leave --field out", path=run)


def check_reranks(node: Node) -> None:
    """The run is the first stage: refuse a search, which would replace its candidates."""
    for name in searches(node):
        raise ExpressionError(
            f"{name} searches, but the candidates come from the run",
            remedy="leave it out, or use `tamis run` with an index",
        )


def _check_queries(run: Run, known: Collection[str], queries: str) -> None:
    unknown = [qid for qid in run if qid not in known]
    if unknown:
        raise InputError(
            f"{queries} has no text for {_of(unknown, len(run), 'query', 'queries')} of the run",
            remedy="give the queries that the run was made with",
        )


def texts_of_run(run: Run, corpus: Sequence[str], format: CorpusFormat | None) -> Corpus:
    """The index, or in memory those documents of the corpus that are in the run."""
    wanted = list(dict.fromkeys(doc_id for ranking in run.values() for doc_id in ranking.ids))
    left_out = LeftOut()  # a damaged file that is no candidate does not matter
    texts: Index | Documents
    if (index := index_of(corpus)) is not None:
        texts = index
        if len(wanted) > _MANY:
            prepare_kernel()
        unknown = texts.missing(wanted)
    else:
        documents = read_corpus(*corpus, format=format, left_out=left_out)
        with doing("Reading the corpus"):
            texts = Documents(documents, only=wanted)
        unknown = [doc_id for doc_id in wanted if doc_id not in texts]
    if unknown:
        problem = f"{' '.join(corpus)} has no text for {_of(unknown, len(wanted), 'document')} of the run"
        if bad := left_out.bad.examples:
            count = counted(left_out.bad.files, "file")
            problem += f"; {count} of the corpus cannot be read, such as {bad[0]}"
        raise InputError(problem, remedy="give the corpus that the run was made from")
    return texts


def _of(ids: Sequence[str], all_of_them: int, noun: str, nouns: str = "") -> str:
    """
    >>> _of(["d1", "d2"], 1000, "document")
    '2 of the 1,000 documents (d1, d2)'
    """
    return f"{len(ids):,} of the {counted(all_of_them, noun, nouns)} ({some(ids)})"
