"""Recipes for models of long documents: from files to a ranking, and the bundled ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Document, Mono  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.core.ranking import Ranking  # noqa: E402
from tamis.core.ranking import Run as Rankings  # noqa: E402
from tamis.formats import read_queries  # noqa: E402
from tamis.infer.longdoc_backend import LongBackend  # noqa: E402
from tamis.models.long_checkpoint import load_long  # noqa: E402
from tamis.models.long_plan import LongDoc  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.static import static_model  # noqa: E402
from tamis.rank.given_run import Documents  # noqa: E402
from tamis.rank.longdoc import Parade  # noqa: E402
from tamis.train.longdoc import open_long_dev, open_start, train_by_recipe  # noqa: E402
from tamis.train.longdoc_recipe import LongRecipe  # noqa: E402
from tamis.train.recipe import Data, Loss, Model, Optimiser, bundled, read_recipe  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.state import read_log  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

COMMON = ("the", "of", "and", "to", "in", "for", "with", "on", "as", "by", "at", "from")


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_checkpoint(where, layers=2, hidden=16, heads=2, positions=32)


def written(folder: Path, tmp_path: Path, kind: str, rest: str = "", start: Path | None = None) -> Path:
    """A collection in files, and a recipe on it."""
    rng = np.random.default_rng(0)
    names = ["soup", "bread", "river", "stone"]
    lines, qrels, run = [], [], []
    for number, name in enumerate(names):
        for place in range(4):
            text = rng.choice(COMMON, 40).tolist()
            if place == 3:
                text[20:30] = [name] * 10
                qrels.append(f"q{number} 0 {name}{place} 1\n")
            lines.append(json.dumps({"_id": f"{name}{place}", "text": " ".join(text)}) + "\n")
            run.append(f"q{number} Q0 {name}{place} {place + 1} {9 - place} bm25\n")
    queries = [json.dumps({"_id": f"q{n}", "text": name}) + "\n" for n, name in enumerate(names)]
    for file, content in (("corpus", lines), ("queries", queries), ("qrels", qrels), ("run", run)):
        (tmp_path / f"{file}.{'jsonl' if file in ('corpus', 'queries') else 'txt'}").write_text(
            "".join(content)
        )
    files = f"""
        queries = "{tmp_path}/queries.jsonl"
        qrels = "{tmp_path}/qrels.txt"
        corpus = ["{tmp_path}/corpus.jsonl"]
        run = "{tmp_path}/run.txt"
    """
    text = f"""
        base = "{"cedr" if kind.startswith(("cedr", "knrm")) else "parade"}"
        [model]
        start = "{start or folder}"
        [longdoc]
        kind = "{kind}"
        window = 12
        stride = 10
        sequence = 24
        query = 6
        {rest}
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
    path = tmp_path / f"{kind}.toml"
    path.write_text(text.replace("\\", "/"))
    return path


def read_long(path: Path) -> LongRecipe:
    recipe = read_recipe(path)
    assert isinstance(recipe, LongRecipe)
    return recipe


def test_from_a_recipe_to_a_ranking(folder: Path, tmp_path: Path) -> None:
    plan = read_long(written(folder, tmp_path, "parade-max"))
    result = train_by_recipe(plan, tmp_path / "out", device="cpu")
    assert result.model == tmp_path / "out" / "best" and result.best is not None
    measured = [line["dev"] for line in read_log(tmp_path / "out") if "dev" in line]
    assert len(measured) == 4 and result.best == max(measured) > measured[0]  # before, and every 10 steps
    # the best model, in a pipeline, ranks as the log says
    queries = read_queries(tmp_path / "queries.jsonl")
    dev = open_long_dev(plan.dev, load_long(result.model))
    assert dev.score(LongBackend(load_long(result.model), "cpu")) == pytest.approx(result.best)
    ranker = Parade(str(result.model), device="cpu")
    texts = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    held = Documents([Document(each["_id"], each["text"]) for each in texts], only=[t["_id"] for t in texts])
    found = Rankings.read(tmp_path / "run.txt", queries=queries, texts=held)
    by_stage = [ranker(Ranking(r.query, r.ids, r.scores, texts=held)) for r in found.values()]
    backend = LongBackend(load_long(result.model), "cpu")
    expected = np.split(backend.margins(dev.inputs), dev.offsets[1:-1])
    for ranking, scores in zip(by_stage, expected, strict=True):
        assert ranking.scores == pytest.approx(sorted(scores, reverse=True), abs=1e-4)
    with pytest.raises(InputError, match="has a training run in it"):
        train_by_recipe(plan, tmp_path / "out", device="cpu")


def test_tamis_train_knows_such_a_recipe_and_mono_such_a_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = written(folder, tmp_path, "parade-max"), tmp_path / "out"
    assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith(f"{out / 'best'}: 30 steps")
    with pytest.raises(InputError, match=r"is a model of long documents \(parade-max\): use parade"):
        Mono(str(out / "best")).rank("soup", ["bread"])


def test_vanilla_first_then_the_interaction_model(folder: Path, tmp_path: Path) -> None:
    first = train_by_recipe(read_long(written(folder, tmp_path, "vanilla")), tmp_path / "v", device="cpu")
    path = written(folder, tmp_path, "cedr-knrm", start=first.model)
    second = train_by_recipe(read_long(path), tmp_path / "c", device="cpu")
    assert load_long(second.model).plan.kind == "cedr-knrm"
    start = open_start(read_long(path).model, read_long(path).longdoc, 0)
    assert torch.equal(
        start.model.encoder.embeddings.word, load_long(first.model).model.encoder.embeddings.word
    )


def test_static_vectors_from_a_file_are_a_start(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["soup", "bread", "river", "stone", *COMMON]
    lines = [f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=6))}\n" for word in words]
    (tmp_path / "vectors.txt").write_text("".join(lines))
    static_model(tmp_path / "vectors.txt", LongDoc("knrm"), tmp_path / "start")
    path = written(folder, tmp_path, "knrm", start=tmp_path / "start")
    result = train_by_recipe(read_long(path), tmp_path / "out", device="cpu")
    assert result.best == 1.0  # who counts exact matches finds the only document that has one


def test_long_texts_are_read_whatever_text_limit_says() -> None:
    files = Data(queries="q.jsonl", qrels="qrels.txt", corpus=("idx",), text_limit=64)
    parts = Model("my-encoder"), (files, Data(set="training-set")), Optimiser(steps=100)
    plan = LongRecipe(*parts, longdoc=LongDoc("parade-max", tokens=999)).with_long_texts()
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

    def read(base: str) -> LongRecipe:
        path = tmp_path / f"{base}.toml"
        start = '[model]\nstart = "e"' if base == "parade" else ""
        path.write_text(f'base = "{base}"\n{start}\n{rest}')
        return read_long(path)

    maxp = read("maxp")
    assert (maxp.optimiser.steps, maxp.run.batch, maxp.dev.every) == (36 * 256, 16, 4 * 256)
    assert (maxp.optimiser.learning_rate, maxp.optimiser.head_learning_rate) == (1e-5, 1e-3)
    assert (maxp.longdoc.keep, maxp.longdoc.passages, maxp.dev.measure) == (0.1, 30, "nDCG@20")
    assert maxp.model.labels == 2 and maxp.loss == Loss("hinge", margin=1.0, probabilities=True)
    # as many as its windows hold: there is nothing to be gained by keeping more
    assert maxp.longdoc.tokens == 29 * maxp.longdoc.stride + maxp.longdoc.window
    parade = read("parade")
    assert (parade.longdoc.window, parade.longdoc.stride, parade.longdoc.passages) == (225, 200, 16)
    assert parade.optimiser.steps * parade.run.batch == 36 * 4096
    assert (parade.optimiser.learning_rate, parade.loss) == (3e-6, Loss("hinge"))
    assert parade.longdoc.tokens > 16 * parade.longdoc.window  # `passages` decides, not `tokens`
    vanilla, cedr = read("cedr-vanilla"), read("cedr")
    assert (vanilla.longdoc.kind, cedr.longdoc.kind) == ("vanilla", "cedr-knrm")
    assert (cedr.optimiser.learning_rate, cedr.optimiser.head_learning_rate, cedr.run.batch) == (
        2e-5,
        1e-3,
        16,
    )
    assert cedr.longdoc.tokens == LongDoc("cedr-knrm").tokens > 4_000
    assert cedr.run.tokens is not None  # a batch of the longest documents is split
    with pytest.raises(InputError, match="duo examples have two documents an input"):
        changed(cedr, examples=Drawn("duo"), loss=Loss("duo"))
