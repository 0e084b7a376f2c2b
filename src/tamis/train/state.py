"""The files of a training run: its state, from which it resumes, and its log.

The state is one file, renamed to its final name when it is complete, so that after a kill or a full disk the
previous one remains. Random numbers are not part of it: those of a step depend only on the seed and the step.
The log is JSON lines; when training resumes, lines of steps after the state's are cut, since they are written
again.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from tamis.base.errors import CorruptError, InputError
from tamis.storage.files import TEMPORARY, atomic_write, is_temporary, make_folder, storage_errors, unreadable

STATE = Path("state", "state.pt")
LAST, BEST = "last", "best"  # models
LOG = "log.jsonl"
#: The remedy for a run that left a log or a first model, but no state to resume from.
BEFORE = "a training run that stopped before its first checkpoint"


@dataclass(slots=True)
class State:
    """Everything that a run needs to resume as if it had never stopped."""

    recipe: str  # `identity` of its task: a state belongs to one recipe
    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Any]
    step: int = 0  # steps done
    losses: list[float] = field(default_factory=list)  # since the last line of the log
    best: float | None = None  # of the dev measure
    best_step: int | None = None


def save_state(state: State, out: Path) -> None:
    """Replace the previous state; after an error the previous one remains.

    >>> out = getfixture("tmp_path")
    >>> save_state(State("r", {"a": torch.ones(2)}, {}, step=3), out)
    >>> load_state(out, "r").step
    3
    """
    path = out / STATE
    with storage_errors(path):
        make_folder(path.parent)
    content = {name: getattr(state, name) for name in State.__dataclass_fields__}
    with atomic_write(path) as file:
        _save(content, file)


def load_state(out: Path, recipe: str) -> State | None:
    """The state of a run that stopped; None if there is none."""
    path = out / STATE
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        state = State(**content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (RuntimeError, EOFError, TypeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CorruptError(
            f"{path} is damaged ({reason})", remedy="train into another folder, or delete this one"
        ) from None
    if state.recipe != recipe:
        raise InputError(
            f"{path} is of another recipe, other data or another start",
            remedy="resume with the recipe it was started with, or train into another folder",
        )
    return state


def has_state(out: Path) -> bool:
    return (out / STATE).exists()


def require_new(out: Path, resume: bool) -> None:
    """Refuse, before hours of reading, to overwrite another run, or a model whose state was deleted at the
    end of its run."""
    begun = has_state(out)
    lines = _lines(out / LOG)
    ours = all(_step(line) is not None for line in lines[:-1]) and (out / LOG).is_file()
    if (lines and not ours) or (not begun and not ours and (out / BEST).exists()):
        what = LOG if lines else BEST
        problem = f"{out} has a {what} in it that is not of a training run"
        raise InputError(problem, remedy="train into another folder")
    if not begun and (out / LAST).exists():  # LAST is written after every state
        raise InputError(
            f"{out} contains a trained model, but no state to resume from",
            remedy="train into another folder, or delete this one",
        )
    if not resume and begun:
        raise InputError(f"{out} contains a training run", remedy="add --resume, or give another folder")
    if not resume and (out / BEST).exists():
        remedy = "add --resume to start it again, or give another folder"
        raise InputError(f"{out} contains {BEFORE}", remedy=remedy)


def clear_remains(out: Path) -> None:
    """Delete incomplete files that a kill has left: a state is three times as large as the model. Their names
    are not used for anything else."""
    for folder in (out, out / STATE.parent, out / BEST, out / LAST):
        with storage_errors(folder):
            for path in filter(is_temporary, folder.glob(f"{TEMPORARY}*")):
                path.unlink(missing_ok=True)


def _save(content: Mapping[str, Any], file: Any) -> None:
    """Save with torch, and raise the file system's error: torch reports it as a RuntimeError without
    errno."""
    stream = _Stream(file)
    try:
        torch.save(content, cast(IO[bytes], stream))
    except RuntimeError:
        if stream.error is None:
            raise
        raise stream.error from None


class _Stream(io.RawIOBase):
    """Passes bytes on, and keeps the error if they are refused."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return int(self.file.write(data))
        except OSError as error:
            self.error = error
            raise


class Log:
    """A log with one line for every few steps: `{"step": 10, "loss": 0.69, ...}`."""

    def __init__(self, out: Path, step: int) -> None:
        """Continue after `step`: later lines and an incomplete last line are cut."""
        self.path = out / LOG
        kept = [line for line in _lines(self.path) if _step(line) is not None and (_step(line) or 0) <= step]
        with atomic_write(self.path, "w") as file:
            file.writelines(kept)

    def write(self, line: Mapping[str, Any]) -> None:
        with storage_errors(self.path), self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(line) + "\n")


def read_log(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's log.

    >>> log = Log(getfixture("tmp_path"), step=0)
    >>> log.write({"step": 10, "loss": 0.5})
    >>> read_log(getfixture("tmp_path"))
    [{'step': 10, 'loss': 0.5}]
    """
    return [json.loads(line) for line in _lines(out / LOG)]


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            return list(file)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def _step(line: str) -> int | None:
    """The step of a line; None if the line is incomplete."""
    try:
        return int(json.loads(line)["step"]) if line.endswith("\n") else None
    except (ValueError, KeyError, TypeError):
        return None
