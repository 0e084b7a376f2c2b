"""tamis search: one query, read by a person."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.base.where import where as condition
from tamis.cli.arguments import (
    ArgumentParser,
    at_least_one,
    condition_arguments,
    index_argument,
    json_argument,
    pipeline_argument,
    runtime_arguments,
)
from tamis.cli.console import counted, doing, duration, note, print_json, printable, stdout
from tamis.cli.metadata import metadata_line
from tamis.cli.outputs import check_cache, named_in
from tamis.cli.snippet import Piece, highlight, snippet
from tamis.core.defaults import INTERACTIVE
from tamis.core.executor import each_stage
from tamis.core.language import parse
from tamis.core.plan import rerankers, work_done
from tamis.core.pool import ModelPool
from tamis.core.query_syntax import QuerySyntax, read_query
from tamis.core.ranking import Ranking, ScoreKind, Span
from tamis.core.registry import check_searches
from tamis.core.runtime import Device, Precision, Runtime
from tamis.core.stage import Stage
from tamis.index.index import Index, TermContribution
from tamis.index.suggest import suggest
from tamis.rank.evidence import whole_sentences
from tamis.text.analyze import Analyzer

if TYPE_CHECKING:
    from rich.console import Console

_INDENT = 4
_LINES = 2  # of a snippet
_PASSAGE_LINES = 4  # of one from a passage that a model chose
_INSTEAD = (
    "maxp(mono, choose=bm25, passages=3) reads the best passages of long texts, and not their beginnings"
)


def add_arguments(parser: ArgumentParser) -> None:
    index_argument(parser)
    parser.add_argument("query", metavar="QUERY", nargs="+", help="the words to look for")
    pipeline_argument(parser, INTERACTIVE)
    parser.add_argument("-k", type=at_least_one, default=10, metavar="N", help="how many results (10)")
    condition_arguments(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show what each term adds to each score, or with a model where each stage put each result",
    )
    runtime_arguments(parser)
    json_argument(parser)


def main(
    index: str | Path,
    query: list[str],
    pipeline: str,
    k: int,
    where: str | None,
    query_syntax: QuerySyntax,
    explain: bool,
    device: Device,
    precision: Precision,
    workers: int | None,
    cache: Path | None,
    json: bool,
) -> None:
    """Search an index for one query."""
    text = " ".join(query).strip()
    if not text:
        raise InputError("the query is empty", remedy="give at least one word")
    check_cache(cache, str(index), *named_in(pipeline))
    asked = read_query(Query("0", text, where=None if where is None else condition(where)), query_syntax)
    opened = Index.open(index)
    check_searches(parse(pipeline))
    stage = opened.pipeline(pipeline, Runtime(device, precision, workers, cache, ModelPool()))
    explanations: dict[str, Explanation] = {}
    if models := rerankers(stage):
        with doing("Loading the models"):
            for model in models:
                model.prepare()
        started = time.perf_counter()
        with doing(f"Ranking by {stage!r}"):
            after = each_stage(stage % k, Ranking(asked))
        ranking, seconds = after[-1][1], time.perf_counter() - started
        if explain:
            explanations = {doc_id: places(after, doc_id) for doc_id in ranking.ids}
    else:
        ranking, seconds = timed(stage % k, asked)
        if explain:
            explanations = explained(each_stage(stage % k, Ranking(asked)))
    if ranking.texts is None:  # of a search that leaves it to us
        ranking = replace(ranking, texts=opened)
    suggestion = suggest(opened, text)
    if json:
        found = _as_json(ranking, repr(stage % k), seconds, explanations)
        found["suggestion"] = suggestion.query if suggestion else None
        print_json(found | ({"models": work_done(stage)} if models else {}))
        return
    print_ranking(stdout(), ranking, opened, explanations)
    kind = "" if ranking.kind is ScoreKind.RETRIEVAL else f"; scores: {ranking.kind}"
    sys.stdout.write(f"{counted(len(ranking), 'result')} in {duration(seconds)} ({stage!r}){kind}\n")
    if not ranking and not opened.weights(asked.text):
        note(f"the query has no terms: the analyzer {opened.analyzer.name!r} drops every word of it")
    elif not ranking and asked.where is not None:
        note(f"no document that satisfies {asked.where} has a word of the query")
    if suggestion:
        unknown = " or ".join(f'"{printable(word)}"' for word in suggestion.unknown)
        note(f'no document has {unknown}; did you mean "{printable(suggestion.query)}"?')
    for each in models:
        cut = each.tally.truncation
        if cut.texts_cut or cut.queries_cut:
            note(f"{each!r}: {cut}")
    if any(each.tally.truncation.texts_cut and each.pointwise for each in models):
        note(_INSTEAD)


def timed(stage: Stage, query: str | Query) -> tuple[Ranking, float]:
    """The ranking of a query and its time; if the compiled kernel was loaded meanwhile, the query runs
    again."""
    while True:
        loaded = "tamis.index.kernel" in sys.modules
        started = time.perf_counter()
        ranking = stage(query)
        seconds = time.perf_counter() - started
        if loaded == ("tamis.index.kernel" in sys.modules):
            return ranking, seconds


class Place(NamedTuple):
    """Where a stage put a document."""

    stage: str
    rank: int
    score: float
    kind: str


Explanation = Sequence[TermContribution] | Sequence[Place]


def places(after: Sequence[tuple[Stage, Ranking]], doc_id: str) -> list[Place]:
    """Where each of those stages that had a document put it."""
    return [
        Place(repr(stage), hit.rank, hit.score, ranking.kind)
        for stage, ranking in after
        for hit in ranking
        if hit.id == doc_id
    ]


def explained(after: Sequence[tuple[Stage, Ranking]]) -> dict[str, Explanation]:
    """What each term adds to the score of each document of the last ranking, or where terms do not say it,
    where each stage put it."""
    stage, ranking = after[-1]
    before = after[-2][1] if len(after) > 1 else Ranking(ranking.query)
    found = {doc_id: stage.explain(before, ranking, doc_id) for doc_id in ranking.ids}
    return {doc_id: places(after, doc_id) if terms is None else terms for doc_id, terms in found.items()}


def print_ranking(
    console: Console, ranking: Ranking, index: Index, explanations: Mapping[str, Explanation]
) -> None:
    """Rank, score, id, title and a snippet of each candidate: of its best passage, where that is known."""
    from rich.text import Text

    words = index.weights(ranking.query.text)
    index.look_up(words)
    terms = {term: math.log(1 + len(index) / (1 + index.df(term))) for term in words}
    width = console.width - _INDENT
    digits = max((len(f"{hit.score:.4f}") for hit in ranking), default=0)
    for hit, document in zip(ranking, ranking.documents(), strict=True):
        heading = Text.assemble(
            (f"{hit.rank:>{_INDENT - 2}}  ", "bold"),
            (f"{hit.score:{digits}.4f}  ", "cyan"),
            (printable(hit.id), "green"),
        )
        if title := printable(document.title):
            heading.append("  ")
            heading.append_text(_text(highlight(title, index.analyzer, terms), "bold"))
        console.print(heading, soft_wrap=True)
        shown = _snippet(document.text, ranking.evidence.get(hit.id, ()), index.analyzer, terms, width)
        body = _text(shown, "")
        for line in body.wrap(console, width) if body else ():
            line.rstrip()
            console.print(Text(" " * _INDENT).append_text(line))
        if known := metadata_line(document.metadata, width):
            console.print(Text(" " * _INDENT + known, "dim"), soft_wrap=True)
        if explanations:
            console.print(_explanation(explanations[hit.id]))
        console.print()


def _snippet(
    text: str, evidence: Sequence[Span], analyzer: Analyzer, terms: Mapping[str, float], width: int
) -> list[Piece]:
    """The part of a text to show, in lines of `width`; `evidence` is its passages, best first."""
    width -= 5  # words do not fill their lines
    best = whole_sentences(text, evidence[:1])
    if not best:
        return snippet(text, analyzer, terms, _LINES * width)
    start, stop, _ = best[0]
    pieces = snippet(text[start:stop], analyzer, terms, _PASSAGE_LINES * width - 2)  # and dots
    if not pieces:
        return []
    if text[:start].strip() and not pieces[0].text.startswith("…"):
        pieces.insert(0, Piece("… ", False))
    if text[stop:].strip() and not pieces[-1].text.endswith("…"):
        pieces.append(Piece(" …", False))
    return pieces


def _text(pieces: Collection[tuple[str, bool]], style: str) -> Any:
    from rich.text import Text

    return Text.assemble(*((piece, "bold yellow" if found else style) for piece, found in pieces))


def _explanation(lines: Explanation) -> Any:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    by_stage = any(isinstance(line, Place) for line in lines)
    for name in ("stage", "rank", "score", "") if by_stage else ("term", "weight", "tf", "df", "adds"):
        table.add_column(name, justify="left" if name in ("stage", "term", "") else "right")
    for line in lines:
        if isinstance(line, Place):
            table.add_row(printable(line.stage), f"{line.rank}", f"{line.score:.4f}", line.kind)
        else:
            numbers = f"{line.weight:g}", f"{line.tf}", f"{line.df:,}", f"{line.contribution:.4f}"
            table.add_row(printable(line.term), *numbers)
    return Padding(table, (0, 0, 0, _INDENT), expand=False)


def _as_json(
    ranking: Ranking, pipeline: str, seconds: float, explanations: Mapping[str, Explanation]
) -> dict[str, Any]:
    results = []
    for hit, document in zip(ranking, ranking.documents(), strict=True):
        result: dict[str, Any] = {
            "rank": hit.rank,
            "id": hit.id,
            "score": hit.score,
            "title": document.title,
            "text": document.text,
            "metadata": dict(document.metadata),
        }
        if spans := ranking.evidence.get(hit.id):
            shown = whole_sentences(document.text, spans)
            result["evidence"] = [{"start": a, "end": b, "score": score} for a, b, score in shown]
        for line in explanations.get(hit.id, ()):
            name = "stages" if isinstance(line, Place) else "terms"
            plain = line._asdict() if isinstance(line, Place) else asdict(line)
            result.setdefault(name, []).append(plain)
        results.append(result)
    return {
        "query": ranking.query.text,
        "where": None if ranking.query.where is None else str(ranking.query.where),
        "pipeline": pipeline,
        "kind": ranking.kind,
        "milliseconds": round(seconds * 1000, 3),
        "results": results,
    }
