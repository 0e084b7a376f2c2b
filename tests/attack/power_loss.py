"""What a power cut may leave of the files below a folder: a recorder, and the states that follow from it.

The recorder stands between Python and the calls that rename, remove, make and sync files and folders. At each
of them it also looks at all the files, so that it sees what was written since. A power cut at any of these
moments may then leave

- of a file, what was there when it was last synced, what it was at the moment, or a torn mixture;
- of a folder, the names that it had when it was last synced, with any of the changes made since, whichever
  was made first: POSIX promises no order, though some file systems have one.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

LONG = os.environ.get("TAMIS_ATTACK") == "long"
SAMPLED, SAMPLED_LONG = 100, 20_000  # states of a scenario, before those that are alike are left out
_FOLDER = None  # the content of one


@dataclass(frozen=True)
class Change:
    """Of a folder's names: `name` now is `node` (None: nothing), and `old` in the same folder is gone."""

    folder: int
    name: str
    node: int | None
    old: str | None = None


@dataclass
class Moment:
    """All that is known at a moment when the power may be cut."""

    synced_names: dict[int, dict[str, int]]
    pending: list[Change]
    synced: dict[int, bytes]
    content: dict[int, bytes | None]
    promised: int  # how much the scenario was told to be durable
    event: str


@dataclass
class Recorder:
    """Records what happens below `root` while it is entered."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    promised: int = 0

    def __post_init__(self) -> None:
        self._nodes: dict[int, int] = {}  # inode -> our number, which is not used again as inodes are
        self._names: dict[int, dict[str, int]] = {}  # as they are, by folder
        self._synced_names: dict[int, dict[str, int]] = {}
        self._pending: list[Change] = []
        self._synced: dict[int, bytes] = {}
        self._content: dict[int, bytes | None] = {}
        self._count = 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        self._top = self._node(self.root)
        self._observe()
        for number, content in self._content.items():  # what was there before is durable
            if content is not _FOLDER:
                self._synced[number] = content
        self._synced_names = {folder: dict(names) for folder, names in self._names.items()}
        self._pending = []
        for name in ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "fsync"):
            self._patch.setattr(os, name, self._recorded(name, getattr(os, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.undo()
        self._moment("the end")

    def promise(self) -> None:
        """The scenario was told that what it has done is durable."""
        self.promised += 1
        self._moment("a promise")

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self._moment(f"before {name} {arguments[0]}")
            if name == "fsync":
                result = function(*arguments, **options)
                self._sync(arguments[0])
            else:
                change = self._change(name, arguments, options)
                result = function(*arguments, **options)
                if change is not None:
                    self._apply(change)
            self._moment(f"after {name} {arguments[0]}")
            return result

        return wrapped

    def _moment(self, event: str) -> None:
        self._observe()
        names = {folder: dict(each) for folder, each in self._synced_names.items()}
        state = (names, list(self._pending), dict(self._synced), dict(self._content))
        self.moments.append(Moment(*state, self.promised, event))

    # -- what there is

    def _node(self, path: Path) -> int:
        status = path.lstat()
        if status.st_ino not in self._nodes:
            self._nodes[status.st_ino] = self._count
            self._count += 1
            if stat.S_ISDIR(status.st_mode):
                self._names[self._nodes[status.st_ino]] = {}
                self._synced_names.setdefault(self._nodes[status.st_ino], {})
        return self._nodes[status.st_ino]

    def _observe(self) -> None:
        """See what was made and written since."""
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            at = self._node(folder)
            self._content[at] = _FOLDER
            for path in sorted(folder.iterdir()):
                node = self._node(path)
                if self._names[at].get(path.name) != node:
                    self._names[at][path.name] = node
                    self._pending.append(Change(at, path.name, node))
                if path.is_dir():
                    waiting.append(path)
                elif path.is_file():
                    self._content[node] = path.read_bytes()

    def _change(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Change | None:
        if options.get("dir_fd") is not None or options.get("src_dir_fd") is not None:
            raise NotImplementedError("a path relative to an open folder")
        count = 2 if name in ("rename", "replace") else 1
        paths = [Path(each).absolute() for each in arguments[:count]]
        if not all(self.root in path.parents for path in paths):
            return None
        if name in ("rename", "replace"):
            source, target = paths
            assert source.parent == target.parent, "a rename between folders is not modelled"
            node = self._nodes[source.lstat().st_ino]
            return Change(self._node(target.parent), target.name, node, source.name)
        path = paths[0]
        return None if name == "mkdir" else Change(self._node(path.parent), path.name, None)

    def _apply(self, change: Change) -> None:
        names = self._names[change.folder]
        gone = names.get(change.name)
        _change_names(names, change)
        self._pending.append(change)
        if gone is not None and not any(gone in each.values() for each in self._names.values()):
            self._nodes = {inode: node for inode, node in self._nodes.items() if node != gone}

    def _sync(self, descriptor: int) -> None:
        node = self._nodes.get(os.fstat(descriptor).st_ino)
        if node is None:
            return
        if node in self._names:
            for change in self._pending:
                if change.folder == node:
                    _change_names(self._synced_names[node], change)
            self._pending = [change for change in self._pending if change.folder != node]
        else:
            content = self._content[node]
            assert content is not _FOLDER
            self._synced[node] = content

    # -- what may be left

    def states(self, seed: int = 0) -> Iterator[tuple[Moment, dict[str, bytes | None]]]:
        """States that a power cut may leave, each with its moment: a sample, a larger one in a long run. None
        is the content of a folder."""
        rng = random.Random(seed)
        seen = set()
        for moment in rng.choices(self.moments, k=SAMPLED_LONG if LONG else SAMPLED):
            kept, mode = rng.choice(_choices(moment, rng))
            state = _state(moment, self._top, kept, mode)
            key = hash((moment.promised, frozenset(state.items())))
            if key not in seen:
                seen.add(key)
                yield moment, state


def _choices(moment: Moment, rng: random.Random) -> list[tuple[frozenset[int], str]]:
    """Which of the pending changes to names are there, and what of the files' content."""
    count = len(moment.pending)
    every = frozenset(range(count))
    kept = {frozenset[int](), every}
    kept |= {frozenset(range(n)) for n in range(count)}
    kept |= {every - {n} for n in every} | {frozenset({n}) for n in every}
    kept |= {frozenset(n for n in every if rng.random() < 0.5) for _ in range(4)}
    return [
        (each, mode) for each in sorted(kept, key=sorted) for mode in ("synced", "written", "torn", "zeros")
    ]


def _state(moment: Moment, top: int, kept: frozenset[int], mode: str) -> dict[str, bytes | None]:
    names = {folder: dict(each) for folder, each in moment.synced_names.items()}
    for number, change in enumerate(moment.pending):
        if number in kept:
            _change_names(names[change.folder], change)
    state: dict[str, bytes | None] = {}
    waiting = [("", top)]
    while waiting:
        where, folder = waiting.pop()
        for name, node in names[folder].items():
            path = f"{where}/{name}" if where else name
            if node in names:
                state[path] = _FOLDER
                waiting.append((path, node))
            else:
                state[path] = _left(moment.synced.get(node, b""), moment.content[node] or b"", mode)
    return state


def _left(synced: bytes, written: bytes, mode: str) -> bytes:
    """What is left of a file's content."""
    if mode == "synced" or synced == written:
        return synced
    if mode == "written":
        return written
    alike = next((n for n, (a, b) in enumerate(zip(synced, written, strict=False)) if a != b), len(synced))
    half = alike + (len(written) - alike) // 2 if mode == "torn" else alike
    return written[:half] + bytes(len(written) - half)


def _change_names(names: dict[str, int], change: Change) -> None:
    if change.old is not None and names.get(change.old) == change.node:
        del names[change.old]
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node


def restore(state: dict[str, bytes | None], folder: Path) -> Path:
    """Make the files of a state."""
    folder.mkdir()
    for path, content in sorted(state.items()):
        if content is _FOLDER:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder
