"""From collections to a training set without a teacher: passages, queries, and BM25's candidates.

    python prepare.py --data DIR --tokenizer MODEL --out OUT

DIR has the collections of `COLLECTIONS` in BEIR's layout (corpus.jsonl, queries.jsonl, qrels.txt;
manuals.py makes `manuals`, which has no questions). OUT gets `set/`, a training set in which a query has
twelve candidates: its relevant passages, or the one that it was made of, BM25's, and one at random; and
`dev/`, questions that never train with BM25's first 100 documents, in the files that a recipe's [dev] names.
The demo collection's questions are left out of both. Takes about ten minutes on one core, and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from passages import Passage, passages
from questions import PseudoQueries, forms
from script import say

import tamis
from tamis.base.arrays import Array
from tamis.cli import status_of
from tamis.formats import read_corpus, read_qrels, read_queries, write_qrels
from tamis.models.tokenizer import Tokenizer
from tamis.train.sets import Candidates, Judged, TrainingSet, offsets_of

SEED = 20261115
COLLECTIONS = ("hotpotqa-dev", "boolq", "squad-dev", "2wikimultihop", "medquad", "manuals")
DEV = {"squad-dev": 300, "hotpotqa-dev": 300, "boolq": 200, "medquad": 200}  # or a tenth, if that is less
RELEVANT = 4  # relevant documents of a question that are kept
QUERIES = 480_000  # all questions, and as many pseudo-queries as make it
CANDIDATES = 12  # of a query, one of them at random
ANSWERS = 3  # of them at most are relevant
FIRST, DEPTH = 5, 50  # BM25's first five, and others of its first fifty
LONG = 0.12  # of the pseudo-queries are whole sentences
PASSAGE_TOKENS, QUERY_TOKENS = 440, 64
_STEP = 256  # queries searched at a time


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the numbers of the documents that answer it."""

    collection: str
    id: str
    text: str
    relevant: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query to learn from: the passages that are relevant, or the one that it was made of."""

    text: str
    relevant: tuple[int, ...] = ()
    source: int | None = None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="folder of the collections")
    arguments.add_argument("--tokenizer", required=True, help="folder with the models' tokenizer.json")
    arguments.add_argument("--out", type=Path, required=True, help="folder for set/ and dev/")
    arguments.add_argument("--questions", type=int, help="so many of each collection alone, to try it")
    given = arguments.parse_args()
    prepare(given.data, given.tokenizer, given.out, given.questions)


def prepare(data: Path, tokenizer: str, out: Path, most: int | None = None) -> None:
    """Write OUT/dev and OUT/set."""
    rng, words = random.Random(SEED), Tokenizer(tokenizer)
    documents, questions = read(data, rng, most)
    dev, training = split(questions, documents, rng)
    say(f"{len(documents):,} documents, {len(training):,} questions to train with, {len(dev):,} for dev")
    parts = list(passages(documents, rng))
    say(f"{len(parts):,} passages")
    held_out = {number for question in dev for number in question.relevant}
    asked = sampled(list(queries(documents, parts, training, held_out, rng)), rng)
    say(f"{len(asked):,} queries")
    out.mkdir(parents=True, exist_ok=True)
    write_dev(dev, documents, out)
    found = candidates(parts, asked, out, rng)
    training_set(parts, asked, found, words).save(out / "set")
    say(f"{out / 'set'} is written")


def read(data: Path, rng: random.Random, most: int | None) -> tuple[list[tamis.Document], list[Question]]:
    """All collections as one, less the questions of the demo collection."""
    demo_queries = (files("tamis") / "demo_data" / "queries.jsonl").read_text(encoding="utf-8")
    demo = {json.loads(line)["metadata"]["2wikimultihopqa"] for line in demo_queries.splitlines()}
    documents: list[tamis.Document] = []
    questions: list[Question] = []
    for name in COLLECTIONS:
        numbers = {}
        for document in read_corpus(data / name / "corpus.jsonl"):
            numbers[document.id] = len(documents)
            text = " ".join(document.text.split()) or "-"
            documents.append(tamis.Document(str(len(documents)), text, document.title.strip()))
        if not (data / name / "queries.jsonl").exists():
            continue
        qrels = read_qrels(data / name / "qrels.txt")
        for query in list(read_queries(data / name / "queries.jsonl"))[:most]:
            judged = qrels.get(query.id, {})
            relevant = [numbers[i] for i, grade in judged.items() if grade > 0 and i in numbers]
            if relevant and query.id not in demo:
                questions.append(
                    Question(name, query.id, _plain(query.text, rng), tuple(relevant[:RELEVANT]))
                )
    return documents, questions


def _plain(question: str, rng: random.Random) -> str:
    """MedQuAD's questions are templates ("What is (are) ...?")."""
    text = " ".join(question.replace("(or clinical trials) ", "").split()).replace(" ?", "?")
    return text.replace("is (are)", rng.choice(("is", "are")))


def split(
    questions: Sequence[Question], documents: Sequence[tamis.Document], rng: random.Random
) -> tuple[list[Question], list[Question]]:
    """Dev questions, no two with a document in common, and those to train with, none of whose documents
    answers a dev question."""
    dev: list[Question] = []
    taken: set[int] = set()
    for name, wanted in DEV.items():
        pool = [question for question in questions if question.collection == name]
        rng.shuffle(pool)
        chosen, most = 0, min(wanted, len(pool) // 10)
        for question in pool:
            long_enough = len(documents[question.relevant[0]].text) > 60
            if chosen < most and long_enough and taken.isdisjoint(question.relevant):
                taken.update(question.relevant)
                dev.append(question)
                chosen += 1
    return dev, [question for question in questions if taken.isdisjoint(question.relevant)]


def queries(
    documents: Sequence[tamis.Document],
    parts: Sequence[Passage],
    training: Sequence[Question],
    held_out: set[int],
    rng: random.Random,
) -> Iterator[Asked]:
    """The questions in all their forms, and two to six pseudo-queries of each document."""
    own: dict[int, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        own[part.document].append(number)  # the whole text first
    for question in training:
        answers = [part for number in question.relevant for part in own[number]]
        relevant = tuple(part for part in answers if parts[part].kind != "run")
        for form in forms(question.text, rng):
            yield Asked(form, relevant)
    pseudo = PseudoQueries((document.text for document in documents), rng)
    for number, document in enumerate(documents):
        if number in held_out:
            continue
        for _ in range(min(6, 1 + len(own[number])) if len(own[number]) > 1 else rng.choice((2, 3, 3))):
            source = rng.choice(own[number])
            long = rng.random() < LONG
            if text := pseudo.told(document.text) if long else pseudo.of(parts[source], document.title):
                yield Asked(text, source=source)


def sampled(asked: Sequence[Asked], rng: random.Random) -> list[Asked]:
    """All queries with relevant passages, and some of the others, in their order."""
    others = [number for number, query in enumerate(asked) if query.source is not None]
    dropped = set(rng.sample(others, max(0, len(asked) - QUERIES)))
    return [query for number, query in enumerate(asked) if number not in dropped]


def candidates(
    parts: Sequence[Passage], asked: Sequence[Asked], out: Path, rng: random.Random
) -> list[Array]:
    """For each query the numbers of its relevant passages or its source, then BM25's, then any."""
    folder = out / "index"
    shutil.rmtree(folder, ignore_errors=True)
    named = (tamis.Document(str(i), part.text, part.title) for i, part in enumerate(parts))
    index = tamis.Index.build(named, folder)
    bm25 = index.bm25(k1=0.9, b=0.4) % DEPTH
    found = []
    for start in range(0, len(asked), _STEP):
        some = asked[start : start + _STEP]
        for query, ranking in zip(some, bm25([query.text for query in some]), strict=True):
            ids = [int(each) for each in ranking.ids]
            others = ids[FIRST:]
            rng.shuffle(others)
            first = query.relevant[:ANSWERS] if query.source is None else (query.source,)
            chosen = list(dict.fromkeys([*first, *ids[:FIRST], *others]))[: CANDIDATES - 1]
            while len(chosen) < CANDIDATES:
                number = rng.randrange(len(parts))
                chosen += [] if number in chosen else [number]
            found.append(np.array(chosen, np.int32))
        if start // _STEP % 200 == 0:
            say(f"BM25: {start:,} of {len(asked):,} queries")
    return found


def training_set(
    parts: Sequence[Passage], asked: Sequence[Asked], found: Sequence[Array], tokenizer: Tokenizer
) -> TrainingSet:
    """The set, as arrays: its candidates are in the order above, so `retrieval` says no more than that."""
    texts = [f"{part.title}\n{part.text}" if part.title else part.text for part in parts]
    counts = np.array([len(each) for each in found])
    relevant = [np.array(query.relevant[:ANSWERS], np.int32) for query in asked]
    judged = np.concatenate(relevant)
    places = np.concatenate([np.arange(count) for count in counts.tolist()])
    return TrainingSet(
        tokenizer.encode([query.text for query in asked], limit=QUERY_TOKENS),
        tokenizer.encode(texts, limit=PASSAGE_TOKENS),
        [str(number) for number in range(len(asked))],
        [str(number) for number in range(len(parts))],
        Judged(
            offsets_of(np.array([len(each) for each in relevant])), judged, np.ones(len(judged), np.int32)
        ),
        Candidates(offsets_of(counts), np.concatenate(found), (1 / (1 + places)).astype(np.float32)),
    )


def write_dev(dev: Sequence[Question], documents: Sequence[tamis.Document], out: Path) -> None:
    """BM25's first 100 of all documents for each dev question, and what a recipe's [dev] needs beside."""
    folder = out / "dev"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index = tamis.Index.build(documents, folder / "index")
    asked = [tamis.Query(f"{question.collection}-{question.id}", question.text) for question in dev]
    run = (index.bm25(k1=0.9, b=0.4) % 100).run(asked)
    run.write(folder / "bm25.run")
    found = {int(identity) for ranking in run.values() for identity in ranking.ids}
    _write_json_lines(folder / "queries.jsonl", [{"_id": query.id, "text": query.text} for query in asked])
    kept = [documents[number] for number in sorted(found)]
    lines = [{"_id": each.id, "title": each.title, "text": each.text} for each in kept]
    _write_json_lines(folder / "corpus.jsonl", lines)
    judged = {
        query.id: {str(number): 1 for number in question.relevant}
        for query, question in zip(asked, dev, strict=True)
    }
    write_qrels(folder / "qrels.txt", judged)
    shutil.rmtree(folder / "index")


def _write_json_lines(path: Path, lines: Sequence[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(status_of(main))
