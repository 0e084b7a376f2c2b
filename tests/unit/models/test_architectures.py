"""Models of every architecture as folders: their record in config.json, and their tensors beside the
encoder's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError
from tamis.models.architecture import BUILT_IN, Architecture, architecture, names
from tamis.models.architectures.cascade import Cascade, CascadeSettings
from tamis.models.architectures.listwise import Listwise, ListwiseSettings
from tamis.models.architectures.mono import Mono, MonoSettings
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_third_segment
from tests.unit.models.builders import ALL, document_model, larger, of_name, same_tensors

Settings = dict[str, Any]
every_model = pytest.mark.parametrize(
    ("name", "settings"), ALL, ids=[f"{name}-{settings.get('kind', '')}" for name, settings in ALL]
)
DTYPES = ["float32", "float16", "int8"]


@pytest.fixture(scope="module")
def start(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("start") / "model"
    return load_checkpoint(tiny_checkpoint(folder, layers=3, hidden=16, heads=2, positions=64))


def begun(name: str, settings: Settings, start: Checkpoint, seed: int = 1) -> Checkpoint:
    if name in ("mono", "duo", "listwise", "cascade"):
        start = with_third_segment(start) if name == "duo" else start
    else:
        pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    return larger(of_name(name, **settings).begin(start, seed), 20)


def record(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text()).get("tamis")


def set_record(folder: Path, value: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tamis": value}))


def refusal(folder: Path) -> str:
    """The one line by which a folder is refused."""
    with pytest.raises((InputError, CorruptError)) as refused:
        load_checkpoint(folder)
    message = str(refused.value)
    assert "\n" not in message and len(message) < 500
    return message


def test_every_architecture_is_tried() -> None:
    assert {name for name, _ in ALL} == set(BUILT_IN) <= set(names())
    for name in BUILT_IN:
        assert architecture(name).name == name and issubclass(architecture(name), Architecture)


# -- saved and loaded


@every_model
@pytest.mark.parametrize("dtype", DTYPES)
def test_saved_and_loaded_it_is_the_same(
    dtype: Any, name: str, settings: Settings, start: Checkpoint, tmp_path: Path
) -> None:
    made = begun(name, settings, start)
    save_checkpoint(made, tmp_path / "a", dtype)
    loaded = load_checkpoint(tmp_path / "a")
    assert loaded.architecture == made.architecture and loaded.config == made.config
    assert record(tmp_path / "a")["format"] == 2 and record(tmp_path / "a")["architecture"] == name
    wanted = np.float32 if dtype == "float32" else np.float16
    stored = load_file(tmp_path / "a" / "model.safetensors")
    assert loaded.head.keys() == made.head.keys() <= stored.keys()
    for each, tensor in made.head.items():
        assert each.startswith(f"{loaded.architecture.prefix}.") and stored[each].dtype == wanted
        assert np.array_equal(loaded.head[each], tensor.astype(wanted).astype(np.float32))
    save_checkpoint(loaded, tmp_path / "b", dtype)
    again = load_checkpoint(tmp_path / "b")
    assert same_tensors(again, loaded) and again.architecture == loaded.architecture
    save_checkpoint(loaded, tmp_path / "a", dtype)  # over itself
    assert load_checkpoint(tmp_path / "a").fingerprint == again.fingerprint
    assert again.fingerprint == loaded.fingerprint or dtype == "int8"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("family", ["roberta", "electra", "albert", "distilbert"])
@pytest.mark.parametrize(("name", "settings"), [("listwise", {"n": 3}), ("cascade", {"exits": [1, 2]})])
def test_heads_of_other_families(
    family: str, name: str, settings: Settings, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    plain = load_checkpoint(tiny_checkpoint(tmp_path / "start", family, labels=2, layers=3))
    made = begun(name, settings, plain)
    save_checkpoint(made, tmp_path / "made")
    assert same_tensors(load_checkpoint(tmp_path / "made"), made)


@every_model
def test_saved_and_loaded_it_scores_the_same(
    name: str, settings: Settings, start: Checkpoint, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    from tamis.models.templates import Special, Tokenised
    from tamis.models.tokenizer import open_tokenizer

    made = begun(name, settings, start)
    save_checkpoint(made, tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model")
    special: Special = open_tokenizer(made).special
    from tamis.models.architecture import Reading

    texts = Tokenised.of([[7, 20, 21, 22], [30, 31], [40] * 90, []])
    kind = made.architecture
    rows = np.array([[0, 1], [2, 3]]) if name == "duo" else kind.members(np.array([3, 1]))
    queries, query_of = Tokenised.of([[7, 8, 9]]), np.zeros(len(rows), np.int64)
    inputs, _ = kind.inputs(queries, texts, rows, query_of, Reading(special, made.config))
    with torch.inference_mode():
        one, other = (each.architecture.network(each)(inputs) for each in (made, loaded))
    assert torch.equal(one, other) and one.std() > 0


@every_model
def test_a_network_gives_back_the_weights_that_it_has(
    name: str, settings: Settings, start: Checkpoint
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    made = begun(name, settings, start)
    network = made.architecture.network(made)
    assert same_tensors(network.trained(made), made)
    if made.head:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 1.0
        trained = network.trained(made)
        changed = [name for name in made.head if not np.allclose(trained.head[name], made.head[name])]
        assert changed and trained.architecture == made.architecture


# -- the record


@every_model
def test_the_record_is_the_settings_and_another_program_passes_over_it(
    name: str, settings: Settings, start: Checkpoint, tmp_path: Path
) -> None:
    made = begun(name, settings, start)
    save_checkpoint(made, tmp_path)
    found = record(tmp_path)
    assert found.keys() == {"format", "architecture", "settings"}
    assert found["settings"].items() >= settings.items()
    assert found["settings"].keys() == type(made.architecture).Settings.model_fields.keys()


def test_a_plain_pointwise_model_has_no_record(start: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(start, tmp_path / "plain")
    assert record(tmp_path / "plain") is None
    assert load_checkpoint(tmp_path / "plain").architecture == Mono()


def test_a_pointwise_model_that_could_be_taken_for_another_has_a_record(
    start: Checkpoint, tmp_path: Path
) -> None:
    """Of three segments, without a record, for a duo; beside what an older version left, for that."""
    save_checkpoint(with_third_segment(start), tmp_path / "three")
    assert load_checkpoint(tmp_path / "three").architecture == Mono()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "tamis.json").write_text('{"format": 1, "kind": "birch"}')
    save_checkpoint(start, tmp_path / "two")
    assert load_checkpoint(tmp_path / "two").architecture == Mono()


def test_a_model_takes_the_place_of_one_of_another_architecture(start: Checkpoint, tmp_path: Path) -> None:
    for kind in (Listwise(), Cascade(CascadeSettings(exits=(1,))), Mono(MonoSettings(form="markers"))):
        save_checkpoint(kind.begin(start), tmp_path)
        assert load_checkpoint(tmp_path).architecture == kind
    save_checkpoint(start, tmp_path)
    assert load_checkpoint(tmp_path).architecture == Mono() and record(tmp_path) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "tamis is not a table: fetch or save the model again"),
        ("listwise", "tamis is not a table"),
        (None, "tamis is not a table"),
        ({"format": 2, "architecture": "listwise", "settings": [3]}, "tamis is not a table"),
        (
            {"format": 3, "architecture": "listwise"},
            "a model of the format 3, this tamis reads 2: use the ver",
        ),
        ({"architecture": "listwise"}, "a model of the format None, this tamis reads 2"),
        ({"format": 2}, "tamis names no architecture: fetch"),
        ({"format": 2, "architecture": ["mono"]}, "tamis names no architecture"),
        (
            {"format": 2, "architecture": "sparse"},
            "there is no architecture 'sparse': install the package that it comes from",
        ),
        (
            {"format": 2, "architecture": "listwise", "settings": {"n": 0}},
            r"n of [listwise] is 0: it must be",
        ),
        ({"format": 2, "architecture": "listwise", "settings": {"m": 4}}, r"[listwise] has no field 'm'"),
        (
            {"format": 2, "architecture": "parade", "settings": {"kind": "median"}},
            "kind of [parade] is 'median'",
        ),
        (
            {"format": 2, "architecture": "parade", "settings": {"window": 3, "stride": 4}},
            "windows of 3 tokens every 4 leave out text",
        ),
        (
            {"format": 2, "architecture": "cascade", "settings": {"exits": [1, 3]}},
            "exits after layers 1, 3 of a model that has 3: fetch or save",
        ),
        (
            {"format": 2, "architecture": "cascade", "settings": {"exits": [2, 1]}},
            "exits after layers 2, 1 of a model that has 3",
        ),
        (
            {"format": 2, "architecture": "cascade", "settings": {"first": 5}},
            "exits after layer 5 and every 2 from there on, in a model of 3 layers",
        ),
    ],
)
def test_a_record_that_cannot_be_used(value: object, problem: str, start: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(start, tmp_path)
    set_record(tmp_path, value)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / 'config.json'}: ") and problem in message


def test_a_table_of_words_is_an_interaction_model_alone(start: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(begun("interaction", {"kind": "knrm"}, start), tmp_path)
    for value in ("mono", "listwise", "cascade", "parade", "cedr"):
        set_record(tmp_path, {"format": 2, "architecture": value, "settings": {}})
        assert "needs an encoder, and this is a table of words" in refusal(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in stored.items() if k != "tamis"}))
    assert "a mono model needs an encoder" in refusal(tmp_path)
    with pytest.raises(InputError, match="a parade-max model needs an encoder"):
        document_model("parade-max").begin(begun("interaction", {}, start))


# -- the tensors beside the encoder's


@pytest.mark.parametrize(
    ("name", "settings", "tensor"),
    [("listwise", {"n": 3}, "listwise.head.weight"), ("cascade", {"exits": [1]}, "exits.1.output.weight")],
)
def test_heads_that_are_missing_misshaped_or_unexpected(
    name: str, settings: Settings, tensor: str, start: Checkpoint, tmp_path: Path
) -> None:
    save_checkpoint(begun(name, settings, start), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    again = "save or fetch the model again"

    def problem(tensors: dict[str, Array]) -> str:
        save_file(tensors, path)
        return refusal(tmp_path).removeprefix(f"{tmp_path}: its {name} tensors are damaged: ")

    missing = {each: values for each, values in whole.items() if each != tensor}
    assert problem(missing) == f"the tensor {tensor} is missing: {again}"
    more = tensor.replace(".weight", ".more")
    assert problem(whole | {more: np.zeros(3, np.float32)}) == f"the tensor {more} is not expected: {again}"
    assert problem(whole | {tensor: np.zeros((2, 5), np.float32)}) == (
        f"the tensor {tensor} is F32[2, 5] where [1, 16] is expected: {again}"
    )
    assert problem(whole | {tensor: np.zeros((1, 16), np.int32)}) == (
        f"the tensor {tensor} is I32[1, 16] where [1, 16] is expected: {again}"
    )
    save_file(whole | {tensor: whole[tensor] * np.nan}, path)
    with pytest.raises(InputError, match=f"the tensor {tensor} holds values that are not finite"):
        _ = load_checkpoint(tmp_path).head[tensor]


def test_a_head_of_another_model_beside_the_encoder(start: Checkpoint, tmp_path: Path) -> None:
    """Its record gone, or another in its place."""
    save_checkpoint(begun("listwise", {"n": 3}, start), tmp_path)
    set_record(tmp_path, {"format": 2, "architecture": "duo", "settings": {}})
    assert "2 unexpected: listwise.head.bias, listwise.head.weight" in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["parade-attn", "cedr-knrm", "knrm"])
def test_a_head_that_is_not_the_one_of_the_settings(kind: str, start: Checkpoint, tmp_path: Path) -> None:
    """What a head of long documents must have, its network alone knows."""
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    save_checkpoint(document_model(kind).begin(start), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    name = min(name for name in whole if name.startswith(("parade.", "cedr.", "interaction.")))
    less = {each: values for each, values in whole.items() if each != name}
    for tensors, problem in (
        (less, f"{name} is missing"),
        (whole | {name: np.zeros((7, 7), np.float32)}, f"{name} is [7, 7], not "),
        (whole | {f"{name}.more": np.zeros(1, np.float32)}, f"{name}.more is [1], not expected"),
    ):
        save_file(tensors, path)
        loaded = load_checkpoint(tmp_path)
        with pytest.raises(CorruptError) as refused:
            loaded.architecture.network(loaded)
        message = f"{tmp_path} does not hold the head of a {kind} model with its settings ({problem}"
        assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


# -- where the next model starts


def test_what_a_head_is_drawn_from(start: Checkpoint) -> None:
    def head(name: str, seed: int = 0, **settings: Any) -> dict[str, Array]:
        return dict(of_name(name, **settings).begin(start, seed).head)

    weight = head("cascade", exits=[1, 2])["exits.2.output.weight"]
    assert 0.01 < weight.std() < 0.03 and not head("cascade", exits=[2])["exits.2.output.bias"].any()
    assert np.array_equal(head("cascade", exits=[2])["exits.2.output.weight"], weight)  # whatever others
    assert not np.array_equal(head("cascade", 1, exits=[2])["exits.2.output.weight"], weight)
    trained = head("cascade", exits=[1, 2], heads="trained")
    for name, values in trained.items():
        assert np.array_equal(values, start.tensors[f"head.{name.split('.', 2)[2]}"])
    assert not np.array_equal(
        head("listwise")["listwise.head.weight"], head("listwise", 1)["listwise.head.weight"]
    )


def test_a_start_of_the_same_architecture_keeps_its_head(start: Checkpoint, tmp_path: Path) -> None:
    lists = larger(Listwise(ListwiseSettings(n=3)).begin(start, 1), 5)
    onward = Listwise(ListwiseSettings(n=8)).begin(lists, 9)
    assert same_tensors(onward, lists) and onward.architecture.settings.n == 8
    exits = larger(Cascade(CascadeSettings(exits=(1, 2))).begin(start, 1), 5)
    assert same_tensors(Cascade(CascadeSettings(exits=(1, 2), alpha=0.7)).begin(exits, 9), exits)
    assert same_tensors(Cascade(CascadeSettings(first=1, step=1)).begin(exits, 9), exits)
    # exits after other layers, or of another number of labels, are other heads
    other = Cascade(CascadeSettings(exits=(2,))).begin(exits, 9)
    fresh = Cascade(CascadeSettings(exits=(2,))).begin(start, 9)
    assert same_tensors(other, fresh)
    save_checkpoint(exits, tmp_path / "exits")
    two = load_checkpoint(tmp_path / "exits", require_head=False, labels=2)
    assert two.head["exits.1.output.weight"].shape == (1, 16)
    assert Cascade(CascadeSettings(exits=(1, 2))).begin(two).head["exits.1.output.weight"].shape == (2, 16)
    assert Mono().begin(exits).head == {} and Listwise().begin(exits, 9).head.keys() == lists.head.keys()


def test_fewer_layers_than_the_exits_of_the_start(start: Checkpoint) -> None:
    """A start of which some layers are kept may have exits beyond them."""
    exits = Cascade(CascadeSettings(first=2, step=1)).begin(start)
    shallow = replace(exits, config=replace(exits.config, layers=2))
    assert Cascade(CascadeSettings(first=1)).begin(shallow).head.keys() == {
        f"exits.1.{part}.{kind}" for part in ("dense", "output") for kind in ("weight", "bias")
    }


def test_a_folder_is_an_encoder_to_start_the_next_model_from(start: Checkpoint, tmp_path: Path) -> None:
    """Vanilla first, then the interaction model."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    vanilla = document_model("vanilla").begin(start)
    network = vanilla.architecture.network(vanilla)
    with torch.no_grad():
        network.encoder.embeddings.word[9] += 1.0
        for parameter in network.head.parameters():
            parameter += 1.0
    vanilla = network.trained(vanilla)
    save_checkpoint(vanilla, tmp_path / "vanilla")
    stored = load_checkpoint(tmp_path / "vanilla")
    second = document_model("cedr-knrm").begin(stored)
    assert np.array_equal(second.tensors["embeddings.word"], vanilla.tensors["embeddings.word"])
    assert not second.head.keys() & vanilla.head.keys() - {"cedr.score.weight", "cedr.score.bias"}
    # and one of the same kind goes on with its head
    onward = document_model("vanilla", tokens=30).begin(stored, 9)
    assert same_tensors(onward, vanilla) and onward.architecture.settings.tokens == 30


def test_the_fingerprint_changes_with_the_head_and_the_settings(start: Checkpoint, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    begun, saved = set(), set()
    for number, (settings, seed) in enumerate([({}, 0), ({}, 1), ({"tokens": 99}, 0)]):
        made = document_model("parade-max", **settings).begin(start, seed)
        begun.add(made.fingerprint)
        save_checkpoint(made, tmp_path / str(number))
        saved.add(load_checkpoint(tmp_path / str(number)).fingerprint)
    assert len(begun) == len(saved) == 3


# -- who reads it


@pytest.mark.parametrize(
    ("name", "settings"),
    [("listwise", {"n": 3}), ("cascade", {"exits": [1, 2]}), ("parade", {"kind": "cnn"})],
)
def test_transformers_reads_it_as_the_encoder_that_it_is(
    name: str, settings: Settings, start: Checkpoint, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    save_checkpoint(begun(name, settings, start), tmp_path / "ours")
    save_checkpoint(start, tmp_path / "plain")
    ids = torch.tensor([[2, 30, 31, 3, 40, 41, 3]])
    said = []
    for folder in ("plain", "ours"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        assert tokenizer("a sieve")["input_ids"]
        model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
            tmp_path / folder, output_loading_info=True
        )
        assert not report["missing_keys"] and not report["mismatched_keys"]
        with torch.inference_mode():
            said.append(model.eval()(ids).logits)
    assert torch.equal(*said)


_WITHOUT_TORCH = """
import sys
from tamis.models import architecture
from tamis.models.checkpoint import load_checkpoint
for name in architecture.BUILT_IN:
    architecture.architecture(name)
for folder in sys.argv[1:]:
    checkpoint = load_checkpoint(folder)
    dict(checkpoint.tensors), dict(checkpoint.head)
assert "torch" not in sys.modules, "torch was imported"
"""


def test_architectures_and_checkpoints_need_no_torch(start: Checkpoint, tmp_path: Path) -> None:
    folders = [str(start.folder)]
    for name, settings in ALL:
        folder = tmp_path / f"{name}-{settings.get('kind')}"
        save_checkpoint(begun(name, settings, start), folder)
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, *folders], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
