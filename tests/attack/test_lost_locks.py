"""Locks that are removed, or inherited by a child: never two writers whose commits undo each other."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.base.documents import Query
from tamis.base.errors import InputError, LockedError
from tamis.core.journal import Job, Journal, digest, remove
from tamis.index.verify import verify
from tamis.index.writer import create
from tamis.storage.locks import folder_lock

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def docs(*ids: str) -> list[Document]:
    return [Document(identity, f"sieve {identity}") for identity in ids]


def test_a_writer_whose_lock_was_removed_does_not_undo_another_commit(tmp_path: Path) -> None:
    index = Index.build(docs("a"), tmp_path / "idx")
    with pytest.raises(LockedError, match="lock"), index.writer() as first:
        first.add(docs("b")[0])
        (tmp_path / "idx" / "lock").unlink()
        Index.open(tmp_path / "idx").add(docs("c"))
        first.commit()
    assert [*Index.open(tmp_path / "idx").ids()] == ["a", "c"]
    assert verify(tmp_path / "idx") == []


def test_a_writer_whose_lock_was_removed_leaves_the_files_of_the_other(tmp_path: Path) -> None:
    index = Index.build(docs("a"), tmp_path / "idx")
    with index.writer() as first:
        first.add(docs("b")[0])
        (tmp_path / "idx" / "lock").unlink()
        with Index.open(tmp_path / "idx").writer() as second:
            second.add(docs("c")[0])
            first.discard()
            second.commit()
    assert [*Index.open(tmp_path / "idx").ids()] == ["a", "c"]
    assert verify(tmp_path / "idx") == []


def test_a_lock_that_was_put_back_does_not_hide_another_commit(tmp_path: Path) -> None:
    lock = tmp_path / "idx" / "lock"
    index = Index.build(docs("a", "b"), tmp_path / "idx")
    with pytest.raises(LockedError, match="has written"), index.writer() as first:
        first.delete("b")
        lock.rename(tmp_path / "aside")
        Index.open(tmp_path / "idx").add(docs("c"))
        (tmp_path / "aside").replace(lock)
        first.commit()
    assert [*Index.open(tmp_path / "idx").ids()] == ["a", "b", "c"]


def test_two_first_commits(tmp_path: Path) -> None:
    with pytest.raises(LockedError), create(tmp_path / "idx") as first:
        first.add(docs("b")[0])
        (tmp_path / "idx" / "lock").unlink()
        Index.build(docs("c"), tmp_path / "idx")
        first.commit()
    assert [*Index.open(tmp_path / "idx").ids()] == ["c"]


@needs_fork
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    index = Index.build(docs("a"), tmp_path / "idx")
    wakes, wake = os.pipe()
    with index.writer() as writer:
        child = os.fork()
        if child == 0:
            os.close(wake)
            os.read(wakes, 1)  # until the parent has written again
            os._exit(0)
        writer.add(docs("b")[0])
        with pytest.raises(LockedError):  # what the child has closed is still the parent's
            Index.open(tmp_path / "idx").add(docs("x"))
        writer.commit()
    try:
        index.add(docs("c"))
    finally:
        os.close(wake)
        os.waitpid(child, 0)
        os.close(wakes)
    assert [*index.ids()] == ["a", "b", "c"]


@needs_fork
def test_a_forked_child_neither_commits_nor_removes(tmp_path: Path) -> None:
    index = Index.build(docs("a"), tmp_path / "idx")
    with index.writer() as writer:
        writer.add(docs("b")[0])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    writer.commit()
                except LockedError:
                    writer.discard()
                    del writer
                    gc.collect()  # what is buffered in the parent's files must not be written here
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.commit()
    assert [*index.ids()] == ["a", "b"] and verify(tmp_path / "idx") == []


@needs_fork
def test_a_child_that_outlives_a_killed_parent_holds_nothing(tmp_path: Path) -> None:
    Index.build(docs("a"), tmp_path / "idx")
    wakes, wake = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(wake)
        with folder_lock(tmp_path / "idx"):
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            os.read(wakes, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    try:
        Index.open(tmp_path / "idx").add(docs("b"))
    finally:
        os.close(wake)
        os.close(wakes)


def journal(path: Path) -> Journal:
    return Journal(path, Job("bm25", "a1", (("bm25", "a1"),), digest([Query("q1", "sieve")]), 1), at_once=1)


def test_only_a_journal_that_nobody_writes_is_removed(tmp_path: Path) -> None:
    path, mine = tmp_path / "a.journal", tmp_path / "mine.journal"
    with journal(path), pytest.raises(LockedError):
        remove(path)
    assert path.exists()
    remove(path)
    assert not path.exists()
    mine.write_text("my diary")
    with pytest.raises(InputError, match="not a journal"):
        remove(mine)
    assert mine.exists()
