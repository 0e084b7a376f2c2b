"""Thousands of documentation files of this machine, or of the folder that TAMIS_DOCUMENTS names.

All are indexed or told of, and found on the page.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

FILES = 5_000
PLACES = (
    Path("/usr/share/doc"),
    Path("/usr/share/man"),
    Path(sysconfig.get_path("purelib")),
    *Path.home().glob(".rustup/toolchains/*/share/doc"),
)
#: How many files of a kind are taken from the machine, at most.
KINDS = {
    "html": (re.compile(r".*\.html?"), 3_000),
    "man": (re.compile(r".*\.[1-8](\.gz)?"), 3_000),
    "markdown": (re.compile(r".*\.(md|rst)"), 1_000),
    "pdf": (re.compile(r".*\.pdf"), 500),
    "text": (re.compile(r".*\.txt"), 500),
}


def _of_kind(name: re.Pattern[str]) -> Iterator[Path]:
    for place in PLACES:
        for folder, folders, names in os.walk(place):
            folders.sort()
            paths = (Path(folder, each) for each in sorted(names) if name.fullmatch(each))
            yield from (each for each in paths if each.is_file() and not each.is_symlink())


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of at least 5,000 files."""
    if given := os.environ.get("TAMIS_DOCUMENTS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("real") / "documents"
    count = 0
    for name, most in KINDS.values():
        for path in islice(_of_kind(name), most):
            target = folder.joinpath(*(part.removeprefix(".") for part in path.parts[1:]))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            count += 1
    if count < FILES:
        pytest.skip(f"only {count} files of documentation here: TAMIS_DOCUMENTS=DIR names a folder with more")
    return folder


@pytest.fixture(scope="module")
def built(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The index, what `tamis index DIR -o idx` prints as JSON, and what it warns of."""
    index = tmp_path_factory.mktemp("real") / "idx"
    command = [sys.executable, "-m", "tamis", "index", str(documents), "-o", str(index), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return index, json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def real(built: Any, serving: Any) -> Iterator[str]:
    with serving(built[0], "--pipeline", "bm25 % 100", "--deadline", "60s") as address:
        yield address


def test_every_file_is_indexed_or_told_of(documents, built):
    _, told, warnings = built
    files = sum(len(names) for _, _, names in os.walk(documents))
    left_out = sum(each["files"] for each in told["left_out"])
    assert files >= FILES
    assert told["documents"] == told["read"]
    assert told["read"] + left_out == files, warnings
    assert all(each["reason"] for each in told["left_out"])
    assert ("left out" in warnings) == bool(left_out)


@pytest.mark.parametrize("width", [375, 1280])
def test_they_are_found_and_read_on_the_page(page, real, width):
    page.width(width)
    with page.at(real):
        for query in ("extract files from an archive", "print the manual page", "licence of the library"):
            page.open(q=query)
            found = page.run(
                "return [...document.querySelectorAll('#results .card')].map((e) => e.dataset.id)"
            )
            assert len(found) == 10
            assert page.run("return document.documentElement.scrollWidth - innerWidth") <= 0
            page.open(q=query, open=found[0])
            page.until(lambda: page.all("#document mark.current"))
            assert (
                page.run(
                    "const box = document.querySelector('dialog'); return box.scrollWidth - box.clientWidth"
                )
                <= 0
            )
    page.width(1280)
