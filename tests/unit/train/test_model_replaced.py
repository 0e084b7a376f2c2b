"""A model replaced by a better one: a kill at any moment leaves one of the two, whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError, StorageError  # noqa: E402
from tamis.models.architectures.parade import Parade, ParadeSettings  # noqa: E402
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint  # noqa: E402
from tamis.storage.files import TEMPORARY  # noqa: E402
from tamis.train.state import BEST, clear_remains, require_new  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

OLD, NEW = 1.0, 2.0  # all weights of the head, by which to know which of the two it is


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", layers=1, hidden=8, heads=2)
    return Parade(ParadeSettings(kind="max")).begin(load_checkpoint(folder))


def saved(model: Checkpoint, folder: Path, value: float) -> None:
    head = {name: np.full_like(values, value) for name, values in model.head.items()}
    save_checkpoint(replace(model, head=head), folder)


def held(folder: Path) -> float:
    head = load_checkpoint(folder).head
    (value,) = {value for name in head for value in head[name].ravel().tolist()}
    return float(value)


def test_files_of_others_beside_and_in_a_model_stay(model: Checkpoint, tmp_path: Path) -> None:
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
    model: Checkpoint, tmp_path: Path, killed_before: Callable[..., bool]
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


def test_a_write_that_is_refused_leaves_the_old_model(
    model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(model, tmp_path / BEST, OLD)
    before = sorted(path.name for path in (tmp_path / BEST).iterdir())

    def refused(source: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refused)
        with pytest.raises(StorageError, match=r"cannot write .*best.* \(Permission denied\)"):
            saved(model, tmp_path / BEST, NEW)
    assert held(tmp_path / BEST) == OLD
    assert sorted(path.name for path in (tmp_path / BEST).iterdir()) == before
