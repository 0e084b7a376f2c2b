"""What a command writes takes the place of nothing that it reads: one check for all commands.

Paths are compared by what they lead to, not by how they are spelled: symbolic links, `..`, hard links and, on
systems that do not tell them apart, capitals.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tamis.base.errors import ExpressionError, InputError
from tamis.core.language import calls, parse
from tamis.index.manifest import NAME, begins_as_manifest
from tamis.storage.files import STDIN, TEMPORARY

_MODEL_FILES = ("config.json", "tamis.json")
_BUNDLED = Path(__file__).parents[1] / "models_data"
_BESIDE_CACHE = ("-wal", "-shm", "-journal")  # SQLite's


def check_output(output: Path | None, *reads: str | Path | None, within: bool = True) -> None:
    """Refuse an output that is one of the files that the command reads, or lies in an index, in a token store
    or in the folder of a model that it reads; `reads` may be names too, such as of the hub. `within` is False
    for a folder that may itself be an index: the one that is made.

    >>> check_output(Path("new.run"), "old.run", "-", None, "no name " * 1000)
    >>> check_output(Path("-"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: '-' is the standard input, which cannot be written: give the name of a file
    """
    if output is None:
        return
    if str(output) == STDIN:
        problem = f"{STDIN!r} is the standard input, which cannot be written"
        raise InputError(problem, remedy="give the name of a file")
    target = Path(os.path.realpath(output))
    above = [target, *target.parents] if within else list(target.parents)
    index = next((folder for folder in above if begins_as_manifest(folder / NAME)), None)
    if index is not None:
        problem = f"{output} is inside an index, {_relative(index)}"
        raise InputError(problem, remedy="write it to another folder")
    paths = [Path(path) for path in reads if path is not None and str(path) != STDIN and _is_there(path)]
    folders = [_BUNDLED, *(path for path in paths if _is_whole(path)), *_of_hub(reads)]
    for folder in folders:
        if any(_same(each, folder) for each in [target, *target.parents]):
            problem = f"{output} is inside {_relative(folder)}, which is an input"
            raise InputError(problem, remedy="write it to another folder")
    if target.is_file() and any(_same(target, file) for file in _files(paths, folders, target)):
        remedy = "choose another name for the output"
        raise InputError(f"{output} is an input and would be overwritten", remedy=remedy)


def check_run_output(output: Path, *reads: str | Path | None) -> None:
    """The same for a run and the files beside it: its manifest and its journal."""
    for suffix in ("", ".json", ".journal"):
        check_output(_beside(output, suffix), *reads)


def check_cache(cache: Path | None, *reads: str | Path | None) -> None:
    """The same for a cache of scores, which is read and written."""
    if cache is not None:
        for suffix in ("", *_BESIDE_CACHE):
            check_output(_beside(cache, suffix), *reads)


def named_in(pipeline: str, grid: Mapping[str, Sequence[object]] | None = None) -> list[str]:
    """The models, files and other words that a pipeline names as options; with a grid, those of its values
    too.

    >>> named_in("bm25(k1=0.9) % 100 >> mono(model=mono-tiny)")
    ['mono-tiny']
    """
    values = [value for each in (grid or {}).values() for value in each if isinstance(value, str)]
    if grid:
        from tamis.evaluate.grid import fill

        pipeline = fill(pipeline, {name: each[0] for name, each in grid.items()})  # type: ignore[misc]
    try:
        stages = list(calls(parse(pipeline)))
    except ExpressionError:
        return values  # which is told when it is built
    for stage in stages:
        inside = (*stage.arguments, *(value for _, value in stage.options))
        values += [value for value in inside if isinstance(value, str)]
    return values


def strings_in(tables: object) -> Iterator[str]:
    """The strings of a recipe's tables, among which are the paths that it reads.

    >>> list(strings_in({"model": {"start": "mono"}, "data": [{"queries": "q.tsv", "weight": 1}]}))
    ['mono', 'q.tsv']
    """
    if isinstance(tables, str):
        yield tables
    elif isinstance(tables, Mapping):
        for value in tables.values():
            yield from strings_in(value)
    elif isinstance(tables, Sequence):
        for value in tables:
            yield from strings_in(value)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}") if path.name else path  # `.` has none, nor will be written


def _is_whole(path: Path) -> bool:
    """Whether a path is an index, a token store or a model: a folder in which nothing else may be written."""
    if not path.is_dir():
        return False
    if begins_as_manifest(path / NAME) or begins_as_manifest(path / "tokens.json"):
        return True
    return any((path / name).is_file() for name in _MODEL_FILES)


def _of_hub(names: Iterable[str | Path | None]) -> list[Path]:
    """Where the hub's models are kept that are named."""
    wanted = [f"models--{name.replace('/', '--')}" for name in names if isinstance(name, str)]
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    caches = [os.environ.get("HF_HUB_CACHE"), os.environ.get("HUGGINGFACE_HUB_CACHE"), f"{home}/hub"]
    found = (Path(os.path.expanduser(cache), name) for cache in caches if cache for name in wanted)  # noqa: PTH111
    return [folder for folder in found if _is_there(folder)]


def _files(paths: Sequence[Path], folders: Sequence[Path], target: Path) -> Iterator[Path]:
    """The files that are read: those that are named, those of a corpus's folder, and, for a target that has
    other names as well, those of indexes and models."""
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir() and path not in folders and any(_same(each, path) for each in target.parents):
            from tamis.formats.corpora import files_read

            yield from files_read(path)
    if target.stat().st_nlink > 1:
        for folder in folders:
            for where, _, names in os.walk(folder):
                yield from (Path(where, name) for name in names if not name.startswith(TEMPORARY))


def _is_there(path: str | Path) -> bool:
    """Whether there is a file or folder of this name; a text may be no name at all, such as one too long."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False


def _relative(folder: Path) -> str:
    """A path as a user would write it."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder != here and here in folder.parents else str(folder)
