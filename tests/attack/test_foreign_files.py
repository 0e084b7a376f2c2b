"""Files of others in folders that tamis writes to: none is ever deleted or replaced, whatever its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.base.errors import InputError, StorageError
from tamis.cli import main
from tamis.index.verify import verify
from tamis.index.writer import create
from tamis.infer.tokens import build_tokens
from tamis.models.tokenizer import Tokenizer
from tamis.storage.markers import MARKER

DOCUMENTS = [Document("d1", "a fine sieve"), Document("d2", "coarse flour")]
FOREIGN = (
    "segments/speaker1/take.wav",
    "segments/00000001-0123abcd/take.wav",
    "segments/take.wav",
    "tokens/speaker1/take.wav",
    "tokens/speaker1/00000001-0123abcd/take.wav",
    "manifest.json",
    "lock",
    ".tamis-notes",
    ".tamis-0123456789abcdef.tmp",
    "notes.txt",
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.tsv"
    path.write_text("d1\ta fine sieve\nd2\tcoarse flour\n")
    return path


def place(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    return path


@pytest.mark.parametrize("option", [[], ["--overwrite"], ["--resume"]])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_files_of_others_gets_no_index(
    tmp_path: Path, corpus: Path, name: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = place(tmp_path / "p", name)
    assert main(["index", str(corpus), "-o", str(tmp_path / "p"), *option]) == 2
    assert mine.read_text() == "mine"
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and str(tmp_path / "p") in errors[0]


@pytest.mark.parametrize("name", FOREIGN)
def test_an_index_with_files_of_others_is_not_overwritten(tmp_path: Path, name: str) -> None:
    Index.build(DOCUMENTS, tmp_path / "p")
    if name == "manifest.json":
        return  # there is one already
    mine = place(tmp_path / "p", name)
    with pytest.raises(InputError, match="is not part of an index"):
        Index.build(DOCUMENTS[:1], tmp_path / "p", overwrite=True)
    assert mine.read_text() == "mine" and len(Index.open(tmp_path / "p")) == 2


@pytest.mark.parametrize("name", FOREIGN)
def test_a_writer_leaves_files_of_others(tmp_path: Path, name: str) -> None:
    """Added to, deleted from and merged, an index keeps what somebody has put beside its files."""
    index = Index.build(DOCUMENTS, tmp_path / "p")
    if name == "manifest.json":
        return
    mine = place(tmp_path / "p", name)
    within = place(tmp_path / "p" / "segments" / index.segments[0].info.name, "take.wav")
    index.add([Document("d3", "onion soup")])
    index.delete(["d1"])
    index.merge()
    assert mine.read_text() == "mine" and within.read_text() == "mine"
    assert verify(tmp_path / "p") == [] and [*index.ids()] == ["d2", "d3"]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    index = Index.build(DOCUMENTS, folder)
    with index.writer() as writer:
        writer.add(Document("d3", "onion soup"))
        shutil.copytree(folder, tmp_path / "killed")
    assert len(list((tmp_path / "killed" / "segments").iterdir())) == 2
    Index.open(tmp_path / "killed").add([Document("d4", "cake")])
    names = {segment.info.name for segment in Index.open(tmp_path / "killed").segments}
    assert {path.name for path in (tmp_path / "killed" / "segments").iterdir()} == names


def test_a_new_index_goes_where_a_first_one_was_killed(tmp_path: Path) -> None:
    with create(tmp_path / "p") as writer:
        writer.add(DOCUMENTS[0])
        shutil.copytree(tmp_path / "p", tmp_path / "killed")
        bare = tmp_path / "killed" / "segments" / "00000001-00112233"  # killed just after it was made
        bare.mkdir()
        (bare / MARKER).write_text("half")
        (tmp_path / "killed" / ".tamis-0123456789abcdef.tmp").touch()
    index = Index.build(DOCUMENTS, tmp_path / "killed")
    assert len(list((tmp_path / "killed" / "segments").iterdir())) == len(index.segments) == 1
    assert not list((tmp_path / "killed").glob(".tamis-*"))


def test_a_copy_of_a_segment_is_nobody_elses_to_delete(tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "p")
    name = index.segments[0].info.name
    copied = shutil.copytree(tmp_path / "p" / "segments" / name, tmp_path / "p" / "segments" / "backup")
    index.merge()
    index.add([Document("d3", "onion soup")])
    assert (copied / "store.frames").exists()


def test_only_what_is_not_committed_has_a_marker(tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "p")
    index.add([Document("d3", "onion soup")])
    index.delete(["d1"])
    assert not list((tmp_path / "p").rglob(MARKER))
    index.merge()
    assert not list((tmp_path / "p").rglob(MARKER))


@pytest.fixture
def tokenizer(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path / "model"))


def test_building_tokens_leaves_files_of_others(tmp_path: Path, tokenizer: Tokenizer) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "p")
    build_tokens(index, tokenizer)
    name = index.segments[0].info.name
    kinds = (f"speaker1/{name}", "speaker1/take1", f"{tokenizer.fingerprint}/.tamis-take", f"x/{name}")
    mine = [place(tmp_path / "p" / "tokens" / kind, "take.wav") for kind in kinds]
    mine.append(place(tmp_path / "p" / "tokens" / tokenizer.fingerprint / name, "take.wav"))
    index.add([Document("d3", "onion soup")])
    index.merge()
    assert build_tokens(index, tokenizer).documents == 3
    assert [path.read_text() for path in mine] == ["mine"] * len(mine)
    assert not (tmp_path / "p" / "tokens" / tokenizer.fingerprint / name / "ids").exists()


def test_tokens_do_not_take_the_place_of_a_folder_of_others(tmp_path: Path, tokenizer: Tokenizer) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "p")
    mine = place(
        tmp_path / "p" / "tokens" / tokenizer.fingerprint / index.segments[0].info.name, "tokens.json"
    )
    with pytest.raises((StorageError, InputError), match="move it elsewhere"):
        build_tokens(index, tokenizer)
    assert mine.read_text() == "mine"


def test_tokens_that_are_damaged_are_replaced(tmp_path: Path, tokenizer: Tokenizer) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "p")
    build_tokens(index, tokenizer)
    folder = tmp_path / "p" / "tokens" / tokenizer.fingerprint / index.segments[0].info.name
    (folder / "ids").write_bytes(b"")
    (folder / MARKER).unlink()  # of older ones, which had none
    build_tokens(index, tokenizer)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name}
    build_tokens(Index.open(tmp_path / "p"), tokenizer)
