"""The base of all stages that read texts with a model: the inputs, the cache and the tally."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.candidates import placed
from tamis.core.ledger import record
from tamis.core.model_stage import ModelStage
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking, ScoreKind
from tamis.infer.scorer import Scorer, Tally
from tamis.models.templates import Inputs, Truncation
from tamis.rank.aggregate import probability
from tamis.rank.best_window import Cut, cut_texts
from tamis.storage.score_cache import ScoreCache, cached, cached_rows, pair_keys, prefix


def check_limits(query_limit: int, limit: int) -> None:
    """Refuse limits that leave a model nothing to read; the exact minimum is known when it is loaded.

    >>> check_limits(query_limit=0, limit=512)
    Traceback (most recent call last):
    tamis.base.errors.InputError: a query_limit of 0 tokens: use 1 or more
    """
    for name, tokens in (("query_limit", query_limit), ("limit", limit)):
        if tokens < 1:
            raise InputError(f"a {name} of {tokens} tokens", remedy="use 1 or more")


class Built(NamedTuple):
    """The inputs of a model for some rankings. For each ranking: its inputs, what was cut, and which of its
    candidates share an input (one row of their positions per input, filled up with -1)."""

    inputs: list[Inputs]
    cuts: list[Truncation]
    members: list[Array]


class Reranker(ModelStage):
    """A stage that reads its candidates' texts with a model.

    By default all candidates are read, each as a separate input. A subclass overrides `best` and `members` to
    change this, and `ranked` to use the scores in another way.
    """

    #: The architectures of the models that it accepts.
    architectures: ClassVar[tuple[str, ...]] = ("mono",)

    queries_at_once = 8
    uses_depth = False  # all candidates are read, whatever is kept
    scorer: Scorer
    query_limit: int = 64
    limit: int = 512
    cut: Cut = "start"

    def __init__(self, scorer: Scorer, cache: str | Path | ScoreCache | None = None) -> None:
        self.scorer = scorer
        self.cache = ScoreCache(cache) if isinstance(cache, str | Path) else cache
        self.tally = Tally()
        self._tally_lock = threading.Lock()

    @classmethod
    def opened(cls, model: str, pool: ModelPool | None, **options: Any) -> Scorer:
        """The model of a stage, from the pool if there is one."""
        return (pool or ModelPool()).get(Scorer, model, architectures=cls.architectures, **options)

    @property
    def model(self) -> str:
        return self.scorer.model

    @property
    def revision(self) -> str | None:
        return self.scorer.revision

    @property
    def form(self) -> str | None:
        return self.scorer.form

    @property
    def precision(self) -> str:
        return self.scorer.precision

    @property
    def resources(self) -> str:
        return self.scorer.fingerprint

    def prepare(self) -> None:
        """Load the model and the tokenizer. A model that does not accept the stage's inputs is refused here,
        before any search."""
        _ = self.scorer.tokenizer, self.scorer.engine
        self.build_inputs([placed(Query("", ""), [])])

    @property
    def description(self) -> str:
        """The runtime, the device and the precision."""
        return self.scorer.description

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        if not rankings:
            return []
        built = self.build_inputs(rankings)
        scores = self.margins(rankings, built.inputs, built.cuts)
        return [self.ranked(*each) for each in zip(rankings, built.members, scores, strict=True)]

    def ranked(self, ranking: Ranking, members: Array, scores: Array) -> Ranking:
        """The ranking with the model's scores of its inputs."""
        return ranking.rescored(scores.astype(np.float64), ScoreKind.COMBINED)

    def best(self, ranking: Ranking) -> Ranking:
        """The candidates that are read."""
        return ranking

    def members(self, ranking: Ranking) -> Array:
        """Which candidates of a ranking share an input."""
        return np.arange(len(ranking))[:, None]

    def build_inputs(self, rankings: Sequence[Ranking]) -> Built:
        """The model's inputs for some rankings."""
        tokenizer, kind = self.scorer.tokenizer, self.scorer.architecture
        reading = self.scorer.reading(self.query_limit, self.limit)
        queries = tokenizer.encode([ranking.query.text for ranking in rankings])
        built = Built([], [], [])
        for number, ranking in enumerate(rankings):
            best = self.best(ranking)
            members, query = self.members(best), queries.take([number])
            room = kind.room(len(query.ids), reading)
            texts = cut_texts(best, tokenizer, query.ids[: self.query_limit], room, self.cut)
            query_of = np.zeros(len(members), np.int64)
            inputs, cut = kind.inputs(query, texts, members, query_of, reading)
            built.inputs.append(inputs)
            built.cuts.append(cut)
            built.members.append(members)
        return built

    def margins(
        self, rankings: Sequence[Ranking], inputs: Sequence[Inputs], cuts: Sequence[Truncation]
    ) -> list[Array]:
        """The margins of several queries' inputs, scored together or read from the cache; `cuts` is what was
        cut for each query."""
        if not rankings:
            return []
        together = Inputs.join(inputs)
        scored = np.full(len(together), self.cache is None)
        if self.cache is None:
            margins = self.scorer.margins(together)
        else:
            keys = [key for each in zip(rankings, inputs, strict=True) for key in self.keys(*each)]

            def score(missing: Array) -> Array:
                scored[missing] = True
                return self.scorer.margins(together.take(missing))

            shape = self.scorer.architecture.shape()
            reads = partial(cached_rows, width=shape[0]) if shape else cached
            margins = reads(self.cache, keys, score=score)
        offsets = np.cumsum([len(each) for each in inputs])[:-1]
        counts = self.scorer.inferences(together)
        read, known = (np.split(each, offsets) for each in (counts * scored, counts * ~scored))
        tallies = [
            Tally(int(new.sum()), int(old.sum()), cut)
            for new, old, cut in zip(read, known, cuts, strict=True)
        ]
        self._count(rankings, tallies)
        return np.split(margins, offsets)

    def _count(self, rankings: Sequence[Ranking], tallies: Sequence[Tally]) -> None:
        with self._tally_lock:
            self.tally = sum(tallies, start=self.tally)
        record((ranking.query, tally) for ranking, tally in zip(rankings, tallies, strict=True))

    def keys(self, ranking: Ranking, inputs: Inputs) -> list[bytes]:
        """Cache keys, computed from the tokens and segments that the model reads: whatever changes a score
        changes one of these, or the model's fingerprint."""
        own = prefix(self.scorer.fingerprint, type(self).__name__, "")
        offsets = inputs.offsets.tolist()
        read = [
            inputs.ids[start:stop].tobytes() + inputs.segments[start:stop].tobytes()
            for start, stop in itertools.pairwise(offsets)
        ]
        return pair_keys(own, ranking.query.text, read)


def to_score(margins: Array, kind: ScoreKind) -> Array:
    """Margins in the form that a caller asked for; the order is the same in all three forms.

    >>> [to_score(np.array([0.0]), kind).tolist() for kind in (ScoreKind.PROBABILITY, ScoreKind.LOGIT)]
    [[0.5], [0.0]]
    """
    exact = margins.astype(np.float64)
    if kind == ScoreKind.PROBABILITY:
        return probability(exact)
    if kind == ScoreKind.LOG_PROBABILITY:
        return -np.logaddexp(0.0, -exact)
    return exact
