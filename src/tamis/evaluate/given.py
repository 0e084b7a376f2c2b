"""Pipelines that begin with a run's candidates in place of a search, which they call `given`."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.expression import Call, Keep, Node
from tamis.stage import Stage

GIVEN = "given"


def begun_with(first: Stage, nodes: Sequence[Node]) -> tuple[Stage, Sequence[Node]]:
    """The stage that `given` stands for at the beginning of a pipeline, and the rest of the pipeline. It
    comes first where it is not named, too."""
    head, *rest = nodes
    if head == Call(GIVEN):
        return first, rest
    if isinstance(head, Keep) and head.stage == Call(GIVEN):
        return first % head.k, rest
    return first, nodes
