"""Tokens beside an index: made unasked when it is, topped up when it grows, and never in anyone's way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.cli import main
from tamis.cli import tokens as command
from tamis.infer.tokens import TokenStore
from tamis.models.bundled import BUNDLED, bundled_models, bundled_tokenizer
from tamis.models.tokenizer import Tokenizer
from tamis.storage.locks import folder_lock
from tests.end_to_end.served import serving

TEXTS = {f"d{n}": f"A sieve of {n} holes, and the soup of day {n * 7}." for n in range(12)}


def corpus(path: Path, *ids: str) -> str:
    path.write_text("".join(json.dumps({"id": each, "text": TEXTS[each]}) + "\n" for each in ids))
    return str(path)


@pytest.fixture
def idx(tmp_path: Path) -> Path:
    return tmp_path / "idx"


@pytest.fixture
def some(tmp_path: Path) -> str:
    return corpus(tmp_path / "some.jsonl", *list(TEXTS)[:8])


def kept(idx: Path) -> int:
    store = TokenStore.open(Index.open(idx), bundled_tokenizer())
    return 0 if store is None else store.documents


def whole(idx: Path) -> bool:
    """Whether all documents have their tokens kept, and nothing else lies there."""
    index = Index.open(idx)
    store = TokenStore(index, bundled_tokenizer())
    ids = list(index.ids())
    expected = bundled_tokenizer().encode([index.document(each).contents for each in ids])
    folder = idx / "tokens" / bundled_tokenizer().fingerprint
    return (
        store.documents == len(index)
        and store.texts(ids).ids.tolist() == expected.ids.tolist()
        and {path.name for path in folder.iterdir()} == {each.info.name for each in index.segments}
    )


def test_one_store_serves_all_bundled_models() -> None:
    assert {Tokenizer(BUNDLED / name).fingerprint for name in bundled_models()} == {
        bundled_tokenizer().fingerprint
    }


def test_tokens_are_made_with_the_index(idx: Path, some: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", some, "-o", str(idx)]) == 0
    assert whole(idx)
    said = capsys.readouterr()
    assert said.out.count("\n") == 1 and said.err == ""


def test_no_tokens(idx: Path, some: str) -> None:
    assert main(["index", some, "-o", str(idx), "--no-tokens"]) == 0
    assert not (idx / "tokens").exists()
    assert main(["merge", str(idx)]) == 0  # nor does whoever merges an index without them
    assert not (idx / "tokens").exists()


def test_an_index_that_grows_or_is_merged(idx: Path, some: str, tmp_path: Path) -> None:
    assert main(["index", some, "-o", str(idx)]) == 0
    more = corpus(tmp_path / "more.jsonl", "d8", "d9")
    assert main(["index", more, "-o", str(idx), "--add", "--no-merge"]) == 0
    assert whole(idx) and len(Index.open(idx).segments) == 2
    assert main(["delete", str(idx), "d3"]) == 0
    assert main(["merge", str(idx)]) == 0
    assert whole(idx) and len(Index.open(idx)) == 9


def test_many_documents_are_left_for_later(
    idx: Path, some: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "AT_ONCE", 7)
    assert main(["index", some, "-o", str(idx)]) == 0
    assert "the models' tokens of 8 documents are not made yet: `tamis serve`" in capsys.readouterr().err
    assert not kept(idx)
    assert main(["index", some, "-o", str(idx), "--overwrite", "--tokens"]) == 0
    assert whole(idx)


def test_who_asked_for_them_hears_that_they_could_not_be_made(
    idx: Path, some: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", some, "-o", str(idx), "--no-tokens"]) == 0
    with folder_lock(idx / "tokens"):
        capsys.readouterr()
        again = ["index", some, "-o", str(idx), "--add", "--on-duplicate", "skip"]
        assert main(again) == 0
        warning = f"warning: no tokens are kept beside {idx} (another process is writing to"
        assert capsys.readouterr().err.startswith(warning)
        assert main([*again, "--tokens"]) == 2
        assert capsys.readouterr().err.startswith("error: another process is writing to")
    assert len(Index.open(idx)) == 8


def test_killed_before_each_change_of_a_file(
    idx: Path, some: str, tmp_path: Path, killed_before: Callable[..., bool]
) -> None:
    assert main(["index", some, "-o", str(idx)]) == 0
    more = corpus(tmp_path / "more.jsonl", "d8", "d9")
    assert main(["index", more, "-o", str(idx), "--add", "--no-tokens"]) == 0
    call, finished, seen = 1, False, []
    while not finished:
        copy = shutil.copytree(idx, tmp_path / str(call))
        finished = killed_before(call, lambda copy=copy: command.keep_tokens(copy, None))
        seen.append(kept(copy))
        command.keep_tokens(copy, None)
        assert whole(copy)
        call += 1
    assert seen == sorted(seen) and set(seen) == {0, 10}


def test_a_server_makes_them_beside_answering(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    model = tiny_checkpoint(tmp_path / "m", layers=1, positions=48)
    index = Index.build((Document(*each) for each in TEXTS.items()), tmp_path / "idx")
    with serving(tmp_path, "-p", "bm25 % 5 >> mono(model=m)", "--deadline", "60s", tokens=True) as served:
        before = served.post("/search", query="sieve soup").json()["results"]
        served.wait(lambda: TokenStore.open(index, Tokenizer(model)) is not None)
        assert served.post("/search", query="sieve soup").json()["results"] == before
    store = TokenStore.open(index, Tokenizer(model))
    assert store is not None and store.documents == len(TEXTS)
