"""MaxP over long documents beside plain mono over the same passages, and what memory it takes.

    python bench/longdoc.py [--documents 100] [--rounds 3] [--model mono] [--data DIR] [--out results.json]

The documents have 1,700 words: passages of the bundled demo collection laid end to end, or with --data the
texts of DIR/corpus.jsonl, cut there. mono is given their passages as documents of their own, so that both
read the same inputs: what MaxP adds is cutting, batching and putting together. The two take turns on one
core; on a machine with other work the processor's seconds are the better measure. The bar: MaxP has at least
0.9 times mono's passages a second.

Memory is the peak of a process that ranks 100, 1,000 and 4,000 candidates, above what it held before. The
model is left out there: it sees a batch of passages at a time, whatever their number.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from machine import in_a_process, one_core, peak_mib, processor
from rerank_cpu import ONE_THREAD

import tamis
from tamis import Document, MaxP, Mono, Query, Ranking, Stage
from tamis.base.errors import InputError
from tamis.cli import status_of
from tamis.rank.given_run import Documents

WORDS = 1_700
COUNTS = (100, 1_000, 4_000)
QUERY = "which river does the oldest bridge of the city cross"
BAR = 0.9


def long_texts(data: Path | None) -> Iterator[str]:
    """Texts of 1,700 words, the same ones again after the last."""
    if data is not None:
        with (data / "corpus.jsonl").open(encoding="utf-8") as lines:
            words = [json.loads(line)["text"].split() for line in lines]
        long = [" ".join(text[:WORDS]) for text in words if len(text) >= WORDS]
        if not long:
            raise InputError(f"{data} has no text of {WORDS:,} words", remedy="give another collection")
        yield from cycle(long)
    path = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        every = [word for line in lines for word in json.loads(line)["text"].split()]
    starts = range(0, len(every) - WORDS, WORDS)
    yield from cycle([" ".join(every[start : start + WORDS]) for start in starts])


def long_documents(count: int, data: Path | None) -> list[Document]:
    return [Document(f"d{n:05}", text) for n, text in enumerate(islice(long_texts(data), count))]


def candidates(documents: Sequence[Document]) -> Ranking:
    ids = [document.id for document in documents]
    return Ranking(
        Query("q", QUERY), ids, -np.arange(len(ids), dtype=float), texts=Documents(documents, only=ids)
    )


def passages_of(stage: MaxP, ranking: Ranking) -> list[Document]:
    """What the stage reads, as documents."""
    found = []
    reads = stage.reader.read(ranking, ranking.ids)
    for document, read in zip(ranking.documents(), reads, strict=True):
        found += [
            Document(f"{document.id}-{n:03}", document.text[start:stop])
            for n, (start, stop) in enumerate(read.passages)
        ]
    return found


def timed(stage: Stage, ranking: Ranking) -> dict[str, float]:
    started, used = time.perf_counter(), time.process_time()
    stage.apply([ranking])
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}


def speed(model: str, count: int, rounds: int, data: Path | None, results: Any) -> None:
    """The two in turns."""
    one_core()
    mono = Mono(model, device="cpu", workers=1)
    maxp = MaxP(mono)
    whole = candidates(long_documents(count, data))
    parts = candidates(passages_of(maxp, whole))
    for stage, some in ((mono, parts), (maxp, whole)):  # what is done once
        timed(stage, some.head(2))
    found: dict[str, Any] = {"passages": len(parts), "backend": mono.description, "mono": [], "maxp": []}
    for number in range(rounds):
        # whoever is first in one round is second in the next
        turns = [("mono", mono, parts), ("maxp", maxp, whole)]
        for name, stage, some in turns if number % 2 == 0 else turns[::-1]:
            found[name].append(timed(stage, some))
            print(f"round {number + 1}, {name}: {found[name][-1]['seconds']:.1f} s", flush=True)
    assert (
        maxp.apply([whole.head(3)])[0].scores.max() == mono.apply([_of(parts, whole.ids[:3])])[0].scores.max()
    )
    results.put(found)


def _of(parts: Ranking, documents: Sequence[str]) -> Ranking:
    kept = [identity for identity in parts.ids if identity.rpartition("-")[0] in documents]
    return Ranking(parts.query, kept, np.zeros(len(kept)), texts=parts.texts)


def memory(model: str, count: int, data: Path | None, results: Any) -> None:
    """MiB above what was held before."""
    one_core()
    stage = MaxP(Mono(model, device="cpu", workers=1))
    stage.reader.prepare()
    ranking = candidates(long_documents(count, data))
    stage.scorer.margins = lambda inputs, progress=None: np.zeros(len(inputs), np.float32)  # type: ignore[method-assign]
    stage.apply([ranking.head(1)])
    before = _from_here_on()
    stage.apply([ranking])
    results.put(peak_mib() - before)


def _from_here_on() -> float:
    """Forget the peak until now, which Linux alone can; what is held now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mono", help="a bundled model or a folder (mono)")
    parser.add_argument("--documents", type=int, default=100, help="that are timed (100)")
    parser.add_argument("--rounds", type=int, default=3, help="of both (3)")
    parser.add_argument("--data", type=Path, help="a collection with long documents, in the BEIR layout")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    given = parser.parse_args()
    long_documents(1, given.data)  # or each process would say what is wrong with it
    os.environ |= ONE_THREAD  # for the processes started from here
    report: dict[str, Any] = {
        "documents": given.documents,
        "words": WORDS,
        "texts": "demo collection" if given.data is None else given.data.name,
        "machine": processor(),
        "python": platform.python_version(),
        "tamis": tamis.__version__,
    }
    memories = {
        str(count): round(in_a_process(memory, given.model, count, given.data), 1) for count in COUNTS
    }
    report["memory_mib"] = memories
    print("candidates and MiB:", ", ".join(f"{count} {mib}" for count, mib in memories.items()), flush=True)
    report |= in_a_process(speed, given.model, given.documents, given.rounds, given.data)
    for measure in ("seconds", "cpu_seconds"):
        medians = {
            name: float(np.median([each[measure] for each in report[name]])) for name in ("mono", "maxp")
        }
        report[f"passages_per_{measure[:-1]}"] = {
            n: report["passages"] / value for n, value in medians.items()
        }
        report[f"ratio_{measure}"] = medians["mono"] / medians["maxp"]
        rates = ", ".join(f"{n} {r:.1f}" for n, r in report[f"passages_per_{measure[:-1]}"].items())
        print(f"passages a {measure[:-1].replace('_', ' ')}: {rates}; ratio {report[f'ratio_{measure}']:.3f}")
    verdict = "reached" if report["ratio_cpu_seconds"] >= BAR else "MISSED"
    print(f"at least {BAR} of mono's: {verdict} ({report['passages']:,} passages, {report['backend']})")
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(status_of(main))
