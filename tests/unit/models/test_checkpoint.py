"""Checkpoints: what loads, what is refused and how it is said."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tamis.base.errors import CorruptError, InputError
from tamis.models.checkpoint import load_checkpoint, save_checkpoint, with_third_segment
from tamis.models.config import EncoderConfig, read_config
from tamis.models.names import hugging_face_names, shapes
from tamis.models.weights import stored_tensors

FAMILIES = ["bert", "roberta", "electra", "albert", "distilbert"]
WORD = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path, tiny_checkpoint) -> Path:
    return tiny_checkpoint(tmp_path / "model")


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def set_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def set_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "absent"}))


# What loads.


def test_the_folder_of_a_training_run_names_its_model(tmp_path, tiny_checkpoint):
    for name in ("last", "best"):
        trained = tiny_checkpoint(tmp_path / "run" / name)
        with pytest.raises(InputError, match=rf"run: has a training run in it: give .*{name}$"):
            load_checkpoint(str(tmp_path / "run"))
        assert load_checkpoint(str(trained)).config.family == "bert"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_are_those_of_the_file_under_our_names(family, tmp_path, tiny_checkpoint):
    folder = tiny_checkpoint(tmp_path, family, labels=2, layers=3)
    checkpoint = load_checkpoint(folder)
    expected = tensors_of(folder)
    names = hugging_face_names(checkpoint.config)
    assert checkpoint.config.family == family
    assert len(checkpoint.tensors) == len(expected) == len(names)
    for name, tensor in checkpoint.tensors.items():
        assert tensor.dtype == np.float32
        assert tensor.shape == shapes(checkpoint.config)[name]
        assert np.array_equal(tensor, expected[names[name]])


def test_albert_has_one_layer_of_weights_and_distilbert_no_segments(tmp_path, tiny_checkpoint):
    albert = load_checkpoint(tiny_checkpoint(tmp_path / "albert", "albert", layers=3))
    assert "layers.0.attention.query.weight" in albert.tensors
    assert "layers.1.attention.query.weight" not in albert.tensors
    distilbert = load_checkpoint(tiny_checkpoint(tmp_path / "distilbert", "distilbert"))
    assert "embeddings.segment" not in distilbert.tensors


def test_half_precision_and_bfloat16_become_float32(folder):
    tensors = tensors_of(folder)
    half = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    set_tensors(folder, half)
    checkpoint = load_checkpoint(folder)
    word = checkpoint.tensors["embeddings.word"]
    assert word.dtype == np.float32
    assert np.array_equal(word, half[WORD].astype(np.float32))

    # bfloat16 is the upper half of a float32: these four values lose nothing by it
    values = np.array([1.0, -2.5, 0.15625, 3e38], np.float32)
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    upper = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    (folder / "b.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + upper)
    read = stored_tensors(folder / "b.safetensors")["a"].read()
    assert read[:1].ravel().tolist() == [1.0, -2.5]
    assert read[1, 0] == 0.15625
    assert read[1, 1] == pytest.approx(3e38, rel=2**-7)


def test_weights_in_several_files(folder):
    whole = load_checkpoint(folder)
    tensors = tensors_of(folder)
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    weight_map = {name: file for file, part in parts.items() for name in part}
    for file, part in parts.items():
        safetensors.numpy.save_file({name: tensors[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    sharded = load_checkpoint(folder)
    assert all(np.array_equal(sharded.tensors[name], whole.tensors[name]) for name in whole.tensors)

    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"no file model-00002-of-00002.safetensors beside it: fetch"):
        load_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {names[0]: "../elsewhere.safetensors"}}))
    (folder.parent / "elsewhere.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"no file ../elsewhere.safetensors beside it"):
        load_checkpoint(folder)


def test_names_of_old_versions_and_what_pretraining_leaves_behind(folder):
    expected = load_checkpoint(folder)
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors_of(folder).items()
    }
    tensors["bert.embeddings.position_ids"] = np.arange(512)[None]
    tensors["cls.predictions.bias"] = np.zeros(400, np.float32)
    set_tensors(folder, tensors)
    checkpoint = load_checkpoint(folder)
    assert all(np.array_equal(checkpoint.tensors[name], expected.tensors[name]) for name in expected.tensors)


def test_one_of_many_tensors_is_read_without_the_others(folder):
    tensors = tensors_of(folder)
    tensors[QUERY] = tensors[QUERY] * np.nan
    set_tensors(folder, tensors)
    checkpoint = load_checkpoint(folder)
    assert np.isfinite(checkpoint.tensors["embeddings.word"]).all()
    with pytest.raises(InputError, match=rf"the tensor {QUERY} holds values that are not finite: fetch"):
        checkpoint.tensors["layers.0.attention.query.weight"]


def test_a_checkpoint_survives_its_folder_being_written_anew(folder):
    checkpoint = load_checkpoint(folder)
    before = checkpoint.tensors["head.dense.weight"].copy()
    changed = {name: checkpoint.tensors[name] + 1 for name in checkpoint.tensors}
    save_checkpoint(replace(checkpoint, tensors=changed), folder)
    assert np.array_equal(checkpoint.tensors["head.dense.weight"], before)
    assert np.array_equal(load_checkpoint(folder).tensors["head.dense.weight"], before + 1)


# The fingerprint.


def test_the_fingerprint_changes_with_whatever_changes_scores(folder, tmp_path):
    def fingerprint() -> str:
        return load_checkpoint(folder).fingerprint

    original = fingerprint()
    assert len(original) == 16
    assert int(original, 16)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert load_checkpoint(copy).fingerprint == original

    tensors = tensors_of(folder)
    tensors[WORD][3, 4] += 1e-6
    set_tensors(folder, tensors)
    seen = {original, fingerprint()}
    set_config(folder, layer_norm_eps=1e-5)
    seen.add(fingerprint())
    (folder / "tokenizer.json").write_text("{}")
    seen.add(fingerprint())
    seen.add(with_third_segment(load_checkpoint(folder), seed=1).fingerprint)
    seen.add(with_third_segment(load_checkpoint(folder), seed=2).fingerprint)
    assert len(seen) == 6


# What is refused: the folder.


def test_places_without_a_model(tmp_path, folder):
    with pytest.raises(InputError, match=r"none: no such folder: check the path"):
        load_checkpoint(tmp_path / "none")
    with pytest.raises(InputError, match=r"model.safetensors: not a folder: give the folder"):
        load_checkpoint(folder / "model.safetensors")
    with pytest.raises(InputError, match=r"model is a folder, which has no revisions: leave"):
        load_checkpoint(folder, revision="main")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load_checkpoint(folder)


class Bomb:
    """What unpickling it does, a malicious checkpoint could do."""

    def __reduce__(self):
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_a_pickle_is_refused_and_never_opened(folder, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError, match=rf"the weights are a pickle \({name}\).*: choose a model that has"):
        load_checkpoint(folder)
    assert not Path("exploded").exists()


def test_a_pickle_under_the_name_of_safetensors_is_refused(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CorruptError, match=r"model.safetensors is damaged or no safetensors file"):
        load_checkpoint(folder)
    assert not Path("exploded").exists()


def header_of(**entry: object) -> bytes:
    header = json.dumps({"a": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"\x01", "its header is longer than the file"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "its header is longer than the file"),
        ((2).to_bytes(8, "little") + b"{]", "its header is wrong"),
        ((2).to_bytes(8, "little") + b"[]", "its header is wrong"),
        (header_of(dtype="F32", shape=[2]), "its header is wrong"),
        (header_of(dtype="F32", shape=[3], data_offsets=[0, 12]), "a ends after the end of the file"),
        (header_of(dtype="F32", shape=[3], data_offsets=[0, 8]), r"a has 8 bytes for F32\[3\]"),
        (header_of(dtype="F32", shape=[-2], data_offsets=[8, 0]), "a has a size below 0"),
        (header_of(dtype=[], shape=[2], data_offsets=[0, 8]), "its header is wrong"),
    ],
)
def test_a_damaged_file_of_weights(folder, content, problem):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CorruptError, match=rf"{problem}.*fetch the model again"):
        load_checkpoint(folder)


def test_a_file_of_weights_cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"ends after the end of the file"):
        load_checkpoint(folder)


# What is refused: the tensors.


def test_missing_unexpected_and_misshaped_tensors_are_named_and_counted(folder):
    tensors = tensors_of(folder)
    del tensors[WORD]
    tensors["bert.encoder.layer.2.output.dense.bias"] = np.zeros(32, np.float32)
    tensors[QUERY] = tensors[QUERY][:5]
    set_tensors(folder, tensors)
    with pytest.raises(InputError) as refused:
        load_checkpoint(folder)
    assert str(refused.value) == (
        f"{folder}: the tensors are not those that config.json describes (1 missing: {WORD}; "
        "1 unexpected: bert.encoder.layer.2.output.dense.bias; "
        f"1 misshaped: {QUERY} is F32[5, 32] where [32, 32] is expected): fetch or save the model again"
    )


def test_of_many_wrong_tensors_a_few_are_named(folder):
    set_config(folder, num_hidden_layers=4)
    with pytest.raises(InputError, match=r"32 missing: bert[^ ]+, bert[^ ]+, bert[^ ]+ and 29 more\)"):
        load_checkpoint(folder)


def test_whole_numbers_are_no_weights(folder):
    tensors = tensors_of(folder)
    tensors[WORD] = tensors[WORD].astype(np.int32)
    set_tensors(folder, tensors)
    with pytest.raises(InputError, match=rf"1 misshaped: {WORD} is I32\[400, 32\]"):
        load_checkpoint(folder)


def test_another_number_of_labels_than_the_config_says(folder):
    set_config(folder, id2label="absent")  # two, for transformers
    with pytest.raises(InputError, match=r"classifier.weight is F32\[1, 32\] where \[2, 32\] is expected"):
        load_checkpoint(folder)


# An encoder without a head.


def without_head(folder: Path) -> Path:
    """As a sentence encoder is saved: no classifier, no prefix."""
    tensors = {n.removeprefix("bert."): t for n, t in tensors_of(folder).items() if "classifier" not in n}
    set_tensors(folder, tensors)
    set_config(folder, id2label="absent")
    return folder


def test_an_encoder_without_a_head_cannot_rank(folder):
    with pytest.raises(
        InputError, match=r"no classification head \(classifier.weight, classifier.bias missing"
    ):
        load_checkpoint(without_head(folder))


def test_an_encoder_without_a_head_can_be_trained(folder):
    original = load_checkpoint(folder)
    start = load_checkpoint(without_head(folder), require_head=False, labels=1, seed=5)
    assert start.config == original.config
    for name, tensor in start.tensors.items():
        if not name.startswith("head.output"):
            assert np.array_equal(tensor, original.tensors[name])
    weight = start.tensors["head.output.weight"]
    assert weight.shape == (1, 32)
    assert 0.01 < weight.std() < 0.03
    assert not start.tensors["head.output.bias"].any()
    again, other = (load_checkpoint(folder, require_head=False, labels=1, seed=seed) for seed in (5, 6))
    assert again.fingerprint == start.fingerprint != other.fingerprint
    assert np.array_equal(again.tensors["head.output.weight"], weight)


def test_a_head_for_three_labels_makes_room_for_a_ranker(tmp_path, tiny_checkpoint):
    folder = tiny_checkpoint(tmp_path, "roberta", labels=2)
    tensors = tensors_of(folder)
    tensors["classifier.out_proj.weight"] = np.zeros((3, 32), np.float32)
    tensors["classifier.out_proj.bias"] = np.zeros(3, np.float32)
    set_tensors(folder, tensors)
    set_config(folder, id2label={"0": "no", "1": "maybe", "2": "yes"})
    with pytest.raises(InputError, match=r"config.json: 3 labels: a ranker has one label"):
        load_checkpoint(folder)
    start = load_checkpoint(folder, require_head=False, labels=1)
    assert start.tensors["head.output.weight"].shape == (1, 32)
    assert np.array_equal(start.tensors["head.dense.weight"], tensors["classifier.dense.weight"])


def test_labels_of_a_trained_head_cannot_be_chosen(folder):
    with pytest.raises(InputError, match=r"labels can be chosen for a new head only: say require_head=False"):
        load_checkpoint(folder, labels=2)
    with pytest.raises(InputError, match=r"3 labels: a ranker has one label"):
        load_checkpoint(folder, require_head=False, labels=3)


# The config.


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model_type": "gpt2"}, r"model_type 'gpt2' is not supported: use one of bert, roberta"),
        ({"model_type": "absent"}, r"no model_type: use one of bert"),
        ({"model_type": ["bert"]}, r"model_type \['bert'\] is not supported"),
        ({"hidden_size": "absent"}, r"no hidden_size: it must be a whole number of at least 1"),
        ({"vocab_size": "30522"}, r"vocab_size is '30522': it must be a whole number"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers is 0: it must be"),
        ({"num_hidden_layers": True}, r"num_hidden_layers is True: it must be"),
        ({"type_vocab_size": -1}, r"type_vocab_size is -1: it must be"),
        ({"num_attention_heads": 5}, r"a hidden size of 32 does not divide into 5 heads"),
        ({"hidden_act": "silu"}, r"hidden_act is 'silu': it must be one of gelu"),
        ({"hidden_act": 3}, r"hidden_act is 3: it must be one of gelu"),
        ({"layer_norm_eps": "small"}, r"layer_norm_eps is 'small': it must be a number"),
        ({"hidden_dropout_prob": 1.5}, r"hidden_dropout_prob is 1.5: it must be a number"),
        ({"num_labels": 3}, r"3 labels: a ranker has one label \(a score\) or two"),
        ({"id2label": {}}, r"0 labels: a ranker has"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type 'relative_key' is not supp"),
        ({"is_decoder": True}, r"is_decoder True is not supported: use a plain encoder"),
    ],
)
def test_a_config_that_cannot_be_used(folder, fields, problem):
    set_config(folder, **fields)
    with pytest.raises(InputError, match=rf"config.json: {problem}"):
        load_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", '"bert"', "nan"])
def test_a_config_that_is_no_json_object(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config.json: not (JSON|a JSON object)"):
        read_config(folder / "config.json")


def test_what_configs_leave_out(tmp_path):
    path = tmp_path / "config.json"
    raw = {
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "max_position_embeddings": 512,
    }
    path.write_text(json.dumps(raw))
    expected = EncoderConfig("bert", 30522, hidden=384, layers=6, heads=12, feed_forward=1536, labels=2)
    assert read_config(path) == expected
    path.write_text(
        json.dumps(raw | {"model_type": "roberta", "max_position_embeddings": 514, "num_labels": 1})
    )
    config = read_config(path)
    assert (config.first_position, config.max_length, config.labels) == (2, 512, 1)
    path.write_text(json.dumps(raw | {"model_type": "albert", "embedding_size": 128}))
    config = read_config(path)
    assert (config.layer_groups, config.activation, config.projected) == (1, "gelu_tanh", True)


# The hub.

HUB = """
import sys
from tamis.base.errors import InputError
from tamis.models.checkpoint import load_checkpoint
name, revision = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
try:
    print(load_checkpoint(name, revision).fingerprint)
except InputError as error:
    print(error)
"""


def offline(tmp_path: Path, *arguments: str) -> str:
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", HUB, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    return done.stdout.strip()


def test_a_hub_name_is_found_in_the_local_cache(tmp_path, folder):
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hf" / "hub" / "models--tamis--tiny"
    shutil.copytree(folder, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    expected = load_checkpoint(folder).fingerprint
    assert offline(tmp_path, "tamis/tiny") == expected
    assert offline(tmp_path, "tamis/tiny", commit) == expected


def test_a_name_that_is_nowhere(tmp_path):
    said = offline(tmp_path, "tamis/nowhere", "v1")
    assert said.startswith(
        "tamis/nowhere (revision v1) is not in the local cache and the hub may not be asked"
    )
    assert said.endswith(": check the path if it is a folder, else unset HF_HUB_OFFLINE")
    assert offline(tmp_path, "models/of/mine") == (
        "no folder models/of/mine, and no hub name either: check the path"
    )
