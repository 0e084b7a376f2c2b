"""A fold that is done is left alone only as long as nothing that it was made from has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Document, Index  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.formats import read_corpus, read_qrels, read_queries  # noqa: E402
from tamis.models.architectures.parade import Parade, ParadeSettings  # noqa: E402
from tamis.models.architectures.pcgm import Pcgm, PcgmSettings  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.tokenizer import Tokenizer  # noqa: E402
from tamis.train import folds as module  # noqa: E402
from tamis.train.examples import training_set  # noqa: E402
from tamis.train.folds import train_folds  # noqa: E402
from tamis.train.recipe import Data, Examples, Folds, Limits, Model, Optimiser, Recipe, Run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("sieve", "flour", "cake", "onion", "soup", "butter")
REFUSED = "was trained by another recipe, on other folds or other data"


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def files(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    tiny_checkpoint(tmp_path / "model", layers=1, hidden=16, heads=2, positions=32)
    documents = [{"_id": f"d{n}", "text": f"{WORDS[n]} and {WORDS[n - 1]}"} for n in range(6)]
    (tmp_path / "c.jsonl").write_text(lines(*documents))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "c.jsonl").write_text(lines(*documents))
    (tmp_path / "q.jsonl").write_text(lines(*({"_id": f"q{n}", "text": WORDS[n]} for n in range(4))))
    (tmp_path / "qrels.txt").write_text("".join(f"q{n} 0 d{n} 1\n" for n in range(4)))
    (tmp_path / "run.txt").write_text(
        "".join(f"q{q} Q0 d{n} {n + 1} {9 - n} x\n" for q in range(4) for n in range(6))
    )
    (tmp_path / "folds.json").write_text(json.dumps([["q0", "q1"], ["q2", "q3"]]))
    (tmp_path / "triples.tsv").write_text("sieve\ta sieve\tsoup\ncake\ta cake\tonion\n" * 2)
    known = ({"query": f"q{n}", "document": f"d{n}", "gains": [n % 2]} for n in range(4))
    (tmp_path / "gains.jsonl").write_text(lines(*known))
    return tmp_path


def data(files: Path, corpus: str = "c.jsonl") -> Data:
    return Data(
        queries=str(files / "q.jsonl"),
        qrels=str(files / "qrels.txt"),
        corpus=(str(files / corpus),),
        run=str(files / "run.txt"),
    )


def recipe(files: Path, *more: Data, corpus: str = "c.jsonl") -> Recipe:
    return Recipe(
        Model(str(files / "model")),
        (data(files, corpus), *more),
        Optimiser(steps=1),
        Run(batch=2),
        Examples(group=2),
        limits=Limits(8, 24),
        folds=Folds(files=(str(files / "folds.json"),)),
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def refused(plan: Recipe, files: Path, change: Callable[[], object]) -> None:
    """Whether folds are kept, and after a change are not."""
    train_folds(plan, files / "out", device="cpu")
    train_folds(plan, files / "out", device="cpu", resume=True)
    change()
    with pytest.raises(InputError, match=REFUSED) as caught:
        train_folds(plan, files / "out", device="cpu", resume=True)
    assert "fold-1" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("corpus", ["c.jsonl", "corpus"])
def test_another_text_in_the_corpus(corpus: str, files: Path) -> None:
    file = files / "c.jsonl" if corpus == "c.jsonl" else files / "corpus" / "c.jsonl"
    plan = recipe(files, corpus=corpus)
    refused(plan, files, lambda: edit(file, "flour and sieve", "flour or sieve"))


def test_another_commit_of_the_index(files: Path) -> None:
    index = Index.build(read_corpus(files / "c.jsonl"), files / "idx")
    change = [Document("d5", "butter or soup")]
    refused(recipe(files, corpus="idx"), files, lambda: index.add(change, on_duplicate="replace"))


def test_another_start(files: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    def other() -> None:
        tiny_checkpoint(files / "model", layers=1, hidden=16, heads=2, positions=32, seed=1)

    refused(recipe(files), files, other)


def test_another_head_of_a_start_that_is_a_model_of_long_documents(files: Path) -> None:
    """Its weights lie beside the encoder's, which stay as they are."""
    plan = changed(
        recipe(files), architecture=Parade(ParadeSettings(kind="max", sequence=24, query=4)), limits=Limits()
    )
    train_folds(plan, files / "first", device="cpu")
    start = files / "first" / "fold-1" / "last"
    names = ("fold-1", "fold-2")
    mine, other = (load_checkpoint(files / "first" / name / "last") for name in names)
    again = changed(plan, model=Model(str(start)))
    refused(again, files, lambda: save_checkpoint(replace(mine, head=dict(other.head)), start))


def test_another_set(files: Path) -> None:
    """Of another collection, which every fold learns from whole."""

    def saved(where: str, grade: int) -> None:
        qrels = {**read_qrels(files / "qrels.txt"), "q3": {"d3": 1, "d4": grade}}
        queries, documents = read_queries(files / "q.jsonl"), read_corpus(files / "c.jsonl")
        training_set(queries, qrels, documents, Tokenizer(files / "model")).save(files / where)

    def replaced() -> None:
        (files / "set").rename(files / "old")
        (files / "other").rename(files / "set")

    saved("set", 0)
    saved("other", 1)
    refused(recipe(files, Data(set=str(files / "set"), whole=True)), files, replaced)


def test_other_triples(files: Path) -> None:
    plan = recipe(files, Data(triples=str(files / "triples.tsv"), whole=True))
    refused(plan, files, lambda: edit(files / "triples.tsv", "a cake", "no cake"))


def test_other_gains_of_what_it_learns_from(files: Path) -> None:
    plan = changed(
        recipe(files),
        architecture=Pcgm(PcgmSettings(sequence=24, query=4)),
        gains=str(files / "gains.jsonl"),
        limits=Limits(),
    )
    refused(plan, files, lambda: edit(files / "gains.jsonl", '"d3", "gains": [1]', '"d3", "gains": [2]'))
    # the second fold tests on that query, and has not seen its gains
    before = (files / "gains.jsonl").read_text()
    of_fold = [module.fold_recipe(plan, fold) for fold in module.open_folds(plan)]
    digests = [module._digest(each, module._Contents()) for each in of_fold]
    (files / "gains.jsonl").write_text(before.replace('"d3", "gains": [2]', '"d3", "gains": [3]'))
    again = [module._digest(each, module._Contents()) for each in of_fold]
    assert again[0] != digests[0] and again[1] == digests[1]


def test_files_are_read_once_for_all_folds(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(module, "_file_digest", lambda path: read.append(path) or path)
    plan, contents = recipe(files), module._Contents()
    for fold in module.open_folds(plan):
        module._digest(module.fold_recipe(plan, fold), contents)
    assert sorted(read) == sorted(str(files / name) for name in ("c.jsonl", "q.jsonl", "run.txt"))


def test_a_dataset_of_ir_datasets_is_its_name() -> None:
    assert module._Contents().file("irds:beir/scifact/test") == "irds:beir/scifact/test"
    assert module._Contents().corpus("irds:beir/scifact") == "irds:beir/scifact"
