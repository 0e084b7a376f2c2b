"""Checkpoints: what is written, and a third segment for duo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tamis.base.errors import InputError, StorageError
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_third_segment
from tamis.models.weights import stored_tensors, write_tensors

FAMILIES = ["bert", "roberta", "electra", "albert", "distilbert"]


@pytest.fixture
def folder(tmp_path, tiny_checkpoint) -> Path:
    return tiny_checkpoint(tmp_path / "model")


# What is written.


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_again_it_is_the_same(family, tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / "a", family, labels=2))
    save_checkpoint(checkpoint, tmp_path / "b")
    again = load_checkpoint(tmp_path / "b")
    assert again.config == checkpoint.config
    assert sorted(again.tensors) == sorted(checkpoint.tensors)
    assert all(np.array_equal(again.tensors[name], checkpoint.tensors[name]) for name in again.tensors)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    expected, written = (safetensors.numpy.load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert expected.keys() == written.keys()
    assert all(np.array_equal(expected[name], written[name]) for name in expected)


def test_what_a_config_says_beside_ours_is_kept(folder, tmp_path):
    path = folder / "config.json"
    said = {"id2label": {"0": "relevance"}, "torch_dtype": "bfloat16", "note": "café"}
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    save_checkpoint(load_checkpoint(folder), tmp_path / "b", dtype="float16")
    written = json.loads((tmp_path / "b" / "config.json").read_text(encoding="utf-8"))
    assert written["note"] == "café"
    assert (written["id2label"], written["label2id"]) == ({"0": "relevance"}, {"relevance": 0})
    assert written["dtype"] == "float16"
    assert "torch_dtype" not in written
    assert written["architectures"] == ["BertForSequenceClassification"]


def test_a_tokenizer_config_that_is_there_is_copied(folder, tmp_path):
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    save_checkpoint(load_checkpoint(folder), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "BertTokenizer"
    }


def test_a_value_too_large_for_half_precision_leaves_the_old_file(folder):
    checkpoint = load_checkpoint(folder)
    before = (folder / "model.safetensors").read_bytes()
    tensors = {name: checkpoint.tensors[name] * np.float32(1e6) for name in checkpoint.tensors}
    with pytest.raises(InputError, match=r"does not fit into float16: use float32"):
        save_checkpoint(replace(checkpoint, tensors=tensors), folder, dtype="float16")
    assert (folder / "model.safetensors").read_bytes() == before
    assert not list(folder.glob(".tamis-*"))


def test_a_folder_that_cannot_be_made(folder):
    with pytest.raises(StorageError, match=r"cannot write .*config.json/b .*: part of the path is a file"):
        save_checkpoint(load_checkpoint(folder), folder / "config.json" / "b")


# The third segment.


def mono(tmp_path: Path, tiny_checkpoint, **options: object) -> Checkpoint:
    return load_checkpoint(tiny_checkpoint(tmp_path, **options))


def test_a_start_for_duo_keeps_the_two_segments_and_draws_a_third(tmp_path, tiny_checkpoint):
    checkpoint = mono(tmp_path, tiny_checkpoint, hidden=512, layers=1)
    duo = with_third_segment(checkpoint, seed=7)
    table, before = duo.tensors["embeddings.segment"], checkpoint.tensors["embeddings.segment"]
    assert (duo.config.segments, table.shape) == (3, (3, 512))
    assert np.array_equal(table[:2], before)
    assert 0.015 < table[2].std() < 0.025
    assert np.array_equal(with_third_segment(checkpoint, seed=7).tensors["embeddings.segment"], table)
    assert not np.array_equal(with_third_segment(checkpoint, seed=8).tensors["embeddings.segment"], table)
    assert np.array_equal(duo.tensors["embeddings.word"], checkpoint.tensors["embeddings.word"])
    assert with_third_segment(duo) is duo
    assert checkpoint.config.segments == 2


def test_one_segment_becomes_three(tmp_path, tiny_checkpoint):
    duo = with_third_segment(mono(tmp_path, tiny_checkpoint, family="roberta"))
    assert duo.tensors["embeddings.segment"].shape == (3, 32)


def test_distilbert_cannot_become_duo(tmp_path, tiny_checkpoint):
    with pytest.raises(InputError, match=r"a distilbert model has no segment embeddings: start duo from"):
        with_third_segment(mono(tmp_path, tiny_checkpoint, family="distilbert"))


def test_what_is_written_is_aligned_and_says_its_format(tmp_path):
    write_tensors(
        tmp_path / "a.safetensors", {"é": np.ones((2, 3), np.float32), "b": np.zeros(1, np.float32)}
    )
    content = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    assert metadata == {"format": "pt", "tamis.checksum": metadata["tamis.checksum"]}
    assert stored_tensors(tmp_path / "a.safetensors")["é"].read().tolist() == [[1, 1, 1], [1, 1, 1]]
