"""Birch: the document's own score and those of its best sentences.

    s_f = a s_doc + (1 - a) (w_1 s_1 + ... + w_n s_n)      s_1 >= s_2 >= ... scores of the sentences, w_1 = 1

Yilmaz et al. 2019; Eq. 18 of the survey. s_doc is the score that a document comes with, from the first stage.
The papers do not say on what scale: it is min-max normalised within the query's list, as in Eq. 17 of the
survey, or taken as it is. A document with fewer than n sentences lacks the last terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from tamis.columns import Array
from tamis.documents import Query
from tamis.errors import InputError, TamisError
from tamis.expression import Call
from tamis.rank.combine import Interpolation, normalised
from tamis.rank.mono import Mono
from tamis.rank.passage import PassageReranker, Scored
from tamis.rank.reading import Cutting, Unit, Wanted
from tamis.rank.reranker import shown
from tamis.ranking import Ranking, ScoreKind
from tamis.text.analyze import get_analyzer
from tamis.text.segment import Keep

MOST = 4  # sentences: a fourth was tried, and its weight learned to be 0


def birch(document: float, sentences: Array, alpha: float, weights: Sequence[float]) -> float:
    """alpha * document + (1 - alpha) * (the highest of the sentences' scores, weighted).

    >>> birch(0.5, np.array([0.1, 0.9, 0.3]), alpha=0.5, weights=[1.0, 0.5])
    0.775
    """
    best = np.sort(sentences)[::-1][: len(weights)]
    return alpha * document + (1 - alpha) * float(np.dot(best, weights[: len(best)]))


class Birch(PassageReranker):
    """Sorts documents by their first-stage scores and the scores of their `n` best sentences.

    `alpha` is the share of the first stage, `w2` to `w4` the weights of the second to fourth sentence (the
    first has 1), of which the first n count; the papers tune them on folds in steps of 0.1. `normalise` says
    what becomes of the scores that come in. With `exact_match=False` no sentence that holds a query term is
    read, which leaves what the model matches by meaning. The other options are those of `MaxP`.

    >>> Birch(Mono("models/my-model"), n=2, alpha=0.3, w2=0.4)
    birch(mono(model="models/my-model"), n=2, alpha=0.3, w2=0.4)
    """

    def __init__(
        self,
        stage: Mono,
        n: int = 3,
        alpha: float = 0.5,
        w2: float = 0.5,
        w3: float = 0.5,
        w4: float = 0.0,
        normalise: Interpolation = "minmax",
        exact_match: bool = True,
        unit: Unit = "sentences",
        window: int | None = None,
        stride: int | None = None,
        title: bool = False,
        passages: int | None = None,
        keep: Keep = "first",
        seed: int = 0,
        evidence: int = 3,
    ) -> None:
        super().__init__(stage, Cutting(unit, window, stride, title, passages, keep, seed), evidence)
        if not 1 <= n <= MOST:
            raise InputError(f"birch with {n} sentences", remedy=f"use an n from 1 to {MOST}")
        if not 0 <= alpha <= 1:
            raise InputError(f"birch with alpha={alpha}", remedy="use an alpha between 0 and 1")
        if min(w2, w3, w4) < 0:
            raise InputError("birch with a weight below 0", remedy="use weights between 0 and 1")
        if normalise not in get_args(Interpolation):
            raise InputError(
                f"birch with normalise={normalise!r}", remedy=f"use {', '.join(get_args(Interpolation))}"
            )
        if not exact_match and self.cutting.unit in ("tokens", "even"):
            raise InputError(
                f"birch without exact matches in windows of {unit}", remedy="use sentences or words"
            )
        self.n, self.alpha, self.normalise, self.exact_match = n, float(alpha), normalise, exact_match
        self.w2, self.w3, self.w4 = float(w2), float(w3), float(w4)

    @property
    def weights(self) -> tuple[float, ...]:
        """w_1 to w_n."""
        return (1.0, self.w2, self.w3, self.w4)[: self.n]

    @property
    def expression(self) -> Call:
        cutting = self.cutting
        call = self._call(
            "birch",
            [
                ("n", self.n, 3),
                ("alpha", self.alpha, 0.5),
                ("w2", self.w2, 0.5),
                ("w3", self.w3, 0.5),
                ("w4", self.w4, 0.0),
                ("normalise", self.normalise, "minmax"),
                ("exact_match", self.exact_match, True),
                ("unit", cutting.unit, "sentences"),
                ("window", cutting.window, None),
                ("stride", cutting.stride, None),
                ("title", cutting.title, False),
                ("passages", cutting.passages, None),
                ("keep", cutting.keep, "first"),
                ("seed", cutting.seed, 0),
                ("evidence", self.evidence, 3),
            ],
        )
        return replace(call, arguments=(self.stage.expression,))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        for ranking in rankings:
            if len(ranking) and ranking.kind is ScoreKind.NONE:
                raise TamisError(
                    f"birch has no document scores to work on for query {ranking.query.id!r}",
                    remedy="put a stage that scores before it, as in `bm25 >> birch(mono)`",
                )
        found = zip(rankings, self._scored(rankings), strict=True)
        return [self._combined(ranking, scored, depth) for ranking, scored in found]

    def _combined(self, ranking: Ranking, scored: Sequence[Scored], depth: int | None) -> Ranking:
        documents = normalised(ranking.scores, self.normalise).tolist()
        scores = [
            birch(document, shown(each.margins, self.stage.kind), self.alpha, self.weights)
            for document, each in zip(documents, scored, strict=True)
        ]
        best = ranking.rescored(np.array(scores, dtype=np.float64), ScoreKind.COMBINED)
        return self._evident(best, dict(zip(ranking.ids, scored, strict=True)), depth)

    def _wanted(self, query: Query) -> Wanted | None:
        if self.exact_match:
            return None
        analyzer = get_analyzer("english")
        terms = frozenset(analyzer.tokens(query.text))
        return lambda sentence: terms.isdisjoint(analyzer.tokens(sentence))
