"""What tests of training share: tasks and runs of any recipe, weights and logs, a kill, and a dev run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tamis.base.documents import Document, Query
from tamis.core.ranking import Ranking
from tamis.infer.token_memory import TokenMemory
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.models.weights import stored_tensors
from tamis.rank.given_run import Documents
from tamis.train.dev import DevRun
from tamis.train.ranking import RankingTask, train
from tamis.train.recipe import Dev, Recipe
from tamis.train.sets import TrainingSet
from tamis.train.sources import Examples
from tamis.train.start import begin
from tamis.train.state import read_log

#: A dev run whose files are not read: the test gives a `DevRun`.
UNUSED = Dev("unused", "unused", ("unused",), "unused")


def task_of(plan: Recipe, data: TrainingSet, dev: DevRun | None = None) -> RankingTask:
    return RankingTask(plan, begin(plan), Examples.of(data, plan), dev, device="cpu")


def trained(plan: Recipe, data: TrainingSet, out: Path, **options: Any) -> dict[str, np.ndarray]:
    """The weights that come of a training."""
    return weights(train(plan, Examples.of(data, plan), out, device="cpu", **options).model)


def weights(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a model, under the names in its file."""
    return {name: stored.read() for name, stored in stored_tensors(folder / "model.safetensors").items()}


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether weights are equal to the last bit."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def curve(out: Path) -> list[dict[str, Any]]:
    """A run's log without what depends on a clock."""
    return [{name: line[name] for name in line if name != "pairs_per_second"} for line in read_log(out)]


class Killed(BaseException):
    """What a test stops a training with."""


def killed_at(step: int) -> Callable[[Mapping[str, Any]], None]:
    """A progress that stops the training at the first line of its log from this step on."""

    def progress(line: Mapping[str, Any]) -> None:
        if line["step"] >= step:
            raise Killed

    return progress


class _Held(TokenMemory):
    """The documents of a training set, which are tokens already."""

    def __init__(self, data: TrainingSet) -> None:
        super().__init__(Documents([], only=[]), data.document_ids)
        self.data = data

    def document(self, doc_id: str) -> Document:
        return Document(doc_id, str(self._places[doc_id]))

    def documents(self, ids: Sequence[str]) -> list[Document]:
        return [self.document(doc_id) for doc_id in ids]

    def tokens(self, ids: Sequence[str], tokenizer: Tokenizer, limit: int) -> Tokenised:
        return self.data.documents.take([self._places[doc_id] for doc_id in ids])


def dev_run(data: TrainingSet, folder: Path) -> DevRun:
    """The candidates of a set's own queries; `folder` has the tokenizer. The tokens of a query must be words
    or signs by themselves."""
    tokenizer, texts = Tokenizer(folder), _Held(data)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = {number: word for word, number in vocabulary.items()}
    rankings, qrels = [], {}
    for number, qid in enumerate(data.query_ids):
        ids = data.queries.take([number]).ids.tolist()
        text = " ".join(words[token] for token in ids)
        assert tokenizer.encode([text]).ids.tolist() == ids
        candidates = [data.document_ids[n] for n in data.candidates_of(number)]
        rankings.append(
            Ranking(Query(qid, text), candidates, -np.arange(float(len(candidates))), texts=texts)
        )
        judged = slice(*data.judged.offsets[number : number + 2])
        qrels[qid] = {
            data.document_ids[document]: int(grade)
            for document, grade in zip(data.judged.documents[judged], data.judged.grades[judged], strict=True)
        }
    return DevRun(rankings, qrels, "nDCG@10")


#: Words that the tiny tokenizer knows.
COMMON = ("the", "of", "and", "to", "in", "for", "with", "on", "as", "by", "at", "from")


def collection(folder: Path) -> dict[str, Any]:
    """Four queries of a word, each with four documents of which one has it, behind its first passage: the
    fields of [[data]] and [dev]."""
    rng = np.random.default_rng(0)
    lines, qrels, run = [], [], []
    names = ("soup", "bread", "river", "stone")
    for number, name in enumerate(names):
        for place in range(4):
            text = rng.choice(COMMON, 40).tolist()
            if place == 3:
                text[20:30] = [name] * 10
                qrels.append(f"q{number} 0 {name}{place} 1\n")
            lines.append(json.dumps({"_id": f"{name}{place}", "text": " ".join(text)}) + "\n")
            run.append(f"q{number} Q0 {name}{place} {place + 1} {9 - place} bm25\n")
    queries = [json.dumps({"_id": f"q{number}", "text": name}) + "\n" for number, name in enumerate(names)]
    files = {"corpus.jsonl": lines, "queries.jsonl": queries, "qrels.txt": qrels, "run.txt": run}
    for file, content in files.items():
        (folder / file).write_text("".join(content))
    names_of = {"queries": "queries.jsonl", "qrels": "qrels.txt", "run": "run.txt"}
    found = {name: (folder / file).as_posix() for name, file in names_of.items()}
    return {**found, "corpus": ((folder / "corpus.jsonl").as_posix(),)}
