"""What the file system refuses: a full disk, a read-only folder, a failing device, too many open files, a
lock. Each is a `StorageError` or `LockedError` in one line, and the old index stays whole."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.base.errors import LockedError, StorageError, TamisError
from tamis.index import build
from tamis.index.score import BM25
from tamis.index.verify import verify
from tamis.index.writer import create

PAGE = 4096
WORDS = [f"word{n}" for n in range(300)]
needs_posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions and limits")


def random_documents(count: int, *, seed: int = 0, prefix: str = "d") -> list[Document]:
    rng = random.Random(seed)
    return [Document(f"{prefix}{n}", " ".join(rng.choices(WORDS, k=40))) for n in range(count)]


def state(index: Index) -> Any:
    found = [index.search({word: 1.0}, BM25(), 10, backend="numpy") for word in WORDS[:20]]
    return index.fingerprint, list(index), [(ids, scores.tolist()) for ids, scores in found]


def assert_whole(folder: Path, expected: Any) -> None:
    """Every byte is right, the answers are those from before, and nothing half-written lies about."""
    index = Index.open(folder)
    assert state(index) == expected
    assert verify(folder) == []
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "segments", "lock"}
    assert {path.name for path in (folder / "segments").iterdir()} == {s.info.name for s in index.segments}


def add(index: Index) -> None:
    index.add(random_documents(60, seed=1, prefix="new"))


def replace(index: Index) -> None:
    index.add(random_documents(60, seed=2), on_duplicate="replace")


def delete(index: Index) -> None:
    index.delete([f"d{n}" for n in range(0, 25, 7)])


def merge(index: Index) -> None:
    index.merge()


CHANGES: list[Callable[[Index], None]] = [add, replace, delete, merge]


# -- a full disk


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("disk")
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command here to make a small disk with")
    if mounted.returncode:
        pytest.skip(f"may not mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, pages_left: int) -> None:
    """Fill the disk up, then free some pages."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        size = 0
        try:
            while True:
                size += filler.write(bytes(PAGE))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        filler.truncate(size - pages_left * PAGE)


@pytest.mark.parametrize("change", CHANGES)
def test_a_disk_that_fills_up_at_any_moment(small_disk: Path, change: Callable[[Index], None]) -> None:
    with tempfile.TemporaryDirectory(dir=small_disk) as place:
        folder = Path(place) / "idx"
        Index.build(random_documents(80), folder, commit_every=40)
        before = state(Index.open(folder))
        refused = 0
        for pages_left in range(0, 200, 3):
            fill(small_disk, pages_left)
            try:
                change(Index.open(folder))
                break
            except StorageError as error:
                refused += 1
                assert "\n" not in str(error)
                assert str(error).startswith("cannot write ")
                assert "(No space left on device): free some space or write to another disk" in str(error)
            (small_disk / "filler").unlink()
            assert_whole(folder, before)
        (small_disk / "filler").unlink(missing_ok=True)
        assert refused >= (1 if change is delete else 5)
        after = Index.open(folder)
        assert after.fingerprint != before[0]
        assert_whole(folder, state(after))


def test_a_disk_that_fills_up_while_a_run_is_spilled(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PARCEL", 500)
    with tempfile.TemporaryDirectory(dir=small_disk) as place:
        index = Index.build(random_documents(20), Path(place) / "idx")
        before = state(index)
        fill(small_disk, 3)
        with pytest.raises(StorageError, match=r"cannot write .*run-\d.*No space left"):
            add(index)
        (small_disk / "filler").unlink()
        assert_whole(index.path, before)


def test_a_first_build_on_a_full_disk_leaves_nothing_and_can_be_repeated(small_disk: Path) -> None:
    with tempfile.TemporaryDirectory(dir=small_disk) as place:
        folder = Path(place) / "idx"
        fill(small_disk, 4)
        with pytest.raises(StorageError, match="No space left on device"):
            Index.build(random_documents(80), folder)
        assert list((folder / "segments").iterdir()) == []
        (small_disk / "filler").unlink()
        assert len(Index.build(random_documents(80), folder)) == 80


def test_a_writer_that_met_a_full_disk_does_not_pretend_to_commit(small_disk: Path) -> None:
    with tempfile.TemporaryDirectory(dir=small_disk) as place:
        index = Index.build(random_documents(20), Path(place) / "idx")
        before = state(index)
        with index.writer() as writer:
            for document in random_documents(10, prefix="new"):
                writer.add(document)
            fill(small_disk, 2)
            with pytest.raises(StorageError):
                writer.commit()
            (small_disk / "filler").unlink()
            with pytest.raises(TamisError, match="failed: open another one: the last commit is complete"):
                writer.commit()
        assert_whole(index.path, before)


# -- a device that fails


@pytest.mark.parametrize("change", CHANGES)
def test_a_device_that_fails_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Index], None]
) -> None:
    """Every call that makes something durable fails once: before the manifest is replaced the old index is
    whole, after it the new one."""
    folder = tmp_path / "idx"
    Index.build(random_documents(30), folder, commit_every=15)
    before = state(Index.open(folder))
    calls = fail_at = 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    while True:
        calls, fail_at = 0, fail_at + 1
        try:
            change(Index.open(folder))
            break
        except StorageError as error:
            assert "(Input/output error): check the disk" in str(error)
        index = Index.open(folder)
        if index.fingerprint != before[0]:  # the last call of all: making the replacement durable
            assert fail_at == calls
            break
        assert_whole(folder, before)
    assert fail_at > (4 if change is delete else 20)
    with Index.open(folder).writer():  # the next one removes what was not when nobody knew what is durable
        pass
    assert_whole(folder, state(Index.open(folder)))


# -- folders that may not be written

AS_NOBODY = """
    import json, os, sys, tempfile
    from pathlib import Path
    from tamis import Document, Index
    from tamis.base.errors import TamisError
    from tamis.formats import read_corpus

    folder = Path(sys.argv[1])
    if os.geteuid() == 0:  # root may write anything
        with tempfile.TemporaryDirectory() as place:  # to import all that others may not be allowed to read
            Index.build([Document("d", "word")], place + "/idx").bm25(backend="numpy")("word")
        os.setegid(65534)
        os.seteuid(65534)

    def attempt(change):
        try:
            change()
        except TamisError as error:
            return f"{type(error).__name__}: {error}"

    changes = {
        "add": lambda: Index.open(folder / "idx").add([Document("new", "word1")]),
        "delete": lambda: Index.open(folder / "idx").delete(["d1"]),
        "merge": lambda: Index.open(folder / "idx").merge(),
        "overwrite": lambda: Index.build([], folder / "idx", overwrite=True),
        "build": lambda: Index.build([], folder / "other"),
        "unreadable": lambda: Index.open(folder / "unreadable"),
        "secret": lambda: Index.open(folder / "secret"),
        "notes": lambda: read_corpus(folder / "notes"),
    }
    answer = {name: attempt(changes[name]) for name in sys.argv[2:]}
    answer["ids"] = Index.open(folder / "idx").bm25(backend="numpy")("word1").ids
    print(json.dumps(answer))
"""


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder to which others have a way, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)
        for path in Path(place).rglob("*"):
            if path.is_dir():
                path.chmod(0o755)


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(script: str, *arguments: object) -> Any:
    process = child(script, *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


@needs_posix
def test_a_read_only_index_can_be_searched_and_not_changed(shared_folder: Path) -> None:
    index = Index.build(random_documents(30), shared_folder / "idx", commit_every=15)
    before = state(index)
    (Index.build([], shared_folder / "unreadable").path / "manifest.json").chmod(0)
    secret = Index.build(random_documents(3), shared_folder / "secret")
    next((secret.path / "segments").rglob("store.frames")).chmod(0)
    (shared_folder / "notes" / "closed").mkdir(parents=True)
    (shared_folder / "notes" / "open.txt").write_text("word1")
    (shared_folder / "notes" / "closed").chmod(0)
    for path in [shared_folder / "idx", *(shared_folder / "idx").rglob("*"), shared_folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    changes = ["add", "delete", "merge", "overwrite"]
    answer = said(AS_NOBODY, shared_folder, *changes, "build", "unreadable", "secret", "notes")
    shared_folder.chmod(0o755)

    assert answer["ids"] == list(index.bm25(backend="numpy")("word1").ids)
    lock = shared_folder / "idx" / "lock"
    for change in changes:
        assert answer[change].startswith(f"StorageError: cannot write {lock} (Permission denied): check the")
    assert answer["build"].startswith(f"StorageError: cannot write {shared_folder / 'other'}")
    assert "manifest.json (Permission denied): check the permissions" in answer["unreadable"]
    assert answer["secret"].startswith("StorageError: cannot read ")
    assert "store.frames (Permission denied)" in answer["secret"]
    assert answer["notes"].startswith(f"InputError: {shared_folder / 'notes' / 'closed'}: cannot be opened")
    assert state(Index.open(shared_folder / "idx")) == before


@needs_posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can lock itself out")
def test_segments_that_may_not_be_written(shared_folder: Path) -> None:
    """The lock may be taken, and then the folder of the segments turns out to be closed."""
    index = Index.build(random_documents(30), shared_folder / "idx")
    before = state(index)
    (shared_folder / "idx").chmod(0o777)
    (shared_folder / "idx/lock").chmod(0o666)
    answer = said(AS_NOBODY, shared_folder, "add", "delete")
    for change in ("add", "delete"):
        assert "StorageError: cannot write" in answer[change]
        assert "(Permission denied)" in answer[change]
    assert state(Index.open(shared_folder / "idx")) == before


def test_a_read_only_file_system(small_disk: Path) -> None:
    with tempfile.TemporaryDirectory(dir=small_disk) as place:
        index = Index.build(random_documents(20), Path(place) / "idx")
        before = state(index)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        try:
            for change in CHANGES:
                with pytest.raises(StorageError, match=r"Read-only file system\): write to a folder that"):
                    change(index)
            assert_whole(index.path, before)
        finally:
            subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


# -- limits


@needs_posix
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    index = Index.build(random_documents(20), tmp_path / "idx")
    before = state(index)
    answer = said(
        """
        import json, os, resource, sys
        from tamis import Document, Index
        from tamis.base.errors import StorageError

        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
        try:
            text = os.urandom(100_000).hex()
            Index.open(sys.argv[1]).add([Document(f"new{n}", text[n:]) for n in range(5)])
        except StorageError as error:
            print(json.dumps(str(error)))
        """,
        index.path,
    )
    assert answer.startswith("cannot write ")
    assert answer.endswith("(File too large): write where files may be larger")
    assert_whole(index.path, before)


@needs_posix
def test_a_limit_on_open_files(tmp_path: Path) -> None:
    index = Index.build(random_documents(20), tmp_path / "idx")
    answer = said(
        """
        import json, resource, sys
        from tamis import Index
        from tamis.base.errors import StorageError
        import tamis.index.embedded  # a module is a file, too

        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        try:
            Index.open(sys.argv[1])
        except StorageError as error:
            print(json.dumps(str(error)))
        """,
        index.path,
    )
    assert answer.startswith("cannot read ")
    assert answer.endswith("(Too many open files): allow more open files (ulimit -n), or merge the index")


# -- the lock

HOLD_THE_LOCK = """
    import sys
    from tamis import Document, Index

    with Index.open(sys.argv[1]).writer() as writer:
        writer.add(Document("pending", "word1"))
        print("writing", flush=True)
        sys.stdin.read()
"""


def test_one_writer_at_a_time_in_a_process(tmp_path: Path) -> None:
    index = Index.build(random_documents(20), tmp_path / "idx")
    other = Index.open(tmp_path / "idx")
    with index.writer() as writer:
        for change in CHANGES:
            with pytest.raises(LockedError, match=r"^another process is writing to .*idx: wait until it"):
                change(other)
        with pytest.raises(LockedError):
            Index.build([], tmp_path / "idx", overwrite=True)
        writer.add(Document("new", "word1"))
        writer.commit()
    assert other.refresh() and "new" in other
    add(other)  # the lock is free again
    assert len(other) == 81


def test_one_first_writer_at_a_time(tmp_path: Path) -> None:
    with create(tmp_path / "idx") as writer:
        writer.add(Document("a", "word1"))
        with pytest.raises(LockedError):
            Index.build([Document("b", "word2")], tmp_path / "idx")
        writer.commit()
    assert list(Index.open(tmp_path / "idx").ids()) == ["a"]


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_the_lock_of_another_process(tmp_path: Path, how: str) -> None:
    index = Index.build(random_documents(20), tmp_path / "idx")
    before = state(index)
    process = child(HOLD_THE_LOCK, index.path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "writing\n"
        with pytest.raises(LockedError):
            add(index)
        assert state(Index.open(index.path)) == before  # readers do not wait
        if how == "kill":
            process.send_signal(signal.SIGKILL)
    finally:
        _, err = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if how == "kill" else 0), err
    if how == "exit":
        assert_whole(index.path, before)
    add(index)
    assert len(index) == 80 and "pending" not in index
    assert_whole(index.path, state(index))
