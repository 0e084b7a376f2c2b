"""monoBERT: reads each text together with the query and scores it independently (Nogueira et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tamis.base.arrays import Array
from tamis.models import templates
from tamis.models.architecture import Architecture, Reading
from tamis.models.settings import Settings
from tamis.models.templates import ABLATED, Form, Part

if TYPE_CHECKING:
    from tamis.models.checkpoint import Checkpoint


class MonoSettings(Settings):
    """The form of the inputs of a pointwise model."""

    form: Form = "default"  # the form of the inputs: one of the templates of the ablation


class Mono(Architecture):
    """A pointwise model."""

    name, reads = "mono", ("duo", "cascade")
    Settings = MonoSettings

    @property
    def form(self) -> Form:
        form: Form = getattr(self.settings, "form", "default")  # a subclass has its own settings
        return form

    @property
    def without(self) -> str | None:
        return ABLATED.get(self.form)

    def parts(self, reading: Reading) -> Sequence[Part]:
        return templates.mono_parts(reading.special, self.form)

    def begin(self, start: Checkpoint, seed: int = 0) -> Checkpoint:
        return in_form(start, self.form) if type(self) is Mono else super().begin(start, seed)


def form_of(checkpoint: Checkpoint) -> Form:
    """The input form of a checkpoint that is used as a pointwise model."""
    kind = checkpoint.architecture
    return kind.form if isinstance(kind, Mono) else "default"


def in_form(checkpoint: Checkpoint, form: Form) -> Checkpoint:
    """A checkpoint as a pointwise model with inputs in that form, with the table of embeddings that the form
    does not use set to zero."""
    tensors: Mapping[str, Array] = checkpoint.tensors
    fingerprint = checkpoint.fingerprint
    if form in ABLATED:
        tensors, fingerprint = ablated(tensors, form), f"{fingerprint}-{form}"
    return replace(
        checkpoint,
        architecture=Mono(MonoSettings(form=form)),
        tensors=tensors,
        head={},
        fingerprint=fingerprint,
    )


def ablated(tensors: Mapping[str, Array], form: Form) -> dict[str, Array]:
    """The weights for a form without position or segment embeddings: that table is set to zero. A token's
    vector is the sum of its word, position and segment embeddings, so adding zeros has no effect (training in
    such a form must keep the table at zero).

    >>> tensors = {"embeddings.position": np.ones((2, 3)), "embeddings.word": np.ones((5, 3))}
    >>> ablated(tensors, "no-positions")["embeddings.position"].any()
    np.False_
    """
    table = ABLATED.get(form)
    zeros = {name: np.zeros_like(tensors[name]) for name in tensors if name == table}
    return {**tensors, **zeros}
