"""Write `constraints/`: what tamis needs (`core.txt`), with what its tests need (`test.txt`), and what a
release is checked with (`release.txt`), each package at one version and with the SHA-256 of its files, for
every platform and Python from 3.11 on.

    python tools/lock.py               # needs uv, and the network
    python tools/lock.py --upgrade     # to the newest versions that pyproject.toml allows

They are installed so, which fails on any file that is not the one that was locked:

    pip install --no-deps --require-hashes -r constraints/core.txt
    pip install --no-deps .

torch is in none of them, nor what torch alone needs: it is installed by itself, for the device that there is
(see the Makefile). So pip is told to look for nothing else (`--no-deps`); the files have everything else.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The files, and what is resolved for each.
FILES = {
    "core.txt": ["pyproject.toml"],
    "test.txt": ["pyproject.toml", "--extra", "test"],
    "release.txt": ["-"],  # the standard input
}
RELEASE = ["pip-audit>=2.7,<3", "setuptools>=77,<90"]
PYTHON = "3.11"
_NOWHERE = "sys_platform == 'none'"
_HEADING = "# Made by tools/lock.py, which says how it is installed. Do not edit it.\n"
_ADDRESS = re.compile(r"https?://|--index-url|--extra-index-url|--find-links")
#: A package: its line, and those that are indented below it.
_PACKAGE = re.compile(r"^\S.*\n(?:[ ].*\n)*", re.MULTILINE)


def lock(name: str, *, upgrade: bool) -> None:
    """Write one of the files."""
    target = ROOT / "constraints" / name
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        without = Path(folder) / "overrides.txt"
        without.write_text(f"torch ; {_NOWHERE}\n")
        made = Path(folder) / name
        if target.exists():  # versions that still fit are kept
            shutil.copy(target, made)
        command = [_uv(), "pip", "compile", *FILES[name], "--universal", "--python-version", PYTHON]
        command += ["--generate-hashes", "--no-header", "--no-emit-index-url", "--quiet"]
        command += ["--overrides", str(without), "--output-file", str(made)]
        command += ["--upgrade"] if upgrade else []
        subprocess.run(command, cwd=ROOT, check=True, input="\n".join(RELEASE), text=True)
        content = _HEADING + somewhere(made.read_text(encoding="utf-8"))
    if _ADDRESS.search(content):
        raise SystemExit(f"{name} would name where packages come from: whoever installs them says that")
    target.write_text(content, encoding="utf-8")


def somewhere(text: str) -> str:
    """The packages that are installed anywhere: torch, and what it alone needs, are not.

    >>> somewhere("a==1\\n    # via b\\ntorch==2 ; sys_platform == 'none'\\n    # via c\\n# a comment\\n")
    'a==1\\n    # via b\\n'
    """
    packages = (match[0] for match in _PACKAGE.finditer(text) if not match[0].startswith("#"))
    return "".join(each for each in packages if not _is_nowhere(each.partition("\n")[0]))


def _is_nowhere(line: str) -> bool:
    marker = line.partition(" ; ")[2]
    return bool(marker) and all(_NOWHERE in part for part in marker.split(" or "))


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("uv is not installed: pip install uv")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    options = parser.parse_args()
    for name in FILES:
        lock(name, upgrade=options.upgrade)
        print(f"constraints/{name}")


if __name__ == "__main__":
    main()
