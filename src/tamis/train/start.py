"""Where training starts: a checkpoint with the head, the segments and the layers that a recipe requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import xxhash

from tamis.base.errors import InputError
from tamis.models.architectures.duo import Duo
from tamis.models.architectures.mono import Mono, MonoSettings, form_of, in_form
from tamis.models.bundled import bundled_folder, load_bundled
from tamis.models.checkpoint import Checkpoint, load_checkpoint, with_third_segment
from tamis.models.names import shapes
from tamis.models.templates import Form
from tamis.models.weights import LazyTensors
from tamis.train.factorise import factorised
from tamis.train.learning import learning_of
from tamis.train.narrow import narrowed
from tamis.train.recipe import Model, Recipe

_SEGMENTS = 3  # of an input with two texts
_LAYERS = {"distilbert": "n_layers"}  # the name in config.json; in other families num_hidden_layers


def load_start(model: Model, seed: int, *, forms: bool = False) -> Checkpoint:
    """The checkpoint that training starts from, as a pointwise one; missing weights are drawn from `seed`.
    With `forms` the caller can make inputs in other forms than the default; without it a model that needs one
    is refused.

    >>> load_start(Model(str(getfixture("tmp_path"))), seed=0)
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    stored, form = _stored(model, seed, forms=forms)
    return in_form(stored, form)


def _stored(model: Model, seed: int, *, forms: bool) -> tuple[Checkpoint, Form]:
    """The checkpoint with all its tensors, and the form of its inputs as a pointwise one."""
    bundled = bundled_folder(model.start)
    if bundled is not None:
        load_bundled(bundled)  # verifies it: with another head its fingerprint would be different
    checkpoint = load_checkpoint(
        bundled or model.start, model.revision, require_head=False, labels=model.labels, seed=seed
    )
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
    form = model.form or form_of(checkpoint)
    if model.form not in (None, "default") and not forms:
        raise InputError(
            f"form of [model] is {model.form!r}, and only mono has inputs in that form", remedy="leave it out"
        )
    if form != "default" and not forms:
        raise InputError(
            f"{model.start} is for inputs of the form {form}, and only mono has those",
            remedy="start from another model, or train it as a mono",
        )
    return with_third_segment(checkpoint, seed) if model.third_segment else checkpoint, form


def begin(recipe: Recipe) -> Checkpoint:
    """The model that a recipe's training starts from: the checkpoint with the recipe's architecture."""
    kind, pairs = recipe.architecture, recipe.examples.in_pairs
    pointwise = isinstance(kind, Mono) or (kind is None and not pairs)
    start, form = _stored(recipe.model, recipe.run.seed, forms=pointwise)
    if kind is None or kind == Mono():
        kind = Duo() if pairs else Mono(MonoSettings(form=form))
    made = kind.begin(start, recipe.run.seed)
    check_segments(made, recipe)
    learning_of(recipe, made).check()
    return made


def begun(start: Checkpoint, recipe: Recipe) -> Checkpoint:
    """A pointwise start as the model that a recipe of `tamis distill` trains: a duo for pairs."""
    return Duo().begin(start) if recipe.examples.in_pairs else start


def check_segments(start: Checkpoint, recipe: Recipe) -> None:
    """Check, before anything is read, that a model with two texts per input has a segment for each."""
    if recipe.examples.in_pairs and start.config.segments < _SEGMENTS:
        kind, found = recipe.examples.kind, start.config.segments
        raise InputError(
            f"{kind} examples have {_SEGMENTS} segments, and {start.folder} knows {found}",
            remedy="add third_segment = true to [model], or in distillation to [student]",
        )


def keep_layers(checkpoint: Checkpoint, layers: Sequence[int]) -> Checkpoint:
    """A shallower model with some of a checkpoint's layers, numbered from 0; everything else is kept."""
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
