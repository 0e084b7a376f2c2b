"""tamis moved: the documents whose rank differs most between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import get_args

import numpy as np

from tamis.base.documents import Query
from tamis.cli.arguments import ArgumentParser, at_least_one, check_standard_input, json_argument
from tamis.cli.console import note, print_json, printable, stdout
from tamis.cli.rerank import texts_of_run
from tamis.cli.snippet import snippet
from tamis.core.ranking import Ranking, Run, Texts
from tamis.evaluate.moved import Direction, Move, moved
from tamis.formats import CorpusFormat, TopicField, read_qrels, read_queries
from tamis.index.index import Index
from tamis.text.analyze import get_analyzer

_INDENT = 4
_LINES = 2  # of a text


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = """Ranks follow the order of the runs. A document that only one of the runs has for a
        query is not listed."""
    parser.add_argument("before", metavar="BEFORE", help="a run: TREC's six columns, or MS MARCO's three")
    parser.add_argument("after", metavar="AFTER", help="another run of the same queries")
    parser.add_argument(
        "-n", type=at_least_one, default=10, metavar="N", help="how many documents, over all queries (10)"
    )
    parser.add_argument(
        "--direction",
        choices=get_args(Direction),
        default="both",
        help="only documents that moved this way (both)",
    )
    parser.add_argument("--qrels", metavar="QRELS", help="show the grades: TREC or BEIR, or irds:NAME")
    parser.add_argument("--rel", type=int, metavar="G", help="only documents of at least this grade")
    parser.add_argument(
        "--queries", metavar="Q", help="show the queries: JSONL (BEIR), TSV, TREC topics or irds:NAME"
    )
    parser.add_argument(
        "--field",
        choices=get_args(TopicField),
        default="title",
        help="the part of a TREC topic that is the query (title)",
    )
    parser.add_argument(
        "--corpus",
        metavar="C",
        nargs="+",
        help="show the texts: an index, or files and folders as `tamis index` takes them",
    )
    parser.add_argument(
        "--format", choices=get_args(CorpusFormat), help="format of the corpus, if its suffix does not say"
    )
    json_argument(parser)


def main(
    before: str,
    after: str,
    n: int,
    direction: Direction,
    qrels: str | None,
    rel: int | None,
    queries: str | None,
    field: TopicField,
    corpus: list[str] | None,
    format: CorpusFormat | None,
    json: bool,
) -> None:
    """List the documents whose rank changed most from one run to another."""
    check_standard_input(before, after, qrels, queries, *(corpus or []))
    judgments = None if qrels is None else read_qrels(qrels)
    asked = {} if queries is None else {query.id: query.text for query in read_queries(queries, field=field)}
    found = moved(Run.read(before), Run.read(after), n, qrels=judgments, rel=rel, direction=direction)
    texts = None if corpus is None or not found else texts_of_run(_run(found), corpus, format)
    if json:
        print_json([_as_json(move, asked, texts) for move in found])
    elif found:
        _print(found, asked, texts)
    else:
        chosen = rel is not None or direction != "both"
        note(f"no {'such ' if chosen else ''}document changed its rank")


def _run(moves: Sequence[Move]) -> Run:
    """The documents to show."""
    ids: dict[str, list[str]] = {}
    for move in moves:
        ids.setdefault(move.query, []).append(move.document)
    return Run(Ranking(Query(qid, ""), own, np.zeros(len(own))) for qid, own in ids.items())


def _as_json(move: Move, asked: Mapping[str, str], texts: Texts | None) -> dict[str, object]:
    made: dict[str, object] = {**asdict(move), "change": move.change}
    if move.query in asked:
        made["query_text"] = asked[move.query]
    if texts is not None:
        document = texts.document(move.document)
        made |= {"title": document.title, "text": document.text}
    return made


def _print(moves: Sequence[Move], asked: Mapping[str, str], texts: Texts | None) -> None:
    from rich.text import Text

    console = stdout()
    width = max(len(str(rank)) for move in moves for rank in (move.before, move.after))
    analyzer = texts.analyzer if isinstance(texts, Index) else get_analyzer("english")
    for move in moves:
        heading = Text.assemble(
            (f"{move.before:>{width}} → {move.after:<{width}}  ", "bold"),
            f"{printable(move.query)}  ",
            (printable(move.document), "green"),
        )
        if move.grade is not None:
            heading.append(f"  grade {move.grade}", "cyan")
        query = asked.get(move.query, "")
        shown = []
        if query:
            shown.append(Text(printable(query), style="dim"))
        if texts is not None:
            document = texts.document(move.document)
            if document.title:
                heading.append(f"  {printable(document.title)}", "bold")
            terms = dict.fromkeys(analyzer.tokens(query), 1.0)
            pieces = snippet(document.text, analyzer, terms, _LINES * (console.width - _INDENT - 5))
            shown.append(Text.assemble(*((piece, "bold yellow" if found else "") for piece, found in pieces)))
        console.print(heading, soft_wrap=True)
        for line in (line for text in shown for line in text.wrap(console, console.width - _INDENT)):
            line.rstrip()
            console.print(Text(" " * _INDENT).append_text(line))
        if shown:
            console.print()
