"""A cascade of rerankers in one model: after some of its layers, some of a query's candidates leave, so that
the layers above read fewer. One of two rules decides which candidates leave.

With `alpha`, the worst leave (cascade transformers, Soldaini & Moschitti 2020):

    128 candidates, exits after layers 4, 6, 8, 10 and 12, alpha = 0.3:  128 -> 90 -> 63 -> 44 -> 31

Candidates that reach the last exit are ranked first, by its scores. Below them are those that left at the
exit before, by the scores of that exit, and so on down to those that left first.

With `entropy`, those leave of which an exit is sure, relevant or not (DeeBERT, Xin et al. 2020). Each
candidate is judged by itself, and all are sorted together, by the score of the exit at which they left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.options import ModelName, Revision
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking, ScoreKind, best_first
from tamis.core.runtime import Device, Precision
from tamis.core.stage import Role, stage
from tamis.infer.scorer import Tally
from tamis.infer.walk import Keep
from tamis.models.architectures.cascade import Cascade as Architecture
from tamis.models.architectures.cascade import (
    check_alpha,
    check_entropy,
    cost,
    entropies,
    kept,
    layers_run,
)
from tamis.models.templates import Inputs
from tamis.rank.aggregate import probability
from tamis.rank.reranker import Reranker, check_limits
from tamis.storage.score_cache import ScoreCache, pair_keys, prefix

NAME = "cascade"  # of the stage, and of its default model, which is not bundled
ALPHA = 0.3  # where neither rule is given


@stage(NAME, role=Role.ORDERS)
class Cascade(Reranker):
    """Sorts candidates by P(relevant | query, text), as `mono` does, with a model that has exits. At each
    exit but the last, the share `alpha` of a query's candidates with the lowest scores is not read any
    further (0.3 by default); or, with `entropy` instead, the candidates whose prediction there has an entropy
    below that number. With 0 for either, all candidates are read to the end, and ranked as by `mono` with the
    same model.

    `model` is a folder or a name on the hub; a recipe with a table [cascade] trains one (`base = "cascade"`).

    With alpha above 0 a score is the probability at the exit where a candidate left, minus the number of
    exits that it did not reach: from 0 to 1 for candidates that reached the last exit, below 0 for others.
    With entropy it is that probability, whichever the exit; other candidates do not change it. An entropy is
    in nats, from 0 to ln 2 = 0.693 for a probability of one half.

        >>> Cascade("models/my-cascade", alpha=0.5), Cascade("models/my-cascade", entropy=0.1)
        (cascade(model="models/my-cascade", alpha=0.5), cascade(model="models/my-cascade", entropy=0.1))
    """

    architectures = ("cascade",)

    def __init__(
        self,
        model: ModelName = NAME,
        alpha: float | None = None,
        entropy: float | None = None,
        precision: Precision = "auto",
        query_limit: int = 64,
        limit: int = 512,
        *,
        revision: Revision | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        if alpha is not None and entropy is not None:
            raise InputError(
                f"a cascade with alpha={alpha} and entropy={entropy}",
                remedy="give one of them: alpha drops the worst, entropy those of which an exit is sure",
            )
        # with entropy, no fixed share of the candidates leaves
        leaving = 0.0 if entropy is not None else ALPHA if alpha is None else float(alpha)
        check_alpha(leaving)
        if entropy is not None:
            check_entropy(entropy)
        check_limits(query_limit, limit)
        scorer = self.opened(
            model, pool, revision=revision, device=device, precision=precision, workers=workers
        )
        super().__init__(scorer, cache)
        self.alpha = None if alpha is None or leaving == ALPHA else leaving
        self.leaving, self.query_limit, self.limit = leaving, query_limit, limit
        self.entropy = None if entropy is None else float(entropy)
        self.counts = "most" if entropy else "exact"

    @property
    def share(self) -> float:
        """The share of the whole model's work that remains for many candidates: 0.629 with the paper's exits
        and alpha=0.3; with entropy the maximum, which is 1."""
        return cost(self.layers, self.leaving)

    def inferences(self, candidates: int) -> int:
        """The cost of a query with this many candidates, in inferences of the whole model: the layers that
        they pass, divided by the model's number of layers, rounded up. With entropy this is the maximum: all
        candidates pass all layers. The tally has the actual cost."""
        layers = self.layers
        return math.ceil(layers_run(candidates, layers, self.leaving) / layers[-1])

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        inputs, cuts, _ = self.build_inputs(rankings)
        read = [self._read(*each) for each in zip(rankings, inputs, strict=True)]
        work = [inferred(margins, self.layers) for margins, _ in read]
        tallies = [
            Tally(0 if cached else count, count if cached else 0, cut)
            for (_, cached), count, cut in zip(read, work, cuts, strict=True)
        ]
        self._count(rankings, tallies)
        found = [(ranking, margins) for ranking, (margins, _) in zip(rankings, read, strict=True)]
        if self.entropy is None:
            return [cascaded(*each, self.leaving) for each in found]
        return [exited(*each) for each in found]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers after which there is an exit."""
        checkpoint = self.scorer.checkpoint
        assert isinstance(checkpoint.architecture, Architecture)
        return checkpoint.architecture.layers(checkpoint.config)

    def _read(self, ranking: Ranking, inputs: Inputs) -> tuple[Array, bool]:
        """The margins of a query's candidates at the exits that they reach, and whether they come from the
        cache. They do only if all are cached: to continue with some, the states of the layers below are
        needed.
        """
        keep = keeping(ranking.ids, self.leaving) if self.entropy is None else unsure(self.entropy)
        if self.cache is None:
            return self.scorer.walk(inputs, keep), False
        own = self.keys(ranking, inputs)
        # the keys do not contain the rule: it decides which margins are needed, not their values
        keys = [
            pair_keys(prefix(self.scorer.fingerprint, NAME, str(layer)), ranking.query.text, own)
            for layer in self.layers
        ]
        known = walked(np.stack([self.cache.get(each) for each in keys], axis=1), keep)
        if known is not None:
            return known, True
        margins = self.scorer.walk(inputs, keep)
        for each, column in zip(keys, margins.T, strict=True):
            self.cache.put(each, column)
        return margins, False


def walked(margins: Array, keep: Keep) -> Array | None:
    """The margins at the exits that candidates reach, from margins that may be known at more exits; None if
    one of them is not known (NaN).

    >>> both = np.array([[9.0, 1.0], [8.0, 2.0]])
    >>> walked(both, lambda live, margins: live[:1]).tolist()
    [[9.0, 1.0], [8.0, nan]]
    """
    reached = np.full_like(margins, np.nan)
    live = np.arange(len(margins))
    for number in range(margins.shape[1]):
        if number:
            live = keep(live, reached[live, number - 1])
        reached[live, number] = margins[live, number]
        if np.isnan(reached[live, number]).any():
            return None
    return reached


def keeping(ids: Sequence[str], alpha: float) -> Keep:
    """The candidates that continue, of those with these ids: the best (1 - alpha) of the live ones, by their
    margins; equal ones by id.

    >>> keep = keeping(["d", "c", "b", "a"], alpha=0.3)
    >>> keep(np.arange(4), np.array([0.1, 3.0, 0.1, 2.0])).tolist()
    [1, 3, 2]
    """

    def keep(live: Array, margins: Array) -> Array:
        best = best_first(margins, [ids[number] for number in live.tolist()])
        return live[best[: kept(len(live), alpha)]]

    return keep


def unsure(entropy: float) -> Keep:
    """The candidates that continue: those of which the exit is not sure, each judged by itself; maybe none.

    >>> keep = unsure(entropy=0.5)
    >>> keep(np.array([4, 7, 9]), np.array([-3.0, 0.5, 2.0])).tolist()  # entropies of 0.19, 0.66 and 0.37
    [7]
    """
    return lambda live, margins: live[entropies(margins) >= entropy]


def left_at(margins: Array) -> Array:
    """The number of the last exit that each candidate reached: the last margin that is not NaN.

    >>> left_at(np.array([[9.0, np.nan], [9.5, -1.0]])).tolist()
    [0, 1]
    """
    return np.asarray(np.count_nonzero(~np.isnan(margins), axis=1) - 1)


def inferred(margins: Array, layers: Sequence[int]) -> int:
    """The cost of candidates that reached these exits, in inferences of the whole model, rounded up.

    >>> inferred(np.array([[9.0, np.nan], [9.5, -1.0]]), layers=(4, 12))  # (4 + 12) / 12
    2
    """
    last: list[int] = left_at(margins).tolist()
    return math.ceil(sum(layers[number] for number in last) / layers[-1])


def exited(ranking: Ranking, margins: Array) -> Ranking:
    """The candidates sorted by their margin at the exit where each left.

    >>> from tamis.base.documents import Query
    >>> given = Ranking(Query("q", ""), ("a", "b", "c"), np.zeros(3))
    >>> found = exited(given, np.array([[9.0, np.nan], [-9.0, np.nan], [0.5, 0.0]]))
    >>> found.ids, found.scores.round(3).tolist()
    (('a', 'c', 'b'), [1.0, 0.5, 0.0])
    """
    at = margins[np.arange(len(ranking)), left_at(margins)]
    return ranking.reordered(best_first(at, ranking.ids), probability(at), ScoreKind.PROBABILITY)


def cascaded(ranking: Ranking, margins: Array, alpha: float) -> Ranking:
    """The candidates sorted by the exit that they reached, then by their margin there.

    `margins` are float32[candidates, exits]; for a candidate that left at the first exit, the rest are NaN.

    >>> from tamis.base.documents import Query
    >>> given = Ranking(Query("q", ""), ("a", "b", "c"), np.zeros(3))
    >>> found = cascaded(given, np.array([[9.0, np.nan], [9.5, -1.0], [9.5, 0.0]]), alpha=0.3)
    >>> found.ids, found.scores.round(3).tolist()
    (('c', 'b', 'a'), [0.5, 0.269, -0.0])
    """
    exits = margins.shape[1]
    last = left_at(margins)
    at = margins[np.arange(len(ranking)), last].astype(np.float64)
    order: list[int] = []
    for number in range(exits - 1, -1, -1):
        left = np.flatnonzero(last == number)
        order += left[best_first(at[left], [ranking.ids[n] for n in left.tolist()])].tolist()
    kind = ScoreKind.COMBINED if alpha else ScoreKind.PROBABILITY
    scores = probability(at) - (exits - 1 - last)
    return ranking.reordered(np.array(order, dtype=np.int64), scores, kind)
