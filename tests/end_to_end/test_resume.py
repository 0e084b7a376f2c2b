"""`tamis run`, killed at any moment and resumed, writes the run that it would have written."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tamis import Index
from tamis.cli import main
from tamis.core.journal import count
from tamis.formats import read_corpus, read_queries

DEMO = Path(__file__).parents[2] / "src/tamis/demo_data"
TIMES = 2  # that each of the 140 queries is asked
PIPELINE = ["-p", "bm25 % 20 >> rm3", "-k", "50"]
needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, queries for five batches and for one, and the runs that nobody interrupted."""
    folder = tmp_path_factory.mktemp("resume")
    Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), folder / "idx")
    queries = read_queries(DEMO / "queries.jsonl")
    lines = [f"{query.id}-{n}\t{query.text}\n" for n in range(TIMES) for query in queries]
    (folder / "queries.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "few.tsv").write_text("".join(lines[:5]), encoding="utf-8")
    for name in ("queries", "few"):
        assert main(arguments(folder, folder / f"{name}.run", queries=name)) == 0
    assert not list(folder.glob("*.journal"))
    return folder


def arguments(folder: Path, run: Path, *more: str, queries: str = "queries") -> list[str]:
    return ["run", str(folder / "idx"), str(folder / f"{queries}.tsv"), "-o", str(run), *PIPELINE, *more]


def start(*command: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "import sys; from tamis.cli import main; sys.exit(main())"]
    return subprocess.Popen(
        [*program, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def size_of(journal: Path) -> int:
    """0 where there is none: it may be removed while we look."""
    try:
        return journal.stat().st_size
    except FileNotFoundError:
        return 0


def wait_until_larger(journal: Path, size: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and size_of(journal) <= size:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@needs_sigkill
def test_killed_again_and_again(folder: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    run, journal = tmp_path / "a.run", tmp_path / "a.run.journal"
    size, kills = 0, 0
    while True:  # until one ends by itself: a kill can come when the run is there, but not yet all the rest
        done = count(journal)
        process = start(*arguments(folder, run, *(["--resume"] if kills else [])))
        if kills < 3:
            wait_until_larger(journal, size, process)
            time.sleep(rng.uniform(0, 0.15))  # a batch takes about as long
            process.kill()
        out, complaint = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, complaint
        kills += 1
        size = size_of(journal)
    assert kills, "the process is always faster than we are"
    assert run.read_bytes() == (folder / "queries.run").read_bytes()
    assert not journal.exists()
    resumed = done if done == 140 * TIMES else done // 64 * 64
    assert (" of the queries before the interruption, in " in out) == (resumed > 0)
    told = json.loads((tmp_path / "a.run.json").read_text())
    whole = json.loads((folder / "queries.run.json").read_text())
    assert told.get("resumed", 0) == resumed
    assert told["seconds"] > 0
    for name in ("seconds", "resumed"):
        told.pop(name, None), whole.pop(name, None)
    assert told == whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_every_call_that_ends_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: Callable[..., bool]
) -> None:
    """Between the last query and the end: before the first call that syncs, renames or removes a file, the
    second, ..."""
    monkeypatch.setattr(
        "tamis.core.journal.SYNC_EVERY", math.inf
    )  # or a slow machine has more calls than others
    left: set[tuple[bool, bool]] = set()
    call, finished = 1, False
    while not finished:
        run = tmp_path / f"{call}.run"
        command = arguments(folder, run, queries="few")
        finished = killed_before(call, partial(main, command), ("fsync", "replace", "unlink"))
        journal = run.with_name(f"{run.name}.journal")
        left.add((run.exists(), journal.exists()))
        if not finished:
            assert count(journal) == 5
            assert main(arguments(folder, run, "--resume", queries="few")) == 0
        assert run.read_bytes() == (folder / "few.run").read_bytes()
        assert json.loads((tmp_path / f"{run.name}.json").read_text())["queries"] == 5
        assert not journal.exists()
        call += 1
    assert left == {(False, True), (True, True), (True, False)}
    assert call == 9  # sync, rename, sync the folder, for the run and for its manifest; then the journal goes


@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_interrupted_at_the_keyboard(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, journal = tmp_path / "a.run", tmp_path / "a.run.journal"
    process = start(*arguments(folder, run))
    wait_until_larger(journal, 2000, process)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 130, complaint
    hint = f"{journal} keeps the finished rankings: the same command with --resume continues from there"
    assert complaint.splitlines() == [hint, "interrupted"]

    # hours of work may be in it: nothing but --resume touches it
    before = journal.read_bytes()
    done = count(journal)
    assert 0 < done < 280
    assert main(arguments(folder, run)) == 2
    assert capsys.readouterr().err == (
        f"error: {journal} has {done} queries of an unfinished run: "
        "add --resume to continue it, or delete it to start again\n"
    )
    assert main([*arguments(folder, run, "--resume"), "-k", "49"]) == 2
    assert capsys.readouterr().err == (
        f"error: {journal}: the journal belongs to the pipeline bm25 % 20 >> rm3 % 50, not to "
        "bm25 % 20 >> rm3 % 49: give another file name, or delete it to start again\n"
    )
    assert main(arguments(folder, run, "--resume", queries="few")) == 2
    assert "the journal belongs to 280 other queries, not to these 5: " in capsys.readouterr().err
    assert journal.read_bytes() == before
    assert not run.exists()

    assert main(arguments(folder, run, "--resume")) == 0
    assert run.read_bytes() == (folder / "queries.run").read_bytes()
    assert not journal.exists()


def test_resume_where_there_is_nothing_begins(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "a.run"
    assert main(arguments(folder, run, "--resume", queries="few")) == 0
    assert run.read_bytes() == (folder / "few.run").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.run", "a.run.json"}


def test_a_run_that_cannot_be_written_is_not_ranked_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, link = tmp_path / "a.run", tmp_path / "nowhere"
    run.symlink_to(link / "a.run")
    assert main(arguments(folder, run, queries="few")) == 2
    assert "cannot write" in capsys.readouterr().err
    link.mkdir()
    assert main(arguments(folder, run, "--resume", "--json", queries="few")) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 5
    assert (link / "a.run").read_bytes() == (folder / "few.run").read_bytes()


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs /dev/null")
def test_a_pipe_has_no_journal(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(folder, Path("/dev/null"), queries="few")) == 0
    assert not Path("/dev/null.journal").exists()
    assert main(arguments(folder, Path("/dev/null"), "--resume", queries="few")) == 2
    assert "/dev/null is not a file: leave out --resume: a pipe has no journal" in capsys.readouterr().err
    assert main(arguments(folder, tmp_path, queries="few")) == 2
    assert "is a folder: give the name of a file" in capsys.readouterr().err


@needs_sigkill
@pytest.mark.parametrize("cached", [False, True])
def test_killed_while_models_work(
    folder: Path, tmp_path: Path, tiny_checkpoint: Callable[..., Path], cached: bool
) -> None:
    """Scores do not depend on what shares a batch, so not on where the run was interrupted, nor on what a
    cache kept of the batch that was lost."""
    mono, duo = tiny_checkpoint(tmp_path / "mono"), tiny_checkpoint(tmp_path / "duo", segments=3, seed=1)
    pipeline = f'bm25 % 30 >> mono(model="{mono}") % 5 >> duo(model="{duo}")'
    (tmp_path / "some.tsv").write_text("".join((folder / "queries.tsv").open().readlines()[:24]))
    command = ["run", str(folder / "idx"), str(tmp_path / "some.tsv"), "-p", pipeline]
    assert main([*command, "-o", str(tmp_path / "whole.run")]) == 0
    if cached:
        command += ["--cache", str(tmp_path / "scores.db")]
    run, journal = tmp_path / "a.run", tmp_path / "a.run.journal"
    rng, size, kills = random.Random(3), 0, 0
    for _ in range(20):
        process = start(*command, "-o", str(run), *(["--resume"] if journal.exists() else []))
        if kills < 2:
            wait_until_larger(journal, size, process)
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
        _, complaint = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), complaint
        kills += process.returncode != 0
        size = size_of(journal)
        if run.exists() and kills:
            break
        run.unlink(missing_ok=True)  # if it was faster than we are: once more from the start
    assert kills, "the process is always faster than we are"
    assert run.read_bytes() == (tmp_path / "whole.run").read_bytes()
