"""Groups of examples as one batch: the model's inputs, and what its scores are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tamis.columns import Array
from tamis.errors import InputError
from tamis.models import templates
from tamis.models.config import EncoderConfig
from tamis.models.templates import Inputs, Special
from tamis.train.recipe import Limits
from tamis.train.sets import Group, TrainingSet, ends_of

QUERY_LIMIT = {"mono": 64, "duo": 62}  # the stages' own


@dataclass(frozen=True, slots=True)
class RankingBatch:
    """Inputs, and for each what is known of it. The inputs of group g are those from ends[g] to ends[g + 1].

    For duo an input is an ordered pair: its label says whether the first text is better, its teacher's score
    is the first text's less the second's.
    """

    inputs: Inputs
    ends: Array  # int64[groups + 1]
    labels: Array  # float32[inputs]
    teacher: Array | None  # float32[inputs]
    weights: Array  # float32[groups]


def ranking_batch(
    groups: Sequence[Group],
    examples: TrainingSet,
    special: Special,
    config: EncoderConfig,
    limits: Limits,
    *,
    pairs: bool,
) -> RankingBatch:
    """The batch of these groups. With `pairs` every two documents of a group are an input for duo."""
    if not groups:
        raise InputError("a batch without examples", remedy="check the data of the recipe")
    # all groups at once: what numpy costs for each call is more than what a group's tokens cost
    sizes = np.array([len(group.documents) for group in groups])
    texts = examples.documents.take(np.concatenate([group.documents for group in groups]))
    queries = examples.queries.take([group.query for group in groups])
    query_limit = limits.query or QUERY_LIMIT["duo" if pairs else "mono"]
    total = min(limits.total, config.max_length)
    if pairs:
        sizes //= 2
    own = np.repeat(np.arange(len(groups)), sizes)  # the query of each input
    if pairs:
        inputs, _ = templates.duo(
            queries,
            texts,
            np.arange(len(texts)).reshape(-1, 2),
            special,
            own=own,
            query_limit=query_limit,
            total_limit=total,
            segment_types=config.segments,
        )
    else:
        inputs, _ = templates.mono(
            queries,
            texts,
            special,
            own=own,
            query_limit=query_limit,
            total_limit=total,
            segment_types=config.segments,
        )
    labels = np.concatenate([group.labels for group in groups]).astype(np.float32)
    taught = [group.teacher for group in groups if group.teacher is not None]
    teacher = np.concatenate(taught).astype(np.float32) if len(taught) == len(groups) else None
    if pairs:
        first, second = labels[0::2], labels[1::2]
        labels = np.where(first == second, 0.5, first > second).astype(np.float32)
        teacher = None if teacher is None else teacher[0::2] - teacher[1::2]
    weights = np.array([group.weight for group in groups], np.float32)
    return RankingBatch(inputs, ends_of(sizes), labels, teacher, weights)


def couples(labels: Array, ends: Array) -> tuple[Array, Array]:
    """Each relevant input of a group with each that is not.

    >>> better, worse = couples(np.array([1.0, 0.0, 0.0, 0.0, 1.0]), np.array([0, 3, 5]))
    >>> better.tolist(), worse.tolist()
    ([0, 0, 4], [1, 2, 3])
    """
    group = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    above, below = np.flatnonzero(labels > 0), np.flatnonzero(labels <= 0)
    better, worse = np.nonzero(group[above][:, None] == group[below])
    return above[better], below[worse]
