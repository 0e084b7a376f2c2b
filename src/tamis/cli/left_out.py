"""What `tamis index` says of the files that it did not read: how many of each kind, and why."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tamis.cli.console import counted, warn
from tamis.formats import CorpusFormat, LeftOut, SkipReport
from tamis.formats.folders import BEIR_CORPUS, LeftFile, could_be_corpus, is_beir
from tamis.formats.kinds import install_for
from tamis.index.place import Place, is_address

_MOST_KINDS = 12  # in a warning; --json has them all
_WHY = {
    "unknown": "tamis does not read this kind",
    "other": "not of the format that --format names",
    "special": "a pipe, socket or device is read only if it is named",
    "beir": f"beside {BEIR_CORPUS}",
    "hidden": "hidden, or a link to a folder",
    "records": "records among documents",
    "closed": "a folder that cannot be opened",
}


def left_out_records(left_out: LeftOut, output: Place) -> list[dict[str, Any]]:
    """All that was left out for `--json`: how many files of a kind, and why.

    >>> left = LeftOut([LeftFile(Path("a.png"), ".png", "unknown"), LeftFile(Path("a.pdf"), ".pdf", "extra")])
    >>> needed, unknown = left_out_records(left, Path("idx"))
    >>> needed["kind"], "pip install" in needed["reason"], unknown
    ('.pdf', True, {'kind': '.png', 'files': 1, 'reason': 'tamis does not read this kind'})
    """
    counts: dict[tuple[str, str], int] = dict(left_out.bad.reasons)
    for file in _missed(left_out.files, output):
        reason = _WHY.get(file.why) or f"needs {install_for(file.path)}"
        counts[file.kind, reason] = counts.get((file.kind, reason), 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"kind": kind, "files": number, "reason": reason} for (kind, reason), number in ordered]


def warn_of_files(left_out: LeftOut, corpus: list[str], format: CorpusFormat | None, output: Place) -> None:
    """One line for each reason, with the numbers of files by kind."""
    files = list(_missed(left_out.files, output))
    folders = [Path(name) for name in corpus if Path(name).is_dir() and is_beir(Path(name), format)]
    beir = [file for file in files if file.why == "beir" and _is_missed(file.path, folders, format)]
    if beir:
        rule = f"in a folder with {BEIR_CORPUS} only that file is read; to read others, name them"
        warn(f"{counted(len(beir), 'file')} left out, such as {beir[0].path}: {rule}")
    if unknown := [file for file in files if file.why == "unknown"]:
        warn(f"left out: {_kinds(unknown)}, such as {unknown[0].path}")
    if other := [file for file in files if file.why == "other"]:
        warn(f"left out by --format {format}: {_kinds(other)}, such as {other[0].path}")
    for install in sorted({install_for(file.path) for file in files if file.why == "extra"}):
        wanting = [file for file in files if file.why == "extra" and install_for(file.path) == install]
        warn(f"left out: {_kinds(wanting)}, which {'needs' if len(wanting) == 1 else 'need'} {install}")
    if records := [file for file in files if file.why == "records"]:
        told = f"{_kinds(records)}, records among documents, such as {records[0].path}"
        warn(f"left out: {told}: to index them too, name these files")
    if special := [file for file in files if file.why == "special"]:
        warn(f"{counted(len(special), 'file')} left out, such as {special[0].path}: {_WHY['special']}")
    if shut := [file for file in files if file.why == "closed"]:
        told = f"{counted(len(shut), 'folder')} that cannot be opened, such as {shut[0].path}"
        warn(f"left out: {told}: check that you may read it")
    if not beir and (hidden := [file for file in files if file.why == "hidden"]) and not folders:
        numbers = LeftOut(hidden).counts("hidden").items()
        warn(f"left out: {', '.join(counted(number, kind) for kind, number in numbers)}")
    _warn_of_bad(left_out.bad)


def _warn_of_bad(bad: SkipReport) -> None:
    if not bad.count:
        return
    kinds = ((bad.lines, "bad line"), (bad.files, "bad file"))
    numbers = " and ".join(counted(number, noun) for number, noun in kinds if number)
    warn(f"{numbers} left out, such as {bad.examples[0]}")
    if len(bad.reasons) > 1:
        named = bad.reasons.most_common(_MOST_KINDS)
        told = "; ".join(f"{number:,} {kind}: {reason}" for (kind, reason), number in named)
        rest = bad.reasons.total() - sum(number for _, number in named)
        warn(f"the bad files: {told}{f'; {rest:,} others' if rest else ''}")


def _kinds(files: list[LeftFile]) -> str:
    """Numbers of files by kind.

    >>> _kinds([LeftFile(Path(name), ".png", "unknown") for name in ("a.png", "b.png")])
    '2 .png'
    """
    counts = list(LeftOut(files).counts(files[0].why).items())
    named = [f"{number:,} {kind}" for kind, number in counts[:_MOST_KINDS]]
    if rest := counts[_MOST_KINDS:]:
        number = sum(each for _, each in rest)
        named.append(f"and {number:,} of {counted(len(rest), 'other kind')}")
    return ", ".join(named)


def _missed(files: Iterable[LeftFile], output: Place) -> Iterable[LeftFile]:
    """Without the files of the index itself, which may lie in its corpus's folder: nobody misses them."""
    if is_address(output):
        return files
    index = Path(output).resolve()
    return (file for file in files if index not in (file.path.resolve(), *file.path.resolve().parents))


def _is_missed(path: Path, folders: list[Path], format: CorpusFormat | None) -> bool:
    return any(could_be_corpus(path, folder, format) for folder in folders if path.is_relative_to(folder))
