"""Cascade transformers: who goes on and what it costs, exits against shorter models, the stage, its files."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tamis import Cascade, Document, Index, Mono, Query, Ranking, ScoreKind  # noqa: E402
from tamis.base.errors import ExpressionError, InputError, MissingDependencyError, TamisError  # noqa: E402
from tamis.core.plan import counts, plan  # noqa: E402
from tamis.core.registry import build  # noqa: E402
from tamis.infer.engine import Engine, OutOfMemory  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models.architectures.cascade import Cascade as Architecture  # noqa: E402
from tamis.models.architectures.cascade import (  # noqa: E402
    CascadeSettings,
    Heads,
    cost,
    exit_layers,
    kept,
    layers_run,
    live_at,
)
from tamis.models.architectures.mono import Mono as Pointwise  # noqa: E402
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.exit_network import ExitNetwork  # noqa: E402
from tamis.models.templates import Inputs  # noqa: E402
from tamis.models.weights import stored_tensors, write_tensors  # noqa: E402
from tamis.rank.cascade import cascaded, keeping, walked  # noqa: E402
from tamis.serve.models import stage_of  # noqa: E402
from tamis.storage.score_cache import ScoreCache  # noqa: E402
from tamis.train.start import keep_layers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = (2, 4, 6)  # of six
WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle"]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six layers with exits after 2, 4 and 6, each with a head of its own."""
    place = tmp_path_factory.mktemp("cascade")
    plain = load_checkpoint(tiny_checkpoint(place / "plain", layers=6, positions=64))
    save_checkpoint(strong(begin(plain, LAYERS, seed=1)), place / "model")
    return place


def begin(start: Checkpoint, layers: Sequence[int], heads: Heads = "new", seed: int = 0) -> Checkpoint:
    """A model with exits after these layers, the last of which is the model's own."""
    return Architecture(CascadeSettings(exits=tuple(layers[:-1]), heads=heads)).begin(start, seed)


def strong(checkpoint: Checkpoint) -> Checkpoint:
    """With heads so large that scores differ clearly, as those of the tiny checkpoints do."""
    return replace(checkpoint, head={name: values * 10 for name, values in checkpoint.head.items()})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    rng = np.random.default_rng(0)
    documents = [
        Document(f"d{n:03}", "castle " + " ".join(rng.choice(WORDS, rng.integers(2, 30)))) for n in range(60)
    ]
    return Index.build(documents, tmp_path_factory.mktemp("idx") / "idx")


def cascade(folder: Path, **options: object) -> Cascade:
    return Cascade(str(folder / "model"), **options)  # type: ignore[arg-type]


def some_inputs(count: int = 12, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 40, count)
    ids = rng.integers(5, 300, lengths.sum()).astype(np.int32)
    return Inputs(ids, np.zeros(len(ids), np.uint8), np.concatenate([[0], np.cumsum(lengths)]))


# -- by hand


def test_the_papers_worked_example() -> None:
    assert exit_layers(12, 4, 2) == (4, 6, 8, 10, 12)
    assert live_at(128, 5, 0.3) == [128, 90, 63, 44, 31]
    assert layers_run(128, exit_layers(12), 0.3) == 4 * 128 + 2 * 90 + 2 * 63 + 2 * 44 + 2 * 31
    assert layers_run(128, exit_layers(12), 0.0) == 12 * 128


@pytest.mark.parametrize(("alpha", "reduction"), [(0.0, 0.0), (0.3, 37.1), (0.4, 44.9), (0.5, 51.0)])
def test_the_papers_costs(alpha: float, reduction: float) -> None:
    """(4 + 2 (a + a^2 + a^3 + a^4)) / 12 with a = 1 - alpha."""
    a = 1 - alpha
    assert cost(exit_layers(12), alpha) == pytest.approx((4 + 2 * (a + a**2 + a**3 + a**4)) / 12)
    assert round(100 * (1 - cost(exit_layers(12), alpha)), 1) == reduction


@pytest.mark.parametrize(
    ("live", "alpha", "left"),
    [
        (5, 0.3, 4),
        (45, 0.3, 32),
        (3, 0.5, 2),
        (1, 0.5, 1),
        (1, 0.99, 1),
        (2, 0.9, 1),
        (0, 0.3, 0),
        (7, 0.0, 7),
    ],
)
def test_halves_go_up_and_one_always_goes_on(live: int, alpha: float, left: int) -> None:
    assert kept(live, alpha) == left


def test_the_last_layer_is_always_an_exit() -> None:
    assert exit_layers(12, 4, 3) == (4, 7, 10, 12) and exit_layers(3, 1, 9) == (1, 3)
    for first, step in ((12, 2), (13, 2), (0, 2), (4, 0)):
        with pytest.raises(InputError, match="in a model of 12 layers: begin before its last layer"):
            exit_layers(12, first, step)


def test_those_that_left_early_stand_below_by_their_exit_then_by_their_score() -> None:
    ids = ("a", "b", "c", "d", "e", "f", "g")
    given = Ranking(Query("q", ""), ids, np.zeros(7), ScoreKind.RETRIEVAL)
    margins = np.full((7, 3), np.nan, np.float32)
    margins[:, 0] = [9, 8, 7, 6, 5, 9, 8.5]
    margins[[0, 1, 2, 3], 1] = [1, 4, 3, -2]
    margins[[1, 2], 2] = [-5, -4]
    found = cascaded(given, margins, alpha=0.4)
    assert found.ids == ("c", "b", "a", "d", "f", "g", "e")
    assert found.kind is ScoreKind.COMBINED
    p = 1 / (1 + np.exp(-np.array([-4, -5, 1, -2, 9, 8.5, 5])))
    assert np.allclose(found.scores, p - np.array([0, 0, 1, 1, 2, 2, 2]), atol=1e-12)


def test_equal_margins_go_on_by_id_whatever_their_places() -> None:
    keep = keeping(["c", "a", "b"], alpha=0.5)
    assert keep(np.arange(3), np.zeros(3)).tolist() == [1, 2]
    assert keep(np.array([0, 2]), np.zeros(2)).tolist() == [2]


def test_what_is_known_of_all_exits_serves_every_alpha() -> None:
    margins = np.random.default_rng(0).normal(size=(9, 3))
    for alpha in (0.0, 0.3, 0.5):
        reached = walked(margins, keeping([f"d{n}" for n in range(9)], alpha))
        assert reached is not None
        counts = np.count_nonzero(~np.isnan(reached), axis=0).tolist()
        assert counts == live_at(9, 3, alpha)
    margins[4, 2] = np.nan
    assert walked(margins, keeping([f"d{n}" for n in range(9)], 0.0)) is None


# -- the encoder


def truncated(checkpoint: Checkpoint, layer: int) -> TorchBackend:
    """A plain model of the layers as far as an exit, with that exit's head."""
    short = keep_layers(checkpoint, range(layer))
    tensors = dict(short.tensors)
    for name in HEAD if layer < LAYERS[-1] else ():
        tensors[f"head.{name}"] = checkpoint.head[f"exits.{layer}.{name}"]
    return TorchBackend(replace(short, tensors=tensors, head={}, architecture=Pointwise()), "cpu")


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert"])
@pytest.mark.parametrize("labels", [1, 2])
def test_an_exit_is_a_model_of_so_many_layers_with_that_head(
    family: str, labels: int, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    plain = load_checkpoint(tiny_checkpoint(tmp_path, family, labels=labels, layers=6, positions=64))
    checkpoint = strong(begin(plain, LAYERS, seed=5))
    backend = TorchBackend(checkpoint, "cpu")
    inputs = some_inputs()
    reached = backend.walk(inputs, lambda live, margins: live, token_budget=100)
    assert np.allclose(backend.margins(inputs), reached[:, -1], atol=1e-5)
    for number, layer in enumerate(LAYERS):
        wanted = truncated(checkpoint, layer).margins(inputs)
        assert np.allclose(reached[:, number], wanted, atol=1e-5)
        assert wanted.std() > 0.01, "a thousand times the tolerance"


def test_an_exit_is_transformers_model_of_so_many_layers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    checkpoint = load_checkpoint(folder / "model")
    model = transformers.BertModel.from_pretrained(folder / "plain", add_pooling_layer=False).eval()
    inputs = some_inputs(4)
    reached = TorchBackend(checkpoint, "cpu").walk(inputs, lambda live, margins: live, 100)
    for row, (start, stop) in enumerate(zip(inputs.offsets[:-1], inputs.offsets[1:], strict=True)):
        ids = torch.from_numpy(inputs.ids[start:stop].astype(np.int64))[None]
        with torch.inference_mode():
            states = model(ids, output_hidden_states=True).hidden_states
        for number, layer in enumerate(LAYERS[:-1]):
            weights = {name: torch.tensor(checkpoint.head[f"exits.{layer}.{name}"]) for name in HEAD}
            pooled = torch.tanh(weights["dense.weight"] @ states[layer][0, 0] + weights["dense.bias"])
            logit = weights["output.weight"] @ pooled + weights["output.bias"]
            assert reached[row, number] == pytest.approx(logit.item(), abs=1e-5)


HEAD = ("dense.weight", "dense.bias", "output.weight", "output.bias")


def test_survivors_go_on_from_where_they_are_packed_as_padded(folder: Path) -> None:
    """The two ways through the network, inputs dropped on the way."""
    checkpoint, inputs = load_checkpoint(folder / "model"), some_inputs(9)
    padded, packed = ExitNetwork.of(checkpoint, LAYERS), ExitNetwork.of(checkpoint, LAYERS)
    packed.packed = True
    with torch.inference_mode():
        walks = [network.begin(inputs) for network in (padded, packed)]
        whole = [[network.at(n, inputs) for n in range(3)] for network in (padded, packed)]
        live = torch.arange(9)
        for number, keep in enumerate(([8, 1, 3, 4], [3, 0], [])):
            for walk in walks:
                scores = walk.scores()
                for wanted in whole:
                    assert torch.allclose(scores, wanted[number][live], atol=1e-5)
                if keep:
                    walk.keep(torch.tensor(keep))
            live = live[keep] if keep else live
    assert live.tolist() == [4, 8]


def test_layers_that_share_weights_have_exits_too(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    plain = load_checkpoint(tiny_checkpoint(tmp_path, "albert", layers=4, positions=64))
    backend = TorchBackend(begin(plain, (2, 4), "trained"), "cpu")
    inputs = some_inputs()
    reached = backend.walk(inputs, lambda live, margins: live, 4096)
    assert np.allclose(reached[:, 1], TorchBackend(plain, "cpu").margins(inputs), atol=1e-5)
    assert not np.allclose(reached[:, 0], reached[:, 1], atol=1e-3)


def test_a_batch_that_does_not_fit_is_read_in_smaller_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = TorchBackend(load_checkpoint(folder / "model"), "cpu")
    walk, budgets = backend.walk, []

    def small(inputs: Inputs, keep: object, token_budget: int, wanted: object) -> object:
        budgets.append(token_budget)
        if token_budget > 1100:
            raise OutOfMemory
        return walk(inputs, keep, token_budget, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(backend, "walk", small)
    engine = Engine(backend)
    found = engine.walk(some_inputs(), lambda live, margins: live)
    assert budgets == [4096, 2048, 1024] and not np.isnan(found).any()
    monkeypatch.setattr(backend, "walk", lambda *arguments: (_ for _ in ()).throw(OutOfMemory()))
    with pytest.raises(TamisError, match="12 candidates do not fit the memory of torch, processor, fp32"):
        engine.walk(some_inputs(), lambda live, margins: live)


# -- the stage


@pytest.mark.parametrize("precision", ["auto", "int8", "fp32"])
def test_alpha_0_is_the_whole_model(folder: Path, index: Index, precision: str) -> None:
    found = (index.bm25() % 40)("castle song")
    mono = Mono(str(folder / "model"), precision=precision, device="cpu")(found)  # type: ignore[arg-type]
    whole = cascade(folder, alpha=0, precision=precision, device="cpu")(found)
    assert whole.ids == mono.ids and whole.kind is mono.kind is ScoreKind.PROBABILITY
    assert whole.scores.tolist() == mono.scores.tolist()


def test_who_goes_on_is_who_is_best_at_each_exit(folder: Path, index: Index) -> None:
    """Against the margins of all candidates at all exits, thinned by hand."""
    found = (index.bm25() % 40)("castle song river")
    stage = cascade(folder, alpha=0.5)
    (inputs,), *_ = stage.build_inputs([found])
    everyone = stage.scorer.walk(inputs, lambda live, margins: live)
    first = np.argsort(-everyone[:, 0], kind="stable")
    second = sorted(first[:20].tolist(), key=lambda n: -everyone[n, 1])
    third = sorted(second[:10], key=lambda n: -everyone[n, 2])
    wanted = [*third, *second[10:], *first[20:].tolist()]
    ranked = stage(found)
    assert list(ranked.ids) == [found.ids[n] for n in wanted]
    assert ranked.kind is ScoreKind.COMBINED
    assert (ranked.scores[:10] >= 0).all() and (ranked.scores[20:] <= -1).all()
    assert list(ranked.ids) != list(cascade(folder, alpha=0)(found).ids), "or alpha would do nothing"


def test_queries_ranked_together_rank_as_alone_to_the_last_bit(folder: Path, index: Index) -> None:
    pipeline = index.bm25() % 30 >> cascade(folder)
    queries = ["castle", "song of the river castle", "war film", "nothing matches zzz", ""]
    together = pipeline(queries)
    for one, query in zip(together, queries, strict=True):
        alone = pipeline(query)
        assert one.ids == alone.ids and np.array_equal(one.scores, alone.scores)
    assert len(together[3]) == 0


def test_inferences_are_those_of_the_whole_model(folder: Path, index: Index) -> None:
    """Of 40 candidates all go through two layers, 28 through two more and 20 through the last two."""
    stage = cascade(folder)
    assert stage.inferences(40) == 30  # (80 + 56 + 40) / 6 = 29.3
    assert stage.inferences(0) == 0 and stage.inferences(1) == 1
    assert cascade(folder, alpha=0).inferences(40) == 40
    assert stage.share == pytest.approx((2 + 2 * 0.7 + 2 * 0.49) / 6)
    (index.bm25() % 40 >> stage)("castle song")
    assert (stage.tally.inferences, stage.tally.cached, stage.tally.truncation.texts) == (30, 0, 40)
    (step,) = plan(stage, [40])
    assert step.inferences.tolist() == [30] and counts(stage) == "exact"


def test_scores_of_an_earlier_pass_serve_every_alpha(folder: Path, index: Index, tmp_path: Path) -> None:
    found = (index.bm25() % 40)("castle song")
    with ScoreCache(tmp_path / "scores.db") as cache:
        first = cascade(folder, alpha=0, cache=cache)
        first(found)
        for alpha in (0.0, 0.3, 0.5):
            again = cascade(folder, alpha=alpha, cache=cache)
            known, computed = again(found), cascade(folder, alpha=alpha)(found)
            assert known.ids == computed.ids and np.allclose(known.scores, computed.scores, atol=1e-6)
            assert (again.tally.inferences, again.tally.cached) == (0, again.inferences(40))
        more = cascade(folder, alpha=0.3, cache=cache)
        more((index.bm25() % 41)("castle song"))
        assert more.tally.cached == 0, "one that is missing needs what the layers below make of it"
        assert len((index.bm25() >> more)("nothing matches zzz")) == 0


def test_it_is_a_stage_of_the_language() -> None:
    for text in (
        'cascade(model="a/b", alpha=0.5)',
        "cascade(model=c, precision=fp32) % 10 >> mono",
        "cascade",
    ):
        assert repr(build(text)) == text
    for alpha in ("1", "-0.1", "1.5"):
        with pytest.raises(
            ExpressionError, match=rf"a cascade with alpha={float(alpha)}: use an alpha of at"
        ):
            build(f"cascade(alpha={alpha})")
    with pytest.raises(InputError, match="alpha=nan"):
        Cascade("x", alpha=float("nan"))
    with pytest.raises(ExpressionError, match=r"in maxp\(cascade\): maxp of cascade: give a pointwise stage"):
        build("maxp(cascade)")


def test_a_server_knows_it(folder: Path) -> None:
    assert stage_of(str(folder / "model")) == "cascade" and stage_of(str(folder / "plain")) == "mono"
    with pytest.raises(InputError, match="no model is bundled under the name 'cascade': name one"):
        stage_of("cascade")


# -- checkpoints


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_checkpoint_comes_back(dtype: str, folder: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(folder / "model")
    save_checkpoint(checkpoint, tmp_path / "copy", dtype)  # type: ignore[arg-type]
    again = load_checkpoint(tmp_path / "copy")
    assert isinstance(again.architecture, Architecture) and again.architecture == checkpoint.architecture
    assert again.architecture.layers(again.config) == LAYERS and again.config == checkpoint.config
    assert sorted(again.head) == sorted(checkpoint.head)
    for name in checkpoint.head:
        wanted = checkpoint.head[name].astype(dtype).astype(np.float32)
        assert again.head[name].tobytes() == wanted.tobytes()
    codes = {each.dtype for each in stored_tensors(tmp_path / "copy" / "model.safetensors").values()}
    assert codes == {"F32" if dtype == "float32" else "F16"}
    assert load_checkpoint(folder / "plain").architecture == Pointwise()


def test_it_is_an_ordinary_checkpoint_too(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    plain, model = load_checkpoint(folder / "plain"), load_checkpoint(folder / "model")
    assert all(plain.tensors[name].tobytes() == model.tensors[name].tobytes() for name in plain.tensors)
    assert plain.fingerprint != model.fingerprint
    assert transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model")


def test_heads_to_begin_with(folder: Path) -> None:
    plain = load_checkpoint(folder / "plain")
    new, other = begin(plain, LAYERS, seed=1), begin(plain, LAYERS, seed=2)
    assert new.fingerprint != other.fingerprint
    name = "exits.2.dense.weight"
    assert new.head[name].std() == pytest.approx(0.02, rel=0.1) and not new.head["exits.2.dense.bias"].any()
    assert not np.array_equal(new.head[name], new.head["exits.4.dense.weight"])
    assert np.array_equal(new.head[name], begin(plain, (2, 6), seed=1).head[name])
    copies = begin(plain, LAYERS, "trained")
    for part in HEAD:
        assert np.array_equal(copies.head[f"exits.4.{part}"], plain.tensors[f"head.{part}"])
    # a start that has such exits goes on with them, one that has others does not
    trained = load_checkpoint(folder / "model")
    assert np.array_equal(begin(trained, LAYERS, seed=9).head[name], trained.head[name])
    assert not np.array_equal(begin(trained, (2, 6), seed=9).head[name], trained.head[name])
    two = load_checkpoint(folder / "model", require_head=False, labels=2)
    assert begin(two, LAYERS, seed=9).head["exits.2.output.weight"].shape == (2, 32)


def changed(source: Path, target: Path, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
    save_checkpoint(load_checkpoint(source), target)
    tensors = {name: each.read() for name, each in stored_tensors(target / "model.safetensors").items()}
    change(tensors)
    write_tensors(target / "model.safetensors", tensors)
    return target


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("exits.2.dense.bias"), "the tensor exits.2.dense.bias is missing"),
        (
            lambda t: t.update({"exits.2.more": np.ones(1, np.float32)}),
            "the tensor exits.2.more is not expected",
        ),
        (
            lambda t: t.update({"exits.two.x": np.ones(1, np.float32)}),
            "the tensor exits.two.x is not expected",
        ),
        (
            lambda t: t.update({"exits.4.output.weight": np.ones((3, 32), np.float32)}),
            r"exits.4.output.weight is F32\[3, 32\] where \[1, 32\] is expected",
        ),
        (
            lambda t: t.update({n.replace("exits.4", "exits.6"): t[n] for n in list(t) if "exits.4" in n}),
            "the tensor exits.6.dense.bias is not expected",
        ),
    ],
)
def test_damaged_exits_are_one_line(
    change: Callable[[dict[str, np.ndarray]], object], said: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match=f"its cascade tensors are damaged: .*{said}: save or fetch"
    ) as raised:
        load_checkpoint(changed(folder / "model", tmp_path / "m", change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exits.two.x", "the tensor 'exits.two.x' belongs to no layer"),
        ("exits.6.dense.bias", "exits after layers 2, 4, 6 of a model that has 6"),
    ],
)
def test_damaged_exits_of_an_older_version(name: str, said: str, folder: Path, tmp_path: Path) -> None:
    """Which had no record in config.json: the names of the tensors say where the exits are."""
    model = changed(folder / "model", tmp_path / "m", lambda t: t.update({name: np.ones(1, np.float32)}))
    config = json.loads((model / "config.json").read_text())
    del config["tamis"]
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"its exits are damaged: {said}: save or fetch"):
        load_checkpoint(model)


def test_a_model_without_exits_says_what_it_is_good_for(folder: Path, index: Index) -> None:
    stage = Cascade(str(folder / "plain"))
    with pytest.raises(InputError, match=r"plain holds a mono model: write mono\(model="):
        (index.bm25() % 5 >> stage)("castle")
    with pytest.raises(InputError, match="no model is bundled under the name 'cascade': name one"):
        Cascade().prepare()


def test_without_torch_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("tamis.infer.scorer.find_spec", lambda name: None if name == "torch" else real(name))
    for device, precision in (("cuda", "auto"), ("mps", "fp32"), ("cpu", "bf16")):
        with pytest.raises(
            MissingDependencyError,
            match=f"device {device} with precision {precision} needs torch, .*: pip install 'torch",
        ):
            cascade(folder, device=device, precision=precision).prepare()
    cascade(folder, device="cpu").prepare()


def test_int8_is_not_of_torch(folder: Path) -> None:
    with pytest.raises(InputError, match="no precision 'int8' with torch"):
        TorchBackend(load_checkpoint(folder / "model"), "cpu", "int8")
    with pytest.raises(InputError, match="bf16 is for CUDA cards, not for cpu: use fp32, or int8"):
        cascade(folder, device="cpu", precision="bf16").prepare()
