"""A model that is a folder, replaced by a better one: a kill at any moment leaves one of the two, whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError, StorageError  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.long_checkpoint import LongCheckpoint, begin, load_long, save_long  # noqa: E402
from tamis.models.long_plan import LongDoc  # noqa: E402
from tamis.storage.files import TEMPORARY  # noqa: E402
from tamis.storage.markers import mark  # noqa: E402
from tamis.train.state import BEST, LAST, clear_remains, require_new  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

OLD, NEW = 1.0, 2.0  # a bias of the head, by which to know which of the two it is


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> LongCheckpoint:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", layers=1, hidden=8, heads=2)
    return begin(load_checkpoint(folder), LongDoc("parade-max"))


def saved(model: LongCheckpoint, folder: Path, bias: float) -> None:
    for parameter in model.model.head.parameters():
        torch.nn.init.constant_(parameter, bias)
    save_long(model, folder)


def held(folder: Path) -> float:
    (value,) = {
        value for each in load_long(folder).model.head.parameters() for value in each.flatten().tolist()
    }
    return float(value)


@pytest.mark.parametrize("name", [BEST, LAST])
@pytest.mark.parametrize(("left", "wanted"), [("both", NEW), ("the old one", OLD)])
def test_what_lies_between_two_renames_gets_its_name_back(
    name: str, left: str, wanted: float, model: LongCheckpoint, tmp_path: Path
) -> None:
    other = tmp_path / (LAST if name == BEST else BEST)  # which was never written, and is not made up
    saved(model, tmp_path / f"{TEMPORARY}{name}-0123-old", OLD)
    if left == "both":
        saved(model, tmp_path / f"{TEMPORARY}{name}-0123", NEW)
    for folder in tmp_path.iterdir():
        mark(folder)
    clear_remains(tmp_path)
    assert held(tmp_path / name) == wanted and not other.exists()
    assert not list(tmp_path.glob(f"{TEMPORARY}*"))


def test_what_is_not_whole_gets_no_name(model: LongCheckpoint, tmp_path: Path) -> None:
    """A first model that is half written; and beside one that has its name, what it has replaced."""
    (tmp_path / f"{TEMPORARY}{LAST}-0123").mkdir()
    mark(tmp_path / f"{TEMPORARY}{LAST}-0123")
    saved(model, tmp_path / BEST, NEW)
    saved(model, tmp_path / f"{TEMPORARY}{BEST}-4567-old", OLD)
    mark(tmp_path / f"{TEMPORARY}{BEST}-4567-old")
    clear_remains(tmp_path)
    assert held(tmp_path / BEST) == NEW
    assert [path.name for path in tmp_path.iterdir()] == [BEST]


def test_files_of_others_beside_and_in_a_model_stay(model: LongCheckpoint, tmp_path: Path) -> None:
    saved(model, tmp_path / BEST, OLD)
    mine = [
        tmp_path / BEST / "notes.txt",
        tmp_path / f"{TEMPORARY}notes",
        tmp_path / f"{TEMPORARY}best-x" / "a",
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    saved(model, tmp_path / BEST, NEW)
    clear_remains(tmp_path)
    assert held(tmp_path / BEST) == NEW
    assert [path.read_text() for path in mine] == ["mine"] * 3


@pytest.mark.parametrize("name", ["log.jsonl", "best/config.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_others_is_not_trained_into(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / "best").mkdir() if "/" in name else None
    (tmp_path / name).write_text('{"event": "mine"}\n{"event": "mine"}\n')
    with pytest.raises(InputError, match="another folder"):
        require_new(tmp_path, resume)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_every_call_that_changes_the_folder(
    model: LongCheckpoint, tmp_path: Path, killed_before: Callable[..., bool]
) -> None:
    """Before the first call that makes, renames, removes or syncs a file, the second, ..."""
    found, call, finished = [], 1, False
    while not finished:
        out = tmp_path / str(call)
        saved(model, out / BEST, OLD)
        finished = killed_before(call, lambda out=out: saved(model, out / BEST, NEW))
        clear_remains(out)
        found.append(held(out / BEST))
        assert [path.name for path in out.iterdir()] == [BEST]
        call += 1
    assert found == sorted(found) and set(found) == {OLD, NEW}


def test_a_new_name_that_is_refused_leaves_the_old_model_under_it(
    model: LongCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(model, tmp_path / BEST, OLD)
    rename, refused = Path.rename, []

    def once(path: Path, target: Path) -> Path:
        if target.name == BEST and not refused:
            refused.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(StorageError, match=r"cannot write .*best \(Permission denied\)"):
        saved(model, tmp_path / BEST, NEW)
    assert refused and held(tmp_path / BEST) == OLD
    assert [path.name for path in tmp_path.iterdir()] == [BEST]
