"""Copies of an index in use, and what is left of a damaged one."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.base.errors import CorruptError, InputError, LockedError
from tamis.cli import main
from tamis.index.backup import backup
from tamis.index.repair import LOST, repair
from tamis.index.verify import verify
from tamis.infer.tokens import TokenStore, build_tokens
from tamis.models.tokenizer import Tokenizer

WRITER = """
import sys
from tamis import Document, Index
index = Index.open(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    index.add([Document(f"n{number}", "onion soup")])
    if number % 3 == 2:
        index.merge()
    number += 1
    print(number, flush=True)
"""


def documents(first: int, last: int) -> list[Document]:
    return [Document(f"d{n}", f"sieve number{n} flour", title=f"t{n}") for n in range(first, last)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Three segments, one with deleted documents."""
    index = Index.build(documents(0, 10), tmp_path / "idx", positions=True)
    index.add(documents(10, 20))
    index.add(documents(20, 30))
    index.delete(["d3", "d4"])
    return index


@pytest.fixture
def tokenizer(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path / "model"))


def facts(folder: Path) -> Any:
    opened = Index.open(folder)
    return opened.fingerprint, list(opened), list(opened.bm25()("number7 sieve"))


# -- backup


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_is_the_index(tmp_path: Path, index: Index, tokenizer: Tokenizer, links: bool) -> None:
    build_tokens(index, tokenizer)
    made = index.backup(tmp_path / "deep" / "copy", links=links)
    copy = tmp_path / "deep" / "copy"
    assert facts(copy) == facts(tmp_path / "idx") and verify(copy) == []
    assert made.linked == (made.files if links else 0) and made.commit == index.fingerprint
    assert TokenStore(Index.open(copy), tokenizer).documents == 28
    before = facts(copy)
    index.add(documents(40, 50))
    index.merge()
    shutil.rmtree(tmp_path / "idx")
    assert facts(copy) == before and verify(copy) == []
    Index.open(copy).add(documents(50, 51))  # a copy is an index like any other


def test_a_file_system_without_links(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    assert index.backup(tmp_path / "copy").linked == 0
    assert facts(tmp_path / "copy") == facts(tmp_path / "idx")


def test_where_a_copy_may_not_go(tmp_path: Path, index: Index) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file", "idx", "idx/copy", "idx/segments/copy"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InputError):
            backup(tmp_path / "idx", tmp_path / name)
        assert main(["backup", str(tmp_path / "idx"), str(tmp_path / name)]) == 2
        assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "mine"


def test_a_damaged_index_is_not_copied(tmp_path: Path, index: Index) -> None:
    next((tmp_path / "idx").rglob("postings.tfs")).write_bytes(b"damaged")
    with pytest.raises(CorruptError, match=r"postings\.tfs is corrupt .* --repair"):
        index.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_damaged_tokens_are_left_out(tmp_path: Path, index: Index, tokenizer: Tokenizer) -> None:
    build_tokens(index, tokenizer)
    damaged = next((tmp_path / "idx" / "tokens").rglob("ids"))
    damaged.write_bytes(b"damaged")
    assert index.backup(tmp_path / "copy").without_tokens == (str(damaged.parent),)
    assert facts(tmp_path / "copy") == facts(tmp_path / "idx")
    assert TokenStore(Index.open(tmp_path / "copy"), tokenizer).documents in (18, 20)


def test_while_a_writer_works(tmp_path: Path, index: Index) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "idx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            made = []
            while len(made) < 6 or len(set(made)) < 3:
                copy = tmp_path / f"copy{len(made)}"
                made.append(backup(tmp_path / "idx", copy).commit)
                assert made[-1] == Index.open(copy).fingerprint and verify(copy) == []
                ids = {each for each in Index.open(copy).ids() if each.startswith("n")}
                assert ids == {f"n{n}" for n in range(len(ids))}
                writer.stdout.readline()
        finally:
            writer.kill()
    assert len(made) >= 6


def test_the_command(tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", str(tmp_path / "idx"), str(tmp_path / "copy")]) == 0
    assert "28 documents" in capsys.readouterr().out
    assert main(["backup", str(tmp_path / "idx"), str(tmp_path / "second"), "--copy", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["documents"], said["linked"], said["without_tokens"]) == (28, 0, [])


# -- repair


def damage(path: Path, at: int = 0) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    return path.read_bytes()


def column(index: Index, segment: int, name: str) -> Path:
    return index.path / "segments" / index.segments[segment].info.name / name


def test_nothing_to_repair(tmp_path: Path, index: Index) -> None:
    before = facts(tmp_path / "idx")
    assert repair(tmp_path / "idx").problems == ()
    assert facts(tmp_path / "idx") == before and not list(tmp_path.glob("*.damaged*"))


def test_damaged_postings_lose_no_document(tmp_path: Path, index: Index) -> None:
    damaged = damage(column(index, 0, "postings.tfs"))
    name = index.segments[0].info.name
    report = repair(tmp_path / "idx")
    assert report.aside == str(tmp_path / "idx.damaged") and "postings.tfs is corrupt" in report.problems[0]
    assert (report.recovered, report.lost, report.unnamed) == (8, (), 0)
    found = Index.open(tmp_path / "idx")
    assert sorted(found.ids()) == sorted(f"d{n}" for n in range(30) if n not in (3, 4))
    assert found.document("d7").title == "t7" and found.bm25()("number7").ids == ("d7",)
    assert found.sdm()("sieve number7").ids[0] == "d7"
    assert verify(tmp_path / "idx") == [] and not (tmp_path / "idx" / "segments" / name).exists()
    kept = tmp_path / "idx.damaged" / "segments" / name
    assert (kept / "postings.tfs").read_bytes() == damaged
    assert {path.name for path in kept.iterdir()} >= {"store.frames", "terms.text"}
    assert (tmp_path / "idx.damaged" / "manifest.json").exists()


def test_texts_that_are_damaged_are_lost_by_name(tmp_path: Path, index: Index) -> None:
    damage(column(index, 1, "store.frames"))
    report = repair(tmp_path / "idx")
    assert report.lost == tuple(f"d{n}" for n in range(10, 20)) and report.recovered == 0
    assert len(Index.open(tmp_path / "idx")) == 18 and verify(tmp_path / "idx") == []
    assert json.loads((tmp_path / "idx.damaged" / LOST).read_text())["ids"] == list(report.lost)


def test_of_a_large_segment_only_what_cannot_be_read_is_lost(tmp_path: Path) -> None:
    rng = random.Random(1)
    large = [Document(f"d{n}", rng.randbytes(1000).hex(" ", 4)) for n in range(900)]
    index = Index.build(large, tmp_path / "idx")
    frames = column(index, 0, "store.frames")
    assert frames.stat().st_size > 3 << 18  # several chunks, each with its checksum
    damage(frames, frames.stat().st_size // 2)
    report = repair(tmp_path / "idx")
    assert 0 < len(report.lost) < 500 and report.recovered == 900 - len(report.lost)
    found = Index.open(tmp_path / "idx")
    assert {*found.ids()} == {each.id for each in large} - {*report.lost}
    assert all(found.document(each.id) == each for each in large if each.id not in report.lost)


@pytest.mark.parametrize(
    ("name", "recovered", "lost", "unnamed"),
    [
        ("store.id_text", 0, 0, 8),
        ("store.frame_ends", 0, 8, 0),
        ("deleted", 0, 10, 0),  # which of them were deleted is not known
        ("terms.text", 8, 0, 0),
        ("documents.lengths", 8, 0, 0),
    ],
)
@pytest.mark.parametrize("how", ["changed", "cut short", "missing"])
def test_every_kind_of_column(
    tmp_path: Path, index: Index, name: str, recovered: int, lost: int, unnamed: int, how: str
) -> None:
    path = column(index, 0, index.segments[0].info.deleted or "" if name == "deleted" else name)
    if how == "changed":
        damage(path)
    elif how == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    report = repair(tmp_path / "idx")
    assert (report.recovered, len(report.lost), report.unnamed) == (recovered, lost, unnamed)
    assert verify(tmp_path / "idx") == [] and len(Index.open(tmp_path / "idx")) == 20 + recovered


def test_a_segment_that_is_gone(tmp_path: Path, index: Index) -> None:
    shutil.rmtree(tmp_path / "idx" / "segments" / index.segments[2].info.name)
    with pytest.raises(CorruptError):
        Index.open(tmp_path / "idx")
    assert repair(tmp_path / "idx").unnamed == 10
    assert len(Index.open(tmp_path / "idx")) == 18


def test_all_is_damaged(tmp_path: Path, index: Index) -> None:
    for segment in range(3):
        damage(column(index, segment, "store.frames"))
    assert len(repair(tmp_path / "idx").lost) == 28
    assert len(Index.open(tmp_path / "idx")) == 0
    Index.open(tmp_path / "idx").add(documents(0, 3))
    damage(next((tmp_path / "idx").rglob("store.frames")))
    assert repair(tmp_path / "idx").aside == str(tmp_path / "idx.damaged-2")


def test_damaged_tokens_leave_the_index(tmp_path: Path, index: Index, tokenizer: Tokenizer) -> None:
    build_tokens(index, tokenizer)
    damaged = next((tmp_path / "idx" / "tokens").rglob("ids"))
    content = damage(damaged)
    report = repair(tmp_path / "idx")
    assert report.lost == () and "tokens" in report.problems[0]
    moved = tmp_path / "idx.damaged" / damaged.relative_to(tmp_path / "idx")
    assert moved.read_bytes() == content and not damaged.exists()
    opened = Index.open(tmp_path / "idx")
    assert TokenStore(opened, tokenizer).texts(["d1", "d25"]).ids.tolist()
    assert build_tokens(opened, tokenizer).documents == 28


def test_what_cannot_be_repaired(tmp_path: Path, index: Index) -> None:
    with index.writer(), pytest.raises(LockedError):
        repair(tmp_path / "idx")
    damage(tmp_path / "idx" / "manifest.json", 100)
    with pytest.raises(CorruptError, match=r"manifest\.json is corrupt"):
        repair(tmp_path / "idx")
    with pytest.raises(InputError, match="holds no index"):
        repair(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_the_doctor(tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    idx = str(tmp_path / "idx")
    damage(column(index, 1, "store.frames"))
    damage(column(index, 0, "store.id_text"))
    assert main(["doctor", idx]) == 2
    assert f"tamis doctor {idx} --repair" in capsys.readouterr().err
    assert main(["doctor", idx, "--repair"]) == 0
    said = capsys.readouterr().err
    assert f"18 documents lost; the damaged files are in {idx}.damaged" in said
    assert "lost: d10, d11" in said and "at most 8 documents whose ids cannot be read" in said
    assert main(["doctor", idx, "--repair", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repair"]["problems"] == []
    assert main(["doctor", "--repair"]) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_repair_that_is_killed_can_be_done_again(
    tmp_path: Path, index: Index, killed_before: Callable[..., bool]
) -> None:
    """Before the first call that changes a folder, the eighth, ...: no document is lost by it."""
    damaged = damage(column(index, 0, "postings.tfs"))
    name, call, finished = index.segments[0].info.name, 1, False
    while not finished:
        place = tmp_path / str(call)
        shutil.copytree(tmp_path / "idx", place / "idx")
        finished = killed_before(call, lambda place=place: repair(place / "idx") and None)
        repair(place / "idx")
        assert len(Index.open(place / "idx")) == 28 and verify(place / "idx") == []
        kept = (
            place / "idx.damaged" / "segments" / name / "postings.tfs",
            *place.glob(f"*-2/*/{name}/*.tfs"),
        )
        assert any(path.exists() and path.read_bytes() == damaged for path in kept)
        call += 7
    assert call > 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_backup_that_is_killed_is_no_index(
    tmp_path: Path, index: Index, killed_before: Callable[..., bool]
) -> None:
    call, finished = 1, False
    while not finished:
        copy = tmp_path / f"copy{call}"
        finished = killed_before(call, lambda copy=copy: index.backup(copy, links=False) and None)
        try:
            assert facts(copy) == facts(tmp_path / "idx") and verify(copy) == []
        except InputError as error:
            assert not finished and "holds no index" in str(error)
        call += 9
    assert verify(tmp_path / "idx") == [] and call > 40
