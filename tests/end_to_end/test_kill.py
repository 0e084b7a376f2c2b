"""An indexing process killed at any moment leaves its last commit, whole, and the work can go on from there.

This file is also the process that is killed: run as a script it goes through a history of changes, and says
after each what is committed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.base.errors import InputError
from tamis.index.score import BM25, QueryLikelihood
from tamis.index.verify import verify

KILLS = 20
BUILT = 30  # documents of the first build
EVERY = 3  # of them in a commit
STEPS = 12  # changes after it, a commit each
WORDS = ["sieve", "flour", "cake", "onion", "soup", "butter", "steel", "cook", "fine", "coarse"]
States = list[dict[str, Document]]

needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@contextmanager
def memory() -> Iterator[Path]:
    """A folder in memory, where the system has such: a kill is no power cut, so there is no need to wait for
    the disk."""
    shared = Path("/dev/shm")
    where = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as name:
        yield Path(name)


@pytest.fixture
def place() -> Iterator[Path]:
    with memory() as folder:
        yield folder


# -- the history: what is done, and what the index must hold after each commit


def document(identity: str, version: int = 0) -> Document:
    rng = random.Random(f"{identity} {version}")
    return Document(identity, " ".join(rng.choices(WORDS, k=rng.randint(0, 25))), title=f"version {version}")


def built() -> list[Document]:
    return [document(f"built-{n}") for n in range(BUILT)]


def change(index: Index, step: int) -> None:
    """Add, replace, delete or merge; done again after a kill it does what is left to do."""
    kind = step % 6
    if kind in (0, 1):
        index.add([document(f"{step}-{n}") for n in range(4)], on_duplicate="skip")
    elif kind in (2, 3):
        index.add([document(f"built-{n}", step) for n in range(step, BUILT, 7)], on_duplicate="replace")
    elif kind == 4:
        index.delete([f"{step - 4}-{n}" for n in (0, 2) if f"{step - 4}-{n}" in index])
    else:
        index.merge()


def states() -> States:
    """The documents after each commit: of the build, then of each step."""
    after: States = [{d.id: d for d in built()[:n]} for n in range(EVERY, BUILT + 1, EVERY)]
    for step in range(STEPS):
        held = dict(after[-1])
        kind = step % 6
        if kind in (0, 1):
            held |= {f"{step}-{n}": document(f"{step}-{n}") for n in range(4)}
        elif kind in (2, 3):
            held |= {f"built-{n}": document(f"built-{n}", step) for n in range(step, BUILT, 7)}
        elif kind == 4:
            held = {i: d for i, d in held.items() if i not in (f"{step - 4}-0", f"{step - 4}-2")}
        after.append(held)
    return after


def work(folder: str) -> None:
    """What the process does that is killed. It says `committed DONE GENERATION DOCUMENTS`, DONE being the
    number of states behind it."""

    def say(done: int) -> None:
        index = Index.open(folder)
        # one write: without buffers `print` makes several, and a kill can come between them
        sys.stdout.write(f"committed {done} {index.manifest.generation} {len(index)}\n")
        sys.stdout.flush()

    def documents() -> Iterator[Document]:
        for number, each in enumerate(built()):
            if number and number % EVERY == 0:
                say(number // EVERY)  # we are asked for the next one: those before it are committed
            yield each

    print("begun", flush=True)
    index = Index.build(documents(), folder, commit_every=EVERY)
    say(BUILT // EVERY)
    for step in range(STEPS):
        change(index, step)
        say(BUILT // EVERY + step + 1)


# -- what must be true after a kill


def answers(index: Index) -> list[Any]:
    queries = [*WORDS[:3], "sieve flour cake", "fine coarse soup soup"]
    found = [
        index.search(index.weights(query), model, 10, backend="numpy")
        for query in queries
        for model in (BM25(), QueryLikelihood(mu=20))
    ]
    return [(ids, scores.tolist()) for ids, scores in found]


def assert_holds(index: Index, documents: dict[str, Document], fresh: Path) -> None:
    """The documents are these, and the answers are those of an index freshly made of them."""
    assert {d.id: d for d in index} == documents
    assert len(index) == len(documents)
    assert answers(index) == answers(Index.build(documents.values(), fresh))


def assert_nothing_left_over(folder: Path, index: Index) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    expected = {"manifest.json", "lock"}
    for segment in index.segments:
        of_segment = [*segment.info.columns, *([segment.info.deleted] if segment.info.deleted else [])]
        expected |= {f"segments/{segment.info.name}/{name}" for name in of_segment}
    assert names == expected
    assert len(list((folder / "segments").iterdir())) == len(index.segments)


def go_on(folder: Path, done: int) -> Index:
    """Do what was left to do when `done` states had been committed."""
    try:
        index = Index.open(folder)
    except InputError:  # killed before the first commit
        assert done == 0
        return _steps(Index.build(built(), folder, commit_every=EVERY), 0)
    if done < BUILT // EVERY:
        index.add(built(), on_duplicate="skip")
    return _steps(index, max(done - BUILT // EVERY, 0))


def _steps(index: Index, first: int) -> Index:
    for step in range(first, STEPS):
        change(index, step)
    return index


def start(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def rest(process: subprocess.Popen[str]) -> str:
    """What else it says. `communicate` would miss the lines that came together with the first."""
    assert process.stdout is not None
    with process.stdout as out:
        said = out.read()
    process.wait()
    return said


@pytest.fixture(scope="module")
def run_time() -> float:
    """How long the process works when nobody kills it; what it then says is what must be said."""
    with memory() as folder:
        process = start(folder / "idx")
        begun = time.perf_counter()
        out = rest(process)
        seconds = time.perf_counter() - begun
    assert process.returncode == 0
    said = [line.split()[1:] for line in out.splitlines()]
    assert [int(done) for done, _, _ in said] == list(range(1, BUILT // EVERY + STEPS + 1))
    assert [int(count) for _, _, count in said] == [len(state) for state in states()]
    return seconds


@needs_sigkill
@pytest.mark.parametrize("attempt", range(KILLS))
def test_killed_at_a_random_moment(place: Path, run_time: float, attempt: int) -> None:
    folder = place / "idx"
    process = start(folder)
    # one moment in each twentieth of the run time, so that all phases are met
    time.sleep(run_time * (attempt + random.Random(attempt).random()) / KILLS)
    process.kill()
    out = rest(process)
    said = [tuple(map(int, line.split()[1:])) for line in out.splitlines() if line.startswith("committed")]
    done, generation, count = said[-1] if said else (0, 0, 0)

    after = states()
    if not (folder / "manifest.json").exists():
        assert not said
        with pytest.raises(InputError, match="holds no index"):
            Index.open(folder)
    else:
        index = Index.open(folder)
        assert verify(folder) == []
        # a change is one commit, and another one where segments are merged
        assert generation <= index.manifest.generation <= generation + 2
        if index.manifest.generation == generation:
            assert len(index) == count
        else:
            done += 1
        assert_holds(index, after[done - 1], place / "at the kill")

    index = go_on(folder, done)
    assert_holds(index, after[-1], place / "at the end")
    if done == len(after):  # killed while it cleaned up after the last commit: the next writer does that
        index.add([after[-1][min(after[-1])]], on_duplicate="replace")
    assert_nothing_left_over(folder, index)
    assert verify(folder) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("what", ["build", "add", "replace", "delete", "merge"])
def test_killed_before_every_call_that_changes_the_folder(
    place: Path, what: str, killed_before: Callable[..., bool]
) -> None:
    """Not at random: before the first call that makes, renames, removes or syncs a file, the second, ..."""
    old = {d.id: d for d in built()[:8]}
    new = dict(old)
    if what == "add":
        new["new"] = document("new")
    elif what == "replace":
        new["built-1"] = document("built-1", 1)
    elif what == "delete":
        del new["built-1"], new["built-6"]
    if what == "build":
        (place / "old").mkdir()
        after = [{}, dict(list(old.items())[:5]), new]  # generation by generation
    else:
        Index.build(old.values(), place / "old", commit_every=4)
        after = [{}, {}, old, new]
    expected = [answers(Index.build(held.values(), place / f"g{n}")) for n, held in enumerate(after)]

    def act(folder: Path) -> None:
        if what == "build":
            Index.build(new.values(), folder, commit_every=5)
        elif what == "add":
            Index.open(folder).add([new["new"]])
        elif what == "replace":
            Index.open(folder).add([new["built-1"]], on_duplicate="replace")
        elif what == "delete":
            Index.open(folder).delete(set(old) - set(new))
        else:
            Index.open(folder).merge()

    seen = set()
    call, finished = 1, False
    while not finished:
        folder = shutil.copytree(place / "old", place / str(call))
        finished = killed_before(call, lambda folder=folder: act(folder))
        generation = 0
        if (folder / "manifest.json").exists():
            index = Index.open(folder)
            generation = index.manifest.generation
            assert {d.id: d for d in index} == after[generation]
            assert answers(index) == expected[generation]
            assert verify(folder) == []
        else:
            assert what == "build"
            index = Index.build([], folder)
        seen.add(generation)
        index.add([document("next")])
        assert_nothing_left_over(folder, index)
        # once all is committed only what is old is removed, file by file
        call += 1 if generation < len(after) - 1 else 7
    assert seen == ({0, 1, 2} if what == "build" else {2, 3})


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the names of open files")
def test_everything_is_on_disk_before_the_manifest_names_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses nothing that was written; a power cut loses what was not synced."""
    synced: list[str] = []
    fsync, rename = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def recording_replace(source: Any, target: Any, **options: Any) -> None:
        rename(source, target, **options)
        assert str(source) in synced
        assert Path(target).name == "manifest.json"
        text = Path(target).read_text().split("\n", 1)[1]
        for segment in json.loads(text)["segments"]:
            names = [*segment["columns"], *([segment["deleted"]] if segment["deleted"] else [])]
            place = folder / "segments" / segment["name"]
            assert {str(place / name) for name in names} <= set(synced)
            assert {str(place), str(folder / "segments")} <= set(synced)
        del synced[:-1000]
        synced.append("manifest replaced")

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    folder = place / "idx"
    index = Index.build(built()[:10], folder, commit_every=4)
    assert str(place) in synced  # where the index's own name is
    index.add([document("built-1", 1)], on_duplicate="replace")
    index.delete(["built-7"])
    index.merge()
    assert synced.count("manifest replaced") == 6
    places = [at for at, name in enumerate(synced) if name == "manifest replaced"]
    assert all(str(folder) in synced[at + 1 : at + 2] for at in places)  # and the new name of the manifest


KILLED = """
import os, signal, sys
from tamis.cli import main

left, replace = 20, os.replace

def lethal(*arguments, **options):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    replace(*arguments, **options)

os.replace = lethal
sys.exit(main())
"""


@needs_sigkill
def test_the_command_is_killed_and_resumes(place: Path) -> None:
    """When twenty commits are made, and all of the next one but its manifest."""
    documents = [document(f"d{n}") for n in range(600)]
    lines = [json.dumps({"_id": d.id, "title": d.title, "text": d.text}) for d in documents]
    (place / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))
    whole = "import sys; from tamis.cli import main; sys.exit(main())"
    command = ["index", str(place / "corpus.jsonl"), "-o", str(place / "idx")]
    command += ["--commit-every", "10", "--no-tokens"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    index = Index.open(place / "idx")
    assert index.manifest.generation == 20
    assert 0 < len(index) < 600 and len(index) % 10 == 0
    assert verify(place / "idx") == []
    resume = [sys.executable, "-c", whole, *command, "--resume", "--json"]
    said = subprocess.run(resume, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    index = Index.open(place / "idx")
    assert_holds(index, {d.id: d for d in documents}, place / "fresh")
    assert_nothing_left_over(place / "idx", index)


if __name__ == "__main__":
    work(sys.argv[1])
