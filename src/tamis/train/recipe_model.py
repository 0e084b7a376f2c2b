"""The table of a recipe that sets the start of training."""

from __future__ import annotations

from typing import Literal

from tamis.base.errors import InputError
from tamis.models.config import MOST
from tamis.models.settings import Count, Settings, Text, Whole
from tamis.models.templates import Form


def check_sizes(sizes: object) -> None:
    """Refuse sizes of a new model that would fill the memory or take forever.

    >>> check_sizes(Narrow(layers=4, hidden=384, heads=12, feed_forward=1 << 30))
    Traceback (most recent call last):
    tamis.base.errors.InputError: feed_forward of [narrow] is 1,073,741,824: use at most 1,048,576
    """
    for name in ("layers", "hidden", "heads", "feed_forward"):
        value = getattr(sizes, name)
        if value is not None and value > MOST[name]:
            where = type(sizes).__name__.lower()
            raise InputError(f"{name} of [{where}] is {value:,}", remedy=f"use at most {MOST[name]:,}")


class Narrow(Settings):
    """The sizes of a narrower model with the start's words and new layers: see `tamis.train.narrow`."""

    layers: Count  # how many
    hidden: Count  # width of the hidden states
    heads: Count  # of attention; they divide `hidden`
    feed_forward: Count  # width inside a layer
    positions: Count | None = None  # tokens that it reads at most (as many as the start)

    def model_post_init(self, _: object) -> None:
        check_sizes(self)


class Model(Settings):
    """Where training starts."""

    start: Text  # a bundled model, a folder or a name on the hub
    revision: Text | None = None  # of the hub
    labels: Literal[1, 2] | None = None  # outputs of the head: a score, or irrelevant and relevant; as it is
    third_segment: bool = False  # for duo: a segment embedding for the second text
    layers: tuple[Whole, ...] | None = None  # those to keep, numbered from 0 (all)
    embedding: Count | None = None  # the width of a narrower word table: see `tamis.train.factorise`
    narrow: Narrow | None = None  # a narrower model with its words
    form: Form | None = None  # of mono's inputs: see `tamis.models.templates`; left out: the start's form

    def model_post_init(self, _: object) -> None:
        if self.layers is not None and (not self.layers or list(self.layers) != sorted(set(self.layers))):
            raise InputError(
                f"layers of [model] is {list(self.layers)}", remedy="name each once, in their order"
            )
        if self.narrow is not None and (self.layers is not None or self.embedding is not None):
            raise InputError(
                "[model] has narrow with layers or embedding", remedy="give sizes in [model.narrow] alone"
            )
