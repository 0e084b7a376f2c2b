"""Half of the demo collection's questions teach a model to rank for the other half better than BM25."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

import tamis
from tamis.cli import main
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries

torch = pytest.importorskip("torch")

RECIPE = """
base = "small"

[model]
start = "mono"

[[data]]
queries = "train.jsonl"
qrels = "train.qrels"
corpus = ["index"]

[examples]
group = 6
last = 30

[optimiser]
learning_rate = 2e-5
head_learning_rate = 2e-5
steps = 12
dropout = 0.0

[run]
batch = 4

[limits]
total = 128
"""


def test_training_on_the_demo_collection_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    demo = files("tamis") / "demo_data"
    queries = list(read_queries(Path(str(demo / "queries.jsonl"))))
    qrels = read_qrels(Path(str(demo / "qrels.txt")))
    index = tamis.Index.build(read_corpus(Path(str(demo / "corpus.jsonl.gz"))), "index")
    training, held_out = queries[::2], queries[1::2]
    lines = (json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in training)
    Path("train.jsonl").write_text("".join(lines))
    judged = (f"{query.id} 0 {each} 1\n" for query in training for each in qrels[query.id])
    Path("train.qrels").write_text("".join(judged))
    Path("recipe.toml").write_text(RECIPE)

    assert main(["train", "recipe.toml", "--out", "trained", "--device", "cpu"]) == 0

    def ndcg(pipeline: tamis.Stage) -> float:
        asked = {query.id: qrels[query.id] for query in held_out}
        return evaluate(asked, pipeline.run(held_out), ["nDCG@10"]).mean["nDCG@10"]

    bm25 = index.bm25() % 10
    assert ndcg(bm25 >> tamis.Mono(model="trained/last")) > ndcg(bm25) + 0.005
