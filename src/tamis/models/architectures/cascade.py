"""Early exits of an encoder: after some layers a separate head scores a text, so that not every text needs to
go through all layers (cascade transformers, Soldaini & Moschitti 2020; DeeBERT, Xin et al. 2020).

At each exit the best (1 - alpha) of a query's live candidates continue, or those for which the exit is not
certain. An exit's head has the same form as the encoder's head (for BERT, a pooler and a classifier), but
weights of its own, and reads the [CLS] of that layer. The last exit is after the last layer, and its head is
the one that every checkpoint has. So a model with exits is an ordinary checkpoint: `mono`, transformers and
all that starts from a checkpoint can read it, and ignore the exits. The other heads are in the same
model.safetensors, for example `exits.4.dense.weight` for the exit after the fourth layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.architecture import Architecture
from tamis.models.settings import BelowOne, Count, Settings

if TYPE_CHECKING:
    from onnx import ModelProto

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.exit_network import ExitNetwork
    from tamis.models.graph import Precision
    from tamis.models.names import Shape

#: The initial heads: drawn at random, or copies of the start's head.
Heads = Literal["new", "trained"]


class CascadeSettings(Settings):
    """Where the exits are, and how many candidates leave at each of them in the dev run. The defaults are
    those of Soldaini & Moschitti 2020, for 12 layers."""

    first: Count = 4  # the layer of the first exit (lambda_0) ...
    step: Count = 2  # ... and the layers from each exit to the next (lambda_1); the last layer always has one
    exits: tuple[Count, ...] = ()  # the layers of the exits before the last; replaces first and step
    alpha: BelowOne = 0.3  # of the dev run only: training reads every text up to the exit that it trains
    heads: Heads = "new"  # new: random (the last: the start's, if any); trained: copies of the start's head


class Cascade(Architecture):
    """A pointwise model with exits."""

    name, prefix = "cascade", "exits"
    Settings = CascadeSettings
    learning = "tamis.train.learning:ExitLearning"

    def layers(self, config: EncoderConfig) -> tuple[int, ...]:
        """The layers after which there is an exit."""
        if self.settings.exits:
            return (*self.settings.exits, config.layers)
        return exit_layers(config.layers, self.settings.first, self.settings.step)

    def check_config(self, config: EncoderConfig) -> None:
        super().check_config(config)
        layers = self.layers(config)
        if any(after >= layer for after, layer in pairwise(layers)):
            listed = ", ".join(map(str, layers[:-1]))
            raise InputError(
                f"exits after layers {listed} of a model that has {config.layers}",
                remedy="name layers before its last, in their order",
            )

    def tensors(self, config: EncoderConfig) -> Mapping[str, Shape]:
        from tamis.models.names import shapes

        head = {
            name.removeprefix("head."): s for name, s in shapes(config).items() if name.startswith("head.")
        }
        exits = self.layers(config)[:-1]
        return {f"exits.{layer}.{name}": shape for layer in exits for name, shape in head.items()}

    def drawn(self, start: Checkpoint, seed: int) -> Mapping[str, Array]:
        if self.settings.heads == "new":
            return super().drawn(start, seed)
        return {name: start.tensors[f"head.{name.split('.', 2)[2]}"] for name in self.tensors(start.config)}

    def network(self, checkpoint: Checkpoint) -> ExitNetwork:
        from tamis.models.exit_network import ExitNetwork

        return ExitNetwork.of(checkpoint, self.layers(checkpoint.config))

    def graphs(self, checkpoint: Checkpoint, precision: Precision) -> Sequence[ModelProto]:
        """One graph for each group of layers between two exits. Scores do not depend on the batch, so that
        the scores of the last exit are bit-identical to those of a plain model."""
        from tamis.models.checkpoint import overlaid
        from tamis.models.graph import build_part

        tensors, layers = overlaid(checkpoint.tensors, checkpoint.head), self.layers(checkpoint.config)
        return [
            build_part(
                checkpoint.config,
                tensors,
                precision,
                start,
                stop,
                head="head" if stop == layers[-1] else f"exits.{stop}",
            )
            for start, stop in pairwise((0, *layers))
        ]

    def check_recipe(self, recipe: Any) -> None:
        super().check_recipe(recipe)
        if recipe.folds is not None:
            raise InputError("models with exits are not trained by folds", remedy="leave out [folds]")

    def dev_options(self) -> dict[str, Any]:
        return {"alpha": self.settings.alpha}


def exit_layers(layers: int, first: int = 4, step: int = 2) -> tuple[int, ...]:
    """The layers with an exit in a model of `layers` layers: `first` (lambda_0), then every `step`
    (lambda_1), and the last.

    >>> exit_layers(12), exit_layers(6, first=2, step=3)
    ((4, 6, 8, 10, 12), (2, 5, 6))
    """
    if not 1 <= first < layers or step < 1:
        raise InputError(
            f"exits after layer {first} and every {step} from there on, in a model of {layers} layers",
            remedy="begin before its last layer, and use a step of at least 1",
        )
    return (*range(first, layers, step), layers)


def kept(live: int, alpha: float) -> int:
    """How many of `live` candidates continue: (1 - alpha) of them, rounded half up, and at least one.

    >>> kept(128, 0.3), kept(45, 0.3), kept(1, 0.9)
    (90, 32, 1)
    """
    # exact decimals, as the user wrote them: 0.7 * 45 is below 31.5 in double precision
    share = (1 - Fraction(str(alpha))) * live
    return min(live, max(1, math.floor(share + Fraction(1, 2))))


def live_at(candidates: int, exits: int, alpha: float) -> list[int]:
    """How many candidates reach each exit.

    >>> live_at(128, 5, 0.3)
    [128, 90, 63, 44, 31]
    """
    live = [candidates]
    while len(live) < exits:
        live.append(kept(live[-1], alpha))
    return live


def layers_run(candidates: int, layers: Sequence[int], alpha: float) -> int:
    """The total number of layers that the candidates go through, with exits after these layers.

    >>> layers_run(128, (4, 6, 8, 10, 12), 0.3)  # 4 * 128 + 2 * (90 + 63 + 44 + 31)
    968
    """
    counts = live_at(candidates, len(layers), alpha)
    return sum(
        count * (to - since) for count, (since, to) in zip(counts, pairwise((0, *layers)), strict=True)
    )


def cost(layers: Sequence[int], alpha: float) -> float:
    """The cost as a fraction of the full model's, for an unlimited number of candidates: with exits after
    every lambda_1 layers, (lambda_0 + lambda_1 * sum of (1 - alpha)^i) / L.

    >>> [f"{1 - cost((4, 6, 8, 10, 12), alpha):.1%}" for alpha in (0, 0.3, 0.4, 0.5)]
    ['0.0%', '37.1%', '44.9%', '51.0%']
    """
    since = enumerate(pairwise((0, *layers)))
    return math.fsum((to - after) * (1 - alpha) ** number for number, (after, to) in since) / layers[-1]


def check_alpha(alpha: float) -> None:
    """Raise an error if alpha is not a fraction of candidates that an exit can discard."""
    if not 0 <= alpha < 1:
        raise InputError(f"a cascade with alpha={alpha}", remedy="use an alpha of at least 0 and below 1")


def entropies(margins: Array) -> Array:
    """The entropy of predictions: -p ln p - (1 - p) ln (1 - p), where p is the sigmoid of the margin, which
    equals the softmax of a head with two labels. It falls from ln 2 at a margin of 0 to 0 for large margins,
    positive or negative.

    >>> entropies(np.array([0.0, math.log(3), -math.log(3), 1000.0])).round(4).tolist()  # p of 1/2, 3/4, 1/4
    [0.6931, 0.5623, 0.5623, 0.0]
    """
    size = np.abs(margins.astype(np.float64))
    odds = np.exp(-size)  # of the less probable label: avoids the logarithm of p = 0
    return np.asarray(np.log1p(odds) + size * odds / (1 + odds))


def check_entropy(entropy: float) -> None:
    """Raise an error for an invalid threshold; above ln 2 every candidate leaves at the first exit."""
    if not 0 <= entropy < math.inf:
        raise InputError(f"a cascade with entropy={entropy}", remedy="use a number of at least 0")
