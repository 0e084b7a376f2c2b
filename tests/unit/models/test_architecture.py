"""The seam for models: all of ours keep to the contract, and so do those of others, of any shape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.base.errors import CorruptError, InputError
from tamis.base.extras import install
from tamis.core import extensions
from tamis.core.extensions import Extension
from tamis.models import architecture as module
from tamis.models.architecture import BUILT_IN, QUERY, TEXT, Architecture, Inputs, Part, Reading, architecture
from tamis.models.architectures.mono import Mono
from tamis.models.checkpoint import load_checkpoint, save_checkpoint, with_third_segment
from tamis.models.settings import Count, Settings, build
from tamis.testing import check_architecture

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from tamis.models.network import Encoder, Network, Pointwise, open_network  # noqa: E402
from tamis.train.learning import Learning  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

#: Small, for a small encoder.
SETTINGS = {
    "listwise": {"n": 3},
    "cascade": {"first": 1, "step": 1},
    "maxp": {"window": 8, "stride": 8, "passages": 3, "tokens": 60, "query": 8, "sequence": 32},
    "birch": {"window": 8, "stride": 8, "passages": 3, "tokens": 60, "query": 8, "sequence": 32},
    "parade": {"window": 8, "stride": 8, "passages": 3, "tokens": 60, "query": 8, "sequence": 32},
    "pcgm": {"window": 8, "stride": 8, "passages": 3, "tokens": 60, "query": 8, "sequence": 32},
    "cedr": {"tokens": 60, "query": 8, "sequence": 32},
    "interaction": {"tokens": 60, "query": 8},
}
CASES = [
    *BUILT_IN,
    *("parade attn", "parade cnn", "parade max", "cedr vanilla", "cedr drmm", "mono swapped"),
]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("architecture") / "m", layers=2, hidden=16, positions=64)


def kind_of(case: str) -> Architecture:
    name, _, variant = case.partition(" ")
    made_by = architecture(name)
    own = {"form" if name == "mono" else "kind": variant} if variant else {}
    return made_by(build(made_by.Settings, SETTINGS.get(name, {}) | own, "test", name))


@pytest.mark.parametrize("case", CASES)
def test_every_architecture_keeps_to_the_contract(case: str, folder: Path) -> None:
    start = load_checkpoint(folder)
    check_architecture(kind_of(case), with_third_segment(start) if case == "duo" else start)


# -- of other shapes
# ------------------------------------------------------------------------------------------------------------


class Prompted(Architecture):
    """Only what it reads is its own: it has a graph, and needs no torch to rank."""

    name = "prompted"

    def parts(self, reading: Reading) -> Sequence[Part]:
        cls, sep = reading.special.cls, reading.special.sep
        return [(1, [cls, *reading.words("king of soup")]), (0, TEXT), (0, [sep]), (1, QUERY), (1, [sep])]


class Louder(Mono):
    """Derived from one of ours, with other settings and a network that has no head of its own."""

    name = "louder"

    class Settings(Settings):
        times: Count = 3

    def network(self, checkpoint: Any) -> Network:
        times = self.settings.times

        class Loud(Pointwise):
            def forward(self, inputs: Inputs) -> Tensor:
                return times * super().forward(inputs)

        return Loud.of(checkpoint)


class Means(Network):
    def __init__(self, encoder: Encoder, width: int = 1) -> None:
        super().__init__(encoder)
        self.output = nn.Linear(encoder.config.hidden, width)

    def forward(self, inputs: Inputs) -> Tensor:
        return self.output(self.first_states(inputs)).squeeze(1)

    def freeze(self) -> None:
        self.encoder.head.requires_grad_(False)  # type: ignore[union-attr]


class Shaped(Architecture):
    """It says what its tensors are, and has a prefix of its own."""

    name, prefix = "shaped", "extra"

    def tensors(self, config: Any) -> Mapping[str, tuple[int, ...]]:
        return {"extra.output.weight": (1, config.hidden), "extra.output.bias": (1,)}

    def network(self, checkpoint: Any) -> Network:
        return Means.of(checkpoint)


class Graphed(Shaped):
    """With a graph of its own, of whole numbers of 64 bits, that takes no segments."""

    name, prefix = "graphed", "extra"
    takes = "ids"

    def parts(self, reading: Reading) -> Sequence[Part]:
        return [(0, [reading.special.cls]), (0, TEXT), (0, QUERY)]

    def network(self, checkpoint: Any) -> Network:
        class Bag(Means):
            def forward(self, inputs: Inputs) -> Tensor:
                starts = torch.from_numpy(inputs.offsets[:-1])
                word = self.encoder.embeddings.word  # type: ignore[union-attr]
                ids = torch.from_numpy(inputs.ids)
                return self.output(nn.functional.embedding_bag(ids, word, starts.int(), mode="mean")).squeeze(
                    1
                )

            def freeze(self) -> None:
                self.encoder.requires_grad_(False)  # type: ignore[union-attr]

        return Bag.of(checkpoint)

    def graphs(self, checkpoint: Any, precision: str) -> Sequence[Any]:
        from onnx import TensorProto, helper, numpy_helper

        head = checkpoint.head
        constants = {
            "word": checkpoint.tensors["embeddings.word"],
            "weight": np.ascontiguousarray(head["extra.output.weight"].T),
            "bias": head["extra.output.bias"],
        }
        nodes = [
            helper.make_node("Gather", ["word", self.takes], ["words"]),
            helper.make_node("ReduceMean", ["words"], ["mean"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["mean", "weight"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["score"]),
        ]
        graph = helper.make_graph(
            nodes,
            "bag",
            [helper.make_tensor_value_info(self.takes, TensorProto.INT64, ["batch", "length"])],
            [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1])],
            [numpy_helper.from_array(values, name) for name, values in constants.items()],
        )
        return [helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)]


@pytest.mark.parametrize("kind", [Prompted, Louder, Shaped, Graphed])
def test_architectures_of_other_shapes(kind: type[Architecture], folder: Path) -> None:
    check_architecture(kind(), folder)


def test_what_follows_from_what_is_defined() -> None:
    assert [kind.needs_torch for kind in (Prompted, Louder, Shaped, Graphed)] == [False, True, True, False]
    assert [kind.plain for kind in (Prompted(), Louder(), Graphed())] == [True, False, False]
    assert (Louder.stage, Louder.prefix, Louder.reads, Shaped.prefix) == ("louder", "louder", (), "extra")
    assert "prompted" not in module.names() and architecture("prompted") is Prompted


def test_one_that_is_trained_on_keeps_its_head(folder: Path, tmp_path: Path) -> None:
    begun = Shaped().begin(load_checkpoint(folder), seed=3)
    save_checkpoint(begun, tmp_path / "m")
    again = Shaped().begin(load_checkpoint(tmp_path / "m"), seed=4)
    assert np.array_equal(again.head["extra.output.weight"], begun.head["extra.output.weight"])
    other = Prompted().begin(load_checkpoint(tmp_path / "m"), seed=4)
    assert not other.head


# -- what breaks it
# ------------------------------------------------------------------------------------------------------------


def of_network(made_by: Callable[[Any], Any]) -> Architecture:
    class Broken(Architecture):
        name = "broken"

        def network(self, checkpoint: Any) -> Any:
            return made_by(checkpoint)

    return Broken()


class Wide(Means):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder, width=2)


class OfNeighbours(Means):
    def forward(self, inputs: Inputs) -> Tensor:
        scores = super().forward(inputs)
        return scores - scores.mean()


class Constant(Means):
    def forward(self, inputs: Inputs) -> Tensor:
        return 0 * super().forward(inputs)


class Unreached(Means):
    def freeze(self) -> None: ...


class Silent(Network): ...


class Forgetful(Means):
    def head_tensors(self) -> dict[str, Any]:
        return {name: np.zeros_like(each) for name, each in super().head_tensors().items()}


class Nothing(Learning):
    def loss(self, network: Network, batch: Any) -> Tensor:
        return 0 * network(batch.inputs).sum()


class ManyLosses(Learning):
    def loss(self, network: Network, batch: Any) -> Tensor:
        return network(batch.inputs)


class OfTheBatch(Architecture):
    name = "of_the_batch"

    def inputs(self, queries: Any, texts: Any, members: Any, query_of: Any, reading: Reading) -> Any:
        inputs, cut = super().inputs(queries, texts, members, query_of, reading)
        rows = [inputs.take([n]).ids.tolist() + [1] * self.calls for n in range(len(inputs))]
        type(self).calls += 1
        return Inputs.of(rows), cut

    calls = 0


class Segments(Architecture):
    name = "segments"

    def parts(self, reading: Reading) -> Sequence[Part]:
        return [(0, QUERY), (2, TEXT)]


class NoText(Architecture):
    name = "no_text"

    def parts(self, reading: Reading) -> Sequence[Part]:
        return [(0, [1]), (0, QUERY)]


class Elsewhere(Shaped):
    name, prefix = "elsewhere", "elsewhere"


class Lost(Architecture):
    name, learning = "lost", "tests.nowhere:Learning"


class Odd(Architecture):
    name, learning = "odd", dict


class OtherGraph(Graphed):
    name, takes = "other_graph", "input_ids"


class NotMean(Graphed):
    name = "not_mean"

    def scores(self, outputs: Any, inputs: Inputs, special: Any) -> Any:
        return 2 * super().scores(outputs, inputs, special)


def trained_by(made_by: type[Learning]) -> Architecture:
    class Broken(Shaped):
        name, prefix, learning = "taught", "extra", made_by

    return Broken()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (
            partial(of_network, Wide.of),
            "numbers for 18 inputs: make its architecture give [18]",
        ),
        (partial(of_network, OfNeighbours.of), "by itself, an input has another score"),
        (partial(of_network, Constant.of), "all inputs have one score"),
        (
            partial(of_network, Unreached.of),
            "the loss does not depend on encoder.head.dense.weight: leave it out in",
        ),
        (partial(of_network, Silent.of), "define forward(self, inputs) in Silent"),
        (
            partial(of_network, lambda _: nn.Linear(2, 1)),
            "network of Broken gives Linear: return a tamis.models.network",
        ),
        (partial(of_network, Forgetful.of), "all inputs have one score"),
        (partial(trained_by, Nothing), "it does not learn: its loss begins at"),
        (partial(trained_by, ManyLosses), "the loss of ManyLosses is [8]: return one number, such as a mean"),
        (OfTheBatch, "the inputs of query 'q0' are others beside other queries"),
        (Segments, "segment 2 in a model that has 2: count the segments from 0"),
        (NoText, "an input without one query and one text: give QUERY and TEXT a part each"),
        (Elsewhere, "does not begin with elsewhere.: call it elsewhere.extra.output"),
        (Lost, "the learning of a lost model cannot be imported (No module named"),
        (Odd, "the learning of a odd model is <class 'dict'>: give a class derived from"),
        (OtherGraph, "the graph of a other_graph model takes input_ids: let it take ids and segments"),
        (NotMean, "its graph has other scores"),
    ],
)
def test_what_breaks_it_is_said_in_a_line(
    kind: Callable[[], Architecture], problem: str, folder: Path
) -> None:
    with pytest.raises((AssertionError, InputError)) as caught:
        check_architecture(kind(), folder)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_head_of_other_settings_is_said(folder: Path, tmp_path: Path) -> None:
    begun = of_network(Wide.of).begin(load_checkpoint(folder))
    save_checkpoint(begun, tmp_path / "m")
    narrow = of_network(Means.of)  # by the same name
    loaded = load_checkpoint(tmp_path / "m")
    assert loaded.architecture == narrow
    with pytest.raises(CorruptError, match=r"broken.output.bias is \[2\], not \[1\]"):
        open_network(loaded)


# -- of packages
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    def write(name: str, code: str) -> None:
        about = tmp_path / "other-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[tamis.architectures]\n{name} = other_code:Other\n")
        (tmp_path / "other_code.py").write_text("from tamis.models.architecture import Architecture\n" + code)
        monkeypatch.syspath_prepend(str(tmp_path))
        extensions._installed.cache_clear()

    yield write
    sys.modules.pop("other_code", None)
    extensions._installed.cache_clear()


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("other", "class Other(Architecture): ...", 'declares another name: say name = "other" in Other'),
        ("other", "class Other: ...", "derive it from tamis.models.architecture.Architecture"),
        (
            "other",
            "class Other(Architecture):\n    name = 'other'\n    Settings = dict",
            "has Settings of another",
        ),
        ("other", "raise ModuleNotFoundError('torch', name='torch')", install("torch")),
        ("model", "class Other(Architecture):\n    name = 'model'", "has a name that tamis uses itself"),
        ("bm25", "class Other(Architecture):\n    name = 'bm25'", "has a name that tamis uses itself"),
        ("bert", "class Other(Architecture):\n    name = 'bert'", "has a name that tamis uses itself"),
    ],
)
def test_one_that_cannot_be_used_is_an_error_of_a_line(
    bring: Callable[[str, str], None], name: str, code: str, problem: str
) -> None:
    bring(name, code)
    with pytest.raises(InputError) as caught:
        architecture(name)
    assert problem in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(module.brought()[name], Extension)


def test_a_package_is_not_imported_until_its_architecture_is_named(bring: Callable[[str, str], None]) -> None:
    bring("other", "class Other(Architecture):\n    name = 'other'")
    assert "other" in module.names() and "other_code" not in sys.modules
    assert architecture("other").stage == "other"
