"""Journals: what comes back, what is cut off, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Document, Index, Query, Ranking, Run
from tamis.base.errors import CorruptError, InputError, LockedError, StorageError, TamisError
from tamis.core import journal as journal_module
from tamis.core.journal import Job, Journal, count, digest
from tamis.core.language import Call
from tamis.core.ranking import ScoreKind, Span
from tamis.core.stage import BATCH, Pipeline, Stage
from tamis.index.feedback import RM3

QUERIES = [Query(f"q{n}", f"sieve number {n}", {"desc": "of horsehair"} if n % 3 else {}) for n in range(10)]


class Scored(Stage):
    """Finds three documents, with scores that depend on the query and, in their last bit, on how many queries
    come together. Dies before the batch that it is told to."""

    def __init__(self, at_once: int = 2, dies_at: int | None = None, weights: str = "w1") -> None:
        self.at_once, self.dies_at, self.weights = at_once, dies_at, weights
        self.asked: list[list[str]] = []
        self.prepared = 0

    @property
    def expression(self) -> Call:
        return Call("scored")

    @property
    def resources(self) -> str:
        return self.weights

    @property
    def queries_at_once(self) -> int:
        return self.at_once

    def prepare(self) -> None:
        self.prepared += 1

    def attach(self, ranking: Ranking) -> Ranking:
        return replace(ranking, origin=self)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        if len(self.asked) == self.dies_at:
            raise KeyboardInterrupt
        self.asked.append([ranking.query.id for ranking in rankings])
        return [self._ranked(ranking, len(rankings)) for ranking in rankings]

    def _ranked(self, ranking: Ranking, neighbours: int) -> Ranking:
        number = int(ranking.query.id[1:])
        scores = np.array([1 / (number + 3), 0.1 + 2e-8 * neighbours, -0.0], dtype=np.float64)
        spans = {"d1": [Span(3, np.int64(9), np.float32(0.1))]} if number % 2 else {}  # type: ignore[arg-type]
        found = replace(ranking, ids=("d1", "d 2\n", f"d{number}"), scores=scores, kind=ScoreKind.LOGIT)
        return replace(found, evidence=spans, origin=self)


class Unchanged(Scored):
    """A reranker that changes nothing."""

    @property
    def expression(self) -> Call:
        return Call("unchanged")

    def attach(self, ranking: Ranking) -> Ranking:
        return ranking

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.asked.append([ranking.query.id for ranking in rankings])
        return list(rankings)


def facts(ranking: Ranking) -> tuple[Any, ...]:
    """All of a ranking that is data, down to the bits of its scores."""
    evidence = {
        identity: [(*map(int, span[:2]), float(span.score)) for span in spans]
        for identity, spans in ranking.evidence.items()
    }
    scores = (ranking.scores.dtype.str, ranking.scores.tobytes())
    return ranking.query, tuple(ranking.ids), scores, ranking.kind, evidence


def all_facts(run: Run) -> list[tuple[Any, ...]]:
    return [facts(ranking) for ranking in run.values()]


def interrupted(path: Path, batches: int, queries: Sequence[Query] = QUERIES) -> None:
    """A run that got so far."""
    with pytest.raises(KeyboardInterrupt):
        Scored(dies_at=batches).run(queries, journal=path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.journal"


# -- going on
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", range(5))
def test_a_run_goes_on_where_it_was_interrupted(path: Path, batches: int) -> None:
    interrupted(path, batches)
    stage = Scored()
    told: list[int] = []
    run = stage.run(QUERIES, journal=path, progress=told.append)
    ids = [query.id for query in QUERIES]
    assert stage.asked == [ids[n : n + 2] for n in range(2 * batches, 10, 2)]
    assert told == ([2 * batches] if batches else []) + [2] * (5 - batches)
    assert all_facts(run) == all_facts(Scored().run(QUERIES))
    assert run.manifest.get("resumed", 0) == 2 * batches


def test_a_finished_journal_is_the_run(path: Path) -> None:
    first = Scored().run(QUERIES, journal=path)
    stage = Scored()
    again = stage.run(QUERIES, journal=path)
    assert (stage.asked, stage.prepared) == ([], 0)
    assert all_facts(again) == all_facts(first)
    assert again.manifest["seconds"] == pytest.approx(first.manifest["seconds"], abs=0.002)
    assert again.manifest["resumed"] == len(QUERIES) == count(path)


def test_a_last_batch_that_is_smaller_is_still_a_whole_one(path: Path) -> None:
    Scored(at_once=4).run(QUERIES, journal=path)
    stage = Scored(at_once=4)
    stage.run(QUERIES, journal=path)
    assert stage.asked == []


def test_batches_stay_those_of_the_first_start(path: Path) -> None:
    """A later version may want other batches; these would change the last bit."""
    interrupted(path, 2)
    stage = Scored(at_once=3)
    run = stage.run(QUERIES, journal=path)
    assert list(map(len, stage.asked)) == [2, 2, 2]
    assert all_facts(run) == all_facts(Scored(at_once=2).run(QUERIES))
    assert all_facts(run) != all_facts(Scored(at_once=3).run(QUERIES))


def test_no_queries(path: Path) -> None:
    assert len(Scored().run([], journal=path)) == len(Scored().run([], journal=path)) == 0


def test_two_queries_with_one_id_are_refused_before_anything_is_done(path: Path) -> None:
    stage = Scored()
    with pytest.raises(InputError, match="the query id 'q1' occurs twice"):
        stage.run([Query("q1", "sieve"), Query("q1", "soup")], journal=path)
    assert (stage.asked, stage.prepared, path.exists()) == ([], 0, False)


def test_a_pipeline_sees_as_many_queries_as_its_choosiest_part() -> None:
    class Plain(Unchanged):
        queries_at_once = Stage.queries_at_once

    class Wrapping(Plain):
        parts = (Scored(3),)  # type: ignore[assignment]

    assert Plain().queries_at_once == BATCH == 64
    assert (Plain() % 5 >> Scored(8) % 3 >> Scored(16)).queries_at_once == 8
    assert (Plain() >> Wrapping()).queries_at_once == 3


def test_what_came_from_the_journal_has_the_origin_that_the_stage_gives(path: Path) -> None:
    for _ in range(2):
        first = Scored()
        run = (first % 3 >> Unchanged() % 2).run(QUERIES, journal=path)
        assert {ranking.origin for ranking in run.values()} == {first}
    assert isinstance(Pipeline([first]).attach(Ranking(QUERIES[0])).origin, Scored)


def test_over_an_index(tmp_path: Path, path: Path) -> None:
    index = Index.build([Document(f"d{n}", f"sieve number {n}") for n in range(20)], tmp_path / "idx")

    def run() -> Run:
        index = Index.open(tmp_path / "idx")
        return (index.bm25(backend="numpy") % 10 >> RM3() % 5).run(QUERIES, journal=path)

    assert all_facts(run()) == all_facts(run())
    index.add([Document("d20", "soup")])
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        run()
    assert str(caught.value) == (
        f"{path}: the index, run or model behind bm25 % 10 has changed since the journal was begun: "
        "give another file name, or delete it to start again"
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("pipeline", ["bm25 % 3 >> rm3 % 2", "sdm % 2", "fuse(bm25, ql) % 2"])
def test_texts_and_origin_are_those_of_the_index(tmp_path: Path, path: Path, pipeline: str) -> None:
    documents = [Document(f"d{n}", f"sieve number {n}") for n in range(5)]
    index = Index.build(documents, tmp_path / "idx", positions=True)
    first = index.pipeline(pipeline).run(QUERIES, journal=path)
    again = index.pipeline(pipeline).run(QUERIES, journal=path)
    assert again.manifest["resumed"] == len(QUERIES)
    for one, other in zip(first.values(), again.values(), strict=True):
        assert one.documents() == other.documents() != []
        assert one.texts is other.texts is index
        assert repr(one.origin) == repr(other.origin) != "None"


# -- what comes back
# ------------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=()), max_size=5)  # even halves of surrogate pairs
numbers = st.floats(width=16, allow_nan=False)
spans = st.lists(
    st.builds(Span, st.integers(0, 99), st.integers(0, 99), st.floats(allow_nan=False)), max_size=2
)


@st.composite
def rankings(draw: st.DrawFn) -> Ranking:
    ids = draw(st.lists(texts, max_size=4, unique=True))
    dtype = draw(st.sampled_from(["<f2", "<f4", ">f4", "<f8"]))
    scores = np.array(draw(st.lists(numbers, min_size=len(ids), max_size=len(ids))), dtype)
    query = Query(draw(texts), draw(texts), draw(st.dictionaries(texts, texts, max_size=2)))
    evidence = draw(st.dictionaries(texts, spans, max_size=2))
    return Ranking(query, ids, scores, draw(st.sampled_from(ScoreKind)), evidence=evidence)


@settings(max_examples=50, deadline=None)
@given(done=st.lists(rankings(), max_size=4), at_once=st.integers(1, 3))
def test_rankings_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, done: list[Ranking], at_once: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    job = Job("scored", "f", (("scored", "f"),), digest(ranking.query for ranking in done), len(done))
    with Journal(path, job, at_once=at_once) as journal:
        for start in range(0, len(done), at_once):
            journal.append(done[start : start + at_once], 0.5)
    with Journal(path, job, at_once=at_once) as journal:
        assert [facts(ranking) for ranking in journal.done] == [facts(ranking) for ranking in done]
        assert journal.seconds == pytest.approx(0.5 * -(-len(done) // at_once), abs=1e-4)
        assert all(not ranking.scores.flags.writeable for ranking in journal.done)


# -- damage
# ------------------------------------------------------------------------------------------------------------


FEW = QUERIES[:3]
Whole = tuple[bytes, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A small journal, and what is in it."""
    path = tmp_path_factory.mktemp("whole") / "a.journal"
    run = Scored().run(FEW, journal=path)
    return path.read_bytes(), all_facts(run)


def test_cut_off_anywhere(whole: Whole, path: Path) -> None:
    data, expected = whole
    ranked = set()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        stage = Scored()
        assert all_facts(stage.run(FEW, journal=path)) == expected, size
        ranked.add(len(stage.asked))
        assert count(path) == len(FEW), size
    assert ranked == {0, 1, 2}


@pytest.mark.parametrize("rubbish", [b"\0", b"\xff", b"tamis journal 1 "])
def test_rubbish_at_the_end(whole: Whole, path: Path, rubbish: bytes) -> None:
    data, expected = whole
    for size in range(0, 600, 37):
        path.write_bytes(data[: len(data) - 150] + rubbish * size)
        assert all_facts(Scored().run(FEW, journal=path)) == expected


def test_any_byte_flipped(whole: Whole, path: Path) -> None:
    data, expected = whole
    refused = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            run = Scored().run(FEW, journal=path)
        except (InputError, CorruptError) as error:
            refused += 1
            assert str(error).endswith(("give another file name", "delete it to start again"))
            assert path.read_bytes() == damaged
        else:
            assert all_facts(run) == expected, place
    assert refused == data.index(b"\n") + 1  # all of the first line, and nothing else


def test_records_of_another_place_do_not_count(path: Path) -> None:
    """A disk may hand back an old block: the records of a batch in the place of those of another."""
    Scored(at_once=1).run(QUERIES[:3], journal=path)
    data = path.read_bytes()
    starts = [data.index(b'{"query":["q%d"' % n) - 12 for n in range(3)]
    first, second, third = (data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True))
    for records, good in (
        ([first, second, third], 3),
        ([first, third, second], 1),
        ([second, first, third], 0),
        ([first, first, third], 1),
    ):
        path.write_bytes(data[: starts[0]] + b"".join(records))
        assert count(path) == good


# -- what is refused
# ------------------------------------------------------------------------------------------------------------


def refusal(path: Path, stage: Stage, queries: Sequence[Query]) -> str:
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        stage.run(queries, journal=path)
    assert path.read_bytes() == before
    assert str(caught.value).endswith(": give another file name, or delete it to start again")
    return caught.value.problem.removeprefix(f"{path}: ")


def test_the_journal_of_another_job_is_refused(path: Path) -> None:
    interrupted(path, 2)
    assert (
        refusal(path, Scored() % 5, QUERIES)
        == "the journal belongs to the pipeline scored, not to scored % 5"
    )
    assert (
        refusal(path, Scored(weights="w2"), QUERIES)
        == "the index, run or model behind scored has changed since the journal was begun"
    )
    others = {
        "fewer": QUERIES[:-1],
        "another order": QUERIES[::-1],
        "another id": [replace(QUERIES[0], id="q99"), *QUERIES[1:]],
        "another text": [*QUERIES[:-1], replace(QUERIES[-1], text="soup")],
        "another field": [*QUERIES[:-1], replace(QUERIES[-1], fields={"desc": "soup"})],
    }
    for name, queries in others.items():
        problem = refusal(path, Scored(), queries)
        assert problem == f"the journal belongs to 10 other queries, not to these {len(queries)}", name


def test_a_journal_of_another_job_with_nothing_in_it_is_begun_anew(path: Path) -> None:
    interrupted(path, 0)
    assert path.read_bytes().startswith(b"tamis journal 1 ")
    assert (Scored() % 2).run(QUERIES, journal=path)["q3"].ids == ("d1", "d 2\n")
    assert count(path) == 10


def test_the_version_is_only_told(path: Path) -> None:
    from tamis import __version__

    interrupted(path, 2)
    assert f'"tamis":"{__version__}"'.encode() in path.read_bytes().partition(b"\n")[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"q1 Q0 d7 1 12.5 bm25\n", "not a journal of a run: give another file name"),
        (b"tamis is a sieve", "not a journal of a run: give another file name"),
        (b"tamis journal 2 something else\n", "has journal format 2, and this tamis reads 1: give another"),
        (b"tamis journal x\n", "the first line of .* is damaged: give another file name, or delete it"),
    ],
)
def test_what_is_not_a_journal_is_left_alone(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    for use in (lambda: Scored().run(QUERIES, journal=path), lambda: count(path)):
        with pytest.raises((InputError, CorruptError), match=problem):
            use()
    assert path.read_bytes() == content


def test_one_process_at_a_time(path: Path) -> None:
    interrupted(path, 2)
    busy = f"another process is writing to {path}: wait until it has finished"

    class Nosy(Scored):
        def prepare(self) -> None:
            with pytest.raises(LockedError, match=busy):
                Scored().run(QUERIES, journal=path)
            code = f"from tamis.core.journal import count; count({str(path)!r})"
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert said.stderr.splitlines()[-1] == f"tamis.base.errors.LockedError: {busy}"
            super().prepare()

    run = Nosy().run(QUERIES, journal=path)
    assert all_facts(run) == all_facts(Scored().run(QUERIES))


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed there")
def test_a_journal_that_is_removed_while_we_wait_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    interrupted(path, 2)
    flock = fcntl.flock

    def after_its_owner_has_finished(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", after_its_owner_has_finished)
    stage = Scored()
    stage.run(QUERIES, journal=path)
    assert len(stage.asked) == 5
    assert count(path) == 10  # in the file that has the name


# -- the disk
# ------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_forced_to_disk_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", recording)
    Scored().run(QUERIES, journal=path)
    assert synced == []
    path.unlink()
    monkeypatch.setattr(journal_module, "SYNC_EVERY", 0.0)
    Scored().run(QUERIES, journal=path)
    file, folder = path.stat().st_ino, path.parent.stat().st_ino
    assert [inode for inode in synced if inode == file] == [file] * 5
    assert synced[:3] == ([file, folder, file] if os.name != "nt" else [file] * 3)


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on the size of files")
def test_a_full_disk_is_reported_and_loses_nothing(path: Path) -> None:
    import resource

    expected = all_facts(Scored().run(QUERIES, journal=path))
    size = path.stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(size // 3, size, size // 7):
        path.unlink()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
        try:
            with pytest.raises(StorageError, match=f"cannot write {path} .File too large."):
                Scored().run(QUERIES, journal=path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert path.stat().st_size == limit
        assert all_facts(Scored().run(QUERIES, journal=path)) == expected


def test_nowhere_to_write(tmp_path: Path) -> None:
    stage = Scored()
    with pytest.raises(StorageError, match="create the folder first"):
        stage.run(QUERIES, journal=tmp_path / "no" / "a.journal")
    with pytest.raises(TamisError, match="give the name of a file, not of a folder"):
        stage.run(QUERIES, journal=tmp_path)
    assert stage.asked == []
