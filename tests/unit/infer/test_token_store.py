"""Tokens kept beside an index: always those of the documents' present texts, whatever happens to either."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking
from tamis.base.errors import CorruptError, InputError, LockedError, UnknownDocumentError
from tamis.infer import tokens
from tamis.infer.tokens import TokenStore, build_tokens, texts_of, untokenised
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.storage import columns
from tamis.storage.locks import folder_lock

WORDS = ["the", "city", "river", "film", "of", "band", "which", "was", "born", "actor", "county", "song"]


def document(number: int, version: int = 0) -> Document:
    rng = random.Random(f"{number} {version}")
    text = " ".join(rng.choices(WORDS, k=rng.randint(0, 40)))
    return Document(f"d{number}", text, title="" if number % 3 else f"title {number}")


def documents(*numbers: int) -> list[Document]:
    return [document(number) for number in numbers]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer(model)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Two segments, ids out of order."""
    index = Index.build(documents(*range(20, 0, -1)), tmp_path / "idx")
    index.add(documents(*range(21, 30)))
    return index


def same(found: Tokenised, expected: Tokenised) -> bool:
    return (
        np.array_equal(found.ids, expected.ids)
        and np.array_equal(found.offsets, expected.offsets)
        and np.array_equal(found.lengths, expected.lengths)
        and found.ids.dtype == expected.ids.dtype
        and found.lengths.dtype == expected.lengths.dtype
    )


def tokenised(index: Index, tokenizer: Tokenizer, ids: Iterable[str]) -> Tokenised:
    """What the store must say, made from the documents."""
    return tokenizer.encode([index.document(identity).contents for identity in ids], limit=512)


def agrees(store: TokenStore, seed: int = 0) -> bool:
    """Whether every document's tokens are those of its text, asked for in any order."""
    ids = list(store.index.ids())
    random.Random(seed).shuffle(ids)
    return same(store.texts(ids), tokenised(store.index, store.tokenizer, ids))


def no_tokenising(*_: object, **__: object) -> Tokenised:
    raise AssertionError("a text was tokenised that is kept as tokens")


# -- building and reading


def test_tokens_are_those_of_title_and_text(
    index: Index, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokenised(index, tokenizer, ["d25", "d3", "d3", "d20"])
    store = build_tokens(index, tokenizer)
    assert agrees(store)
    assert store.documents == 29
    monkeypatch.setattr(tokenizer, "encode", no_tokenising)
    assert same(store.texts(["d25", "d3", "d3", "d20"]), expected)
    assert len(store.texts([])) == 0
    opened = TokenStore.open(Index.open(index.path), tokenizer)
    assert opened is not None
    assert same(opened.texts(["d25", "d3", "d3", "d20"]), expected)


def test_many_ids_by_compiled_code_and_without(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    numbers = list(range(400))
    random.Random(1).shuffle(numbers)
    index = Index.build(documents(*numbers), tmp_path / "idx")
    store = build_tokens(index, tokenizer)
    store.prepare()
    assert "tamis.index.kernel" in sys.modules
    ids = [f"d{number}" for number in random.Random(2).choices(numbers, k=300)]
    fast = store.texts(ids)
    assert same(fast, tokenised(index, tokenizer, ids))
    monkeypatch.delitem(sys.modules, "tamis.index.kernel")
    assert same(fast, store.texts(ids))


def test_unknown_and_deleted_ids(index: Index, tokenizer: Tokenizer) -> None:
    store = build_tokens(index, tokenizer)
    with pytest.raises(UnknownDocumentError, match="the index holds no document 'nobody'"):
        store.texts(["d1", "nobody", "d2"])
    index.delete(["d3"])
    with pytest.raises(UnknownDocumentError, match="'d3'"):
        store.texts(["d1", "d3"])


def test_long_documents_are_kept_to_the_limit_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    long = Document("long", "river " * 700)
    index = Index.build([document(1), long, document(2)], tmp_path / "idx")
    texts = build_tokens(index, tokenizer).texts(["d2", "long"])
    whole = tokenizer.encode([long.contents])
    assert texts.lengths[1] == whole.lengths[0] > 512
    assert texts.take([1]).ids.tolist() == whole.ids[:512].tolist()


def test_limit(index: Index, tokenizer: Tokenizer) -> None:
    def longest(store: TokenStore | None) -> int:
        assert store is not None
        return int(np.diff(store.texts([f"d{n}" for n in range(1, 30)]).offsets).max())

    build_tokens(index, tokenizer, limit=5)
    assert TokenStore.open(index, tokenizer) is None  # a model that reads 512 must not get 5
    assert longest(TokenStore.open(index, tokenizer, limit=5)) == 5
    build_tokens(index, tokenizer)
    assert longest(TokenStore.open(index, tokenizer)) > 5
    assert longest(TokenStore.open(index, tokenizer, limit=5)) == 5
    for limit in (0, 10_000):
        with pytest.raises(InputError, match=f"cannot keep {limit} tokens a document"):
            build_tokens(index, tokenizer, limit=limit)


def test_an_index_without_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    index = Index.build([], tmp_path / "idx")
    store = build_tokens(index, tokenizer)
    assert (store.documents, len(store.texts([]))) == (0, 0)
    assert TokenStore.open(index, tokenizer) is None


def test_two_tokenizers(
    index: Index, tokenizer: Tokenizer, tmp_path: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    other = Tokenizer(tiny_checkpoint(tmp_path / "roberta", family="roberta"))
    build_tokens(index, tokenizer)
    assert TokenStore.open(index, other) is None
    stores = [build_tokens(index, other), build_tokens(index, tokenizer)]
    assert all(agrees(store) for store in stores)
    assert not same(stores[0].texts(["d20"]), stores[1].texts(["d20"]))


# -- rankings


def test_texts_of_a_ranking(index: Index, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = index.bm25()("river film")
    expected = tokenised(index, tokenizer, ranking.ids)
    assert len(expected) > 10
    assert same(texts_of(ranking, tokenizer), expected)  # nothing is kept
    build_tokens(index, tokenizer)
    monkeypatch.setattr(tokenizer, "encode", no_tokenising)
    assert same(texts_of(ranking, tokenizer), expected)
    monkeypatch.undo()

    class Own:
        def document(self, identity: str) -> Document:
            return Document(identity, f"river {identity}")

    elsewhere = Ranking(Query("q", "river"), ("x", "y"), np.array([2.0, 1.0]), texts=Own())
    assert same(texts_of(elsewhere, tokenizer), tokenizer.encode(["river x", "river y"], limit=512))


# -- an index that changes


def test_added_documents_are_tokenised_when_asked_for_until_they_are_built(
    index: Index, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build_tokens(index, tokenizer)
    index.add(documents(*range(30, 40)))
    assert store.documents == 29
    assert agrees(store)
    done: list[int] = []
    build_tokens(index, tokenizer, progress=done.append)
    assert sum(done) == 39
    assert store.documents == 39  # a store that was open sees them
    ids = ["d35", "d2", "d22"]
    expected = tokenised(index, tokenizer, ids)
    monkeypatch.setattr(tokenizer, "encode", no_tokenising)
    assert same(store.texts(ids), expected)


def test_only_what_is_missing_is_tokenised(
    index: Index, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_tokens(index, tokenizer)
    monkeypatch.setattr(tokenizer, "encode", no_tokenising)
    build_tokens(index, tokenizer)
    monkeypatch.undo()
    index.add(documents(30))
    encoded: list[int] = []
    encode = tokenizer.encode
    monkeypatch.setattr(
        tokenizer, "encode", lambda texts, **limit: (encoded.append(len(texts)), encode(texts, **limit))[1]
    )
    build_tokens(index, tokenizer)
    assert encoded == [1]


def test_replaced_documents(index: Index, tokenizer: Tokenizer) -> None:
    store = build_tokens(index, tokenizer)
    index.add([document(4, version=1), document(25, version=1)], on_duplicate="replace")
    assert agrees(store)
    assert agrees(build_tokens(index, tokenizer))


def test_merged_segments(index: Index, tokenizer: Tokenizer) -> None:
    store = build_tokens(index, tokenizer)
    folder = index.path / "tokens" / tokenizer.fingerprint
    before = {path.name for path in folder.iterdir()}
    older = Index.open(index.path)
    index.delete(["d3", "d22"])
    index.merge()
    assert agrees(store)
    assert {path.name for path in folder.iterdir()} == before
    build_tokens(index, tokenizer)
    after = {path.name for path in folder.iterdir()}
    assert after == {segment.info.name for segment in index.segments}
    assert not after & before
    # whoever still has the commit before open reads on
    assert agrees(TokenStore(older, tokenizer))


def test_what_is_merged_or_moved_is_not_tokenised_again(
    index: Index, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_tokens(index, tokenizer)
    index.delete(["d3", "d22"])
    index.add([document(40), Document("copy", document(7).text, document(7).title)])
    index.merge()
    assert untokenised(index, tokenizer) == 0  # as many are known as the new segment has
    encoded: list[str] = []
    encode = tokenizer.encode
    monkeypatch.setattr(
        tokenizer, "encode", lambda texts, **limit: (encoded.extend(texts), encode(texts, **limit))[1]
    )
    store = build_tokens(index, tokenizer)
    assert encoded == [document(40).contents]
    monkeypatch.undo()
    assert store.documents == len(index) == 29
    assert agrees(store)


def test_a_damaged_or_shorter_source_is_tokenised_again(index: Index, tokenizer: Tokenizer) -> None:
    build_tokens(index, tokenizer)
    first, _ = (index.path / "tokens" / tokenizer.fingerprint / each.info.name for each in index.segments)
    damaged = bytearray((first / "ids").read_bytes())
    damaged[0] ^= 1
    (first / "ids").write_bytes(bytes(damaged))
    index.merge()
    assert agrees(build_tokens(index, tokenizer))
    build_tokens(index, tokenizer, limit=5)  # what is kept is longer: nothing to do
    assert agrees(TokenStore(Index.open(index.path), tokenizer))
    index.add(documents(30))
    index.merge()
    build_tokens(index, tokenizer, limit=5)
    index.add(documents(31))
    index.merge()
    assert untokenised(index, tokenizer) == 31  # five tokens are not enough
    assert agrees(build_tokens(index, tokenizer))


def test_how_many_are_not_tokenised(index: Index, tokenizer: Tokenizer) -> None:
    assert untokenised(index, tokenizer) == 29
    build_tokens(index, tokenizer)
    assert untokenised(index, tokenizer) == 0
    index.add(documents(30, 31))
    assert untokenised(index, tokenizer) == 2


def test_a_reader_of_an_older_commit_finds_documents_deleted_since(
    index: Index, tokenizer: Tokenizer
) -> None:
    older = Index.open(index.path)
    index.delete(["d3"])
    build_tokens(index, tokenizer)
    assert agrees(TokenStore(older, tokenizer))


def test_building_for_an_older_commit_keeps_what_the_newest_has(index: Index, tokenizer: Tokenizer) -> None:
    older = Index.open(index.path)
    index.add(documents(30))
    build_tokens(index, tokenizer)
    build_tokens(older, tokenizer)
    store = TokenStore.open(Index.open(index.path), tokenizer)
    assert store is not None
    assert store.documents == 30


def test_an_index_with_tokens_can_be_overwritten(index: Index, tokenizer: Tokenizer) -> None:
    build_tokens(index, tokenizer)
    new = Index.build([Document("d1", "another text")], index.path, overwrite=True)
    assert TokenStore.open(new, tokenizer) is None
    assert agrees(build_tokens(new, tokenizer))


def test_tokens_of_other_texts_do_not_count(index: Index, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A folder copied into the place of another."""
    build_tokens(index, tokenizer)
    folder = index.path / "tokens" / tokenizer.fingerprint
    first, second = (segment.info.name for segment in index.segments)
    shutil.rmtree(folder / first)
    shutil.copytree(folder / second, folder / first)
    store = TokenStore(Index.open(index.path), tokenizer)
    assert store.documents == 9
    assert agrees(store)
    assert build_tokens(index, tokenizer).documents == 29


def test_segments_let_go_of_their_tokens(index: Index, tokenizer: Tokenizer) -> None:
    build_tokens(index, tokenizer).texts(["d1"])
    open_before = len(tokens._OPENED)
    other = Index.open(index.path)
    TokenStore(other, tokenizer).texts(["d1", "d25"])
    assert len(tokens._OPENED) == open_before + 2
    del other
    gc.collect()
    assert len(tokens._OPENED) == open_before


# -- damage


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["ids", "ends", "lengths", "digests", "tokens.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_and_mended_by_building_again(
    index: Index, tokenizer: Tokenizer, name: str, damage: str
) -> None:
    build_tokens(index, tokenizer)
    folder = index.path / "tokens" / tokenizer.fingerprint / index.segments[0].info.name
    path = folder / name
    if damage == "flip":
        flip(path, path.stat().st_size // 2)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    reopened = Index.open(index.path)
    if (name, damage) == ("tokens.json", "remove"):  # then there are no tokens
        assert TokenStore(reopened, tokenizer).documents == 9
    else:
        with pytest.raises(
            CorruptError, match=r": build the tokens again with `tamis tokens`, or remove "
        ) as error:
            TokenStore.open(reopened, tokenizer)
        assert str(folder) in str(error.value)
    store = build_tokens(reopened, tokenizer)
    assert store.documents == 29
    assert agrees(store)


def test_every_damaged_byte_of_a_large_column_is_found_when_it_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of three chunks that is not checked when it is opened; document 262 lies in two of them."""
    monkeypatch.setattr(columns, "CHECK_AT_OPEN", 1 << 16)
    index = Index.build([Document(f"{n:03d}", "of " * 500) for n in range(560)], tmp_path / "idx")
    expected = build_tokens(index, tokenizer, limit=500).texts(["300"])
    path = next((index.path / "tokens").glob("*/*/ids"))
    assert path.stat().st_size == 560 * 1000 + 3 * 8  # checksums at the end
    for at in (0, columns.CHUNK - 1, columns.CHUNK, 2 * columns.CHUNK - 1, 560 * 1000 - 1):
        flip(path, at)
        store = TokenStore(Index.open(index.path), tokenizer, limit=500)
        harmed, other = f"{at // 1000:03d}", "400" if at < columns.CHUNK else "100"
        assert same(store.texts([other]), expected)
        for ids in ([other, harmed], [harmed]):
            with pytest.raises(CorruptError, match="fail their checksum"):
                store.texts(ids)
        flip(path, at)


def test_a_file_in_the_place_of_the_folder(index: Index, tokenizer: Tokenizer) -> None:
    (index.path / "tokens").write_text("not a folder")
    assert agrees(TokenStore(index, tokenizer))


# -- builds that stop, and builds side by side


def test_a_build_that_fails_leaves_what_is_whole(index: Index, tokenizer: Tokenizer) -> None:
    done: list[int] = []

    def stop(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_tokens(index, tokenizer, progress=stop)
    folder = index.path / "tokens" / tokenizer.fingerprint
    assert [path.name for path in folder.iterdir()] == [index.segments[0].info.name]
    store = build_tokens(index, tokenizer)
    assert store.documents == 29
    assert agrees(store)


def killed(folder: str, model: str, after: str) -> None:
    """What the process does that is killed: itself, when it has tokenised so many batches."""
    done: list[int] = []

    def kill(count: int) -> None:
        done.append(count)
        if len(done) == int(after):
            os.kill(os.getpid(), signal.SIGKILL)

    build_tokens(Index.open(folder), Tokenizer(model), progress=kill)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_build_goes_on_where_it_stopped(index: Index, tokenizer: Tokenizer, model: Path) -> None:
    command = [sys.executable, __file__, str(index.path), str(model), "2"]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    folder = index.path / "tokens" / tokenizer.fingerprint
    first, second = (segment.info.name for segment in index.segments)
    assert (folder / first).is_dir()
    assert not (folder / second).exists()
    assert len(list(folder.iterdir())) == 2  # and what the second was to become
    written = (folder / first / "tokens.json").stat().st_mtime_ns
    store = TokenStore.open(index, tokenizer)
    assert store is not None
    assert store.documents == 20
    assert agrees(store)
    assert build_tokens(index, tokenizer).documents == 29
    assert {path.name for path in folder.iterdir()} == {first, second}
    assert (folder / first / "tokens.json").stat().st_mtime_ns == written


def test_one_builds_at_a_time(index: Index, tokenizer: Tokenizer) -> None:
    with folder_lock(index.path / "tokens"), pytest.raises(LockedError, match="another process is writing"):
        build_tokens(index, tokenizer)
    assert agrees(build_tokens(index, tokenizer))


def test_the_index_can_be_written_while_tokens_are_built(index: Index, tokenizer: Tokenizer) -> None:
    def meanwhile(count: int) -> None:
        other = Index.open(index.path)
        if "d30" not in other:
            other.add(documents(30))
            other.merge()

    build_tokens(index, tokenizer, progress=meanwhile)
    assert agrees(TokenStore(index, tokenizer))
    index.refresh()
    assert agrees(TokenStore(index, tokenizer))
    assert build_tokens(index, tokenizer).documents == 30


if __name__ == "__main__":
    killed(*sys.argv[1:])
