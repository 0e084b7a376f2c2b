"""See whether a change of the code changes a ranking: write many runs before and after it, and compare them.

    python tools/same_runs.py write before
    python tools/same_runs.py write after
    python tools/same_runs.py compare before after

`write` ranks the demo collection by pipelines of every stage and of most of their options, with the bundled
models and those of tests/assets/checkpoints, and writes what they find in full precision: NAME.run, and
NAME.evidence where a ranking has some. `compare` says which files are identical, which hold the same order
with scores that differ by at most 1e-6, and which differ; then its exit status is 1. Fingerprints of models,
by which caches of scores know them, are compared too, but that they differ is only said.

Nothing but the command line, and what `tamis` itself exports, is used, so that one file serves before and
after a reorganisation of the package. Both runs must be written on one machine: elsewhere a model's scores
differ in their last digits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamis import Index, Query, Run

REPOSITORY = Path(__file__).resolve().parents[1]
CHECKPOINTS = REPOSITORY / "tests" / "assets" / "checkpoints"
DEMO = Path(str(files("tamis") / "demo_data"))
TOLERANCE = 1e-6
FINGERPRINTS = "fingerprints.json"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

CACHE = "CACHE"  # stands for a file
#: How many queries: of a search, of a small model, of a large one.
ALL, SOME, FEW = 40, 8, 3

NANO = "mono(model=mono-nano)"
LOGIT = "mono(model=mono-nano, score=logit)"
DUO = 'duo(model="@/duo"'  # @ is the folder of the checkpoints
LONG = {
    "cedr": ["cedr-knrm", "cedr-pacrr", "cedr-drmm", "cedr-knrm-no-cls", "vanilla", "knrm", "pacrr", "drmm"],
    "parade": [
        *map("parade-{}".format, ["avg", "sum", "max", "attn", "cnn", "transformer"]),
        *("birch", "pcgm", "maxp"),
    ],
}

#: Pipelines by what they are of, with the number of queries.
PIPELINES: dict[str, tuple[int, Sequence[str]]] = {
    "search": (
        ALL,
        [
            "bm25",
            "bm25(k1=1.2, b=0.75) % 100",
            "bm25(variant=robertson) % 50",
            "bm25(variant=atire) % 50",
            "bm25(variant=bm25l) % 50",
            "bm25(variant=bm25+) % 50",
            "ql",
            "ql(smoothing=jelinek-mercer, lam=0.3) % 50",
            "ql(mu=500, variant=exact) % 50",
            "tfidf % 100",
            "sdm % 100",
            "sdm(terms=0.7, ordered=0.2, unordered=0.1, window=4, mu=700) % 50",
            "bm25 >> rm3",
            "bm25 % 50 >> rm3(terms=20, docs=5, weight=0.3) % 50",
            "ql % 50 >> rm3 % 30",
        ],
    ),
    "combine": (
        ALL,
        [
            "bm25 % 50 >> normalise",
            "bm25 % 50 >> normalise(how=z)",
            "fuse(bm25 % 50, ql % 30)",
            "fuse(bm25 % 50, ql % 30, tfidf % 40, k=10) % 20",
            "fuse(bm25 % 50 >> normalise, ql % 30 >> normalise, how=combsum)",
            "fuse(bm25 % 50 >> normalise, sdm % 30 >> normalise, how=combmnz) % 40",
            "bm25 % 50 >> interpolate(bm25 >> rm3 % 50, alpha=0.3)",
            "bm25 % 50 >> ltr(ql, weights=0.36, score=0.57, idf=-0.075)",
            'bm25 % 50 >> ltr(ql, sdm(terms=0.0), weights="0.35 -0.1", length=0.2, matched=0.4, normalise=z)',
            "bm25 % 50 >> ltr(ql, weights=0.4, score=0.5, normalise=raw) % 10",
            'bm25 % 50 >> groupwise(ql, model="@/groupwise.json")',
            'bm25 % 50 >> groupwise(ql, model="@/groupwise.json", rounds=3, seed=5) % 20',
        ],
    ),
    "mono": (
        SOME,
        [
            f"bm25 % 30 >> {NANO}",
            f"bm25 % 30 >> {LOGIT} % 10",
            "bm25 % 15 >> mono(model=mono-nano, score=log-probability)",
            "bm25 % 15 >> mono(model=mono-nano, precision=fp32)",
            "bm25 % 15 >> mono(model=mono-nano, precision=int8)",
            "bm25 % 15 >> mono(model=mono-nano, form=swapped)",
            "bm25 % 15 >> mono(model=mono-nano, form=markers)",
            "bm25 % 15 >> mono(model=mono-nano, form=no-positions)",
            "bm25 % 15 >> mono(model=mono-nano, form=no-segments)",
            "bm25 % 15 >> mono(model=mono-nano, query_limit=5, limit=40)",
            "bm25 % 15 >> mono(model=mono-nano, limit=48, cut=best)",
            f"bm25 % 20 >> interpolate({NANO}, alpha=0.3)",
            f"bm25 % 20 >> interpolate({LOGIT}, alpha=0.6, normalise=z) % 10",
            f"bm25 % 20 >> interpolate({NANO}, alpha=0.1, normalise=raw)",
            f"bm25 % 20 >> fuse({NANO}, ql % 15, k=5) % 12 >> {LOGIT}",
            f'bm25 % 20 >> ltr({NANO}, ql, weights="0.5 0.2", score=0.3)',
            *(
                f'bm25 % 20 >> mono(model="@/{name}", score=logit)'
                for name in ("mono", "mono-two-labels", "mono-markers", "mono-no-positions", "mono-float16")
            ),
            *(
                f'bm25 % 20 >> mono(model="@/mono-{name}", score=logit)'
                for name in ("int8", "roberta", "electra", "albert", "distilbert")
            ),
            'bm25 % 20 >> mono(model="@/mono", precision=fp32)',
            'bm25 % 20 >> mono(model="@/mono-int8", precision=fp32, score=logit)',
            'bm25 % 20 >> mono(model="@/cascade", score=logit)',
        ],
    ),
    "mono-large": (
        FEW,
        [
            "bm25 % 10 >> mono",
            "bm25 % 10 >> mono(model=mono-tiny, precision=fp32)",
            "bm25 % 10 >> mono(model=mono-tiny) % 5",
            "fast % 10",
            f"fuse(bm25 % 10 >> {NANO}, fast, ql % 10) % 15",
        ],
    ),
    "duo": (
        SOME,
        [
            f"bm25 % 12 >> {DUO})",
            f"bm25 % 12 >> {DUO}, aggregate=binary)",
            f"bm25 % 12 >> {DUO}, aggregate=min)",
            f"bm25 % 12 >> {DUO}, aggregate=max)",
            f"bm25 % 12 >> {DUO}, aggregate=sample, m=4, seed=3)",
            f"bm25 % 12 >> {DUO}, k=8, window=2)",
            f"bm25 % 12 >> {DUO}, k=8, window=3, aggregate=binary)",
            f"bm25 % 12 >> {NANO} >> {DUO}, margin=0.2)",
            f"bm25 % 12 >> {LOGIT} >> {DUO}, margin=1.5, window=4)",
            f"bm25 % 12 >> {DUO}, precision=fp32, k=5) % 8",
            f"bm25 % 12 >> {DUO}, query_limit=6, limit=40, cut=best)",
            f"bm25 % 12 >> {NANO} >> if_unsure({DUO}), margin=0.3)",
            f"bm25 % 12 >> {LOGIT} % 6 >> if_unsure({DUO}, k=4)) % 5",
        ],
    ),
    "duo-large": (
        FEW,
        [
            "bm25 % 6 >> duo(k=4)",
            "bm25 % 5 >> duo(limit=96, cut=best, aggregate=max)",
            f"bm25 % 10 >> {NANO} >> duo(window=1, k=5, limit=128, precision=fp32)",
        ],
    ),
    "listwise": (
        SOME,
        [
            'bm25 % 14 >> listwise(model="@/listwise")',
            'bm25 % 14 >> listwise(model="@/listwise", k=10, rounds=3, seed=4)',
            'bm25 % 14 >> listwise(model="@/listwise", rounds=1, precision=fp32) % 5',
            'bm25 % 14 >> listwise(model="@/listwise", query_limit=8, limit=48)',
            'bm25 % 14 >> listwise(model="@/listwise-int8")',
        ],
    ),
    "cascade": (
        SOME,
        [
            'bm25 % 20 >> cascade(model="@/cascade")',
            'bm25 % 20 >> cascade(model="@/cascade", alpha=0.5)',
            'bm25 % 20 >> cascade(model="@/cascade", alpha=0, precision=fp32)',
            'bm25 % 20 >> cascade(model="@/cascade", entropy=0.6)',
            'bm25 % 20 >> cascade(model="@/cascade", entropy=0.67, precision=fp32) % 10',
            'bm25 % 20 >> cascade(model="@/cascade-int8", alpha=0.4, query_limit=6, limit=40)',
        ],
    ),
    "passages": (
        SOME,
        [
            f"bm25 % 10 >> firstp({NANO}, window=30)",
            f"bm25 % 10 >> firstp({LOGIT}, unit=sentences, window=2, stride=1, title=false)",
            f"bm25 % 10 >> maxp({NANO})",
            f"bm25 % 10 >> maxp({LOGIT}, window=25, stride=10, evidence=5)",
            f"bm25 % 10 >> maxp({NANO}, unit=tokens, window=40, stride=30) % 5",
            f"bm25 % 10 >> maxp({NANO}, unit=sentences, title=once)",
            f"bm25 % 10 >> maxp({NANO}, unit=even, window=60, title=false)",
            f"bm25 % 10 >> maxp({NANO}, window=20, passages=3, keep=sampled, seed=2)",
            f"bm25 % 10 >> maxp({LOGIT}, window=20, choose=bm25, passages=2)",
            f"bm25 % 10 >> maxp({LOGIT}, window=20, choose=ql(mu=300), passages=2, among=5, keep=sampled)",
            f'bm25 % 10 >> maxp({NANO}, unit=sentences, choose=mono(model="@/mono"), passages=2)',
            f"bm25 % 10 >> sump({NANO}, window=25)",
            f"bm25 % 10 >> sump({LOGIT}, unit=sentences, choose=tfidf, passages=3, evidence=1)",
            f"bm25 % 10 >> avgp({NANO}, window=25, title=once)",
            f"bm25 % 10 >> avgp({LOGIT}, unit=tokens, window=30, evidence=0)",
            f"bm25 % 10 >> kmaxp({NANO}, window=25)",
            f"bm25 % 10 >> kmaxp({LOGIT}, k=2, unit=sentences, passages=none)",
            f"bm25 % 10 >> birch({NANO})",
            f"bm25 % 10 >> birch({NANO}, n=4, alpha=0.3, w2=0.4, w3=0.2, w4=0.1, title=true)",
            f"bm25 % 10 >> birch({LOGIT}, n=1, alpha=0.8, normalise=z, unit=words, window=20, evidence=1)",
            f"bm25 % 10 >> birch({NANO}, n=2, alpha=0.05, normalise=raw, exact_match=false)",
            f"bm25 % 10 >> birch({NANO}, unit=tokens, window=30, passages=4, keep=sampled, seed=1)",
            f"bm25 % 10 >> firstp({NANO}, unit=tokens, window=50, stride=50, evidence=0)",
            f"bm25 % 10 >> sump({NANO}, window=15, stride=8, title=once, passages=4, keep=sampled, seed=3)",
            f"bm25 % 10 >> sump({NANO}, window=20, choose=bm25(k1=1.5), passages=2, among=6, keep=sampled)",
            f"bm25 % 10 >> avgp({NANO}, window=15, stride=15, choose=ql, passages=2, among=9)",
            f"bm25 % 10 >> avgp({NANO}, window=15, passages=3, keep=sampled, seed=6)",
            f"bm25 % 10 >> kmaxp({NANO}, window=9, stride=5, title=false, choose=tfidf, passages=3, among=9)",
            f"bm25 % 10 >> kmaxp({NANO}, window=20, passages=3, keep=sampled, seed=1, evidence=4)",
            f"bm25 % 10 >> birch({NANO}, window=2, stride=1, title=once)",
            f"bm25 % 10 >> interpolate(maxp({NANO}, window=25), alpha=0.4)",
        ],
    ),
    "long": (
        SOME,
        [f'bm25 % 12 >> {stage}(model="@/{name}")' for stage, names in LONG.items() for name in names]
        + ['bm25 % 12 >> parade(model="@/parade-max", precision=fp32) % 6']
        + ['bm25 % 12 >> cedr(model="@/cedr-knrm", precision=fp32) >> normalise']
        + ['bm25 % 12 >> interpolate(parade(model="@/parade-attn"), alpha=0.4)'],
    ),
}

#: Over an index beside which no tokens are kept.
UNKEPT = [
    f"bm25 % 10 >> {LOGIT}",
    "bm25 % 10 >> mono(model=mono-nano, limit=48, cut=best)",
    f"bm25 % 10 >> maxp({NANO}, unit=tokens, window=40, stride=30)",
    f"bm25 % 10 >> kmaxp({NANO}, unit=even, window=50)",
]

#: By the command line: after `tamis run INDEX QUERIES`, and after `tamis rerank RUN`.
RUN = {
    "cli-search": ["-p", "bm25(k1=1.1) % 20", "-k", "10"],
    "cli-mono": ["-p", f"bm25 % 10 >> {NANO}", "--precision", "fp32"],
    "cli-cache-filled": ["-p", f"bm25 % 10 >> maxp({NANO}, window=25)", "--cache", CACHE],
    "cli-cache-read": ["-p", f"bm25 % 12 >> sump({NANO}, window=25)", "--cache", CACHE, "--workers", "1"],
}
RERANK = {
    "cli-rerank": ["-p", f"{NANO} % 5", "--device", "cpu"],
    "cli-rerank-long": ["-p", 'cedr(model="@/vanilla")', "-k", "6"],
}

#: Whose fingerprints are taken.
FINGERPRINTED = [
    *("mono", "mono(model=mono-nano, form=swapped)", "mono(model=mono-tiny, precision=fp32)", "duo"),
    *('mono(model="@/mono-int8")', 'mono(model="@/mono-markers")', 'mono(model="@/mono-no-positions")'),
    *('listwise(model="@/listwise")', 'cascade(model="@/cascade")', 'cascade(model="@/cascade-int8")'),
    *(f'{stage}(model="@/{name}")' for stage, names in LONG.items() for name in names),
]


# -- write
# ------------------------------------------------------------------------------------------------------------


def write(folder: Path) -> int:
    """All runs, into a new folder; the number of those that failed."""
    import tamis as imported
    from tamis import Index, Query

    print(f"tamis {imported.__version__} of {imported.__file__}")
    folder.mkdir(parents=True)
    lines = (DEMO / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [Query(each["_id"], each["text"]) for each in map(json.loads, lines)]
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        for name, option in (("index", "--tokens"), ("unkept", "--no-tokens")):
            tamis("index", DEMO / "corpus.jsonl.gz", "-o", place / name, "--positions", option)
        index, unkept = Index.open(place / "index"), Index.open(place / "unkept")
        jobs = [
            (f"{group}-{number:02}", index, pipeline, queries[:count])
            for group, (count, pipelines) in PIPELINES.items()
            for number, pipeline in enumerate(pipelines, 1)
        ]
        jobs += [(f"unkept-{n:02}", unkept, each, queries[:SOME]) for n, each in enumerate(UNKEPT, 1)]
        said = {}
        for name, where, pipeline, asked in jobs:
            started = time.perf_counter()
            try:
                said[name] = write_one(folder / name, where, pipeline, asked)
            except Exception as error:
                failed += 1
                print(f"{name}: {pipeline}: {type(error).__name__}: {error}", file=sys.stderr)
            print(f"{time.perf_counter() - started:6.2f} s  {name}  {pipeline}", flush=True)
        write_json(folder / "pipelines.json", said)
        write_journalled(folder / "journal", index, queries[:SOME], place / "journal")
        write_json(folder / FINGERPRINTS, {each: resources(index, each) for each in FINGERPRINTED})
        by_command(folder, place, lines[:SOME])
    return failed


def write_one(path: Path, index: Index, pipeline: str, queries: Sequence[Query]) -> dict[str, Any]:
    """The run of a pipeline; what it is called, and the kinds of its scores."""
    stage = index.pipeline(in_full(pipeline))
    run = stage.run(queries)
    write_run(path, run)
    kinds = sorted({str(ranking.kind) for ranking in run.values()})
    return {"pipeline": pipeline, "printed": str(stage).replace(str(CHECKPOINTS), "@"), "kinds": kinds}


def write_run(path: Path, run: Run) -> None:
    """The ranking of each query, and its evidence, with all digits of the scores."""
    with path.with_name(f"{path.name}.run").open("w", encoding="utf-8") as file:
        for qid, ranking in run.items():
            for rank, identity, score in ranking:
                file.write(f"{qid} Q0 {identity} {rank} {float(score)!r} tamis\n")
    evidence = [
        f"{qid} {identity} {start} {stop} {float(score)!r}\n"
        for qid, ranking in run.items()
        for identity, spans in ranking.evidence.items()
        for start, stop, score in spans
    ]
    if evidence:
        path.with_name(f"{path.name}.evidence").write_text("".join(evidence), encoding="utf-8")


def write_journalled(path: Path, index: Index, queries: Sequence[Query], journal: Path) -> None:
    """What is read back from the journal of a run."""
    stage = index.pipeline(f"bm25 % 10 >> maxp({NANO}, window=25) % 5")
    stage.run(queries, journal=journal)
    write_run(path, stage.run(queries, journal=journal))


def resources(index: Index, stage: str) -> str:
    return index.pipeline(in_full(stage)).resources


def by_command(folder: Path, place: Path, lines: Sequence[str]) -> None:
    """Runs that the commands write, and the work that they tell of."""
    queries = place / "queries.jsonl"
    queries.write_text("\n".join([*lines, ""]), encoding="utf-8")
    for name, options in RUN.items():
        words = [str(place / "cache") if each is CACHE else in_full(each) for each in options]
        tamis("run", place / "index", queries, "-o", folder / f"{name}.run", *words)
    corpus = ["--corpus", DEMO / "corpus.jsonl.gz", "--queries", queries]
    for name, options in RERANK.items():
        words = map(in_full, options)
        tamis("rerank", folder / "cli-search.run", *corpus, "-o", folder / f"{name}.run", *words)
    for name in (*RUN, *RERANK):
        manifest = folder / f"{name}.run.json"
        models = json.loads(manifest.read_text(encoding="utf-8")).get("models", [])
        manifest.unlink()
        text = json.dumps(models).replace(str(CHECKPOINTS), "@")
        write_json(folder / f"{name}.work.json", json.loads(text))


def tamis(*arguments: str | Path) -> None:
    """The command, which says nothing unless it fails."""
    # in this working directory: the path by which the package is found may begin there
    command = [sys.executable, "-m", "tamis", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def in_full(pipeline: str) -> str:
    """With the checkpoints' folder in place of @."""
    return pipeline.replace('"@/', f'"{CHECKPOINTS}/')


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# -- compare
# ------------------------------------------------------------------------------------------------------------


def compare(one: Path, two: Path) -> int:
    """Tell what became of each file; the number of those that differ."""
    identical, close, different = 0, [], []
    names = sorted({path.name for folder in (one, two) for path in folder.iterdir()} - {FINGERPRINTS})
    for name in names:
        if not ((one / name).is_file() and (two / name).is_file()):
            different.append(f"{name}: only in {one if (one / name).is_file() else two}")
        elif (one / name).read_bytes() == (two / name).read_bytes():
            identical += 1
        else:
            most, problem = difference(one / name, two / name)
            if problem:
                different.append(f"{name}: {problem}")
            else:
                close.append(f"{name}: scores differ by {most:.2g} at most")
    titled(f"{identical} of {len(names)} files are identical", [])
    titled(f"{len(close)} have the same order, and scores within {TOLERANCE:g}", close)
    titled(f"{len(different)} differ", different)
    changed = list(changed_fingerprints(one, two))
    titled(f"{len(changed)} fingerprints of models changed (caches of their scores are not read)", changed)
    return len(different)


def difference(one: Path, two: Path) -> tuple[float, str]:
    """By how much the scores of two files differ at most; or what else differs first."""
    rows = [path.read_text(encoding="utf-8").splitlines() for path in (one, two)]
    most = 0.0
    for number, (old, new) in enumerate(zip_longest(*rows, fillvalue=""), 1):
        at = f"line {number}: {old or 'nothing'} | {new or 'nothing'}"
        if old == new:
            continue
        if one.suffix not in (".run", ".evidence") or not (old and new):
            return most, at
        (others, score), (new_others, new_score) = split(old, one), split(new, one)
        apart = abs(score - new_score)
        if others != new_others or not apart <= TOLERANCE:
            return most, at
        most = max(most, apart)
    return most, ""


def split(line: str, path: Path) -> tuple[list[str], float]:
    """The columns of a line without its score, and the score."""
    columns = line.split(" ")
    try:
        return columns[:4] + columns[5:], float(columns[4])
    except (IndexError, ValueError):
        raise SystemExit(f"{path}: {line!r} is no line of a run") from None


def changed_fingerprints(one: Path, two: Path) -> Iterator[str]:
    old, new = (json.loads((each / FINGERPRINTS).read_text(encoding="utf-8")) for each in (one, two))
    for stage in old.keys() | new.keys():
        if old.get(stage) != new.get(stage):
            yield f"{stage}: {old.get(stage)} | {new.get(stage)}"


def titled(title: str, lines: Sequence[str]) -> None:
    print(title)
    for line in sorted(lines):
        print(f"  {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("write").add_argument("folder", type=Path, help="a new one")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("two", type=Path)
    asked = parser.parse_args()
    if asked.verb == "compare":
        return int(compare(asked.one, asked.two) > 0)
    if asked.folder.exists():
        parser.error(f"{asked.folder} is there already: give a new folder")
    # before numpy and torch are imported; a cache of its own, since that of another version may hide a change
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(ENVIRONMENT, TAMIS_CACHE=cache)
        started = time.perf_counter()
        failed = write(asked.folder.resolve())
    count = len(list(asked.folder.glob("*.run")))
    print(f"{count} runs in {time.perf_counter() - started:.0f} s, {failed} pipelines failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
