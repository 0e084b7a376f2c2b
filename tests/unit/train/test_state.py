"""What a run leaves on disk is not lost to another run, and what a kill leaves is not left lying."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import CorruptError, InputError  # noqa: E402
from tamis.storage.files import TEMPORARY  # noqa: E402
from tamis.train.loop import Part, fit  # noqa: E402
from tamis.train.recipe import Optimiser, Run  # noqa: E402
from tamis.train.state import BEST, LAST, STATE, require_new  # noqa: E402


class _Point:
    """The least task: one number that is made small, saved as a text."""

    device, autocast, identity = torch.device("cpu"), None, "point"

    def __init__(self) -> None:
        self.module = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.module.weight)
        self.module.forward = lambda batch: self.module.weight.square().sum()

    def parts(self, step: int, rank: int, world: int) -> list[Part]:
        return [Part(None, 1)]

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "weight").write_text(str(self.module.weight.item()))

    def evaluate(self) -> float:
        return -float(self.module.weight.item())


def fitted(out: Path, resume: bool = False) -> str:
    fit(_Point(), Optimiser(steps=3), Run(), out, evaluate_every=1, resume=resume)
    return (out / LAST / "weight").read_text()


@pytest.mark.parametrize("resume", [False, True])
def test_a_model_whose_state_was_deleted_is_not_trained_over(resume: bool, tmp_path: Path) -> None:
    """The state is to be deleted when a run is over: then nothing says that another run would destroy it."""
    once = fitted(tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(InputError, match="contains a trained model, but no state to resume from: train into"):
        fitted(tmp_path, resume)
    assert (tmp_path / LAST / "weight").read_text() == once


def test_a_best_model_alone_is_not_trained_over_unless_asked(tmp_path: Path) -> None:
    """So is a run that was killed before its first checkpoint, which has to begin again."""
    once = fitted(tmp_path)
    (tmp_path / STATE).unlink()
    (tmp_path / LAST / "weight").unlink()
    (tmp_path / LAST).rmdir()
    with pytest.raises(InputError, match="before its first checkpoint: add --resume to start it again"):
        fitted(tmp_path)
    assert (tmp_path / BEST).exists()
    assert fitted(tmp_path, resume=True) == once


@pytest.mark.parametrize("content", [b"", b"nothing"])
def test_what_is_said_of_a_damaged_state_can_be_done(content: bytes, tmp_path: Path) -> None:
    """To train without --resume is refused while the state is there."""
    fitted(tmp_path)
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(CorruptError, match=r"is damaged \(.+\): train into another folder, or delete this"):
        fitted(tmp_path, resume=True)
    require_new(tmp_path / "another", resume=False)


def test_what_a_kill_left_half_written_is_deleted(tmp_path: Path) -> None:
    """A kill while the state is written leaves as much as three models, under a name that nobody sees."""
    fitted(tmp_path)
    name = f"{TEMPORARY}0123456789abcdef.tmp"
    for path in (tmp_path / STATE.parent / name, tmp_path / BEST / name):
        path.write_bytes(b"half")
    fitted(tmp_path, resume=True)
    assert not list(tmp_path.rglob(f"{TEMPORARY}*"))
    assert (tmp_path / STATE).exists() and (tmp_path / BEST / "weight").exists()
