"""Many readers while one writer commits: whatever a reader sees is one commit, the whole of it, and nothing
else.

This file is also the process that reads: run as a script it opens, refreshes and searches until it is told
to stop.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.base.errors import UnknownDocumentError
from tamis.index.score import BM25
from tamis.index.verify import verify
from tamis.index.writer import create
from tamis.storage.columns import Column, ColumnInfo

COMMITS = 25
Read = Callable[[], int]


# -- what the writer does: every commit has its own documents, beside those that stay


def documents_of(commit: int) -> list[Document]:
    """The documents that exist in this commit alone; their number and lengths differ from its neighbours'."""
    words = [" common" * (1 + (commit + n) % 3) + " filler" * (commit * n % 7) for n in range(5 + commit % 4)]
    return [Document(f"{commit}:{n}", text) for n, text in enumerate(words)]


def staying(commit: int) -> Document:
    return Document(f"staying {commit}", f"filler staying{commit}")


def history(folder: Path) -> None:
    """Commit after commit: the last one's documents leave, this one's come, one stays for good."""
    index = Index.open(folder)
    for commit in range(1, COMMITS + 1):
        with index.writer() as writer:
            for document in documents_of(commit - 1):
                writer.delete(document.id)
            for document in [*documents_of(commit), staying(commit)]:
                writer.add(document)
            if commit % 10 == 0:
                writer.merge()
            else:
                writer.commit()


def begin(folder: Path) -> None:
    with create(folder, analyzer="whitespace") as writer:
        for document in [*documents_of(0), staying(0)]:
            writer.add(document)
        writer.commit()


# -- what a reader checks


def search(index: Index) -> tuple[list[str], list[float]]:
    ids, scores = index.search({"common": 1.0}, BM25(), 100, backend="numpy")
    return ids, [round(score, 5) for score in scores.tolist()]


def check(found: tuple[list[str], list[float]], expected: list[tuple[list[str], list[float]]]) -> int:
    """Which commit this is the answer of; its scores depend on every document of the commit."""
    commits = {int(identity.split(":")[0]) for identity in found[0]}
    assert len(commits) == 1, f"a mixture of {commits}"
    commit = commits.pop()
    assert found == expected[commit], f"not the whole of commit {commit}"
    return commit


def check_all(index: Index, expected: list[tuple[list[str], list[float]]]) -> int:
    """The same of an index that nobody else refreshes: its documents, its size, its ids."""
    commit = check(search(index), expected)
    held = {document.id: document for document in [*documents_of(commit), *map(staying, range(commit + 1))]}
    assert {document.id: document for document in index} == held
    assert len(index) == len(held) and set(index.ids()) == set(held)
    assert index.document(f"{commit}:0") == held[f"{commit}:0"] and f"{commit - 1}:0" not in index
    assert index.df("filler") == sum("filler" in d.text for d in held.values())
    return commit


def opening(folder: Path, expected: list[tuple[list[str], list[float]]]) -> Read:
    return lambda: check_all(Index.open(folder), expected)


def refreshing(folder: Path, expected: list[tuple[list[str], list[float]]]) -> Read:
    index = Index.open(folder)

    def read() -> int:
        before = check_all(index, expected)
        if not index.refresh():
            return before
        after = check_all(index, expected)
        assert after >= before
        return after

    return read


def keeping(folder: Path, expected: list[tuple[list[str], list[float]]]) -> Read:
    """An index that is never refreshed: its files may all be gone, and it answers as on the first day."""
    index = Index.open(folder)
    first = check_all(index, expected)

    def read() -> int:
        assert check_all(index, expected) == first
        return first

    return read


def sharing(index: Index, expected: list[tuple[list[str], list[float]]]) -> Read:
    """Searches an index that another thread refreshes."""
    return lambda: check(search(index), expected)


def read_until(stop: Callable[[], bool], read: Read) -> list[int]:
    commits = [read()]
    while not stop():
        time.sleep(0.005)  # or the writer, a thread among these, would wait for them most of the time
        commits.append(read())
    assert commits == sorted(commits), "a reader went back in time"
    return commits


# -- the tests


@pytest.fixture
def expected(tmp_path: Path) -> list[tuple[list[str], list[float]]]:
    """What each commit answers, from an index freshly made of its documents."""
    return [
        search(
            Index.build(
                [*documents_of(commit), *map(staying, range(commit + 1))],
                tmp_path / "fresh",
                analyzer="whitespace",
                overwrite=True,
            )
        )
        for commit in range(COMMITS + 1)
    ]


@contextmanager
def reading_threads(reads: list[Read]) -> Iterator[list[list[int]]]:
    """The commits that each thread sees while the block runs."""
    stop, seen, problems = threading.Event(), [[] for _ in reads], []

    def loop(number: int) -> None:
        try:
            seen[number] += read_until(stop.is_set, reads[number])
        except BaseException:
            problems.append(traceback.format_exc())

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(len(reads))]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert problems == []


def test_threads_and_processes_read_while_one_writes(
    tmp_path: Path, expected: list[tuple[list[str], list[float]]]
) -> None:
    folder, stop = tmp_path / "idx", tmp_path / "stop"
    begin(folder)
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    shared = Index.open(folder)

    def refresh() -> int:
        shared.refresh()
        return check(search(shared), expected)

    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), how, str(tmp_path / "expected.json"), str(stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for how in ("opening", "refreshing")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        reads = [
            refreshing(folder, expected),
            keeping(folder, expected),
            refresh,
            sharing(shared, expected),
            sharing(shared, expected),
        ]
        with reading_threads(reads) as seen:
            history(folder)
    finally:
        stop.touch()
        said = [process.communicate(timeout=60) for process in processes]
    for process, (_, err) in zip(processes, said, strict=True):
        assert process.returncode == 0, err
    seen += [json.loads(out.splitlines()[-1]) for out, _ in said]
    _, kept, *others = seen
    assert set(kept) == {0}
    for commits in [seen[0], *others]:
        assert len(set(commits)) > 3, "it read too little to mean anything"
    assert check_all(Index.open(folder), expected) == COMMITS


def test_a_search_is_one_commit_while_another_thread_refreshes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by chance: the refresh comes in the middle of the search."""
    folder = tmp_path / "idx"
    index = Index.build([Document(f"old{n}", "common") for n in range(3)], folder, analyzer="whitespace")
    writer = Index.open(folder)
    writer.add([Document("a new one", "common filler")])
    writer.delete(["old0"])
    writer.merge()
    before = search(index)
    from tamis.index import embedded as module

    run = module.search

    def search_and_refresh(*arguments: object, **options: object) -> object:
        found = run(*arguments, **options)  # type: ignore[arg-type]
        assert index.refresh()
        return found

    monkeypatch.setattr(module, "search", search_and_refresh)
    assert search(index) == before
    monkeypatch.undo()
    assert search(index) == search(Index.open(folder)) != before


def test_a_removed_segment_stays_readable_for_those_who_have_it_open(tmp_path: Path) -> None:
    rng = random.Random(3)
    documents = [Document(f"d{n}", f"common {rng.randbytes(3000).hex()}") for n in range(200)]  # files to map
    index = Index.build(documents, tmp_path / "idx", analyzer="whitespace")
    old = Index.open(tmp_path / "idx")
    index.delete([document.id for document in documents[1:]])
    index.merge()
    assert len(list((tmp_path / "idx/segments").iterdir())) == 1
    assert list(old) == documents
    assert len(search(old)[0]) == 100
    with pytest.raises(UnknownDocumentError):
        index.document("d7")


def test_checksums_are_those_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that removes files while they are verified has not damaged the index."""
    index = Index.build(documents_of(0), tmp_path / "idx")
    index.add(documents_of(1))
    opened = []

    def open_after_a_merge(path: Path, info: ColumnInfo) -> Column:
        opened.append(path)
        if len(opened) == 3:
            index.merge()
        return Column(path, info)

    monkeypatch.setattr("tamis.index.verify.Column", open_after_a_merge)
    assert verify(tmp_path / "idx") == []
    merged = [path for path in opened if path.parent.name == index.segments[0].info.name]
    assert len(merged) == len(index.segments[0].info.columns)
    victim = merged[0]
    victim.unlink()
    assert verify(tmp_path / "idx") == [f"{victim} is missing"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_readers_hold_few_files_open(tmp_path: Path) -> None:
    """Many small segments, and many readers of them, must not run into the limit on open files."""
    folder = tmp_path / "idx"
    begin(folder)
    open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    history(folder)
    readers = [Index.open(folder) for _ in range(20)]
    for reader in readers:
        reader.refresh()
    assert len(readers[0].segments) > 3
    assert len(os.listdir("/proc/self/fd")) <= open_files + 3  # noqa: PTH208


def main(folder: str, how: str, expected: str, stop: str) -> None:
    """What a reading process does; it prints the commits that it saw."""
    answers = [(ids, scores) for ids, scores in json.loads(Path(expected).read_text())]
    read = {"opening": opening, "refreshing": refreshing}[how](Path(folder), answers)
    print("begun", flush=True)
    print(json.dumps(read_until(Path(stop).exists, read)))


if __name__ == "__main__":
    main(*sys.argv[1:])
