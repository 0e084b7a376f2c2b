"""A narrower student: its teacher's words in fewer dimensions, new layers, and a model that others load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.models.settings import changed
from tamis.train.factorise import principal_axes
from tamis.train.narrow import narrowed
from tamis.train.recipe import Model, Narrow, read_recipe
from tamis.train.start import load_start

torch = pytest.importorskip("torch")

Tiny = Callable[..., Path]
SIZES = Narrow(layers=1, hidden=4, heads=2, feed_forward=6)


def test_the_tables_are_those_of_the_start_along_the_main_axes_of_its_words(
    tiny_checkpoint: Tiny, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "wide")
    wide = load_checkpoint(folder, require_head=False)
    narrow = load_start(Model(str(folder), labels=1, narrow=SIZES), seed=3)
    assert (narrow.config.layers, narrow.config.hidden, narrow.config.heads) == (1, 4, 2)
    assert narrow.config.family == "bert" and narrow.config.labels == 1
    words = wide.tensors["embeddings.word"]
    axes = principal_axes(words, 4)
    assert np.allclose(axes.T @ axes, np.eye(4), atol=1e-9)
    for name in ("embeddings.word", "embeddings.position"):
        assert np.allclose(narrow.tensors[name], wide.tensors[name] @ axes, atol=1e-6)
    # no four directions keep more of the words
    kept = (narrow.tensors["embeddings.word"] ** 2).sum()
    largest = np.sort(np.linalg.svd(words, compute_uv=False))[::-1][:4]
    assert kept == pytest.approx((largest**2).sum(), rel=1e-5)


def test_it_begins_by_comparing_words(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    wide = load_checkpoint(tiny_checkpoint(tmp_path / "wide"), require_head=False)
    narrow = narrowed(wide, layers=2, hidden=4, heads=1, feed_forward=6)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(50, 4))
    states -= states.mean(axis=1, keepdims=True)
    states /= states.std(axis=1, keepdims=True)  # as a norm leaves them
    for layer in range(2):
        query, key = (narrow.tensors[f"layers.{layer}.attention.{part}.weight"] for part in ("query", "key"))
        scores = (states @ query.T) @ (states @ key.T).T / np.sqrt(4)
        assert np.diag(scores) == pytest.approx(5.0, rel=1e-5)  # no other token is more alike
        assert scores.max() <= 5.0 + 1e-5
    # the segments lie on both sides of where the projection leaves them, a word's length away
    axes = principal_axes(wide.tensors["embeddings.word"], 4)
    moved = narrow.tensors["embeddings.segment"] - wide.tensors["embeddings.segment"] @ axes
    length = np.linalg.norm(narrow.tensors["embeddings.word"], axis=1).mean()
    assert np.linalg.norm(moved[:2], axis=1) == pytest.approx([length, length], rel=1e-5)
    assert np.allclose(moved[0], -moved[1], atol=1e-6) and np.allclose(moved[2:], 0, atol=1e-6)
    # what goes through the other matrices keeps its size
    up = narrow.tensors["layers.0.feed_forward.up.weight"]
    assert up.std() == pytest.approx(0.5)


def test_layers_are_drawn_from_the_seed(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder = str(tiny_checkpoint(tmp_path / "wide"))
    one, again, other = (load_start(Model(folder, labels=1, narrow=SIZES), seed) for seed in (1, 1, 2))
    name = "layers.0.attention.query.weight"
    assert np.array_equal(one.tensors[name], again.tensors[name])
    assert not np.array_equal(one.tensors[name], other.tensors[name])
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert name in one.drawn and "embeddings.word" not in one.drawn


def test_transformers_reads_the_same_scores(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tamis.models.encoder import Encoder

    start = load_start(Model(str(tiny_checkpoint(tmp_path / "wide")), labels=1, narrow=SIZES), seed=0)
    save_checkpoint(start, tmp_path / "narrow")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "narrow").eval()
    ids, segments = torch.tensor([[1, 3, 2, 4, 2]]), torch.tensor([[0, 0, 0, 1, 1]])
    with torch.no_grad():
        ours = Encoder.from_checkpoint(load_checkpoint(tmp_path / "narrow")).eval()
        found = ours.padded(ids, segments, torch.tensor([5]))
        wanted = theirs(input_ids=ids, token_type_ids=segments).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_it_reads_as_many_tokens_as_it_has_positions(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "wide")
    whole = load_start(Model(str(folder), labels=1, narrow=SIZES), seed=3)
    short = load_start(Model(str(folder), labels=1, narrow=changed(SIZES, positions=9)), seed=3)
    assert short.config.max_length == 9 and short.fingerprint != whole.fingerprint
    for name in whole.tensors:
        wanted = whole.tensors[name][:9] if name == "embeddings.position" else whole.tensors[name]
        assert np.array_equal(short.tensors[name], wanted)
    save_checkpoint(short, tmp_path / "short")
    assert load_checkpoint(tmp_path / "short").config == short.config
    with pytest.raises(InputError, match="positions for a model with"):
        narrowed(whole, layers=1, hidden=2, heads=1, feed_forward=4, positions=10_000)


@pytest.mark.parametrize("hidden", [0, 10_000])
def test_a_width_that_is_no_smaller_is_refused(tiny_checkpoint: Tiny, tmp_path: Path, hidden: int) -> None:
    wide = load_checkpoint(tiny_checkpoint(tmp_path / "wide"), require_head=False)
    with pytest.raises(InputError, match="with fewer than it has"):
        narrowed(wide, layers=1, hidden=hidden, heads=1, feed_forward=4)


@pytest.mark.parametrize(
    ("model", "examples", "message"),
    [
        ("layers = [0]\n[model.narrow]\nlayers = 1\nhidden = 4\nheads = 1\nfeed_forward = 4", "", "narrow"),
        ("[model.narrow]\nlayers = 1\nhidden = 4\nheads = 1", "", "feed_forward"),
        ("", 'kind = "grouped"\nalone = true', "alone with the kind grouped"),
    ],
)
def test_recipes_that_cannot_be_meant_are_refused(
    model: str, examples: str, message: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    data = '[[data]]\nset = "s"\n[optimiser]\nsteps = 1\n'
    recipe.write_text(f'[model]\nstart = "m"\n{model}\n{data}[examples]\n{examples}\n')
    with pytest.raises(InputError, match=message):
        read_recipe(recipe)
