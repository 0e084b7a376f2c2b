"""Early exit per query: a stage is skipped if the ranking so far is good enough.

The papers name the idea but define no rule. The rule here is the lead of the first candidate over the second;
any other rule is a Python function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError
from tamis.core.cost import Step, around
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Role, Stage, stage

Criterion = Callable[[Ranking], bool]


@stage("if_unsure", role=Role.WRAPS)
class IfUnsure(Stage):
    """Applies a stage only to queries whose ranking so far is not sure: `mono % 20 >> if_unsure(duo)`. Other
    queries keep their ranking, without further cost.

    A ranking is sure if its first candidate leads the second by `margin` or more, in the unit of the incoming
    scores: probabilities, or with `mono(score=logit)` log-odds. With `margin=0` all rankings are sure; with a
    margin above 1, no ranking by probabilities is. A ranking of one or no candidate is always sure. The
    scores of a search, and combined scores, are comparable only within one list, and are refused.

    In Python, `sure` may be any function of a ranking, instead of the margin:

        >>> from tamis.rank.combine import Normalise
        >>> def is_short(ranking):
        ...     return len(ranking) < 10
        >>> IfUnsure(Normalise(), margin=0.3), IfUnsure(Normalise(), sure=is_short)
        (if_unsure(normalise, margin=0.3), if_unsure(normalise, sure=is_short))
    """

    counts = "most"

    def __init__(self, stage: Stage, margin: float = 0.5, *, sure: Criterion | None = None) -> None:
        if not isinstance(stage, Stage):
            raise InputError(f"if_unsure of {stage!r}", remedy="give a stage, as in if_unsure(duo)")
        if not 0 <= margin < math.inf:
            raise InputError(f"if_unsure with margin={margin}", remedy="use a number of at least 0")
        self.stage, self.margin, self.sure = stage, float(margin), sure

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        """The cost at most: which queries are sure is not known in advance, so it assumes that none is. Sure
        queries keep their ranking."""
        steps = self.stage.cost(enter, depth)
        return around(self, enter, [steps], np.maximum(enter, steps[-1].leave))

    def is_sure(self, ranking: Ranking) -> bool:
        """Whether a ranking is kept without applying the stage."""
        return leads(ranking, self.margin) if self.sure is None else bool(self.sure(ranking))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        unsure = [place for place, ranking in enumerate(rankings) if not self.is_sure(ranking)]
        found = list(rankings)
        if unsure:
            for place, ranking in zip(
                unsure, self.stage.apply([rankings[place] for place in unsure], depth), strict=True
            ):
                found[place] = ranking
        return found


def leads(ranking: Ranking, margin: float) -> bool:
    """Whether the first candidate's score is at least `margin` above the second's; true without a second.

    >>> import numpy as np
    >>> from tamis.base.documents import Query
    >>> ranking = Ranking(Query("q", ""), ("a", "b"), np.array([0.75, 0.5]), ScoreKind.PROBABILITY)
    >>> leads(ranking, 0.25), leads(ranking, 0.3)
    (True, False)
    """
    if not len(ranking) and ranking.kind is ScoreKind.NONE:
        raise TamisError(
            f"if_unsure has no candidates for query {ranking.query.id!r}",
            remedy="put a stage that finds and scores them before it, as in bm25 >> mono >> if_unsure(duo)",
        )
    if len(ranking) < 2:
        return True
    if not ranking.kind.comparable:
        raise TamisError(
            f"a margin between scores of the kind {ranking.kind} means something else for every query",
            remedy="put a model before it, as in mono >> if_unsure(duo), or give `sure` in Python",
        )
    return float(ranking.scores[0]) - float(ranking.scores[1]) >= margin
