"""Where training starts: a checkpoint with the head, the segments and the layers that a recipe asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import xxhash

from tamis.base.errors import InputError
from tamis.infer.scorer import bundled_folder, load_bundled
from tamis.models.checkpoint import Checkpoint, load_checkpoint, with_third_segment
from tamis.models.names import shapes
from tamis.models.templates import ABLATED, Form, ablated
from tamis.models.weights import LazyTensors
from tamis.train.factorise import factorised
from tamis.train.narrow import narrowed
from tamis.train.recipe import Model

_LAYERS = {"distilbert": "n_layers"}  # what config.json calls them; in other families num_hidden_layers


def load_start(model: Model, seed: int, *, forms: bool = False) -> Checkpoint:
    """The checkpoint that training starts from; what it lacks is drawn from `seed`. Who makes inputs in other
    forms than the default says so: else a model that asks for one is refused.

    >>> load_start(Model(str(getfixture("tmp_path"))), seed=0)
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    bundled = bundled_folder(model.start)
    if bundled is not None:
        load_bundled(bundled)  # to be sure of it: with another head it has another fingerprint
    checkpoint = load_checkpoint(
        bundled or model.start, model.revision, require_head=False, labels=model.labels, seed=seed
    )
    # what is trained from a listwise model is one only if `begin_lists` makes it so
    checkpoint = replace(checkpoint, config=replace(checkpoint.config, texts=0))
    if model.layers is not None:
        checkpoint = keep_layers(checkpoint, model.layers)
    if model.embedding is not None:
        checkpoint = factorised(checkpoint, model.embedding, seed)
    if model.narrow is not None:
        sizes = model.narrow
        checkpoint = narrowed(
            checkpoint,
            layers=sizes.layers,
            hidden=sizes.hidden,
            heads=sizes.heads,
            feed_forward=sizes.feed_forward,
            positions=sizes.positions,
            seed=seed,
        )
    checkpoint = with_form(checkpoint, model.form or checkpoint.config.form)
    if model.form not in (None, "default") and not forms:
        raise InputError(
            f"form of [model] is {model.form!r}, and only mono has inputs in that form", remedy="leave it out"
        )
    if checkpoint.config.form != "default" and not forms:
        raise InputError(
            f"{model.start} is for inputs of the form {checkpoint.config.form}, and only mono has those",
            remedy="start from another model, or train it as a mono",
        )
    return with_third_segment(checkpoint, seed) if model.third_segment else checkpoint


def with_form(checkpoint: Checkpoint, form: Form) -> Checkpoint:
    """The checkpoint with inputs in that form. A table of embeddings that it does without is zero, and its
    training has to leave it so (`ABLATED`)."""
    if form == checkpoint.config.form and form not in ABLATED:
        return checkpoint
    return replace(
        checkpoint,
        config=replace(checkpoint.config, form=form),
        tensors=ablated(checkpoint.tensors, form) if form in ABLATED else checkpoint.tensors,
        fingerprint=xxhash.xxh3_64(f"{checkpoint.fingerprint} {form}".encode()).hexdigest(),
    )


def keep_layers(checkpoint: Checkpoint, layers: Sequence[int]) -> Checkpoint:
    """A shallower model of some of a checkpoint's layers, numbered from 0; all else stays."""
    config = checkpoint.config
    if not layers or min(layers) < 0 or max(layers) >= config.layers:
        problem = f"layers {', '.join(map(str, layers))} of a model that has {config.layers}"
        raise InputError(problem, remedy=f"choose from 0 to {config.layers - 1}")
    if config.layer_groups < config.layers:
        raise InputError(
            f"the {config.layers} layers of this {config.family} model share weights",
            remedy="leave out the choice of layers",
        )
    shallow = replace(config, layers=len(layers), layer_groups=len(layers))
    read = checkpoint.tensors.__getitem__
    readers = {}
    for name in shapes(shallow):
        kind, _, rest = name.partition(".")
        if kind == "layers":
            number, _, rest = rest.partition(".")
            readers[name] = partial(read, f"layers.{layers[int(number)]}.{rest}")
        else:
            readers[name] = partial(read, name)
    count = _LAYERS.get(config.family, "num_hidden_layers")
    return replace(
        checkpoint,
        config=shallow,
        tensors=LazyTensors(readers),
        fingerprint=xxhash.xxh3_64(f"{checkpoint.fingerprint} {list(layers)}".encode()).hexdigest(),
        raw_config={**checkpoint.raw_config, count: len(layers)},
    )
