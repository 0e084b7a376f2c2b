"""Damaged files: whatever byte is wrong, the answer is `CorruptError` or the right one, never another."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.base.errors import CorruptError, InputError, StorageError, TamisError
from tamis.index.score import BM25
from tamis.index.search import Backend
from tamis.index.verify import verify
from tamis.storage import columns

TEXTS = ["sieve flour sieve", "flour cake soup", "", "fine sieve of steel", "soup soup onion"]
TERMS = ["sieve", "flour", "cake", "soup", "fine", "of", "steel", "onion"]
SMALL_CHUNK = 16  # bytes: even a tiny column has several


def build(folder: Path) -> Path:
    """Two segments with positions, each with a deleted document."""
    documents = [Document(f"d{n}", text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    index = Index.build(documents[:3], folder, analyzer="whitespace", positions=True)
    index.add(documents[3:])
    index.delete(["d1", "d4"])
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sound") / "idx")


@pytest.fixture(scope="module")
def sound_in_small_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "CHUNK", SMALL_CHUNK)
        return build(tmp_path_factory.mktemp("chunks") / "idx")


@pytest.fixture
def copy(tmp_path: Path, sound: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "idx")


@pytest.fixture
def lazy(tmp_path: Path, sound_in_small_chunks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of which nothing is checked before it is read, and only the chunks that are."""
    monkeypatch.setattr(columns, "CHUNK", SMALL_CHUNK)
    monkeypatch.setattr(columns, "CHECK_AT_OPEN", 0)
    return shutil.copytree(sound_in_small_chunks, tmp_path / "idx")


def files(folder: Path) -> list[Path]:
    """Every file but the lock, which is empty."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def reading(backend: Backend = "numpy", terms: list[str] = TERMS) -> list[Callable[[Index], Any]]:
    """Everything that can be read, in parts: each must give the right answer or none."""

    def search(index: Index, term: str) -> Any:
        ids, scores = index.search({term: 1.0, "sieve": 1.0}, BM25(), 5, backend=backend)
        return ids, scores.tolist()

    def sdm(index: Index, term: str) -> Any:
        ranking = index.sdm()(f"{term} sieve")
        return ranking.ids, ranking.scores.tolist()

    parts: list[Callable[[Index], Any]] = [
        list,
        lambda index: list(index.ids()),
        lambda index: [index.document(f"d{n}") for n in (0, 2, 3)],
        lambda index: ["d1" in index, "d9" in index],
        lambda index: [segment.terms() for segment in index.segments],
        lambda index: index.explain({"sieve": 1.0}, BM25(), "d0"),
        lambda index: [document for segment in index.segments for document in segment.store],
    ]
    for term in terms:
        parts += [lambda index, term=term: search(index, term), lambda index, term=term: sdm(index, term)]
    return parts


@contextmanager
def flipped(path: Path, at: int, bits: int) -> Iterator[None]:
    """Some bits of one byte are wrong in this block."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        right = file.read(1)[0]
        file.seek(at)
        file.write(bytes([right ^ bits]))
        try:
            yield
        finally:
            file.seek(at)
            file.write(bytes([right]))


def test_the_sound_index_is_sound(sound: Path) -> None:
    index = Index.open(sound)
    assert [part(index) for part in reading()]
    assert (len(index.segments), [s.deleted is not None for s in index.segments]) == (2, [True, True])
    assert verify(sound) == []
    assert len(files(sound)) > 40


def test_every_byte_of_every_file_is_vouched_for(copy: Path) -> None:
    for path in files(copy):
        for at in range(path.stat().st_size):
            with flipped(path, at, 1 << at % 8), pytest.raises(CorruptError) as error:
                Index.open(copy)
            assert str(path) in str(error.value) and "restore it from a copy" in str(error.value)
    assert verify(copy) == []


def test_what_is_read_later_is_checked_when_it_is_read(lazy: Path) -> None:
    """Whatever is damaged, each way to read gives the right answer or `CorruptError`; only what belongs to
    deleted documents alone is never read, and `verify` finds that too."""
    parts = [(part, part(Index.open(lazy))) for part in reading()]
    rng = random.Random(5)
    opened = unread = 0
    for path in files(lazy):
        if path.name == "manifest.json":
            continue
        for at in range(rng.randrange(5), path.stat().st_size, 5):  # three a chunk
            with flipped(path, at, rng.randint(1, 255)):
                try:
                    index = Index.open(lazy)
                except CorruptError:
                    continue
                opened += 1
                right = [_right_or_refused(part, index, answer) for part, answer in parts]
                if all(right):
                    unread += 1
                    assert [str(path) in problem for problem in verify(lazy)] == [True]
    assert opened > 150  # most is not checked at the door
    assert unread < opened / 10


def _right_or_refused(part: Callable[[Index], Any], index: Index, answer: Any) -> bool:
    try:
        assert part(index) == answer
    except CorruptError:
        return False
    return True


def test_a_merge_does_not_carry_damage_over(lazy: Path, tmp_path: Path) -> None:
    expected = [part(Index.open(lazy)) for part in reading()[:4]]
    rng = random.Random(6)
    for number, path in enumerate(files(lazy)):
        if not path.stat().st_size:
            continue
        damaged = shutil.copytree(lazy, tmp_path / str(number))
        target = damaged / path.relative_to(lazy)
        with flipped(target, rng.randrange(target.stat().st_size), 4), suppress(CorruptError):
            Index.open(damaged).merge()
        # undamaged again, it is as before, or merged where the damage was in what is deleted
        assert [part(Index.open(damaged)) for part in reading()[:4]] == expected
        assert verify(damaged) == []


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_damage_in_long_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    """Lists of many blocks: the compiled search, too, reads only what has been checked."""
    monkeypatch.setattr(columns, "CHUNK", SMALL_CHUNK)
    monkeypatch.setattr(columns, "CHECK_AT_OPEN", 0)
    rng = random.Random(7)
    words = [f"w{n}" for n in range(12)]
    documents = [
        Document(
            f"d{n:03}",
            " ".join(w for i, w in enumerate(words) for _ in range(3) if rng.random() < 1 / (i + 1)),
        )
        for n in range(700)
    ]
    documents += [Document("much", "w1 " * 300), Document("often", "w2 " * 100)]
    folder = Index.build(documents, tmp_path / "idx", analyzer="whitespace").path
    queries = [{"w1": 1.0}, {"w2": 1.0}, *({word: 1.0, "w5": 0.5} for word in words[::2])]

    def answer(index: Index, query: dict[str, float]) -> Any:
        ids, scores = index.search(query, BM25(), 10, backend=backend)
        return ids, scores.tolist()

    expected = [answer(Index.open(folder), query) for query in queries]
    refused = 0
    for path in (path for path in files(folder) if path.name.startswith(("postings.", "documents."))):
        size = path.stat().st_size
        # of the pairs only the highest tf of a list shows in an answer: try them all
        for at in rng.sample(range(size), size if path.name == "postings.pairs" else min(size, 20)):
            with flipped(path, at, rng.randint(1, 255)):
                try:
                    index = Index.open(folder)
                except CorruptError:
                    continue
                for query, right in zip(queries, expected, strict=True):
                    try:
                        assert answer(index, query) == right, f"byte {at} of {path}"
                    except CorruptError:
                        refused += 1
    assert refused > 50


CHANGES: dict[str, Callable[[Path], object]] = {
    "truncated by a byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "truncated by half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "longer by a byte": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "longer by a page": lambda path: path.write_bytes(path.read_bytes() + b"\n" * 4096),
    "twice itself": lambda path: path.write_bytes(path.read_bytes() * 2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "random": lambda path: path.write_bytes(random.Random(1).randbytes(path.stat().st_size)),
    "deleted": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_file_changed_as_a_whole(copy: Path, change: str) -> None:
    for path in files(copy):
        data = path.read_bytes()
        if not data and change not in ("longer by a byte", "longer by a page", "deleted", "a folder"):
            continue  # an empty column stays what it is
        CHANGES[change](path)
        error: type[TamisError] = CorruptError
        problem = path.name
        if path.name == "manifest.json" and change in ("deleted", "a dangling link"):
            error, problem = InputError, "holds no index"
        elif path.name == "manifest.json" and change == "a folder":
            error, problem = StorageError, "cannot read"
        with pytest.raises(error, match=problem):
            Index.open(copy)
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    assert verify(copy) == []


def test_files_of_two_segments_exchanged(copy: Path) -> None:
    one, two = sorted((copy / "segments").iterdir())
    one.rename(copy / "third")
    two.rename(one)
    (copy / "third").rename(two)
    with pytest.raises(CorruptError):
        Index.open(copy)


def test_a_missing_segment(copy: Path) -> None:
    shutil.rmtree(sorted((copy / "segments").iterdir())[0])
    with pytest.raises(CorruptError, match="is missing: restore it from a copy, or build the index again"):
        Index.open(copy)


def test_no_segments_at_all(copy: Path) -> None:
    shutil.rmtree(copy / "segments")
    with pytest.raises(CorruptError, match="is missing"):
        Index.open(copy)
    (copy / "segments").write_text("a file")
    with pytest.raises(CorruptError):
        Index.open(copy)


def test_a_writer_leaves_a_damaged_index_as_it_is(copy: Path) -> None:
    """Nothing is removed that could still be restored from a copy."""
    index = Index.open(copy)
    before = {path: path.read_bytes() for path in files(copy)}
    damaged = copy / "manifest.json"
    damaged.write_bytes(before[damaged][:-5])
    with pytest.raises(CorruptError):
        index.add([Document("new", "sieve")])
    damaged.write_bytes(before[damaged])
    assert {path: path.read_bytes() for path in files(copy)} == before
    assert [part(Index.open(copy)) for part in reading()]


def test_strange_files_beside_it_do_no_harm(copy: Path) -> None:
    expected = [part(Index.open(copy)) for part in reading()]
    segment = sorted((copy / "segments").iterdir())[0]
    (segment / ".DS_Store").write_bytes(b"x")
    (copy / "backup.tar").write_bytes(b"x")
    index = Index.open(copy)
    assert [part(index) for part in reading()] == expected
    index.add([Document("new", "sieve")])
    assert (copy / "backup.tar").exists() and (segment / ".DS_Store").exists()
