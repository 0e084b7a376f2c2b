"""Passages that a cheap stage chooses beside all passages: time and quality of the same model over both.

    python bench/passages.py --data DIR [--queries 60] [--timed 5] [--k 20] [--cache FILE] [--out FILE]
    python bench/passages.py --man /usr/share/man/man1 ...

DIR is a collection of long documents in the BEIR layout with qrels.txt. --man takes a folder of manual pages:
of each family of names (git-log, git-add, ...) the largest, if it has 1,000 words or more. Their queries are
made: every second word of a sentence that stands in one page alone, below its first 300 words, without stop
words. That page is what is looked for.

`bm25 % K >> maxp(mono)` and `bm25 % K >> maxp(mono, choose=C, passages=N)` for every C and N take turns,
query by query, on one core and without a cache. A ratio is of the processor's seconds for all timed queries,
the better measure on a machine with other work; the search and what is done once are left out. nDCG@10 is
over all queries; --cache keeps scores for a next time. The bar: at most 0.25 of the time, within .01 nDCG@10.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from machine import in_a_process, one_core, processor
from rerank_cpu import ONE_THREAD

import tamis
from tamis import Document, Index, Query, Ranking, Run, Stage
from tamis.base.errors import InputError
from tamis.cli import status_of
from tamis.core.plan import work_done
from tamis.core.registry import build
from tamis.core.runtime import Runtime
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.text.analyze import ENGLISH_STOP_WORDS
from tamis.text.segment import sentences

RATIO, LOSS = 0.25, 0.01
MEASURE = "nDCG@10"
SEED = 7
_LEAST_WORDS = 1_000
_BELOW = 300  # words of a page: what a first passage says is found without the others
_ESCAPE = re.compile(r"\\(?:f(?:\(..|\[[^]]*\]|.)|s[-+]?\d|[&/,^|])")

Judged = tuple[list[Document], list[Query], Mapping[str, Mapping[str, int]]]


# -- collections
# ------------------------------------------------------------------------------------------------------------


def beir(data: Path) -> Judged:
    qrels = read_qrels(data / "qrels.txt")
    queries = [query for query in read_queries(data / "queries.jsonl") if query.id in qrels]
    return list(read_corpus(data / "corpus.jsonl")), queries, qrels


def manual(folder: Path) -> Judged:
    """Manual pages, with a query for each."""
    families: dict[str, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (-path.stat().st_size, path.name)):
        families.setdefault(re.split(r"[-_.]", path.name)[0], path)
    read = [Document(path.name, plain(path), title=path.name.partition(".")[0]) for path in families.values()]
    pages = [page for page in read if len(page.text.split()) >= _LEAST_WORDS]
    if not pages:
        raise InputError(f"{folder} has no long pages", remedy="give a folder such as /usr/share/man/man1")
    candidates = {page.id: list(deep_sentences(page.text)) for page in pages}
    seen = Counter(each for found in candidates.values() for each in set(found))
    queries, qrels = [], {}
    for page in pages:
        own = [each for each in candidates[page.id] if seen[each] == 1]
        if own:
            words = Random(f"{SEED} {page.id}").choice(own).split()
            telling = [word for word in words if word.lower() not in ENGLISH_STOP_WORDS]
            queries.append(Query(f"q-{page.id}", " ".join(telling[::2])))
            qrels[f"q-{page.id}"] = {page.id: 1}
    return pages, queries, qrels


def plain(path: Path) -> str:
    """The text of a page's source, without its requests and escapes."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")
    lines: list[str] = []
    for line in text.splitlines():
        request, _, rest = line[1:].partition(" ") if line.startswith((".", "'")) else ("", "", line)
        if request in ("SH", "SS", "Sh", "Ss"):
            lines += ["", rest.strip('"'), ""]
        elif request in ("PP", "P", "LP", "TP", "IP", "Pp", "It", "sp"):
            lines += ["", rest.replace('"', "")]
        elif lines and not request.startswith(("\\", "i", "d", "n", "e", "T", "D")):  # what steers the page
            lines.append(rest.replace('"', "") if request else line)
    return _ESCAPE.sub("", "\n".join(lines)).replace("\\-", "-").replace("\\", "")


def deep_sentences(text: str) -> Iterator[str]:
    """Sentences of 10 to 30 words that stand below the beginning."""
    before = 0
    for start, stop in sentences(text):
        words = text[start:stop].split()
        if before >= _BELOW and 10 <= len(words) <= 30 and text[stop - 1] == ".":
            yield " ".join(words)
        before += len(words)


def sampled(judged: Judged, count: int) -> Judged:
    documents, queries, qrels = judged
    Random(SEED).shuffle(queries)
    return documents, queries[:count], {query.id: qrels[query.id] for query in queries[:count]}


# -- measuring
# ------------------------------------------------------------------------------------------------------------


def stages_of(choosers: Sequence[str], numbers: Sequence[int], model: str) -> list[str]:
    mono = "mono" if model == "mono" else f'mono(model="{model}")'
    chosen = [f"maxp({mono}, choose={each}, passages={n})" for each in choosers for n in numbers]
    return [f"maxp({mono})", *chosen]


def ranked(
    stages: Mapping[str, Stage], rankings: Sequence[Ranking], qrels: Mapping[str, Mapping[str, int]]
) -> dict[str, list[float]]:
    """nDCG@10 of each, query by query."""
    found = {}
    for name, stage in stages.items():
        stage.prepare()
        runs = Run([stage.apply([ranking])[0] for ranking in rankings])
        per_query = evaluate(qrels, runs, [MEASURE]).per_query[MEASURE]
        found[name] = [per_query[ranking.query.id] for ranking in rankings]
        print(f"{name}: {MEASURE} {np.mean(found[name]):.4f}", flush=True)
    return found


def timed(stages: Mapping[str, Stage], rankings: Sequence[Ranking]) -> dict[str, float]:
    """The processor's seconds for all rankings, the stages in turns."""
    seconds = dict.fromkeys(stages, 0.0)
    for stage in stages.values():
        stage.prepare()
        stage.apply([rankings[0].head(1)])
    for number, ranking in enumerate(rankings):
        # whoever is first for one query is last for the next
        for name in list(stages)[:: 1 if number % 2 == 0 else -1]:
            used = time.process_time()
            stages[name].apply([ranking])
            seconds[name] += time.process_time() - used
    return seconds


def measure(given: argparse.Namespace, results: Any) -> None:
    one_core()
    documents, queries, qrels = sampled(collection(given), given.queries)
    folder = Path(tempfile.mkdtemp(prefix="tamis-bench-"))
    index = Index.build(documents, folder / "idx")
    first = index.bm25() % given.k
    rankings = [first(query) for query in queries]
    names = stages_of(given.choose, given.passages, given.model)
    words = [len(document.text.split()) for document in documents]
    print(f"{len(documents)} documents of {np.mean(words):,.0f} words, {len(queries)} queries", flush=True)

    def built(cache: Path | None) -> dict[str, Stage]:
        return {name: build(name, None, Runtime("cpu", workers=1, cache=cache)) for name in names}

    quality = ranked(built(given.cache), rankings, qrels)
    bare = built(None)
    seconds = timed(bare, rankings[: given.timed])
    shutil.rmtree(folder)
    plain_name = names[0]
    results.put(
        {
            "documents": len(documents),
            "words": round(float(np.mean(words))),
            "queries": len(queries),
            "timed": given.timed,
            "bm25": float(np.mean(evaluate(qrels, Run(rankings), [MEASURE]).mean[MEASURE])),
            "stages": {
                name: {
                    MEASURE: round(float(np.mean(quality[name])), 4),
                    "difference": round(float(np.mean(quality[name]) - np.mean(quality[plain_name])), 4),
                    "standard_error": round(_error(quality[name], quality[plain_name]), 4),
                    "cpu_seconds": round(seconds[name] / given.timed, 3),
                    "ratio": round(seconds[name] / seconds[plain_name], 3),
                    "inferences": {each["stage"]: each["inferences"] for each in work_done(bare[name])},
                }
                for name in names
            },
        }
    )


def _error(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the mean difference."""
    return float(np.std(np.subtract(one, other), ddof=1) / np.sqrt(len(one))) if len(one) > 1 else 0.0


def collection(given: argparse.Namespace) -> Judged:
    return beir(given.data) if given.data is not None else manual(given.man)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="a collection with long documents, in the BEIR layout")
    source.add_argument("--man", type=Path, help="a folder of manual pages")
    parser.add_argument("--model", default="mono", help="a bundled model or a folder (mono)")
    parser.add_argument("--choose", nargs="+", default=["bm25"], help="stages that choose (bm25)")
    parser.add_argument("--passages", nargs="+", type=int, default=[3], help="that are read (3)")
    parser.add_argument("--k", type=int, default=20, help="candidates of a query (20)")
    parser.add_argument("--queries", type=int, default=60, help="a sample of these (60)")
    parser.add_argument("--timed", type=int, default=5, help="of them, without a cache (5)")
    parser.add_argument("--cache", type=Path, help="a file for the scores")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    given = parser.parse_args()
    if given.data is not None and not (given.data / "corpus.jsonl").exists():
        raise InputError(f"{given.data} has no corpus.jsonl", remedy="give a collection in the BEIR layout")
    os.environ |= ONE_THREAD  # for the process started from here
    report = {
        "texts": (given.data or given.man).name,
        "candidates": given.k,
        "machine": processor(),
        "python": platform.python_version(),
        "tamis": tamis.__version__,
        **in_a_process(measure, given),
    }
    print(f"bm25: {MEASURE} {report['bm25']:.4f}")
    for name, each in list(report["stages"].items())[1:]:
        reached = each["ratio"] <= RATIO and each["difference"] >= -LOSS
        print(
            f"{name}: {each['ratio']} of the time, {each['difference']:+.4f} (standard error "
            f"{each['standard_error']}) {MEASURE}: {'reached' if reached else 'MISSED'}"
        )
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(status_of(main))
