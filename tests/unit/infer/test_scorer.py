"""Models ready to score: which are taken, as what, and what their scores depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import InputError, MissingDependencyError
from tamis.infer import scorer as module
from tamis.infer.scorer import Scorer
from tamis.models.architectures.cascade import Cascade, CascadeSettings
from tamis.models.architectures.duo import Duo
from tamis.models.architectures.listwise import Listwise
from tamis.models.architectures.mono import Mono, MonoSettings
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_third_segment
from tamis.models.templates import Inputs
from tests.unit.models.builders import document_model, larger

INPUTS = Inputs(
    np.array([2, 7, 3, 8, 9, 3, 2, 7, 3, 11, 3], np.int32),
    np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1], np.uint8),
    np.array([0, 6, 11]),
)


@pytest.fixture(scope="module")
def start(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(tiny_checkpoint(tmp_path_factory.mktemp("start"), layers=3, hidden=16, heads=2))


@pytest.fixture
def saved(start: Checkpoint, tmp_path: Path) -> Callable[..., str]:
    """The folder of a model of an architecture."""

    def written(name: str) -> str:
        kinds = {
            "mono": Mono(),
            "markers": Mono(MonoSettings(form="markers")),
            "no-positions": Mono(MonoSettings(form="no-positions")),
            "duo": Duo(),
            "listwise": Listwise(),
            "cascade": Cascade(CascadeSettings(exits=(1,))),
        }
        kind = kinds[name] if name in kinds else document_model(name)
        made = kind.begin(with_third_segment(start) if name == "duo" else start)
        save_checkpoint(larger(made, 10), tmp_path / name)
        return str(tmp_path / name)

    return written


# -- which models are taken


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("mono", "mono"),
        ("mono", "duo"),
        ("mono", "cascade"),
        ("duo", "duo"),
        ("duo", "mono"),
        ("listwise", "listwise"),
        ("cascade", "cascade"),
    ],
)
def test_what_a_model_is_read_as(asked: str, name: str, saved: Callable[..., str]) -> None:
    scorer = Scorer(saved(name), architectures=[asked], device="cpu")
    assert scorer.architecture.name == asked == scorer.checkpoint.architecture.name
    assert scorer.checkpoint.head.keys() == (
        load_checkpoint(saved(name)).head.keys() if asked == name else set()
    )


@pytest.mark.parametrize(
    ("asked", "name", "kind", "stage"),
    [
        ("mono", "listwise", "listwise", "listwise"),
        ("duo", "cascade", "cascade", "cascade"),
        ("cascade", "mono", "mono", "mono"),
        ("listwise", "duo", "duo", "duo"),
    ],
)
def test_a_model_of_another_architecture_says_which_stage_ranks_with_it(
    asked: str, name: str, kind: str, stage: str, saved: Callable[..., str]
) -> None:
    folder = saved(name)
    with pytest.raises(InputError) as refused:
        _ = Scorer(folder, architectures=[asked]).checkpoint
    assert str(refused.value) == f'{folder} holds a {kind} model: write {stage}(model="{folder}")'


@pytest.mark.parametrize(
    ("name", "stage"), [("vanilla", "cedr"), ("pcgm", "parade"), ("knrm", "cedr"), ("birch", "parade")]
)
def test_a_model_of_long_documents_says_which_stage_ranks_with_it(
    name: str, stage: str, saved: Callable[..., str]
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    with pytest.raises(InputError, match=rf"holds a {name} model: write {stage}\(model="):
        _ = Scorer(saved(name)).checkpoint


def test_a_cascade_as_a_pointwise_model_is_its_last_exit(saved: Callable[..., str]) -> None:
    folder = saved("cascade")
    mono, exits = (Scorer(folder, architectures=[name], device="cpu") for name in ("mono", "cascade"))
    assert mono.margins(INPUTS).tolist() == exits.margins(INPUTS).tolist()
    walked = exits.walk(INPUTS, lambda live, margins: live)
    assert walked[:, -1].tolist() == mono.margins(INPUTS).tolist() and walked.shape == (2, 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"device": "tpu"}, "no device 'tpu': use auto, cpu, cuda"),
        ({"precision": "int4"}, "no precision 'int4': use auto, "),
        ({"form": "sideways"}, "no form 'sideways': use default, "),
        ({"workers": 0}, "0 processor cores: use at least 1"),
    ],
)
def test_options_that_there_are_not(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Scorer("mono", **options)  # type: ignore[arg-type]


# -- what a score depends on


def test_the_form_is_the_models_own_unless_told(saved: Callable[..., str]) -> None:
    folder = saved("markers")
    assert Scorer(folder).architecture == Mono(MonoSettings(form="markers"))
    assert Scorer(folder, form="default").architecture == Mono()
    table = Scorer(saved("mono"), form="no-positions").checkpoint.tensors["embeddings.position"]
    assert not table.any()


def test_fingerprints_tell_apart_what_scores_otherwise(saved: Callable[..., str]) -> None:
    mono, other = saved("mono"), saved("no-positions")
    asked = [
        {"model": mono},
        {"model": mono, "precision": "fp32"},
        {"model": mono, "form": "swapped"},
        {"model": mono, "form": "no-positions"},
        {"model": other},
    ]
    prints = [Scorer(**each, device="cpu").fingerprint for each in asked]  # type: ignore[arg-type]
    assert len(set(prints)) == len(asked)
    for each, known in zip(asked, prints, strict=True):
        assert Scorer(**each, device="cpu").fingerprint == known  # type: ignore[arg-type]


def test_the_weights_in_training_score_as_they_are(start: Checkpoint) -> None:
    """Nothing is read from the folder that they come from."""
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    from tamis.infer.torch_backend import TorchBackend

    moved = replace(start, tensors={**start.tensors, "head.output.bias": np.array([7.0], np.float32)})
    one, other = (Scorer.over(each, TorchBackend(each, "cpu")) for each in (start, moved))
    assert other.margins(INPUTS) == pytest.approx(
        one.margins(INPUTS) + 7.0 - start.tensors["head.output.bias"], abs=1e-4
    )
    assert other.checkpoint is moved and other.architectures == ("mono",)


# -- without torch


def test_a_model_without_a_graph_needs_torch(
    saved: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    folder = saved("parade-max")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match="a parade-max model needs torch, which is not installed"
    ):
        _ = Scorer(folder, architectures=["parade"], device="cpu").engine
    with pytest.raises(MissingDependencyError, match="device cpu with precision bf16 needs torch, which is"):
        _ = Scorer(saved("mono"), device="cpu", precision="bf16").engine
    assert Scorer(saved("cascade"), architectures=["cascade"], device="cpu").description.startswith("ONNX")
