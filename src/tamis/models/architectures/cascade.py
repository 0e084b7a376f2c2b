"""Exits of an encoder: after some layers a head of its own says how relevant a text is, so that not every
text need go through all of them (cascade transformers, Soldaini & Moschitti 2020; DeeBERT, Xin et al. 2020).

At each exit the best (1 - alpha) of a query's live candidates go on, or those of which it is not sure. An
exit's head is the encoder's head once more, on the [CLS] of that layer and with weights of its own: of BERT,
a pooler and a classifier. The last exit is after the last layer, and its head is the one that every
checkpoint has. So a model with exits is an ordinary checkpoint: `mono`, transformers and whatever starts from
a checkpoint read it as one without. The other heads lie beside it in model.safetensors, as
`exits.4.dense.weight` for the exit after the fourth layer.
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

#: Heads to begin with: drawn at random, or copies of the start's own.
Heads = Literal["new", "trained"]


class CascadeSettings(Settings):
    """Where the exits are, and how many candidates leave at each when the dev run is ranked. The figures are
    those of Soldaini & Moschitti 2020, for 12 layers."""

    first: Count = 4  # the layer after which the first exit is (lambda_0) ...
    step: Count = 2  # ... and how many layers on the next ones are (lambda_1); after the last is one always
    exits: tuple[Count, ...] = ()  # the layers of the exits before the last, in place of first and step
    alpha: BelowOne = 0.3  # of the dev run: training reads every text as far as the exit that learns
    heads: Heads = "new"  # drawn from the seed, the last the start's if it has one; trained: copies of that


class Cascade(Architecture):
    """A pointwise model with exits."""

    name, prefix = "cascade", "exits"
    Settings = CascadeSettings
    learning = "tamis.train.learning:ExitLearning"

    def layers(self, config: EncoderConfig) -> tuple[int, ...]:
        """After which layers there is an exit."""
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
        """A graph for each group of layers between two exits. No score depends on its batch, so that those at
        the last exit are a plain model's to the last bit."""
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
    """After which of so many layers there is an exit: the first (lambda_0), every `step` (lambda_1) from
    there on, and the last.

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
    """How many of so many candidates go on: (1 - alpha) of them to the nearest, a half up, and at least one.

    >>> kept(128, 0.3), kept(45, 0.3), kept(1, 0.9)
    (90, 32, 1)
    """
    # by the decimal that was written: 0.7 * 45 is below 31.5 in double precision
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
    """Through how many layers so many candidates go in all, with exits after these layers.

    >>> layers_run(128, (4, 6, 8, 10, 12), 0.3)  # 4 * 128 + 2 * (90 + 63 + 44 + 31)
    968
    """
    counts = live_at(candidates, len(layers), alpha)
    return sum(
        count * (to - since) for count, (since, to) in zip(counts, pairwise((0, *layers)), strict=True)
    )


def cost(layers: Sequence[int], alpha: float) -> float:
    """The share of the whole model's work, for candidates without number: with exits after every step of
    lambda_1 layers, (lambda_0 + lambda_1 * sum of (1 - alpha)^i) / L.

    >>> [f"{1 - cost((4, 6, 8, 10, 12), alpha):.1%}" for alpha in (0, 0.3, 0.4, 0.5)]
    ['0.0%', '37.1%', '44.9%', '51.0%']
    """
    since = enumerate(pairwise((0, *layers)))
    return math.fsum((to - after) * (1 - alpha) ** number for number, (after, to) in since) / layers[-1]


def check_alpha(alpha: float) -> None:
    """Whether it is a share of candidates that an exit can discard."""
    if not 0 <= alpha < 1:
        raise InputError(f"a cascade with alpha={alpha}", remedy="use an alpha of at least 0 and below 1")


def entropies(margins: Array) -> Array:
    """How unsure predictions are: -p ln p - (1 - p) ln (1 - p), where p is the sigmoid of the margin, which
    is the softmax of a head with two labels. From ln 2 at a margin of 0 down to 0, whichever label it is.

    >>> entropies(np.array([0.0, math.log(3), -math.log(3), 1000.0])).round(4).tolist()  # p of 1/2, 3/4, 1/4
    [0.6931, 0.5623, 0.5623, 0.0]
    """
    size = np.abs(margins.astype(np.float64))
    odds = np.exp(-size)  # of the label that is the less probable: no logarithm of a p that is 0
    return np.asarray(np.log1p(odds) + size * odds / (1 + odds))


def check_entropy(entropy: float) -> None:
    """Whether it is a threshold of entropy; one above ln 2 lets every candidate leave at the first exit."""
    if not 0 <= entropy < math.inf:
        raise InputError(f"a cascade with entropy={entropy}", remedy="use a number of at least 0")
