"""Recipes, configs, models and ids that are well-formed and cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.base.errors import InputError, TamisError
from tamis.evaluate.folds import read_folds
from tamis.formats import read_corpus, read_queries
from tamis.models.checkpoint import load_checkpoint
from tamis.models.config import read_config
from tamis.models.legacy import recorded
from tamis.models.settings import read_toml
from tamis.models.tokenizer import Tokenizer
from tamis.models.weights import stored_tensors
from tamis.rank.groupwise import GroupwiseModel
from tamis.rank.ltr import LinearModel
from tamis.train.recipe import read_recipe

DEEP = "[" * 100_000 + "]" * 100_000
PARSED = "[" * 500 + "]" * 500  # which Python reads, and cannot write again from within other calls
RECIPE = '[model]\nstart = "a"\n[[data]]\nset = "b"\n[optimiser]\nsteps = 10\n'


# -- recipes


@pytest.mark.parametrize(
    "line",
    [
        "seed = " + "9" * 5000,
        "seed = " + "9" * 4000,
        "seed = 0x" + "f" * 5000,
        "seed = 9223372036854775808",
        f"seed = {DEEP}",
        f"seed = {PARSED}",
        "seed = " + "{a=" * 5000 + "1" + "}" * 5000,
        ".".join("a" * 20_000) + " = 1",
        "seed = 1e400",
        "seed = nan",
        "batch = 2024-01-01",
    ],
    ids=lambda line: line[:20],
)
def test_values_that_no_recipe_can_have(line: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f"{RECIPE}[run]\n{line}\n")
    with pytest.raises(InputError, match=r"recipe\.toml: ") as caught:
        read_recipe(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", ["1e400", "-inf", "9" * 400, "0x" + "f" * 400])
def test_rates_that_no_recipe_can_have(value: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f"{RECIPE}learning_rate = {value}\n")
    with pytest.raises(
        InputError, match=r"learning_rate of \[optimiser\] is .*: it must be a number above 0"
    ):
        read_recipe(path)


def test_a_recipe_of_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("# " + "a" * (1 << 20))
    with pytest.raises(InputError, match="holds over 1 MiB"):
        read_toml(path)


def test_files_that_no_system_has(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('base = "a\\u0000b"')
    with pytest.raises(InputError, match=r"'a\\x00b' is not a recipe"):
        read_recipe(path)
    with pytest.raises(InputError, match="is not a valid path"):
        read_toml("a\0b")


def test_sizes_of_new_models_have_limits(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    sizes = "layers = 20000000\nhidden = 32\nheads = 4\nfeed_forward = 64\n"
    path.write_text(f"{RECIPE}[model.narrow]\n{sizes}")
    with pytest.raises(InputError, match=r"layers of \[narrow\] is 20,000,000: use at most 1,000"):
        read_recipe(path)


# -- JSON that is nested


@pytest.mark.parametrize("content", [DEEP, PARSED, f'{{"model_type": {PARSED}}}', "9" * 5000])
@pytest.mark.parametrize(
    ("read", "name"),
    [
        (read_config, "config.json"),
        (GroupwiseModel.read, "groupwise.json"),
        (LinearModel.read, "ltr.json"),
        (read_folds, "folds.json"),
        (lambda path: recorded({}, 2, 4, [], path.parent), "tamis.json"),
        (lambda path: Tokenizer(path.parent), "tokenizer.json"),
        (lambda path: list(read_corpus(path)), "corpus.jsonl"),
        (read_queries, "queries.jsonl"),
    ],
)
def test_json_that_cannot_be_used(
    read: Callable[[Path], object], name: str, content: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TamisError, match=name) as caught:
        read(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("depth", [90, 99, 110, 300, 900])
def test_metadata_is_either_refused_or_can_be_written(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "d1", "text": "a", "more": ' + "[" * depth + "]" * depth + "}")
    if depth > 99:
        with pytest.raises(InputError, match="line 1: JSON nested too deeply"):
            list(read_corpus(path))
        return
    (document,) = read_corpus(path)
    assert json.dumps(document.metadata)


@pytest.mark.parametrize("number", ["9" * 400, "1e400"])
def test_weights_beyond_the_range_of_a_float(number: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    rest = '"normalise": "minmax", "measure": "AP", "value": 1, "queries": 1, "seed": 0'
    path.write_text(f'{{"weights": {{"score": {number}}}, {rest}}}')
    with pytest.raises(InputError, match="not a model of ltr"):
        LinearModel.read(path)
    layers = f'[{{"weights": [[{number}]], "biases": [0]}}]'
    rest = '"texts": 1, "normalise": "minmax", "loss": 0, "queries": 1, "seed": 0'
    path.write_text(f'{{"features": ["score"], {rest}, "layers": {layers}}}')
    with pytest.raises(InputError, match="not a groupwise model"):
        GroupwiseModel.read(path)


# -- ids


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("1e400", "a number beyond the range of a float"),
        ("-1e400", "a number beyond the range of a float"),
        ("9" * 400 + ".5", "a number beyond the range of a float"),
        ("NaN", "NaN is not JSON"),
        ("Infinity", "Infinity is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("9" * 5000, "a number of thousands of digits"),
        ("true", "true is not an id"),
        ("[1]", r"\[1\] is not an id"),
    ],
    ids=lambda value: value[:20],
)
@pytest.mark.parametrize("read", [lambda path: list(read_corpus(path)), read_queries])
def test_numbers_that_are_no_ids(
    read: Callable[[Path], object], value: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(f'{{"id": {value}, "text": "a"}}')
    with pytest.raises(InputError, match=f"line 1: {problem}"):
        read(path)


def test_metadata_that_no_other_program_reads(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "d1", "text": "a", "more": {"years": [1, 1e999]}}')
    with pytest.raises(
        InputError, match="line 1: a number beyond the range of a float: write it as a string"
    ):
        list(read_corpus(path))


def test_whole_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"id": {2**64 + 1}, "text": "a"}}')
    assert [document.id for document in read_corpus(path)] == [str(2**64 + 1)]


# -- models


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 20_000_000),
        ("num_hidden_layers", 10**100),
        ("hidden_size", 2**40),
        ("num_attention_heads", 2**40),
        ("intermediate_size", 2**40),
        ("vocab_size", 2**40),
        ("max_position_embeddings", 2**40),
        ("type_vocab_size", 2**40),
        ("num_hidden_groups", 20_000_000),
        ("embedding_size", 2**40),
        ("tamis_listwise_texts", 2**40),
    ],
)
def test_sizes_of_a_config_have_limits(
    field: str, value: int, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path, "albert")
    config = json.loads((folder / "config.json").read_text())
    if field == "hidden_size":
        config["num_attention_heads"] = 1
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(InputError, match=rf"config\.json: {field} is .*: it must be at most"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 900},
        {"hidden_size": 4096},
        {"vocab_size": 1 << 23},
        {"intermediate_size": 1 << 19},
    ],
)
def test_sizes_that_the_weights_do_not_have(
    changes: dict[str, int], tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Before anything of that size is made, even of a head that may be missing."""
    folder = tiny_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    for require_head in (True, False):
        with pytest.raises(InputError, match=r"the tensors are not those that config\.json describes"):
            load_checkpoint(folder, require_head=require_head)


def header(path: Path, tensors: dict[str, Any]) -> Path:
    text = json.dumps(tensors).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def test_a_tensor_of_very_many_dimensions(tmp_path: Path) -> None:
    shape = [2**62] * 100_000
    path = header(tmp_path / "a", {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    with pytest.raises(TamisError, match="its header is wrong: a has 100000 dimensions"):
        stored_tensors(path)


def test_an_exit_after_a_layer_of_very_many_digits(tmp_path: Path) -> None:
    name = f"exits.{'9' * 5000}.dense.weight"
    header(tmp_path / "model.safetensors", {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})
    with pytest.raises(InputError, match=r"the tensor 'exits\.999.* belongs to no layer"):
        recorded({}, 2, 4, stored_tensors(tmp_path / "model.safetensors"), tmp_path)


# -- tokenizers


def changed_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    }
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def no_template(content: dict[str, Any]) -> None:
    content["post_processor"]["special_tokens"] = {}


def other_name(content: dict[str, Any]) -> None:
    content["post_processor"]["special_tokens"]["[CLS]"]["id"] = "[OTHER]"


def no_unknown(content: dict[str, Any]) -> None:
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] != "[UNK]"]
    content["model"]["unk_token"] = "[NONE]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_template, r"its template names '\[CLS\]', which it does not define"),
        (other_name, r"its template names '\[CLS\]', which it does not define"),
        (no_unknown, r"WordPiece error: Missing \[UNK\]"),
    ],
)
def test_a_tokenizer_that_fails_when_it_is_used(
    change: Callable[[dict[str, Any]], None],
    reason: str,
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = tiny_checkpoint(tmp_path)
    changed_tokenizer(folder, change)
    with pytest.raises(
        InputError, match=rf"tokenizer\.json: is not a tokenizer \({reason}.*: fetch the model"
    ):
        Tokenizer(folder)


def test_a_panic_of_the_library_is_one_line(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """A panic is no `Exception`. The check of the template is left out, so that there is one."""
    folder = tiny_checkpoint(tmp_path)
    changed_tokenizer(folder, no_template)
    script = f"""
import tamis.models.tokenizer as module
module._check_template = lambda content: None
try:
    module.Tokenizer({str(folder)!r})
except module.InputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "tokenizer.json: is not a tokenizer (no entry found for key): fetch the model again" in done.stdout
