"""Models as older versions wrote them: what each layout is read as, and damaged ones. That they rank as they
did, `tests/parity/test_old_checkpoints.py` says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tamis.base.errors import CorruptError, InputError
from tamis.cli import main
from tamis.models.architecture import Architecture
from tamis.models.architectures.cascade import Cascade, CascadeSettings
from tamis.models.architectures.duo import Duo
from tamis.models.architectures.listwise import Listwise, ListwiseSettings
from tamis.models.architectures.mono import Mono, MonoSettings
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.models.legacy import document
from tests.unit.models.builders import DOCUMENTS, of_name, same_tensors

MODELS = Path(__file__).parents[2] / "assets" / "checkpoints"
LONG = sorted(path.parent.name for path in MODELS.glob("*/tamis.json"))
OTHERS = {
    "mono": Mono(),
    "mono-two-labels": Mono(),
    "mono-float16": Mono(),
    "mono-int8": Mono(),
    "mono-markers": Mono(MonoSettings(form="markers")),
    "mono-no-positions": Mono(MonoSettings(form="no-positions")),
    "mono-roberta": Mono(),
    "mono-electra": Mono(),
    "mono-albert": Mono(),
    "mono-distilbert": Mono(),
    "duo": Duo(),
    "listwise": Listwise(ListwiseSettings(n=3)),
    "listwise-int8": Listwise(ListwiseSettings(n=3)),
    "cascade": Cascade(CascadeSettings(exits=(1, 2))),
    "cascade-int8": Cascade(CascadeSettings(exits=(1, 2))),
}


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of the old models, to be damaged."""

    def copied(name: str) -> Path:
        return shutil.copytree(MODELS / name, tmp_path / name)

    return copied


def change_json(path: Path, **fields: object) -> None:
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value != "absent"}))


def refusal(folder: Path) -> str:
    with pytest.raises((InputError, CorruptError)) as refused:
        load_checkpoint(folder)
    message = str(refused.value)
    assert "\n" not in message and len(message) < 500
    return message


# -- what they are


def test_every_old_model_is_tried() -> None:
    assert {*LONG, *OTHERS} == {path.name for path in MODELS.iterdir() if path.is_dir()}
    assert {_kind(name) for name in LONG} == set(DOCUMENTS)


def _kind(name: str) -> str:
    return str(json.loads((MODELS / name / "tamis.json").read_text())["kind"])


@pytest.mark.parametrize(("name", "expected"), OTHERS.items())
def test_what_an_old_model_is(name: str, expected: Architecture) -> None:
    assert load_checkpoint(MODELS / name).architecture == expected


@pytest.mark.parametrize("name", LONG)
def test_what_an_old_model_of_long_documents_is(name: str) -> None:
    plan: dict[str, Any] = json.loads((MODELS / name / "tamis.json").read_text())
    checkpoint = load_checkpoint(MODELS / name)
    kind = checkpoint.architecture
    assert kind.kind == plan.pop("kind") == _kind(name)
    settings = kind.settings.model_dump()
    assert {key: plan[key] for key in settings.keys() & plan.keys()} == {
        key: value for key, value in settings.items() if key != "kind"
    }
    assert checkpoint.config.static == (kind.name == "interaction")
    head = load_file(MODELS / name / "tamis.safetensors")
    table = head.pop("embeddings", None)
    assert checkpoint.head.keys() == {f"{kind.prefix}.{each}" for each in head}
    for each, values in head.items():
        assert np.array_equal(checkpoint.head[f"{kind.prefix}.{each}"], values)
    if table is not None:
        assert np.array_equal(checkpoint.tensors["embeddings.word"], table)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_the_full_names_of_models_of_long_documents(kind: str) -> None:
    everything = {"cls": True, "frozen": False, "gains": 4, "keep": 0.1, "window": 30, "stride": 30}
    name, settings = document(kind, everything)
    assert of_name(name, **settings).kind == kind
    assert {"window", "stride"} <= settings.keys()
    assert settings.keys() <= type(of_name(name)).Settings.model_fields.keys()


@pytest.mark.parametrize("name", ["", "cedr", "parade", "bert", "cedr-", "-max"])
def test_names_that_no_model_of_long_documents_has(name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' is not a kind of model: use one such as parade-max"):
        document(name, {})


# -- in today's layout


@pytest.mark.parametrize("name", [*LONG, *OTHERS])
def test_saved_again_it_is_of_todays_layout(name: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(MODELS / name)
    save_checkpoint(checkpoint, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json"),
        *(() if checkpoint.config.static else ("tokenizer_config.json",)),
    }
    config = json.loads((tmp_path / "config.json").read_text())
    assert not [key for key in config if key.startswith("tamis_")]
    assert ("tamis" in config) == (checkpoint.architecture != Mono())
    again = load_checkpoint(tmp_path)
    assert again.architecture == checkpoint.architecture and same_tensors(again, checkpoint)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("mono-markers", "Mono"),
        ("mono-int8", "Mono"),
        ("duo", "Duo"),
        ("listwise", "Listwise"),
        ("cascade", "Cascade"),
        ("cedr-knrm", "Cedr"),
        ("knrm", "Cedr"),
        ("parade-transformer", "Parade"),
        ("pcgm", "Parade"),
    ],
)
@pytest.mark.parametrize("weights", ["float32", "float16", "int8"])
def test_exported_weights_of_an_old_model_are_of_todays_layout_and_rank_alike(
    name: str, stage: str, weights: str, tmp_path: Path
) -> None:
    import tamis

    if stage in ("Cedr", "Parade"):
        pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    out = tmp_path / "new"
    assert main(["export", str(MODELS / name), "-o", str(out), "--weights", weights]) == 0
    assert not (out / "tamis.json").exists() and not (out / "tamis.safetensors").exists()
    assert load_checkpoint(out).architecture == load_checkpoint(MODELS / name).architecture
    expected = json.loads((MODELS / "expected.json").read_text())
    texts = [tamis.Document(each["id"], each["text"], each["title"]) for each in expected["documents"]]
    before, after = (
        getattr(tamis, stage)(str(folder), precision="fp32", device="cpu") for folder in (MODELS / name, out)
    )
    for query in expected["queries"].values():
        one, other = before.rank(query, texts), after.rank(query, texts)
        scores = {each.id: each.score for each in one}
        size = max(map(abs, scores.values()))
        if weights == "float32":
            assert [(each.id, each.score) for each in one] == [(each.id, each.score) for each in other]
        for each in other:
            away = 0.05 if weights == "float16" else 0.4
            assert each.score == pytest.approx(scores[each.id], abs=away * size)


def test_a_save_over_an_old_model_takes_its_place(old: Callable[[str], Path]) -> None:
    """Its own files stay behind, and nothing is read from them any more."""
    folder = old("parade-max")
    checkpoint = load_checkpoint(folder)
    save_checkpoint(checkpoint, folder)
    (folder / "tamis.json").write_text('{"format": 1, "kind": "birch"}')
    (folder / "tamis.safetensors").unlink()  # which is mapped
    (folder / "tamis.safetensors").write_bytes(b"")
    again = load_checkpoint(folder)
    assert again.architecture == checkpoint.architecture and same_tensors(again, checkpoint)


# -- damaged


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "parade-median"}, "kind of [parade] is 'parade-median': it must be one of"),
        ({"kind": "median"}, "'median' is not a kind of model: use one such as parade-max"),
        ({"kind": 7}, "'7' is not a kind of model"),
        ({"format": 2}, "format 2, this tamis reads 1: use that tamis"),
        ({"window": 0}, "window of [parade] is 0: it must be"),
        ({"window": "x"}, "window of [parade] is 'x'"),
        ({"window": 3, "stride": 4}, "windows of 3 tokens every 4 leave out text"),
        ({"shadow": 1}, "[parade] has no field 'shadow'"),
        ({"kind": "absent"}, " is damaged: train or copy the model again"),
        ({"format": "absent"}, " is damaged: train or copy the model again"),
    ],
)
def test_a_plan_that_cannot_be_used(change: dict[str, Any], problem: str, old: Callable[[str], Path]) -> None:
    folder = old("parade-attn")
    change_json(folder / "tamis.json", **change)
    message = refusal(folder)
    assert message.startswith(str(folder / "tamis.json"))
    assert problem.replace("parade-median", "median") in message


@pytest.mark.parametrize("content", ["", "[]", "{", "7", '{"format": 1}', "[" * 500 + "]" * 500, "9" * 5000])
def test_a_plan_that_is_damaged(content: str, old: Callable[[str], Path]) -> None:
    folder = old("parade-attn")
    (folder / "tamis.json").write_text(content)
    assert f"{folder / 'tamis.json'} is damaged: train or copy the model again" == refusal(folder)


@pytest.mark.parametrize(("name", "kind"), [("parade-attn", "parade-cnn"), ("knrm", "pacrr")])
def test_a_head_of_another_kind(name: str, kind: str, old: Callable[[str], Path]) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    folder = old(name)
    change_json(folder / "tamis.json", kind=kind)
    checkpoint = load_checkpoint(folder)
    with pytest.raises(CorruptError, match=f"does not hold the head of a {kind} model with its settings"):
        checkpoint.architecture.network(checkpoint)


@pytest.mark.parametrize("name", ["parade-attn", "knrm"])
def test_a_head_that_is_damaged_or_gone(name: str, old: Callable[[str], Path]) -> None:
    folder = old(name)
    path = folder / "tamis.safetensors"
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert "tamis.safetensors is damaged or no safetensors file (the file is empty)" in refusal(folder)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "tamis.safetensors is damaged or no safetensors file (its checksum is wrong)" in refusal(folder)
    path.unlink()
    if name == "knrm":
        assert "knrm lacks its tamis.safetensors: train or copy the model again" in refusal(folder)
    else:
        pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
        from tamis.models.network import open_network

        with pytest.raises(
            CorruptError, match=r"parade\.score\.bias is missing|parade\.score\.weight is missing"
        ):
            open_network(load_checkpoint(folder))


@pytest.mark.parametrize("table", [None, np.zeros(5, np.float32), np.zeros((2, 2, 2), np.float32)])
def test_a_table_of_words_that_is_none(table: Any, old: Callable[[str], Path]) -> None:
    folder = old("knrm")
    tensors = load_file(folder / "tamis.safetensors")
    del tensors["embeddings"]
    save_file(tensors | ({} if table is None else {"embeddings": table}), folder / "tamis.safetensors")
    message = f"{folder / 'tamis.safetensors'} has no table of words: train or copy the model again"
    assert refusal(folder) == message


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (
            "listwise",
            {"tamis_listwise_texts": 2**40},
            "tamis_listwise_texts is 1099511627776: it must be at most",
        ),
        ("listwise", {"tamis_listwise_texts": -1}, "tamis_listwise_texts is -1: it must be a whole number"),
        (
            "listwise",
            {"tamis_listwise_texts": True},
            "tamis_listwise_texts is True: it must be a whole number",
        ),
        (
            "listwise",
            {"tamis_listwise_texts": None},
            "tamis_listwise_texts is None: it must be a whole number",
        ),
        (
            "mono-markers",
            {"tamis_input_form": "sideways"},
            "tamis_input_form is 'sideways': it must be one of",
        ),
        (
            "mono-markers",
            {"tamis_input_form": ["markers"]},
            "tamis_input_form is ['markers']: it must be one of",
        ),
    ],
)
def test_a_config_of_an_old_layout_that_cannot_be_used(
    name: str, change: dict[str, Any], problem: str, old: Callable[[str], Path]
) -> None:
    folder = old(name)
    change_json(folder / "config.json", **change)
    message = refusal(folder)
    assert message.startswith(f"{folder / 'config.json'}: ") and problem in message


def test_heads_that_belong_to_no_old_model(old: Callable[[str], Path]) -> None:
    folder = old("listwise")
    change_json(folder / "config.json", tamis_listwise_texts=0)  # which said that it is not listwise
    assert "2 unexpected: listwise.head.bias, listwise.head.weight" in refusal(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["listwise.head.bias"]
    save_file(tensors, folder / "model.safetensors")
    change_json(folder / "config.json", tamis_listwise_texts=3)
    assert "its listwise tensors are damaged: the tensor listwise.head.bias is missing" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("exits.1.", "exits.4."), "its exits are damaged: exits after layers 2, 4 of a model that has 4"),
        (("exits.1.", "exits.0."), "its exits are damaged: exits after layers 0, 2 of a model that has 4"),
        (
            ("exits.1.", "exits.one."),
            "its exits are damaged: the tensor 'exits.one.dense.bias' belongs to no",
        ),
        (
            ("exits.1.", "exits.²."),
            "its exits are damaged: the tensor 'exits.².dense.bias' belongs to no layer",
        ),
        (("exits.1.", f"exits.{'9' * 300}."), "its exits are damaged: the tensor 'exits.999"),
        (("exits.1.dense.", "exits.1.dance."), "the tensor exits.1.dance.bias is not expected"),
    ],
)
def test_exits_that_are_damaged(change: tuple[str, str], problem: str, old: Callable[[str], Path]) -> None:
    folder = old("cascade")
    tensors = load_file(folder / "model.safetensors")
    save_file({name.replace(*change): tensors[name] for name in tensors}, folder / "model.safetensors")
    message = refusal(folder)
    assert message.startswith(f"{folder}: ") and problem in message
    assert message.endswith(": save or fetch the model again")
