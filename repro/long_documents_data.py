"""What the experiments on long documents read: made once on any machine, and carried to where the models run.

    queries.jsonl, qrels.txt, folds.json, sample.json    all queries; those that are ranked and measured
    bm25.run.gz, rm3.run.gz                              all queries' candidates; the sample's by BM25+RM3
    tokens.npz                                           queries, documents, passages, sentences as tokens
    evidence.json                                        where the marked sentences stand, if it is known

Passages and sentences are cut by the stages' own readers, so that what is scored here is what they score.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import tamis
from tamis.base.arrays import Array, ranges
from tamis.base.documents import Document, Query
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, Run
from tamis.evaluate.folds import Fold, make_folds, read_folds, write_folds
from tamis.evaluate.grid import Setting
from tamis.evaluate.tune import cross_validate
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.models.documents import DocumentSettings
from tamis.models.templates import Tokenised
from tamis.rank.birch import Birch
from tamis.rank.given_run import Documents
from tamis.rank.passage import MaxP, PassageReranker
from tamis.text.segment import Passage

DEPTH = 100
BEST = 4  # sentences of a document that Birch may look at
MEASURE = "nDCG@10"  # what is tuned for
RM3 = {"terms": [10, 30], "docs": [3, 10], "weight": [0.5, 0.7, 0.9]}

Places = Mapping[str, Sequence[tuple[int, int]]]  # by document: characters of its text


# -- making it
# ------------------------------------------------------------------------------------------------------------


def prepare(
    data: Path, out: Path, *, model: str, queries: int, folds: int, seed: int, evidence: Path | None
) -> None:
    """Fill the folder `out` from a collection in the BEIR layout."""
    asked = list(read_queries(data / "queries.jsonl"))
    qrels = read_qrels(data / "qrels.txt")
    documents = list(read_corpus(data / "corpus.jsonl"))
    out.mkdir(parents=True, exist_ok=True)
    for name in ("queries.jsonl", "qrels.txt"):
        shutil.copyfile(data / name, out / name)
    split = make_folds(qrels, folds, seed=seed)
    sample = sampled(split, queries, seed)
    write_folds(out / "folds.json", split)
    _write_json(out / "sample.json", sample)
    if evidence is not None:
        _write_json(out / "evidence.json", marked(evidence, asked, documents))
    _write_tokens(out / "tokens.npz", asked, documents, model)
    with tempfile.TemporaryDirectory() as scratch:
        index = tamis.Index.build(documents, Path(scratch) / "index")
        _write_runs(out, index, asked, qrels, [_within(fold, sample) for fold in split])


def sampled(folds: Sequence[Fold], count: int, seed: int) -> list[str]:
    """So many test queries, as many of each fold (to one).

    >>> folds = [Fold(train=("b",), test=("a", "c")), Fold(train=("a", "c"), test=("b",))]
    >>> sampled(folds, 2, seed=0)
    ['c', 'b']
    """
    generator = np.random.default_rng(seed)
    chosen: list[str] = []
    for number, fold in enumerate(folds):
        share = (number + 1) * count // len(folds) - number * count // len(folds)
        places = generator.choice(len(fold.test), min(share, len(fold.test)), replace=False)
        chosen += [fold.test[place] for place in np.sort(places)]
    return chosen


def marked(path: Path, queries: Iterable[Query], documents: Iterable[Document]) -> dict[str, Places]:
    """Where each query's evidence stands, by the list of facts that MultiHop-RAG is published with."""
    lists = {each["query"]: each["evidence_list"] for each in json.loads(path.read_text(encoding="utf-8"))}
    titled = {document.title: document for document in documents}
    found: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for query in queries:
        for fact in lists.get(query.text, ()):
            document = titled.get(fact["title"])
            start = -1 if document is None else document.text.find(fact["fact"])
            if document is None or start < 0:
                raise InputError(f"no evidence {fact['fact']!r}", remedy="give the same release of both")
            place = (start, start + len(fact["fact"]))
            own = found.setdefault(query.id, {}).setdefault(document.id, [])
            if place not in own:
                own.append(place)
    return found


def _write_tokens(path: Path, queries: Sequence[Query], documents: Sequence[Document], model: str) -> None:
    mono = tamis.Mono(model, precision="fp32")
    tokenizer = mono.scorer.tokenizer
    columns: dict[str, Array] = {
        "tokenizer": np.array(digest(mono)),
        "documents.names": np.array([document.id for document in documents]),
    }
    tokens = DocumentSettings().tokens  # all kinds read as much of a document
    columns |= _columns("queries", tokenizer.encode([query.text for query in queries]))
    columns |= _columns(
        "documents", tokenizer.encode([document.contents for document in documents], limit=tokens)
    )
    columns |= _cut("passages", MaxP(mono, passages=None), documents)
    columns |= _cut("sentences", Birch(mono), documents)
    np.savez_compressed(path, **columns)


def _cut(name: str, stage: PassageReranker, documents: Sequence[Document]) -> dict[str, Array]:
    ids = [document.id for document in documents]
    ranking = Ranking(Query("", ""), ids, np.zeros(len(ids)), texts=Documents(documents, only=ids))
    reads = stage.reader.read(ranking, ids)
    places = [place for read in reads for place in read.passages]
    return _columns(name, Tokenised.join([read.tokens for read in reads])) | {
        f"{name}.of": np.cumsum([0, *(len(read.passages) for read in reads)]),
        f"{name}.places": np.array(places, np.int32),
    }


def _columns(name: str, tokens: Tokenised) -> dict[str, Array]:
    """As small as they go: a vocabulary of BERT's size fits sixteen bits."""
    ids = tokens.ids
    return {
        f"{name}.ids": ids.astype(np.uint16) if ids.max(initial=0) < 1 << 16 else ids,
        f"{name}.counts": np.diff(tokens.offsets).astype(np.int32),
        f"{name}.lengths": tokens.lengths.astype(np.int32),
    }


def _write_runs(
    out: Path, index: tamis.Index, queries: Sequence[Query], qrels: Qrels, folds: Sequence[Fold]
) -> None:
    (index.bm25() % DEPTH).run(queries).write(out / "bm25.run.gz", tag="bm25")

    def expanded(setting: Setting) -> tamis.Stage:
        terms, docs, weight = (setting[name] for name in ("terms", "docs", "weight"))
        return index.pipeline(f"bm25 >> rm3(terms={terms}, docs={docs}, weight={weight}) % {DEPTH}")

    wanted = {qid for fold in folds for qid in fold.test}
    tuned = cross_validate(
        expanded, RM3, [query for query in queries if query.id in wanted], qrels, folds, MEASURE
    )
    tuned.run.write(out / "rm3.run.gz", tag="bm25+rm3")
    _write_json(out / "rm3.json", [choice.setting for choice in tuned.choices])


def _within(fold: Fold, queries: Iterable[str]) -> Fold:
    """The fold of only these queries."""
    wanted = set(queries)
    return Fold(
        tuple(qid for qid in fold.train if qid in wanted), tuple(qid for qid in fold.test if qid in wanted)
    )


def digest(mono: tamis.Mono) -> str:
    """Which tokens a model reads."""
    content = (mono.scorer.checkpoint.folder / "tokenizer.json").read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


# -- reading it
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Units:
    """The passages or the sentences of all documents: those of document d are `of[d] : of[d + 1]`."""

    tokens: Tokenised
    of: Array  # int64[documents + 1]
    places: Array  # int32[units, 2]: characters of the document's text

    def numbers(self, documents: Array, most: int | None = None) -> Array:
        """The units of some documents, of each the first `most`."""
        return ranges(self.of[documents], self.counts(documents, most))

    def counts(self, documents: Array, most: int | None = None) -> Array:
        """How many each of them has, or of which so many are read."""
        several: Array = np.diff(self.of)[documents]
        return several if most is None else np.minimum(several, most)

    def passages(self, document: int) -> list[Passage]:
        start, stop = self.of[document : document + 2].tolist()
        return [Passage(*place) for place in self.places[start:stop].tolist()]


class Prepared:
    """The folder that `prepare` made. `queries` limits the sample, alike in all folds, for a trial."""

    def __init__(self, folder: Path, queries: int | None = None) -> None:
        self.folder = folder
        self._columns: Mapping[str, Array] = np.load(folder / "tokens.npz")
        folds = read_folds(folder / "folds.json")
        sample: list[str] = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
        if queries is not None:
            sample = sampled([_within(fold, sample) for fold in folds], queries, seed=0)
        self.sample = tuple(sample)
        self.folds = [Fold(fold.train, _within(fold, sample).test) for fold in folds]
        self.tuning = [_within(fold, sample) for fold in folds]  # those whose scores are known

    @cached_property
    def queries(self) -> dict[str, Query]:
        return {query.id: query for query in read_queries(self.folder / "queries.jsonl")}

    @cached_property
    def qrels(self) -> Qrels:
        return read_qrels(self.folder / "qrels.txt")

    @property
    def sample_qrels(self) -> Qrels:
        return {qid: self.qrels[qid] for qid in self.sample}

    @cached_property
    def first(self) -> Run:
        """The first stage's candidates of all queries."""
        return Run.read(self.folder / "bm25.run.gz", queries=self.queries.values())

    @cached_property
    def document_ids(self) -> list[str]:
        return self._columns["documents.names"].tolist()

    @cached_property
    def query_numbers(self) -> dict[str, int]:
        return {qid: number for number, qid in enumerate(self.queries)}

    @cached_property
    def document_numbers(self) -> dict[str, int]:
        return {identity: number for number, identity in enumerate(self.document_ids)}

    def candidates(self, qid: str) -> Array:
        """The numbers of a query's candidates, best first."""
        return np.array([self.document_numbers[each] for each in self.first[qid].ids], np.int64)

    def query(self, qid: str) -> Tokenised:
        return self.query_tokens.take([self.query_numbers[qid]])

    @cached_property
    def query_tokens(self) -> Tokenised:
        return self._tokens("queries")

    @cached_property
    def documents(self) -> Tokenised:
        return self._tokens("documents")

    @property
    def texts(self) -> Units:
        """Whole documents, as if each were one passage."""
        return Units(self.documents, np.arange(len(self.documents) + 1), np.zeros((0, 2), np.int32))

    @cached_property
    def passages(self) -> Units:
        return self._units("passages")

    @cached_property
    def sentences(self) -> Units:
        return self._units("sentences")

    @cached_property
    def evidence(self) -> dict[str, Places] | None:
        path = self.folder / "evidence.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def check(self, mono: tamis.Mono) -> None:
        """Whether a model reads these tokens."""
        if digest(mono) != str(self._columns["tokenizer"]):
            raise InputError(
                f"{mono.scorer.model} has another tokenizer than {self.folder} was made with",
                remedy="prepare it again with --model",
            )

    def _tokens(self, name: str) -> Tokenised:
        ids, counts, lengths = (self._columns[f"{name}.{part}"] for part in ("ids", "counts", "lengths"))
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return Tokenised(ids.astype(np.int32), offsets, lengths.astype(np.int64))

    def _units(self, name: str) -> Units:
        return Units(self._tokens(name), self._columns[f"{name}.of"], self._columns[f"{name}.places"])
