"""From a training set with BM25's candidates to one with teachers' scores.

    python teach.py --set OUT/set --dev OUT/dev --teacher gte-small=2 --teacher minilm=1 --out OUT/taught

A teacher is the folder of a sentence encoder (BERT or MPNet; mean pooling): what it thinks of a query and a
passage is the cosine of their embeddings. BM25 over word pieces is a teacher too. Each query gets 24
candidates: those that it has, the teachers' first six of all passages, more of their first 64, and random
ones. A candidate's score is the weighted sum of what the teachers think, each brought to unit spread over the
query's candidates. About a minute on an H200.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numba import njit, prange
from prepare import PASSAGE_TOKENS, QUERY_TOKENS, SEED
from script import say
from torch import Tensor
from torch.nn import functional as F

from tamis.cli import status_of
from tamis.columns import Array
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.infer.engine import batches
from tamis.models.checkpoint import load_checkpoint
from tamis.models.encoder import Encoder
from tamis.models.templates import Inputs, Special, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.ranking import Ranking, Run, ScoreKind
from tamis.train.objective import packed_states, padded
from tamis.train.sets import Candidates, TrainingSet

CANDIDATES = 24
FIRST, AMONG, MORE = 6, 64, 5  # the teachers' first 6, and 5 more of their first 64
BM25 = 0.5  # what it counts beside the teachers
K1, B = 0.9, 0.4
_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 13}  # embedded at a time
_ROWS = 2048  # queries whose candidates are looked for at a time

Embed = Callable[[Inputs], Tensor]


@dataclass(frozen=True, slots=True)
class Teacher:
    """A sentence encoder's embeddings of all there is, with unit length."""

    name: str
    weight: float
    queries: Tensor
    passages: Tensor
    dev_queries: Tensor
    dev_documents: Tensor


@dataclass(frozen=True, slots=True)
class Dev:
    """Held-out questions: tokens, and BM25's candidates by their numbers."""

    queries: Tokenised
    documents: Tokenised
    run: Run
    places: dict[str, int]
    qrels: dict[str, dict[str, int]]

    @classmethod
    def read(cls, folder: Path, tokenizer: Tokenizer) -> Dev:
        queries = list(read_queries(folder / "queries.jsonl"))
        documents = list(read_corpus(folder / "corpus.jsonl"))
        return cls(
            tokenizer.encode([query.text for query in queries], limit=QUERY_TOKENS),
            tokenizer.encode([document.contents for document in documents], limit=PASSAGE_TOKENS),
            Run.read(folder / "bm25.run", queries=queries),
            {document.id: number for number, document in enumerate(documents)},
            {query: dict(judged) for query, judged in read_qrels(folder / "qrels.txt").items()},
        )

    def report(self, name: str, scores: Sequence[Array]) -> None:
        """nDCG@10 of BM25's candidates in the order of some scores."""
        rankings = zip(self.run.values(), scores, strict=True)
        run = {r.query.id: r.rescored(s.astype(np.float32), ScoreKind.COMBINED) for r, s in rankings}
        say(f"dev nDCG@10 of {name}: {evaluate(self.qrels, run, ['nDCG@10']).mean['nDCG@10']:.4f}")

    def numbers(self, ranking: Ranking) -> list[int]:
        return [self.places[identity] for identity in ranking.ids]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--set", type=Path, required=True, help="what prepare.py made")
    arguments.add_argument("--dev", type=Path, required=True, help="the same")
    arguments.add_argument(
        "--teacher", type=weighted, action="append", required=True, help="FOLDER=WEIGHT, repeated"
    )
    arguments.add_argument("--out", type=Path, required=True, help="folder for the new set")
    arguments.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda, if there is one, or cpu",
    )
    given = arguments.parse_args()
    teach(given.set, given.dev, dict(given.teacher), given.out, given.device)


def weighted(text: str) -> tuple[Path, float]:
    """
    >>> weighted("bases/gte-small=2")[1]
    2.0
    """
    name, _, weight = text.rpartition("=")
    return Path(name), float(weight)


def teach(prepared: Path, dev_folder: Path, weights: dict[Path, float], out: Path, device: str) -> None:
    """Write the taught set."""
    data = TrainingSet.open(prepared)
    tokenizer = Tokenizer(next(iter(weights)))
    dev = Dev.read(dev_folder, tokenizer)
    teachers = [embedded(folder, weight, data, dev, tokenizer, device) for folder, weight in weights.items()]
    report_dev(dev, teachers)
    chosen = choose(data, teachers, torch.Generator(device).manual_seed(SEED))
    say(f"candidates of {len(chosen):,} queries")
    scores = mixture(data, teachers, chosen)
    ends = np.arange(len(chosen) + 1, dtype=np.int64) * CANDIDATES
    order = np.argsort(-scores, axis=1, kind="stable")  # the teachers' best first
    listed = np.take_along_axis(chosen, order, 1).ravel().astype(np.int32)
    ranked = np.take_along_axis(scores, order, 1).ravel().astype(np.float32)
    replace(data, candidates=Candidates(ends, listed, ranked), scores=ranked).save(out)
    labelled = np.flatnonzero(np.diff(data.judged.ends))
    best = listed.reshape(-1, CANDIDATES)[labelled, 0]
    first = [best[i] in data.positives(int(q)) for i, q in enumerate(labelled.tolist())]
    say(f"{out} is written; the teachers' best is relevant for {np.mean(first or [0]):.1%} of the questions")


# -- embeddings


def embedded(
    folder: Path, weight: float, data: TrainingSet, dev: Dev, tokenizer: Tokenizer, device: str
) -> Teacher:
    embed = encoder(folder, tokenizer, torch.device(device))
    sets = (data.queries, data.documents, dev.queries, dev.documents)
    tokens = _TOKENS[torch.device(device).type]
    found = [embeddings(texts, embed, tokenizer.special, tokens) for texts in sets]
    say(f"embedded with {folder.name}")
    return Teacher(folder.name, weight, *found)


@torch.no_grad()
def embeddings(texts: Tokenised, embed: Embed, special: Special, tokens: int) -> Tensor:
    """One row a text, of unit length, in half precision."""
    inputs = with_special(texts, special)
    together = batches(np.diff(inputs.ends), tokens, "packed")
    rows = torch.cat([embed(inputs.take(some)).half() for some in together])
    return rows[torch.from_numpy(np.argsort(np.concatenate(together))).to(rows.device)]


def with_special(texts: Tokenised, special: Special) -> Inputs:
    """[CLS] text [SEP]."""
    counts = np.diff(texts.ends)
    ends = np.concatenate([[0], np.cumsum(counts + 2)])
    ids = np.full(ends[-1], special.sep, np.int32)
    ids[ends[:-1]] = special.cls
    inside = np.ones(len(ids), bool)
    inside[ends[:-1]] = inside[ends[1:] - 1] = False
    ids[inside] = texts.ids
    return Inputs(ids, np.zeros(len(ids), np.uint8), ends)


def encoder(folder: Path, tokenizer: Tokenizer, device: torch.device) -> Embed:
    """The mean of a model's last hidden states."""
    if "mpnet" in (folder / "config.json").read_text(encoding="utf-8"):
        return mpnet(folder, tokenizer, device)
    model = Encoder.from_checkpoint(load_checkpoint(folder, require_head=False)).to(device).eval()
    if device.type == "cuda":
        model = model.half()  # for which there is packed attention

    def embed(inputs: Inputs) -> Tensor:
        if device.type == "cuda":
            states = packed_states(model, inputs, device)
        else:
            ids, segments, lengths = padded(inputs, device)
            states = model.hidden_states(ids, segments, lengths)[-1]
            states = states[torch.arange(ids.shape[1], device=device) < lengths[:, None]]
        whose = torch.from_numpy(np.repeat(np.arange(len(inputs)), inputs.lengths)).to(device)
        sums = torch.zeros(len(inputs), states.shape[1], device=device).index_add_(0, whose, states.float())
        return F.normalize(sums, dim=1)

    return embed


def mpnet(folder: Path, tokenizer: Tokenizer, device: torch.device) -> Embed:
    """MPNet has BERT's words under other numbers."""
    from transformers import MPNetModel

    model = MPNetModel.from_pretrained(folder, add_pooling_layer=False).to(device).eval()
    if device.type == "cuda":
        model = model.half()
    theirs = {
        token: number for number, token in enumerate((folder / "vocab.txt").read_text("utf-8").splitlines())
    }
    ours = (tokenizer.folder / "vocab.txt").read_text("utf-8").splitlines()
    renumber = torch.tensor([theirs.get(token, theirs["[UNK]"]) for token in ours], device=device)
    renumber[tokenizer.special.cls], renumber[tokenizer.special.sep] = theirs["<s>"], theirs["</s>"]

    def embed(inputs: Inputs) -> Tensor:
        rows = []
        for some in batches(inputs.lengths, 1 << 16, "padded"):
            ids, _, lengths = padded(inputs.take(some), device)
            seen = torch.arange(ids.shape[1], device=device) < lengths[:, None]
            ids = torch.where(seen, renumber[ids], theirs["<pad>"])
            states = model(input_ids=ids, attention_mask=seen).last_hidden_state.float()
            rows.append((some, F.normalize((states * seen[..., None]).sum(1), dim=1)))
        places = np.argsort(np.concatenate([some for some, _ in rows]))
        return torch.cat([row for _, row in rows])[torch.from_numpy(places).to(device)]

    return embed


# -- candidates and scores


@torch.no_grad()
def choose(data: TrainingSet, teachers: Sequence[Teacher], generator: torch.Generator) -> Array:
    """[queries, 24] numbers of passages, none twice in a row."""
    assert data.candidates is not None
    device = teachers[0].passages.device
    # one matrix product finds the mixture's best: each teacher's cosines at unit spread over random pairs
    left, right = [], []
    for teacher in teachers:
        passages = teacher.passages.float() - teacher.passages.float().mean(0)
        some = torch.randint(len(passages), (4096,), generator=generator, device=device)
        others = torch.randint(len(teacher.queries), (1024,), generator=generator, device=device)
        spread = (teacher.queries[others].float() @ passages[some].T).std(1).mean()
        left.append(teacher.queries.float() * (teacher.weight / spread / 4))
        right.append(passages)
    kind = torch.float16 if device.type == "cuda" else torch.float32
    q, p = torch.cat(left, 1).to(kind), torch.cat(right, 1).to(kind)
    counts = np.diff(data.candidates.ends)
    width = int(counts.max())
    given = np.full((len(data), width), -1, np.int32)
    given[np.arange(width) < counts[:, None]] = data.candidates.documents
    found = np.empty((len(data), CANDIDATES), np.int32)
    for start in range(0, len(data), _ROWS):
        here = slice(start, min(start + _ROWS, len(data)))
        n = here.stop - start
        best = (q[here] @ p.T).topk(min(AMONG, len(p)), dim=1).indices
        shuffle = torch.rand(n, best.shape[1] - FIRST, generator=generator, device=device).argsort(1)
        more = best[:, FIRST:].gather(1, shuffle)
        any_of_all = torch.randint(len(p), (n, CANDIDATES), generator=generator, device=device)
        own = torch.from_numpy(given[here]).to(device)
        lists = [own, best[:, :FIRST], more[:, :MORE], any_of_all[:, :2], more[:, MORE:], any_of_all[:, 2:]]
        found[here] = first_different(torch.cat(lists, 1), CANDIDATES).cpu().numpy()
    return found


def first_different(rows: Tensor, count: int) -> Tensor:
    """The first `count` different numbers of each row, in their order; -1 is none.

    >>> first_different(torch.tensor([[7, -1, 7, 3, 5]]), 3).tolist()
    [[7, 3, 5]]
    """
    ordered = torch.sort(rows, dim=1, stable=True)
    again = ordered.values < 0
    again[:, 1:] |= ordered.values[:, 1:] == ordered.values[:, :-1]
    dropped = torch.zeros_like(again).scatter_(1, ordered.indices, again)
    return rows.gather(1, torch.sort(dropped.to(torch.int8), dim=1, stable=True).indices[:, :count])


@torch.no_grad()
def mixture(data: TrainingSet, teachers: Sequence[Teacher], chosen: Array) -> Array:
    """[queries, 24] what the teachers think together, of unit spread in each row."""
    mixed = BM25 * unit(bm25(data.queries, data.documents, chosen))
    for teacher in teachers:
        parts = []
        for start in range(0, len(chosen), _ROWS):
            passages = teacher.passages[
                torch.from_numpy(chosen[start : start + _ROWS]).to(teacher.passages.device)
            ]
            cosines = torch.einsum(
                "nd,nkd->nk", teacher.queries[start : start + _ROWS].float(), passages.float()
            )
            parts.append(cosines.cpu().numpy())
        mixed += teacher.weight * unit(np.concatenate(parts))
    return unit(mixed)


def unit(scores: Array) -> Array:
    """Rows of mean 0 and spread 1.

    >>> unit(np.array([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """
    spread = scores.std(axis=1, keepdims=True)
    rows: Array = (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-6)
    return rows


def bm25(queries: Tokenised, documents: Tokenised, chosen: Array) -> Array:
    """BM25 over word pieces, for which no index is needed."""
    vocabulary = int(max(documents.ids.max(), queries.ids.max(initial=0))) + 1
    counts = np.diff(documents.ends)
    whose = np.repeat(np.arange(len(documents)), counts)
    pairs = np.unique(whose.astype(np.int64) * vocabulary + documents.ids)
    frequency = np.bincount(pairs % vocabulary, minlength=vocabulary)
    idf = np.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
    found: Array = _bm25(
        queries.ids, queries.ends, documents.ids, documents.ends, chosen, idf, float(counts.mean())
    )
    return found


@njit(parallel=True)  # type: ignore[untyped-decorator]
def _bm25(
    query_ids: Array, query_ends: Array, ids: Array, ends: Array, chosen: Array, idf: Array, mean: float
) -> Array:
    found = np.zeros(chosen.shape)
    for query in prange(len(chosen)):
        for place in range(chosen.shape[1]):
            document = chosen[query, place]
            start, stop = ends[document], ends[document + 1]
            norm = K1 * (1 - B + B * (stop - start) / mean)
            for at in range(query_ends[query], query_ends[query + 1]):
                term, tf = query_ids[at], 0
                for there in range(start, stop):
                    tf += ids[there] == term
                found[query, place] += idf[term] * tf / (tf + norm)
    return found


def report_dev(dev: Dev, teachers: Sequence[Teacher]) -> None:
    """What the teachers are worth on the held-out questions, one by one and together."""
    first = [ranking.scores for ranking in dev.run.values()]
    together = [np.zeros(len(scores)) for scores in first]
    dev.report("BM25", first)
    for teacher in teachers:
        scores = []
        for number, ranking in enumerate(dev.run.values()):
            documents = teacher.dev_documents[dev.numbers(ranking)].float()
            scores.append((documents @ teacher.dev_queries[number].float()).cpu().numpy())
        dev.report(teacher.name, scores)
        together = [
            sums + teacher.weight * unit(own[None])[0] for sums, own in zip(together, scores, strict=True)
        ]
    dev.report("them together", together)
    with_bm25 = [sums + BM25 * unit(own[None])[0] for sums, own in zip(together, first, strict=True)]
    dev.report(f"them and {BM25} of BM25", with_bm25)


if __name__ == "__main__":
    sys.exit(status_of(main))
