"""The models that come with tamis: they are there, small enough, documented, and put the right text first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tamis import Duo, Mono
from tamis.base.errors import InputError
from tamis.models.bundled import BUNDLED
from tamis.models.checkpoint import load_checkpoint
from tamis.train.recipe import read_recipe

MODELS = ("mono", "mono-tiny", "mono-nano", "duo")
#: A question, a text that answers it, and one on the same thing that does not.
QUESTIONS = [
    (
        "when was the eiffel tower built",
        "The Eiffel Tower was built between 1887 and 1889 as the entrance to the World's Fair in Paris.",
        "The Eiffel Tower is painted every seven years, with sixty tonnes of paint.",
    ),
    (
        "what is the capital of australia",
        "Canberra is the capital city of Australia and the seat of its government.",
        "Sydney is the most populous city of Australia and has its busiest airport.",
    ),
    (
        "how long does it take to boil an egg",
        "Put the egg into boiling water: after six minutes the yolk is soft, after ten it is hard.",
        "Eggs are rich in protein and were already eaten by the hunters of the Stone Age.",
    ),
]


@pytest.mark.parametrize("name", MODELS)
def test_it_has_a_card_a_log_and_weights_as_int8(name: str) -> None:
    folder = BUNDLED / name
    card = (folder / "README.md").read_text(encoding="utf-8")
    for heading in ("## How it was made", "## Results", "## Limits", "What the starting weights had seen"):
        assert heading in card
    lines = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    assert f"{lines[-1]['step']:,} steps" in card
    assert load_checkpoint(folder).raw_config["quantization_config"]["layout"] == "int8-rows"


@pytest.mark.parametrize("name", MODELS)
def test_its_recipe_is_the_one_it_was_trained_by(name: str) -> None:
    log = (BUNDLED / name / "training.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == read_recipe(name).optimiser.steps


def test_they_fit_into_the_repository() -> None:
    sizes = [path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file()]
    assert sum(sizes) <= 75e6
    assert sorted(path.name for path in BUNDLED.iterdir() if path.is_dir()) == sorted(MODELS)


def test_their_shapes() -> None:
    shapes = {name: load_checkpoint(BUNDLED / name).config for name in MODELS}
    assert [shapes[name].layers for name in MODELS] == [6, 4, 2, 12]
    assert [shapes[name].segments for name in MODELS] == [2, 2, 2, 3]


@pytest.mark.parametrize("stage", [Mono(), Mono("mono-tiny"), Mono("mono-nano"), Duo()], ids=MODELS)
@pytest.mark.parametrize(("question", "answer", "other"), QUESTIONS)
def test_the_answer_comes_first(stage: Mono | Duo, question: str, answer: str, other: str) -> None:
    ranked = stage.rank(question, [other, answer])
    assert [each.position for each in ranked] == [1, 0]


def test_one_tokenizer_is_for_all() -> None:
    """So that the tokens beside an index, which a pipeline's first model has made, serve the others too."""
    assert len({(BUNDLED / name / "tokenizer.json").read_bytes() for name in MODELS}) == 1


@pytest.mark.parametrize(("question", "answer", "other"), QUESTIONS)
def test_duo_reads_single_texts_too(question: str, answer: str, other: str) -> None:
    ranked = Mono("duo").rank(question, [other, answer])
    assert [each.position for each in ranked] == [1, 0]


def test_a_model_of_the_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a model of one's own may be called duo."""
    (tmp_path / "duo").mkdir()
    (tmp_path / "duo" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"config\.json"):
        Duo().rank("q", ["a", "b"])
