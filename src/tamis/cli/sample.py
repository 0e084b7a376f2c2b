"""tamis sample: fewer judgments, deep or shallow."""

from __future__ import annotations

import sys
from pathlib import Path

from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser, check_standard_input
from tamis.cli.console import counted
from tamis.cli.outputs import check_output
from tamis.evaluate.sampling import sample_judgments
from tamis.formats import read_qrels, read_queries, write_qrels


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = """Both keep the same number of judgments, a share R of all: --deep keeps all judgments of
        a few random queries, --shallow a few random judgments of every query. Train and validate with the
        sample and test with all judgments: --only names the queries to sample."""
    parser.add_argument("qrels", metavar="QRELS", help="judgments: TREC or BEIR, or irds:NAME")
    scheme = parser.add_mutually_exclusive_group(required=True)
    scheme.add_argument(
        "--deep", type=float, metavar="R", help="share of the judgments to keep, by queries: 0.1"
    )
    scheme.add_argument(
        "--shallow", type=float, metavar="R", help="share of the judgments to keep, of every query"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice (0)")
    parser.add_argument(
        "--only",
        metavar="Q",
        help="sample the judgments of these queries, and keep all of the others: JSONL (BEIR), TSV, "
        "TREC topics or irds:NAME",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="TREC judgments")


def main(
    qrels: str, deep: float | None, shallow: float | None, seed: int, only: str | None, output: Path
) -> None:
    """Sample a share of relevance judgments: all of a few queries, or a few of all queries."""
    check_standard_input(qrels, only)
    check_output(output, qrels, only)
    if output.is_dir():
        raise InputError(f"{output} is a folder", remedy="give the name of a file")
    judgments = read_qrels(qrels)
    if not judgments:
        raise InputError("contains no judgments", remedy="check the file", path=qrels)
    wanted = None if only is None else {query.id for query in read_queries(only)}
    if wanted is not None and not wanted & judgments.keys():
        raise InputError("none of its queries is judged", remedy="check that the query ids match", path=only)
    rate = deep if deep is not None else shallow
    assert rate is not None
    kept = sample_judgments(
        judgments, rate, "deep" if deep is not None else "shallow", seed=seed, only=wanted
    )
    if not kept:
        raise InputError(f"a rate of {rate} keeps no judgment", remedy="use a larger one")
    write_qrels(output, kept)
    if output.is_file():  # not a pipe
        number, of = (sum(map(len, each.values())) for each in (kept, judgments))
        queries = counted(len(kept), "query", "queries")
        sys.stdout.write(f"{output}: {number:,} of {of:,} judgments, {queries} of {len(judgments):,}\n")
