"""Pipelines that begin with the candidates of a run, named `given`, instead of a search."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.base.errors import ExpressionError
from tamis.core.language import Call, Keep, Node, calls
from tamis.core.stage import Stage

GIVEN = "given"


def begun_with(first: Stage | None, nodes: Sequence[Node]) -> tuple[Stage | None, Sequence[Node]]:
    """The stage for `given` at the beginning of a pipeline, and the rest of the pipeline. The stage comes
    first even if the pipeline does not name it; without a run there is no such stage."""
    start, rest = first, nodes
    head = nodes[0]
    if first is not None and head == Call(GIVEN):
        rest = nodes[1:]
    elif first is not None and isinstance(head, Keep) and head.stage == Call(GIVEN):
        start, rest = first % head.k, nodes[1:]
    if any(call.name == GIVEN for node in rest for call in calls(node)):
        problem = "given stands for the candidates of a run"
        if first is None:
            raise ExpressionError(f"{problem}, and there is no run", remedy="give one and its corpus")
        raise ExpressionError(problem, remedy="begin with it, as in given % 100")
    return start, rest
