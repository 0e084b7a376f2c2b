"""What the teachers say of a training set: a score for each candidate of a query.

    python teach.py --set OUT/set --dev OUT/dev --cross-encoder FOLDER --first-mono FOLDER --encoder FOLDER
        --out OUT/taught

A score is the cross-encoder's logit plus half the first mono's and 20 times the sentence encoder's cosine.
The cross-encoder is by far the best for questions and web pages, and below the others for abstracts of
papers: its logits are close together there, and the others decide. About five minutes for half a million
queries on an H200.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from prepare import CANDIDATES, PASSAGE_TOKENS, QUERY_TOKENS
from script import say
from torch import Tensor
from torch.nn import functional as F

from tamis.base.arrays import Array, batches
from tamis.cli import status_of
from tamis.core.ranking import Ranking, Run, ScoreKind
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.infer.engine import Engine
from tamis.infer.torch_backend import TorchBackend
from tamis.models import templates
from tamis.models.checkpoint import load_checkpoint
from tamis.models.encoder import Encoder
from tamis.models.feed import padded
from tamis.models.templates import Inputs, Special, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.train.objective import packed_states
from tamis.train.sets import Candidates, TrainingSet

FIRST_MONO, COSINE = 0.5, 20.0  # how much they count beside the cross-encoder's logit
_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 13}  # embedded at a time
_STEP = 8192  # queries at a time

Pairs = Callable[[Tokenised, Tokenised, Array, Array], Array]  # scores of (query, passage) by their numbers


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

    def scores(self, score: Pairs) -> list[Array]:
        """The scores of each question's candidates."""
        rankings = list(self.run.values())
        counts = [len(ranking) for ranking in rankings]
        numbers = np.array([self.places[doc_id] for ranking in rankings for doc_id in ranking.ids])
        query_of = np.repeat(np.arange(len(rankings)), counts)
        return np.split(score(self.queries, self.documents, query_of, numbers), np.cumsum(counts)[:-1])

    def report(self, name: str, scores: Sequence[Array]) -> float:
        """nDCG@10 of BM25's candidates in the order of some scores."""
        rankings = zip(self.run.values(), scores, strict=True)
        run: dict[str, Ranking] = {
            r.query.id: r.rescored(s.astype(np.float32), ScoreKind.COMBINED) for r, s in rankings
        }
        value = evaluate(self.qrels, run, ["nDCG@10"]).mean["nDCG@10"]
        say(f"dev nDCG@10 of {name}: {value:.4f}")
        return value


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--set", type=Path, required=True, help="what prepare.py made")
    arguments.add_argument("--dev", type=Path, required=True, help="the same")
    arguments.add_argument("--cross-encoder", type=Path, required=True, help="its folder")
    arguments.add_argument("--first-mono", type=Path, required=True, help="its folder")
    arguments.add_argument("--encoder", type=Path, required=True, help="the sentence encoder's folder")
    arguments.add_argument("--out", type=Path, required=True, help="folder for the new set")
    given = arguments.parse_args()
    folders = (given.cross_encoder, given.first_mono, given.encoder)
    teach(given.set, given.dev, folders, given.out)


def teach(prepared: Path, dev_folder: Path, teachers: tuple[Path, Path, Path], out: Path) -> None:
    """Write the taught set."""
    data = TrainingSet.open(prepared)
    dev = Dev.read(dev_folder, Tokenizer(teachers[0]))
    assert data.candidates is not None
    chosen = data.candidates.documents.reshape(-1, CANDIDATES).astype(np.int64)
    say(f"{len(data):,} queries, {chosen.size:,} pairs")
    query_of = np.repeat(np.arange(len(data)), CANDIDATES)
    dev.report("BM25", [ranking.scores for ranking in dev.run.values()])
    scores = np.zeros(chosen.shape)
    together = [np.zeros(len(ranking)) for ranking in dev.run.values()]
    kinds, weights = (logits, logits, cosines), (1.0, FIRST_MONO, COSINE)
    for folder, kind, weight in zip(teachers, kinds, weights, strict=True):
        score = kind(folder)
        scores += weight * score(data.queries, data.documents, query_of, chosen.ravel()).reshape(chosen.shape)
        own = dev.scores(score)
        dev.report(folder.name, own)
        together = [so_far + weight * each for so_far, each in zip(together, own, strict=True)]
    dev.report("all together", together)
    order = np.argsort(-scores, axis=1, kind="stable")
    listed = np.take_along_axis(chosen, order, 1).ravel().astype(np.int32)
    ranked = np.take_along_axis(scores, order, 1).ravel().astype(np.float32)
    offsets = np.arange(len(data) + 1, dtype=np.int64) * CANDIDATES
    replace(data, candidates=Candidates(offsets, listed, ranked), scores=ranked).save(out)
    best = listed.reshape(chosen.shape)[:, 0]
    first = [best[q] in data.positives(q) for q in np.flatnonzero(np.diff(data.judged.offsets)).tolist()]
    say(f"{out} is written; the teachers' best is relevant for {np.mean(first or [0]):.1%} of the questions")


# -- the cross-encoders


def logits(folder: Path) -> Pairs:
    model = load_checkpoint(folder)
    on_card = torch.cuda.is_available()
    backend = TorchBackend(model, precision="fp16" if on_card else "fp32", compile=on_card)
    engine, special = Engine(backend), Tokenizer(folder).special

    def score(queries: Tokenised, documents: Tokenised, query_of: Array, numbers: Array) -> Array:
        """Inputs are made while it works."""
        step = _STEP * CANDIDATES

        def inputs(start: int) -> Inputs:
            here = slice(start, start + step)
            asked, own = np.unique(query_of[here], return_inverse=True)
            made, _ = templates.mono(
                queries.take(asked),
                documents.take(numbers[here]),
                special,
                query_of=own,
                query_limit=QUERY_TOKENS,
                total_limit=QUERY_TOKENS + PASSAGE_TOKENS + 3,
                segment_types=model.config.segments,
            )
            return made

        found = []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(inputs, 0)
            for start in range(0, len(numbers), step):
                made = waiting.result()
                waiting = pool.submit(inputs, min(start + step, len(numbers) - 1))
                found.append(engine.margins(made))
                if start // step % 10 == 0:
                    say(f"scored {start:,} of {len(numbers):,} pairs")
        return np.concatenate(found)

    return score


# -- the sentence encoder


def cosines(folder: Path) -> Pairs:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Encoder.from_checkpoint(load_checkpoint(folder, require_head=False)).to(device).eval()
    if device.type == "cuda":
        model = model.half()  # for which there is packed attention
    special = Tokenizer(folder).special

    @torch.no_grad()
    def score(queries: Tokenised, documents: Tokenised, query_of: Array, numbers: Array) -> Array:
        rows, texts = (embeddings(each, model, special, device) for each in (queries, documents))
        found = []
        for start in range(0, len(numbers), 1 << 18):
            here = slice(start, start + (1 << 18))
            left = rows[torch.from_numpy(query_of[here]).to(device)].float()
            right = texts[torch.from_numpy(numbers[here]).to(device)].float()
            found.append((left * right).sum(1).cpu().numpy())
        return np.concatenate(found)

    return score


@torch.no_grad()
def embeddings(texts: Tokenised, model: Encoder, special: Special, device: torch.device) -> Tensor:
    """The mean of the last hidden states, one row a text, of unit length, in half precision."""
    inputs = with_special(texts, special)
    together = batches(np.diff(inputs.offsets), _TOKENS[device.type], "packed")
    rows = torch.cat([_means(inputs.take(some), model, device).half() for some in together])
    return rows[torch.from_numpy(np.argsort(np.concatenate(together))).to(rows.device)]


def _means(inputs: Inputs, model: Encoder, device: torch.device) -> Tensor:
    if device.type == "cuda":
        states = packed_states(model, inputs, device)
    else:
        ids, segments, lengths = padded(inputs, device)
        states = model.hidden_states(ids, segments, lengths)[-1]
        states = states[torch.arange(ids.shape[1], device=device) < lengths[:, None]]
    whose = torch.from_numpy(np.repeat(np.arange(len(inputs)), inputs.lengths)).to(device)
    sums = torch.zeros(len(inputs), states.shape[1], device=device).index_add_(0, whose, states.float())
    return F.normalize(sums, dim=1)


def with_special(texts: Tokenised, special: Special) -> Inputs:
    """[CLS] text [SEP]."""
    counts = np.diff(texts.offsets)
    offsets = np.concatenate([[0], np.cumsum(counts + 2)])
    ids = np.full(offsets[-1], special.sep, np.int32)
    ids[offsets[:-1]] = special.cls
    inside = np.ones(len(ids), bool)
    inside[offsets[:-1]] = inside[offsets[1:] - 1] = False
    ids[inside] = texts.ids
    return Inputs(ids, np.zeros(len(ids), np.uint8), offsets)


if __name__ == "__main__":
    sys.exit(status_of(main))
