"""Listwise models: one input has a query and several texts, and the model scores each text in the context of
the others (Zhang et al. 2020; the input is `tamis.models.templates.listwise`).

The survey does not specify the head. Here it is a linear layer on the mean of a text's last states, those of
its tokens and of the [SEP] that ends it (so that an empty text has a state); all positions share this layer.
Two alternatives are worse. The [SEP] alone has no information at the start of training: in `mono-tiny` the
[SEP]s of one input have almost the same state, whichever text they end. And a layer from the [CLS] to n
scores would have separate weights for each position, although the position of a text should not matter.

Because the head is linear, its score of the mean state is the mean of its scores of the states: the ONNX
graph returns one score per token, and the means are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models import templates
from tamis.models.architecture import Architecture, Reading
from tamis.models.settings import Count, Settings
from tamis.models.templates import Inputs, Special, Tokenised, Truncation, text_spans

if TYPE_CHECKING:
    from onnx import ModelProto

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.graph import Precision
    from tamis.models.list_network import ListNetwork
    from tamis.models.names import Shape

HEAD = "listwise.head"  # the layer that scores texts


class ListwiseSettings(Settings):
    """How many texts an input has, and how the dev run is ranked."""

    n: Annotated[int, Field(ge=1, le=1 << 10)] = 8  # texts of an input
    k: Count = 20  # in the dev run, how many candidates are ranked ...
    rounds: Count = 2  # ... and in how many rounds


class Listwise(Architecture):
    """A listwise model."""

    name, query_limit = "listwise", 62
    Settings = ListwiseSettings
    learning = "tamis.train.learning:ListLearning"

    def members(self, sizes: Array) -> Array:
        """Each group is one input.

        >>> Listwise(ListwiseSettings(n=3)).members(np.array([2, 3])).tolist()
        [[0, 1, -1], [2, 3, 4]]
        """
        there = np.arange(self.settings.n) < sizes[:, None]
        rows = np.full(there.shape, -1, dtype=np.int64)
        rows[there] = np.arange(sizes.sum())
        return rows

    def inputs(
        self, queries: Tokenised, texts: Tokenised, members: Array, query_of: Array, reading: Reading
    ) -> tuple[Inputs, Truncation]:
        return templates.listwise(
            queries,
            texts,
            members,
            reading.special,
            query_of=query_of,
            query_limit=reading.query_limit,
            total_limit=reading.total,
            segment_types=reading.config.segments,
        )

    def room(self, query_tokens: int, reading: Reading) -> int:
        return reading.total

    def tensors(self, config: EncoderConfig) -> Mapping[str, Shape]:
        return {f"{HEAD}.weight": (1, config.hidden), f"{HEAD}.bias": (1,)}

    def network(self, checkpoint: Checkpoint) -> ListNetwork:
        from tamis.models.list_network import ListNetwork
        from tamis.models.tokenizer import open_tokenizer

        return ListNetwork.of(checkpoint, open_tokenizer(checkpoint).special)

    def graphs(self, checkpoint: Checkpoint, precision: Precision) -> Sequence[ModelProto]:
        from tamis.models.checkpoint import overlaid
        from tamis.models.graph import build_token_scores

        tensors = overlaid(checkpoint.tensors, checkpoint.head)
        return [build_token_scores(checkpoint.config, tensors, precision, HEAD)]

    def shape(self) -> tuple[int, ...]:
        return (self.settings.n,)

    def scores(self, outputs: Array, inputs: Inputs, special: Special) -> Array:
        starts, counts, _, _ = text_spans(inputs, special)
        return span_means(outputs.ravel(), starts, counts)

    def rows(self, scores: Array, inputs: Inputs, special: Special) -> Array:
        """One row per input, padded with 0 if it has fewer than n texts."""
        _, _, owners, numbers = text_spans(inputs, special)
        rows = np.zeros((len(inputs), self.settings.n), np.float32)
        rows[owners, numbers] = scores
        return rows

    def check_recipe(self, recipe: Any) -> None:
        examples, n = recipe.examples, self.settings.n
        if examples.kind != "grouped":
            raise InputError(
                f"a listwise model reads groups, and the examples are {examples.kind}",
                remedy='use kind = "grouped"',
            )
        if examples.group != n:
            raise InputError(
                f"n of [listwise] is {n}, and group of [examples] {examples.group}",
                remedy="make them equal: it learns from groups as large as those that it ranks",
            )
        if recipe.folds is not None:
            raise InputError("listwise models are not trained by folds", remedy="leave out [folds]")

    def dev_options(self) -> dict[str, Any]:
        return {"k": self.settings.k, "rounds": self.settings.rounds}


def span_means(values: Array, starts: Array, counts: Array) -> Array:
    """The mean of each span of values; spans must not be empty.

    >>> span_means(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 2]), np.array([1, 2])).tolist()
    [1.0, 6.0]
    """
    offsets = np.stack([starts, starts + counts], axis=1).ravel()
    if not len(offsets):
        return np.empty(0)
    # `reduceat` also sums the gaps between spans; the last span may end at the end of the values
    sums = np.add.reduceat(np.append(values.astype(np.float64), 0.0), offsets)[::2]
    return np.asarray(sums / counts)
