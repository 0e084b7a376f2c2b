"""A dev run, which the current model reranks at intervals during training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.executor import ranked
from tamis.core.language import Call
from tamis.core.options import parameters_of
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking, Run
from tamis.core.registry import build, declared, is_known
from tamis.core.runtime import Runtime
from tamis.core.stage import Stage
from tamis.evaluate.measures import evaluate, parse_measures
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.index.index import Index, index_of
from tamis.infer.scorer import Scorer
from tamis.infer.token_memory import TokenMemory
from tamis.rank.given_run import Corpus, Documents
from tamis.rank.scored import stage_of
from tamis.train.recipe import Dev, Limits


@dataclass(frozen=True, slots=True)
class DevRun:
    """Candidates to rerank; their texts are tokenised once."""

    rankings: Sequence[Ranking]
    qrels: Qrels
    measure: str

    def score(self, stage: Stage) -> float:
        """The measure of the candidates in a stage's order."""
        return self._measured(ranked(stage, self.rankings)[0])

    def first(self) -> float:
        """The measure of the candidates in their original order."""
        return self._measured(self.rankings)

    def _measured(self, rankings: Iterable[Ranking]) -> float:
        run = {ranking.query.id: ranking for ranking in rankings}
        (value,) = evaluate(self.qrels, run, [self.measure]).mean.values()
        return value

    @property
    def fingerprint(self) -> str:
        """A fingerprint of everything that decides which weights are best: the queries, the candidates and
        their texts, and the judgments."""
        seen = xxhash.xxh3_128(
            repr(sorted((qid, sorted(g.items())) for qid, g in self.qrels.items())).encode()
        )
        seen.update(self.measure.encode())
        for ranking in self.rankings:
            seen.update(repr((ranking.query.id, ranking.query.text, tuple(ranking.ids))).encode())
            for document in ranking.documents():
                seen.update(document.contents.encode("utf-8", "surrogatepass"))
        return str(seen.hexdigest())


class _Live(ModelPool):
    """A pool with one model: the one in training."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer

    def get(self, *_: Any, **__: Any) -> Any:
        """The model, whatever the arguments."""
        return self.scorer


def dev_stage(scorer: Scorer, limits: Limits) -> Stage:
    """The stage that ranks with this model, for its architecture and with a recipe's limits."""
    kind = scorer.architecture
    options = {"query_limit": limits.query or kind.query_limit, "limit": limits.total, **kind.dev_options()}
    made_by: Any = declared(kind.stage) if is_known(kind.stage) else stage_of(kind.name)
    takes = parameters_of(made_by)
    if "model" in takes and takes["model"].required:
        options["model"] = scorer.model
    own = {name: value for name, value in options.items() if name in takes}
    pool = _Live(scorer)
    if not is_known(kind.stage):  # the architecture is not in an installed package
        made: Stage = made_by(**own, pool=pool)
        return made
    return build(Call(kind.stage, (), tuple(own.items())), runtime=Runtime(pool=pool))


def open_dev(dev: Dev) -> DevRun:
    """Read a recipe's dev run. Queries without a judgment are left out; `shortfalls` reports other gaps."""
    parse_measures([dev.measure])  # an invalid measure fails here, before hours of work
    queries, qrels, run = _read(dev)
    judged = [run[query.id].head(dev.depth) for query in queries if query.id in run]
    if not judged:
        raise InputError(
            f"{dev.run} answers none of the judged queries of {dev.queries}",
            remedy="check that the query ids match",
        )
    if not any(grade > 0 for grades in qrels.values() for grade in grades.values()):
        raise InputError(
            f"no document is relevant to a query of {dev.queries}",
            remedy="give a dev run queries with relevant documents",
            path=dev.qrels,
        )
    corpus = texts_of_candidates(judged, dev.corpus, dev.run)
    texts = TokenMemory(corpus, [doc_id for ranking in judged for doc_id in ranking.ids])
    rankings = [Ranking(each.query, each.ids, each.scores, each.kind, texts) for each in judged if len(each)]
    return DevRun(rankings, qrels, dev.measure)


def shortfalls(dev: Dev) -> Iterator[str]:
    """Yield what is missing from a dev run, one line each, to be shown during training."""
    queries, qrels, run = _read(dev)
    if dev.only is not None:
        known = {query.id for query in read_queries(dev.queries, field=dev.field)}
        if lost := [qid for qid in dev.only if qid not in known]:
            yield f"{dev.queries}: left out: {len(lost):,} wanted queries that are not there ({lost[0]!r})"
    # queries without a relevant document do not count
    counted = [query.id for query in queries if any(grade > 0 for grade in qrels[query.id].values())]
    if silent := [qid for qid in counted if qid not in run]:
        yield f"{dev.run}: {len(silent):,} judged queries without candidates ({silent[0]!r}): they count zero"


def _read(dev: Dev) -> tuple[list[Query], Qrels, Run]:
    """The judged queries, their judgments, and a run that contains at least these queries."""
    judgments = read_qrels(dev.qrels)
    asked = chosen(read_queries(dev.queries, field=dev.field), dev.only, dev.queries)
    queries = [query for query in asked if query.id in judgments]
    qrels = {query.id: judgments[query.id] for query in queries}  # the file may have more
    return queries, qrels, Run.read(dev.run, queries=queries)


def chosen(queries: Iterable[Query], only: Sequence[str] | None, path: str) -> list[Query]:
    """The queries of a file that a recipe names, if it names any (`only`). Folds may name queries that do not
    exist, so it is an error only if all are missing.

    >>> [query.id for query in chosen([Query("q1", "soup"), Query("q2", "cake")], ("q2",), "tr.jsonl")]
    ['q2']
    """
    if only is None:
        return list(queries)
    if not only:
        raise InputError("only names no query", remedy="name some, or leave it out", path=path)
    wanted = frozenset(only)
    found = [query for query in queries if query.id in wanted]
    if not found:
        raise InputError(
            f"only names {only[0]!r}, which is no query there", remedy="correct the id", path=path
        )
    return found


def texts_of_candidates(rankings: Iterable[Ranking], corpus: Sequence[str], run: str) -> Corpus:
    """The texts of a run's candidates: the index that has them, or those of a corpus's files, in memory."""
    wanted = list(dict.fromkeys(doc_id for ranking in rankings for doc_id in ranking.ids))
    texts: Index | Documents
    if (index := index_of(corpus)) is not None:
        texts = index
        unknown = texts.missing(wanted)
    else:
        texts = Documents(read_corpus(*corpus), only=wanted)
        unknown = [doc_id for doc_id in wanted if doc_id not in texts]
    if unknown:
        raise InputError(
            f"{' '.join(corpus)} has no text for {len(unknown):,} documents of {run} ({unknown[0]})",
            remedy="give the corpus that the run was made from",
        )
    return texts
