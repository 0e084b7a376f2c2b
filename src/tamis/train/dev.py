"""A dev run, reranked now and then while a model is trained, by the model as it is then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, Run, ScoreKind
from tamis.evaluate.measures import evaluate, parse_measures
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.index.index import Index
from tamis.infer.engine import Backend, Engine
from tamis.infer.tokens import texts_of
from tamis.models import templates
from tamis.models.config import EncoderConfig
from tamis.models.templates import Inputs
from tamis.models.tokenizer import Tokenizer
from tamis.rank.aggregate import aggregate, opponents, order, probability
from tamis.rank.given_run import Corpus, Documents
from tamis.train.batch import QUERY_LIMIT
from tamis.train.masked import digest
from tamis.train.recipe import Dev, Limits

K1 = 20  # candidates that duo settles: 380 inferences a query


@dataclass(frozen=True, slots=True)
class DevRun:
    """Candidates to be reranked, tokenised once."""

    rankings: Sequence[Ranking]
    inputs: Inputs
    offsets: Array  # int64[rankings + 1]: whose inputs are whose
    pairs: Sequence[Array] | None  # for duo: which two candidates are in each input
    qrels: Qrels
    measure: str

    def score(self, backend: Backend) -> float:
        """The measure of the candidates in the model's order."""
        margins = Engine(backend).margins(self.inputs)
        parts = np.split(margins, self.offsets[1:-1])
        pairs: Sequence[Array | None] = self.pairs or [None] * len(parts)
        ranked = map(_reranked, self.rankings, parts, pairs)
        run = {ranking.query.id: ranking for ranking in ranked}
        (value,) = evaluate(self.qrels, run, [self.measure]).mean.values()
        return value

    @property
    def fingerprint(self) -> str:
        """Changes with what decides which weights are the best: the candidates, what the model reads of them
        and of their queries, and the judgments."""
        given = [(ranking.query.id, tuple(ranking.ids)) for ranking in self.rankings]
        judged = [(qid, sorted(grades.items())) for qid, grades in sorted(self.qrels.items())]
        read = digest(self.inputs.ids, self.inputs.segments, self.inputs.offsets, self.offsets)
        return str(xxhash.xxh3_128_hexdigest(f"{given} {judged} {self.measure} {read}".encode()))

    def first(self) -> float:
        """The measure of the candidates as they came."""
        run = {ranking.query.id: ranking for ranking in self.rankings}
        (value,) = evaluate(self.qrels, run, [self.measure]).mean.values()
        return value


def _reranked(ranking: Ranking, margins: Array, pairs: Array | None) -> Ranking:
    if pairs is None:
        return ranking.rescored(margins, ScoreKind.LOGIT)
    settled, p = min(len(ranking), K1), probability(margins)
    return ranking.reorder_top(order(p, pairs, settled, "sum"), aggregate(p, pairs, settled, "sum"))


def open_dev(dev: Dev, tokenizer: Tokenizer, config: EncoderConfig, limits: Limits, *, pairs: bool) -> DevRun:
    """Read a recipe's dev run and make the model's inputs of it. Queries without a judgment are left out;
    `shortfalls` says what else is amiss."""
    parse_measures([dev.measure])  # before hours are spent on what cannot be measured
    queries, qrels, run = _read(dev)
    judged = [run[query.id].head(dev.depth) for query in queries if query.id in run]
    if not judged:
        raise InputError(
            f"{dev.run} answers none of the judged queries of {dev.queries}",
            remedy="check that their query ids are alike",
        )
    if not any(grade > 0 for grades in qrels.values() for grade in grades.values()):
        raise InputError(
            f"no document is relevant to a query of {dev.queries}",
            remedy="give a dev run queries with relevant documents",
            path=dev.qrels,
        )
    texts = texts_of_candidates(judged, dev.corpus, dev.run)
    rankings = [Ranking(each.query, each.ids, each.scores, each.kind, texts) for each in judged if len(each)]
    return _prepared(rankings, qrels, dev.measure, tokenizer, config, limits, pairs)


def shortfalls(dev: Dev) -> Iterator[str]:
    """What a dev run lacks and is measured without, a line each: for whoever watches the training."""
    queries, qrels, run = _read(dev)
    if dev.only is not None:
        known = {query.id for query in read_queries(dev.queries, field=dev.field)}
        if lost := [qid for qid in dev.only if qid not in known]:
            yield f"{dev.queries}: left out: {len(lost):,} wanted queries that are not there ({lost[0]!r})"
    # those without a relevant document do not count at all
    counted = [query.id for query in queries if any(grade > 0 for grade in qrels[query.id].values())]
    if silent := [qid for qid in counted if qid not in run]:
        yield f"{dev.run}: {len(silent):,} judged queries without candidates ({silent[0]!r}): they count zero"


def _read(dev: Dev) -> tuple[list[Query], Qrels, Run]:
    """The judged queries, their judgments, and a run of these or more."""
    judgments = read_qrels(dev.qrels)
    asked = chosen(read_queries(dev.queries, field=dev.field), dev.only, dev.queries)
    queries = [query for query in asked if query.id in judgments]
    qrels = {query.id: judgments[query.id] for query in queries}  # they may be of more queries than these
    return queries, qrels, Run.read(dev.run, queries=queries)


def chosen(queries: Iterable[Query], only: Sequence[str] | None, path: str) -> list[Query]:
    """The queries of a file that a recipe names, if it names any (`only`). Folds may name more than are
    there, so that a single one that is missing is no mistake; that all are missing is.

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
    """The index that has the texts of a run's candidates, or in memory those of a corpus's files."""
    wanted = list(dict.fromkeys(doc_id for ranking in rankings for doc_id in ranking.ids))
    texts: Index | Documents
    if len(corpus) == 1 and (Path(corpus[0]) / "manifest.json").is_file():
        texts = Index.open(corpus[0])
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


def _prepared(
    rankings: Sequence[Ranking],
    qrels: Qrels,
    measure: str,
    tokenizer: Tokenizer,
    config: EncoderConfig,
    limits: Limits,
    in_pairs: bool,
) -> DevRun:
    queries = tokenizer.encode([ranking.query.text for ranking in rankings])
    total = min(limits.total, config.max_length)
    inputs, pairs = [], []
    for number, ranking in enumerate(rankings):
        query = queries.take([number]).ids
        if in_pairs:
            best = ranking.head(K1)
            pairs.append(opponents(len(best), "sum"))
            made, _ = templates.duo(
                query,
                texts_of(best, tokenizer),
                pairs[-1],
                tokenizer.special,
                query_limit=limits.query or QUERY_LIMIT["duo"],
                total_limit=total,
                segment_types=config.segments,
            )
        else:
            made, _ = templates.mono(
                query,
                texts_of(ranking, tokenizer, limit=total),
                tokenizer.special,
                query_limit=limits.query or QUERY_LIMIT["mono"],
                total_limit=total,
                form=config.form,
                segment_types=config.segments,
            )
        inputs.append(made)
    offsets = np.cumsum([0, *map(len, inputs)])
    joined = Inputs.join(inputs)
    return DevRun(rankings, joined, offsets, pairs if in_pairs else None, qrels, measure)
