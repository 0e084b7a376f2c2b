"""Recipes for models of long documents: from files to a ranking, and the bundled ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Document, Mono  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.core.ranking import Ranking  # noqa: E402
from tamis.core.ranking import Run as Rankings  # noqa: E402
from tamis.formats import read_queries  # noqa: E402
from tamis.infer.scorer import Scorer  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models.architectures.cedr import Cedr as CedrModel  # noqa: E402
from tamis.models.architectures.cedr import CedrSettings  # noqa: E402
from tamis.models.architectures.interaction import InteractionSettings  # noqa: E402
from tamis.models.architectures.maxp import MaxPSettings  # noqa: E402
from tamis.models.architectures.parade import Parade as ParadeModel  # noqa: E402
from tamis.models.architectures.parade import ParadeSettings  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.static import static_model  # noqa: E402
from tamis.rank.given_run import Documents  # noqa: E402
from tamis.rank.scored import Parade  # noqa: E402
from tamis.train.dev import dev_stage, open_dev  # noqa: E402
from tamis.train.document_learning import DocumentLearning  # noqa: E402
from tamis.train.ranking import train_by_recipe  # noqa: E402
from tamis.train.recipe import Data, Loss, Model, Optimiser, Recipe, bundled, read_recipe  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.start import begin  # noqa: E402
from tamis.train.state import read_log  # noqa: E402
from tests.unit.train.builders import COMMON, collection  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_checkpoint(where, layers=2, hidden=16, heads=2, positions=32)


def written(folder: Path, tmp_path: Path, table: str, kind: str, start: Path | None = None) -> Path:
    """A collection in files, and a recipe on it for a kind of an architecture."""
    fields = collection(tmp_path).items()
    files = "\n".join(f"{name} = {json.dumps(value)}" for name, value in fields)
    text = f"""
        base = "{"parade" if table == "parade" else "cedr"}"
        [model]
        start = "{start or folder}"
        [{table}]
        kind = "{kind}"
        window = 12
        stride = 10
        sequence = 24
        query = 6
        [[data]]
        {files}
        [dev]
        {files}
        every = 10
        [optimiser]
        learning_rate = 1e-3
        head_learning_rate = 1e-2
        warm_up = 0
        steps = 30
        [run]
        batch = 4
    """
    path = tmp_path / f"{table}-{kind}.toml"
    path.write_text(text.replace("\\", "/"))
    return path


def test_from_a_recipe_to_a_ranking(folder: Path, tmp_path: Path) -> None:
    plan = read_recipe(written(folder, tmp_path, "parade", "max"))
    result = train_by_recipe(plan, tmp_path / "out", device="cpu")
    assert result.model == tmp_path / "out" / "best" and result.best is not None
    measured = [line["dev"] for line in read_log(tmp_path / "out") if "dev" in line]
    assert len(measured) == 4 and result.best == max(measured) > measured[0]  # before, and every 10 steps
    # the best model, in a pipeline, ranks as the log says
    queries = read_queries(tmp_path / "queries.jsonl")
    assert plan.dev
    dev, checkpoint = open_dev(plan.dev), load_checkpoint(result.model)
    live = dev_stage(Scorer.over(checkpoint, TorchBackend(checkpoint, "cpu")), plan.limits)
    assert dev.score(live) == pytest.approx(result.best)
    ranker = Parade(str(result.model), device="cpu")
    texts = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    held = Documents([Document(each["_id"], each["text"]) for each in texts], only=[t["_id"] for t in texts])
    found = Rankings.read(tmp_path / "run.txt", queries=queries, texts=held)
    by_stage = [ranker(Ranking(r.query, r.ids, r.scores, texts=held)) for r in found.values()]
    for ranking, other in zip(by_stage, live.apply(dev.rankings), strict=True):
        assert ranking.scores == pytest.approx(other.scores, abs=1e-4)
    with pytest.raises(InputError, match="contains a training run"):
        train_by_recipe(plan, tmp_path / "out", device="cpu")


def test_tamis_train_knows_such_a_recipe_and_mono_such_a_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = written(folder, tmp_path, "parade", "max"), tmp_path / "out"
    assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith(f"{out / 'best'}: 30 steps")
    with pytest.raises(InputError, match=r"holds a parade-max model: write parade\(model="):
        Mono(str(out / "best")).rank("soup", ["bread"])


def test_vanilla_first_then_the_interaction_model(folder: Path, tmp_path: Path) -> None:
    first = train_by_recipe(
        read_recipe(written(folder, tmp_path, "cedr", "vanilla")), tmp_path / "v", device="cpu"
    )
    path = written(folder, tmp_path, "cedr", "knrm", start=first.model)
    second = train_by_recipe(read_recipe(path), tmp_path / "c", device="cpu")
    assert load_checkpoint(second.model).architecture.kind == "cedr-knrm"
    word = "embeddings.word"
    assert np.array_equal(begin(read_recipe(path)).tensors[word], load_checkpoint(first.model).tensors[word])


def test_static_vectors_from_a_file_are_a_start(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["soup", "bread", "river", "stone", *COMMON]
    lines = [f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=6))}\n" for word in words]
    (tmp_path / "vectors.txt").write_text("".join(lines))
    static_model(tmp_path / "vectors.txt", InteractionSettings(kind="knrm"), tmp_path / "start")
    path = written(folder, tmp_path, "interaction", "knrm", start=tmp_path / "start")
    result = train_by_recipe(read_recipe(path), tmp_path / "out", device="cpu")
    assert result.best == 1.0  # who counts exact matches finds the only document that has one


def test_long_texts_are_read_whatever_text_limit_says() -> None:
    files = Data(queries="q.jsonl", qrels="qrels.txt", corpus=("idx",), text_limit=64)
    parts = Model("my-encoder"), (files, Data(set="training-set")), Optimiser(steps=100)
    plan = DocumentLearning.data(Recipe(*parts, architecture=ParadeModel(ParadeSettings(tokens=999))))
    assert [each.text_limit for each in plan.data if each.set is None] == [999]
    assert plan.data[1] == Data(set="training-set")  # which was cut when it was made


def test_the_bundled_recipes_have_the_papers_figures(tmp_path: Path) -> None:
    assert {"maxp", "parade", "cedr", "cedr-vanilla"} <= set(bundled())
    rest = """
        [[data]]
        set = "data"
        [dev]
        queries = "q"
        qrels = "r"
        corpus = ["c"]
        run = "b"
    """

    def read(base: str) -> tuple[Recipe, Any]:
        path = tmp_path / f"{base}.toml"
        start = '[model]\nstart = "e"' if base == "parade" else ""
        path.write_text(f'base = "{base}"\n{start}\n{rest}')
        recipe = read_recipe(path)
        assert recipe.architecture
        return recipe, recipe.architecture.settings

    maxp, cut = read("maxp")
    assert maxp.dev
    assert (maxp.optimiser.steps, maxp.run.batch, maxp.dev.every) == (36 * 256, 16, 4 * 256)
    assert (maxp.optimiser.learning_rate, maxp.optimiser.head_learning_rate) == (1e-5, 1e-3)
    assert isinstance(cut, MaxPSettings)
    assert (cut.keep, cut.passages, maxp.dev.measure) == (0.1, 30, "nDCG@20")
    assert maxp.model.labels == 2 and maxp.loss == Loss("hinge", margin=1.0, probabilities=True)
    # as many as its windows hold: there is nothing to be gained by keeping more
    assert cut.tokens == 29 * cut.stride + cut.window
    parade, cut = read("parade")
    assert (cut.kind, cut.window, cut.stride, cut.passages) == ("transformer", 225, 200, 16)
    assert parade.optimiser.steps and parade.optimiser.steps * parade.run.batch == 36 * 4096
    assert (parade.optimiser.learning_rate, parade.loss) == (3e-6, Loss("hinge"))
    assert cut.tokens > 16 * cut.window  # `passages` decides, not `tokens`
    (vanilla, _), (cedr, cut) = read("cedr-vanilla"), read("cedr")
    assert vanilla.architecture == CedrModel(CedrSettings(kind="vanilla"))
    assert cedr.architecture == CedrModel(CedrSettings(kind="knrm"))
    assert (cedr.optimiser.learning_rate, cedr.optimiser.head_learning_rate, cedr.run.batch) == (
        2e-5,
        1e-3,
        16,
    )
    assert cut.tokens == CedrSettings().tokens > 4_000
    assert cedr.run.tokens is not None  # a batch of the longest documents is split
    with pytest.raises(InputError, match="duo examples have two texts an input"):
        changed(cedr, examples=Drawn("duo"), loss=Loss("duo"))
