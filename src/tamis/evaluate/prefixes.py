"""Many pipelines over the same queries, with the work that they have in common done once.

What is shared: the stages with which pipelines begin alike (`bm25 >> rm3(...)` with several settings searches
once), the stages inside an `interpolate` or a `fuse` (a model scores once, whatever the alpha), the sentences
that a `birch` reads (once, whatever the alpha, the weights and n), and a model wherever it stands, which is
loaded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tamis.base.documents import Query
from tamis.core.plan import rerankers
from tamis.core.ranking import Ranking, Run
from tamis.core.stage import Pipeline, Stage, TopK
from tamis.evaluate.sharing import Readings, remembered, share_encoders
from tamis.rank.combine import Fuse, Interpolate


def run_each(
    pipelines: Sequence[Stage],
    queries: Iterable[Query],
    *,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, Run]]:
    """The number of each pipeline and its run, not in the pipelines' order: those that begin alike come
    together. `progress` is told how many more pipelines are done.

    Only the runs of the stages that lead to the present one are held: take from each what is needed.
    """
    # through a Run, which refuses queries with one id
    waiting = list(Run(map(Ranking, queries)).values())
    share_encoders(model for pipeline in pipelines for model in rerankers(pipeline))
    known: dict[str, Stage] = {}
    for number, rankings in _follow(_tree(pipelines, known), waiting, known):
        yield number, Run(rankings, {"pipeline": repr(pipelines[number])})
        if progress:
            progress(1)


@dataclass(slots=True)
class _Node:
    """A stage, and what comes after it in some pipeline."""

    stage: Stage | None  # none in the root
    ends: list[int] = field(default_factory=list)  # the pipelines of which it is the last stage
    next: dict[str, _Node] = field(default_factory=dict)


def _tree(pipelines: Sequence[Stage], known: dict[str, Stage]) -> _Node:
    root = _Node(None)
    for number, pipeline in enumerate(pipelines):
        node = root
        for stage in pipeline.stages if isinstance(pipeline, Pipeline) else [pipeline]:
            node = node.next.setdefault(stage.fingerprint, _Node(_one_of_each(stage, known)))
        node.ends.append(number)
    return root


def _follow(
    node: _Node, rankings: list[Ranking], known: dict[str, Stage]
) -> Iterator[tuple[int, list[Ranking]]]:
    for number in node.ends:
        yield number, rankings
    inside = _Inside(known)
    for child in node.next.values():
        assert child.stage is not None
        yield from _follow(child, _applied(inside.sharing(child.stage), rankings), known)


def _applied(stage: Stage, rankings: Sequence[Ranking]) -> list[Ranking]:
    stage.prepare()
    at_once = stage.queries_at_once
    batches = (rankings[start : start + at_once] for start in range(0, len(rankings), at_once))
    return [ranking for batch in batches for ranking in stage.apply(batch)]


def _one_of_each(stage: Stage, known: dict[str, Stage]) -> Stage:
    """The stage that we know by its fingerprint, so that a model is loaded once."""
    if isinstance(stage, TopK):
        return TopK(_one_of_each(stage.stage, known), stage.k)
    return known.setdefault(stage.fingerprint, stage)


class _Inside:
    """What the same rankings have been through, inside of stages."""

    def __init__(self, known: dict[str, Stage]) -> None:
        self._known = known
        self._stages: dict[str, Stage] = {}  # by fingerprint
        self._readings = Readings()

    def sharing(self, stage: Stage) -> Stage:
        """The stage, with those inside it that remember what they have ranked."""
        if isinstance(stage, TopK):
            return TopK(self.sharing(stage.stage), stage.k)
        if isinstance(stage, Interpolate):
            return Interpolate(self._remembered(stage.stage), stage.alpha, stage.normalise)
        if isinstance(stage, Fuse):
            return Fuse(*map(self._remembered, stage.stages), how=stage.how, k=stage.k)
        return self._readings.sharing(stage)

    def _remembered(self, part: Stage) -> Stage:
        own = self._stages.get(part.fingerprint)
        if own is None:
            own = remembered(self._readings.sharing(_one_of_each(part, self._known)))
            self._stages[part.fingerprint] = own
        return own
