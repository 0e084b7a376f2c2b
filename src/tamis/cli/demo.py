"""tamis demo: index, search, rerank and evaluate the bundled collection, in half a minute."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser
from tamis.cli.console import counted, doing, duration, print_table, printable, size, size_on_disk, stdout
from tamis.cli.eval import table
from tamis.cli.outputs import check_output
from tamis.cli.search import print_ranking, timed
from tamis.cli.tokens import keep_tokens
from tamis.core.ranking import Run
from tamis.evaluate.measures import evaluate
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.index.index import Index

if TYPE_CHECKING:
    from rich.console import Console

ASKED = ("q009", "q032", "q088")
PIPELINES = {"bm25": "bm25", "bm25-rm3": "bm25 >> rm3", "ql": "ql", "mono": "bm25 % 10 >> mono"}
MEASURES = ("nDCG@10", "RR@10", "R@10")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="keep the collection, the index and the runs in this folder"
    )


def main(keep: Path | None) -> None:
    """Index, search and evaluate the bundled collection."""
    check_output(keep)
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise InputError(f"{keep} is not an empty folder", remedy="choose another")
    console = stdout()
    with _folder(keep) as folder:
        queries, qrels = _unpack(folder)
        index = _build(console, folder)
        _ask(console, index, queries, qrels)
        _evaluate(console, index, queries, qrels, folder)
    _what_next(console, keep)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="tamis-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep


def _unpack(folder: Path) -> tuple[list[Query], Qrels]:
    with as_file(files("tamis") / "demo_data") as data:
        for name in ("corpus.jsonl.gz", "queries.jsonl", "qrels.txt", "README.md"):
            shutil.copyfile(data / name, folder / name)
    return read_queries(folder / "queries.jsonl"), read_qrels(folder / "qrels.txt")


def _build(console: Console, folder: Path) -> Index:
    started = time.perf_counter()
    with doing("Indexing"):
        index = Index.build(read_corpus(folder / "corpus.jsonl.gz"), folder / "index")
    seconds = time.perf_counter() - started
    on_disk = size(size_on_disk(folder / "index"))
    _heading(console, "Index")
    console.print(f"{counted(len(index), 'passage')} of Wikipedia in {duration(seconds)}, {on_disk} on disk.")
    keep_tokens(folder / "index", True)
    return index


def _ask(console: Console, index: Index, queries: list[Query], qrels: Qrels) -> None:
    _heading(console, "Search")
    for query in queries:
        if query.id in ASKED:
            ranking, seconds = timed(index.bm25() % 3, query.text)
            relevant = sum(doc_id in qrels[query.id] for doc_id in ranking.ids)
            console.print(printable(query.text), style="bold")
            share = f"{relevant} of the {len(qrels[query.id])} passages that answer it"
            console.print(f"{duration(seconds)}; {share} among the first 3\n", style="dim")
            print_ranking(console, ranking, index, {})


def _evaluate(console: Console, index: Index, queries: list[Query], qrels: Qrels, folder: Path) -> None:
    _heading(console, "Evaluate")
    evaluations = {}
    started = time.perf_counter()
    for name, pipeline in PIPELINES.items():
        with doing(f"Running {pipeline}"):
            # not Stage.run, which compiles the kernel first: that takes longer than searching so few passages
            run = Run((index.pipeline(pipeline) % 1000)(queries))
            run.write(folder / f"{name}.run")
            evaluations[pipeline] = evaluate(qrels, run, MEASURES)
    seconds = time.perf_counter() - started
    console.print(f"{counted(len(queries), 'question')}, {len(PIPELINES)} pipelines, {duration(seconds)}.\n")
    print_table(console, table("pipeline", evaluations, MEASURES))


def _what_next(console: Console, keep: Path | None) -> None:
    _heading(console, "What next")
    program = _program()
    if keep is None:
        console.print("Nothing was kept. To try the commands on this collection:\n")
        console.print(f"    {program} demo --keep demo", style="green", soft_wrap=True)
    here = shlex.quote(str(keep or "demo"))
    for command in (
        f'{program} search {here}/index "who directed Nandhi" --explain',
        f"{program} serve {here}/index  # a page in your browser",
        f'{program} run {here}/index {here}/queries.jsonl -o {here}/mine.run -p "bm25(k1=1.2)"',
        f"{program} compare {here}/qrels.txt {here}/bm25.run {here}/mono.run -m nDCG@10",
        f"{program} index your-documents/ -o your-index",
    ):
        console.print(f"    {command}", style="green", soft_wrap=True)


def _program() -> str:
    """The command to call tamis: its name, or its path if it is not on PATH."""
    beside_python = Path(sys.executable).with_name("tamis")
    if shutil.which("tamis") or not beside_python.exists():
        return "tamis"
    return shlex.quote(os.path.relpath(beside_python))


def _heading(console: Console, title: str) -> None:
    console.print()
    console.rule(title, align="left", style="dim")
