"""Factorised embeddings: nearest to the wide ones, and a model that other libraries load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.train.factorise import _normalised, factorised
from tamis.train.recipe import Model
from tamis.train.start import load_start

torch = pytest.importorskip("torch")

Tiny = Callable[..., Path]


def test_embeddings_of_low_rank_are_found_again(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    """Where words lie in a plane of few directions, nothing but the norm's place is lost."""
    start = load_checkpoint(tiny_checkpoint(tmp_path / "wide"), require_head=False)
    rng = np.random.default_rng(0)
    hidden, width = start.config.hidden, start.config.hidden - 2
    plane = np.linalg.qr(rng.normal(size=(hidden, width - 2)))[0]
    tables = {
        name: (rng.normal(size=(len(start.tensors[name]), width - 2)) @ plane.T).astype(np.float32)
        for name in ("embeddings.word", "embeddings.position", "embeddings.segment")
    }
    narrow = factorised(replace(start, tensors={**start.tensors, **tables}), width)
    ours = narrow.tensors
    assert ours["embeddings.word"].shape == (start.config.vocabulary, width)
    words = np.arange(len(tables["embeddings.word"]))
    wide = _normalised(
        tables["embeddings.word"][words] + tables["embeddings.position"][0] + tables["embeddings.segment"][0],
        start.config.norm_epsilon,
    )
    wide = wide * start.tensors["embeddings.norm.weight"] + start.tensors["embeddings.norm.bias"]
    small = _normalised(
        ours["embeddings.word"][words] + ours["embeddings.position"][0] + ours["embeddings.segment"][0],
        start.config.norm_epsilon,
    )
    found = small @ ours["embeddings.project.weight"].T + ours["embeddings.project.bias"]
    left = ((found - wide) ** 2).sum() / ((wide - wide.mean(0)) ** 2).sum()
    assert left < 0.35, left


def test_transformers_reads_the_same_scores(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tamis.models.encoder import Encoder

    start = load_start(
        Model(str(tiny_checkpoint(tmp_path / "wide")), labels=2, embedding=4, layers=(0,)), seed=0
    )
    save_checkpoint(start, tmp_path / "narrow")
    again = load_checkpoint(tmp_path / "narrow")
    assert (again.config.family, again.config.embedding, again.config.layers) == ("electra", 4, 1)
    theirs = transformers.ElectraForSequenceClassification.from_pretrained(tmp_path / "narrow").eval()
    ids, segments = torch.tensor([[1, 3, 2, 4, 2]]), torch.tensor([[0, 0, 0, 1, 1]])
    with torch.no_grad():
        ours = Encoder.from_checkpoint(again).eval().padded(ids, segments, torch.tensor([5]))
        wanted = theirs(input_ids=ids, token_type_ids=segments).logits
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [0, 10_000])
def test_a_width_that_is_no_smaller_is_refused(tiny_checkpoint: Tiny, tmp_path: Path, width: int) -> None:
    with pytest.raises(InputError, match="narrower"):
        factorised(load_checkpoint(tiny_checkpoint(tmp_path / "wide"), require_head=False), width)
