"""An index is the same whatever the number of processes that build it, and a kill of any of them loses
nothing that was committed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Document, Index
from tamis.base.errors import InputError
from tamis.formats import read_corpus, read_queries
from tamis.index import build
from tamis.index.build import SegmentWriter
from tamis.index.crew import Crew
from tamis.index.parcels import Builder
from tamis.index.verify import verify
from tamis.storage.document_store import DuplicateIdError
from tamis.text.analyze import get_analyzer

DEMO = Path(__file__).parents[2] / "src/tamis/demo_data"
WORDS = ["sieve", "flour", "cake", "onion", "soup", "butter", "steel", "cook", "fine", "coarse", "café"]
needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the others: else this process may have done all before they have started."""
    monkeypatch.setattr(Crew, "_take_back", lambda self: False)


@pytest.fixture
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PARCEL", 3000)
    monkeypatch.setattr("tamis.index.postings.BATCH", 300)


def documents(count: int) -> list[Document]:
    rng = random.Random(count)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 25))) for _ in range(count)]
    return [Document(f"d{n}", text, metadata={"n": n} if n % 3 else {}) for n, text in enumerate(texts)]


def columns(index: Index) -> list[Any]:
    """The digests of all files, but for the segments' names, which are drawn."""
    return [(s.info.documents, s.info.columns, s.info.deleted, s.info.deleted_info) for s in index.segments]


# -- the same index


@pytest.mark.parametrize("positions", [False, True])
def test_the_demo_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: None, positions: bool
) -> None:
    monkeypatch.setattr(build, "PARCEL", 1 << 18)
    monkeypatch.setattr("tamis.index.postings.BATCH", 1 << 14)
    made = [
        Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), tmp_path / str(n), positions=positions, workers=n)
        for n in (1, 2, 3)
    ]
    one = made[0]
    for other in made[1:]:
        assert columns(other) == columns(one)
        assert verify(other.path) == []
        assert {path.name for path in other.path.rglob("*") if path.is_file()} == {
            path.name for path in one.path.rglob("*") if path.is_file()
        }
        for query in read_queries(DEMO / "queries.jsonl")[:10]:
            ranking = (one.bm25() % 100)(query)
            assert (other.bm25() % 100)(query) == ranking
            weights, model = one.weights(query.text), one.bm25().model
            best = ranking.ids[0]
            assert other.explain(weights, model, best) == one.explain(weights, model, best)
            assert other.document(best) == one.document(best)


TEXTS = st.lists(st.sampled_from([*WORDS, "the", "Ünïcode", "x" * 40, "a.b", "\n"]), max_size=30).map(
    " ".join
)
COLLECTIONS = st.lists(st.tuples(st.sampled_from(["", "Tamis", "été"]), TEXTS), min_size=1, max_size=25)


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[bool, list[Crew[Builder]]]]:
    """Of one, two and three processes, without positions and with them."""
    made = {
        positions: [Crew(Builder(get_analyzer("english"), positions=positions), n) for n in (1, 2, 3)]
        for positions in (False, True)
    }
    yield made
    for crew in (*made[False], *made[True]):
        crew.close()


@settings(max_examples=40)
@given(
    collection=COLLECTIONS,
    parcel=st.integers(1, 2000),
    batch=st.integers(1, 60),
    positions=st.booleans(),
    repeats=st.integers(0, 2),
)
def test_any_small_collection_in_any_parcels(
    tmp_path_factory: pytest.TempPathFactory,
    crews: dict[bool, list[Crew[Builder]]],
    collection: list[tuple[str, str]],
    parcel: int,
    batch: int,
    positions: bool,
    repeats: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    ids = [f"d{n}" for n in range(len(collection))] + ["d0"] * repeats
    held = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "PARCEL", parcel)
        patch.setattr("tamis.index.postings.BATCH", batch)
        for n, crew in enumerate(crews[positions]):
            writer = SegmentWriter(folder / str(n), crew, keep="last")
            for identity, (title, text) in zip(ids, collection * 2, strict=False):
                writer.add(Document(identity, text, title))
            info = writer.close()
            held.append((info.documents, info.columns, info.deleted_info))
    assert held[0] == held[1] == held[2]


def test_parcels_that_one_process_does_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parcels: None
) -> None:
    """The others never begin, so this process takes the parcels that it gave them back, the last ones first,
    and every parcel has terms that are new."""
    monkeypatch.setattr("tamis.index.crew._MAIN", "import sys; sys.stdin.read()")
    made = [Document(f"d{n}", f"soup number{n} number{n // 2}") for n in range(1000)]
    one, three = (Index.build(made, tmp_path / str(n), workers=n) for n in (1, 3))
    assert columns(one) == columns(three)


def test_a_small_collection_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert len(Index.build(documents(2000), tmp_path / "idx", workers=8)) == 2000


def test_processes_that_were_started_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start before the first parcel is full, and the collection ends before it is."""
    started = []
    start = Crew.start
    monkeypatch.setattr(Crew, "start", lambda self: started.append(start(self)))
    monkeypatch.setattr(build, "PARCEL", 1 << 16)
    made = [Index.build(documents(300), tmp_path / str(workers), workers=workers) for workers in (1, 3)]
    assert started
    assert columns(made[0]) == columns(made[1])
    assert not list(made[1].path.rglob("task-*"))


def test_adding_and_committing_with_workers(tmp_path: Path, small_parcels: None, waiting: None) -> None:
    made = []
    for workers in (1, 2):
        index = Index.build(documents(200), tmp_path / str(workers), commit_every=70, workers=workers)
        changed = [Document(f"d{n}", "another text about soup") for n in range(150, 350)]
        index.add(changed, on_duplicate="replace", workers=workers)
        made.append(index)
    assert columns(made[0]) == columns(made[1])
    assert list(made[0]) == list(made[1]) and len(made[0]) == 350


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers(tmp_path: Path, workers: int) -> None:
    with pytest.raises(InputError, match=f"cannot build with {workers} workers: use 1 or more"):
        Index.build(documents(1), tmp_path / "idx", workers=workers)


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """The others do not run the program anew."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tamis\n"
        "from tamis.index import build\n"
        "build.PARCEL = 1000\n"
        "documents = (tamis.Document(str(n), 'a sieve for soup') for n in range(500))\n"
        "print('begun')\n"
        "print(len(tamis.Index.build(documents, 'idx', workers=2)))\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("begun\n500\n", "", 0)


# -- bad input, by the command


# The command with small parcels, whose others do the first of them; `ADDED` is put before it.
COMMAND = """
import os, signal, sys, time
from pathlib import Path
from tamis.index import crew
from tamis.cli import main
from tamis.index import build
build.PARCEL = 3000
crew.Crew._take_back = lambda self: False
{added}
sys.exit(main())
"""


def tamis(place: Path, *arguments: str, added: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Returns when the command and all that it has started have ended: they all have its standard error."""
    command = [sys.executable, "-c", COMMAND.format(added=added), *arguments]
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=600, **options
    )


def write_corpus(place: Path, made: list[Document], *, bad: str = "") -> None:
    lines = [json.dumps({"id": d.id, "text": d.text, **d.metadata}) for d in made]
    (place / "corpus.jsonl").write_text("".join(f"{line}\n" for line in [*lines, bad] if line))


def complaints(said: subprocess.CompletedProcess[str]) -> str:
    """What it said, but for the progress, which a slow machine shows."""
    return "".join(line for line in said.stderr.splitlines(keepends=True) if not line.startswith("Indexing "))


def index(place: Path, name: str, workers: int, *more: str, **options: Any) -> Any:
    return tamis(place, "index", "corpus.jsonl", "-o", name, "--workers", str(workers), *more, **options)


def test_a_bad_line_is_reported_as_by_one_process(tmp_path: Path) -> None:
    write_corpus(tmp_path, documents(300), bad='{"id": "bad"')
    said = [index(tmp_path, "idx", workers) for workers in (1, 2)]
    assert said[0].returncode == said[1].returncode == 2
    assert "corpus.jsonl, line 301: not JSON" in complaints(said[0])
    assert complaints(said[0]) == complaints(said[1]) and complaints(said[0]).count("\n") == 1
    assert list((tmp_path / "idx" / "segments").iterdir()) == []


def test_an_id_twice_is_reported_as_by_one_process(tmp_path: Path) -> None:
    write_corpus(tmp_path, [*documents(300), Document("d7", "again")])
    said = [index(tmp_path, "idx", workers) for workers in (1, 2)]
    assert said[0].returncode == said[1].returncode == 2
    assert "'d7' occurs twice (corpus.jsonl, line 8 and corpus.jsonl, line 301)" in complaints(said[0])
    assert complaints(said[0]) == complaints(said[1]) and complaints(said[0]).count("\n") == 1
    kept = index(tmp_path, "idx", 2, "--on-duplicate", "replace", "--json")
    assert kept.returncode == 0, kept.stderr
    assert Index.open(tmp_path / "idx").document("d7").text == "again"


def test_an_id_twice_in_python(tmp_path: Path, small_parcels: None, waiting: None) -> None:
    with pytest.raises(DuplicateIdError, match="'d7' occurs twice"):
        Index.build([*documents(300), Document("d7", "again")], tmp_path / "idx", workers=2)
    assert list((tmp_path / "idx" / "segments").iterdir()) == []


# -- kills


# The others are killed when they are about to do their third task.
LETHAL = """
crew._MAIN = '''
import os, signal, sys
sys.path[:] = sys.argv[1:]
from tamis.index import crew
left, read = 2, crew._read
def lethal(path):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return read(path)
crew._read = lethal
crew.work()
'''
"""

# The others never end their first task. This process {acts} when one of them has begun.
ENDLESS = """
crew._MAIN = '''
import sys
sys.path[:] = sys.argv[1:]
from pathlib import Path
from tamis.index import crew
def endless(path):
    Path("begun").touch()
    while True:
        pass
crew._read = endless
crew.work()
'''
submit = crew.Crew.submit
def lethal(self, *arguments, **options):
    submit(self, *arguments, **options)
    while self._others and not Path("begun").exists():
        time.sleep(0.01)
    if self._others:
        {acts}
crew.Crew.submit = lethal
"""

# This process is killed when it is about to name the third commit.
KILLED = """
left, replace = 2, os.replace
def lethal(*arguments, **options):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    replace(*arguments, **options)
os.replace = lethal
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and the index of it that nobody interrupted: four commits, then merged."""
    place = tmp_path_factory.mktemp("whole")
    write_corpus(place, documents(400))
    done = index(place, "idx", 1, "--commit-every", "100")
    assert done.returncode == 0, done.stderr
    return place


def assert_resumes(place: Path, whole: Path, committed: int, workers: int) -> None:
    """What was committed is whole, and with another number of workers it ends in the same index."""
    if committed:
        left = Index.open(place / "idx")
        assert list(left.ids()) == [f"d{n}" for n in range(committed)]
        assert verify(place / "idx") == []
    else:
        assert not (place / "idx" / "manifest.json").exists()
    done = index(place, "idx", workers, "--commit-every", "100", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    again = Index.open(place / "idx")
    assert columns(again) == columns(Index.open(whole / "idx"))
    named = {segment.info.name for segment in again.segments}
    assert {path.name for path in (place / "idx" / "segments").iterdir()} == named


@needs_sigkill
@pytest.mark.parametrize("commits", [[], ["--commit-every", "100"]])
def test_a_worker_is_killed(tmp_path: Path, whole: Path, commits: list[str]) -> None:
    write_corpus(tmp_path, documents(400))
    said = index(tmp_path, "idx", 2, *commits, added=LETHAL)
    assert said.returncode == 2
    assert complaints(said) == (
        "error: a worker process was ended by signal SIGKILL: the last commit is complete; "
        "if memory ran out, use fewer workers (--workers)\n"
    )
    committed = len(Index.open(tmp_path / "idx")) if (tmp_path / "idx" / "manifest.json").exists() else 0
    assert committed in ((0, 100) if commits else (0,))
    assert_resumes(tmp_path, whole, committed, workers=3)


@needs_sigkill
def test_this_process_is_killed_between_two_commits(tmp_path: Path, whole: Path) -> None:
    write_corpus(tmp_path, documents(400))
    said = index(tmp_path, "idx", 3, "--commit-every", "100", added=KILLED)
    assert (said.returncode, complaints(said)) == (-signal.SIGKILL, "")
    assert_resumes(tmp_path, whole, 200, workers=2)


@needs_sigkill
def test_this_process_is_killed_while_the_others_work(tmp_path: Path, whole: Path) -> None:
    """That the command returns at all shows that none of them works on."""
    write_corpus(tmp_path, documents(400))
    acts = "os.kill(os.getpid(), signal.SIGKILL)"
    said = index(tmp_path, "idx", 3, added=ENDLESS.replace("{acts}", acts))
    assert (said.returncode, complaints(said)) == (-signal.SIGKILL, "")
    assert (tmp_path / "begun").exists()
    assert_resumes(tmp_path, whole, 0, workers=1)


@pytest.mark.skipif(os.name == "nt", reason="needs groups of processes")
def test_ctrl_c_while_the_others_work(tmp_path: Path, whole: Path) -> None:
    """At a terminal it goes to the whole group of processes."""
    write_corpus(tmp_path, documents(400))
    acts = "os.killpg(0, signal.SIGINT)"
    said = index(tmp_path, "idx", 3, added=ENDLESS.replace("{acts}", acts), start_new_session=True)
    assert (said.returncode, complaints(said)) == (130, "interrupted\n")
    assert list((tmp_path / "idx" / "segments").iterdir()) == []
    assert_resumes(tmp_path, whole, 0, workers=2)
