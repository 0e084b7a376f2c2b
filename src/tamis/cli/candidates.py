"""Candidates from an index or from a run: what `tune` and `tradeoff` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser, check_standard_input
from tamis.cli.console import counted, warn
from tamis.cli.rerank import texts_of_run
from tamis.core.ranking import Ranking, Run, ScoreKind
from tamis.formats import CorpusFormat
from tamis.index.place import Place
from tamis.rank.given_run import GivenRun


def given_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("candidates from a run")
    group.add_argument("--run", metavar="RUN", help="a run: TREC's six columns, or MS MARCO's three")
    group.add_argument(
        "--corpus",
        metavar="C",
        nargs="+",
        help="its texts: an index, or files and folders as `tamis index` takes them",
    )
    group.add_argument(
        "--format", choices=get_args(CorpusFormat), help="format of the corpus, if its suffix does not say"
    )


def check_given(
    index: Place | None,
    run: str | None,
    corpus: Sequence[str] | None,
    inputs: Sequence[str],
) -> None:
    """Raise unless there is exactly one source of candidates."""
    if (index is None) == (run is None):
        raise InputError(
            "no candidates" if index is None else "both an index and a run",
            remedy="give either an index or a run with its corpus: IDX, or --run RUN --corpus C",
        )
    if (run is None) != (corpus is None):
        raise InputError("a run without its corpus" if run else "a corpus without a run", remedy="give both")
    check_standard_input(*inputs, run, *(corpus or []))


def given_run(
    path: str, corpus: Sequence[str], format: CorpusFormat | None, queries: Sequence[Query]
) -> GivenRun:
    """The stage that looks up candidates in a run."""
    given = Run.read(path, queries=queries)
    if not given:
        raise InputError("contains no results", remedy="check the file and its format", path=path)
    # a query without candidates gets an empty ranking, which counts as zero, as in `tamis eval`
    empty = [Ranking(query, kind=ScoreKind.RETRIEVAL) for query in queries if query.id not in given]
    if queries and len(empty) == len(queries):
        problem = "no query id of the run occurs in the queries"
        raise InputError(problem, remedy="check that the query ids match", path=path)
    texts = texts_of_run(given, corpus, format)
    if empty:
        warn(f"the run has no candidates for {counted(len(empty), 'query', 'queries')}, which count as zero")
    return GivenRun(Run([*given.values(), *empty]), texts)
