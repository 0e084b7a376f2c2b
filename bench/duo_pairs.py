"""What duo is worth with fewer pairs: nDCG@10 and inferences of windows and margins, beside all pairs.

    python bench/duo_pairs.py --data DIR [--model mono] [--duo duo] [--k 10] [--cache scores.db] [--out FILE]

DIR is a collection in the BEIR layout (corpus.jsonl, queries.jsonl) with qrels.txt and a TREC run, whose
first `--depth` are reranked by mono. All ordered pairs of the first k are scored once, into the cache; every
setting is then made from these scores, by the stage itself. With `--cache` the file stays, and the next call
scores only what is new. Margins are in log-odds. The interval is of the difference to mono (95 %, bootstrap
over queries).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tamis import Duo, Mono, Run
from tamis.cli import status_of
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking
from tamis.core.runtime import Device
from tamis.evaluate.measures import evaluate
from tamis.evaluate.significance import bootstrap_interval
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.rank.aggregate import probability
from tamis.rank.given_run import Documents
from tamis.storage.score_cache import ScoreCache

WINDOWS = (1, 2, 3, 5)
MARGINS = (0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """A setting of duo over all queries."""

    pipeline: str
    inferences: float  # a query, beside mono's
    value: float
    difference: float = 0.0  # to mono
    low: float = 0.0
    high: float = 0.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="the collection's folder")
    arguments.add_argument("--run", default="run.bm25.txt", help="a file of it (run.bm25.txt)")
    arguments.add_argument("--model", default="mono", help="of mono: bundled, or a folder")
    arguments.add_argument("--duo", default="duo", help="of duo: bundled, or a folder")
    arguments.add_argument("--k", type=int, default=10, help="candidates that duo settles (10)")
    arguments.add_argument("--depth", type=int, default=100, help="candidates that mono reranks (100)")
    arguments.add_argument("--aggregate", default="sum", choices=["sum", "binary", "min", "max"])
    arguments.add_argument("--measure", default="nDCG@10")
    arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda", "auto"])
    arguments.add_argument("--cache", type=Path, help="a file for the scores (one that does not stay)")
    arguments.add_argument("--out", type=Path, help="a file of JSON for the figures")
    given = arguments.parse_args()
    qrels = read_qrels(given.data / "qrels.txt")
    candidates = first_stage(given.data, given.run, given.depth)
    with tempfile.TemporaryDirectory() as folder:
        cache = ScoreCache(given.cache or Path(folder) / "scores.db")
        device: Device = given.device
        mono = Mono(given.model, score="logit", device=device, cache=cache)
        ranked = timed("mono", mono, candidates)
        options: dict[str, Any] = {
            "aggregate": given.aggregate,
            "k": given.k,
            "device": device,
            "cache": cache,
            "pool": ModelPool(),
        }
        whole = Duo(given.duo, **options)
        timed("duo over all pairs", whole, ranked)
        print(
            f"p[i, j] + p[j, i] is {both_orders(whole, ranked):.2f} in the mean, 1 of a model without bias\n"
        )
        rows = settings(whole, options, ranked, qrels, given.measure)
        cache.close()
    print(f"{'pairs':<34}{'inferences':>10}  {given.measure:<8}  difference to mono")
    for row in rows:
        interval = f"{row.difference:+.4f} [{row.low:+.4f}, {row.high:+.4f}]"
        print(f"{row.pipeline:<34}{row.inferences:>10.1f}  {row.value:.4f}    {interval}")
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def first_stage(data: Path, name: str, depth: int) -> list[Ranking]:
    """The run's first candidates, with their texts."""
    queries = list(read_queries(data / "queries.jsonl"))
    bare = Run.read(data / name, queries=queries)
    wanted = {identity for ranking in bare.values() for identity in ranking.ids[:depth]}
    texts = Documents(read_corpus(data / "corpus.jsonl"), only=wanted)
    return [each.head(depth) for each in Run.read(data / name, queries=queries, texts=texts).values()]


def timed(name: str, stage: Mono | Duo, rankings: list[Ranking]) -> list[Ranking]:
    """The rankings, and how long they took on standard error: query by query, so that a kill costs little."""
    stage.prepare()
    started = time.perf_counter()
    found = []
    for number, ranking in enumerate(rankings, start=1):
        found.append(stage(ranking))
        print(f"\r{name}: {number} of {len(rankings)} queries", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{name}: {time.perf_counter() - started:.1f} s, {stage.tally}")
    return found


def both_orders(whole: Duo, ranked: list[Ranking]) -> float:
    """The mean of p[i, j] + p[j, i]: both orders are among the pairs, so it is twice the mean of all."""
    inputs, cuts, _ = whole.build_inputs(ranked)
    margins = np.concatenate(whole.margins(ranked, inputs, cuts))
    return 2 * float(probability(margins).mean()) if len(margins) else 1.0


def settings(
    whole: Duo, options: dict[str, Any], ranked: list[Ranking], qrels: Qrels, measure: str
) -> list[Row]:
    """Mono alone, all pairs, and fewer of them; `options` are those that `whole` was made with."""
    before = evaluate(qrels, Run(ranked), [measure])
    rows = [Row("none (mono)", 0.0, before.mean[measure])]
    tried: list[tuple[int | None, float | None]] = [(None, None)]
    tried += [(window, None) for window in WINDOWS if window < whole.k - 1]
    tried += [(window, margin) for window in (None, 3) for margin in MARGINS]
    for window, margin in tried:
        stage = Duo(whole.scorer.model, **options, window=window, margin=margin)
        after = evaluate(qrels, Run(stage(ranked)), [measure])
        own, less = after.per_query[measure], before.per_query[measure]
        difference = np.array([own[each] - less[each] for each in own])
        low, high = bootstrap_interval(difference)
        told = [f"k={stage.k}"]
        told += [f"window={window}"] if window else []
        told += [f"margin={margin:g}"] if margin else []
        inferences = (stage.tally.inferences + stage.tally.cached) / len(ranked)
        row = Row(f"duo({', '.join(told)})", inferences, after.mean[measure], difference.mean(), low, high)
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(status_of(main))
