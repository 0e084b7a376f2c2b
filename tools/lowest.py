"""The lowest versions that pyproject.toml allows of what tamis needs: `python tools/lowest.py` prints them.

A minimum that nobody installs is a guess. `python tools/lowest.py --try DIR` makes a new environment in DIR
with exactly these versions, and there runs `tamis demo` and the tests that need no torch. With `--extra NAME`
those of an extra come too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Beside tamis, what its tests need here.
TOOLS = ("pytest>=8,<10", "hypothesis>=6.100,<7", "httpx>=0.27,<1", "safetensors>=0.4.5")
TESTS = tuple(
    f"tests/unit/{name}"
    for name in ("base", "core", "evaluate", "formats", "index", "serve", "storage", "text")
)
#: What older versions do otherwise, as they may: FastAPI called a body of `null` missing, and not wrong.
_OTHERWISE = "not null-the"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+(?:\[[\w,-]+\])?)(?P<versions>[^;]*)(?P<marker>;.*)?")


def lowest(requirement: str) -> str:
    """A requirement at the lowest version that it allows.

    >>> lowest("numpy>=2.0,<3"), lowest("ir_datasets<0.7,>=0.6 ; python_version < '3.14'")
    ('numpy==2.0', "ir_datasets==0.6 ; python_version < '3.14'")
    >>> lowest("numpy<3")
    Traceback (most recent call last):
    ValueError: numpy<3 has no lowest version: add >=
    """
    read = _REQUIREMENT.fullmatch(requirement.strip())
    least = read and re.search(r"[>=]=\s*([\w.]+)", read["versions"])
    if not read or not least:
        raise ValueError(f"{requirement} has no lowest version: add >=")
    marker = f" {read['marker']}" if read["marker"] else ""
    return f"{read['name']}=={least[1]}{marker}"


def attempt(folder: Path, pins: list[str]) -> None:
    """Install exactly these in a new environment, and run the demo and the tests there."""
    python = str(folder.absolute() / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", ".", *pins, *TOOLS],
        [python, "-m", "pip", "check", "--disable-pip-version-check"],
        [python, "-m", "tamis", "demo"],
        [python, "-m", "pytest", *TESTS, "-k", _OTHERWISE],
    ):
        subprocess.run(command, cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--extra", action="append", default=[], help="an extra as well; may be repeated")
    parser.add_argument("--try", dest="folder", type=Path, help="install them in this folder, and test")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (each for name in options.extra for each in project["optional-dependencies"][name])
    pins = [lowest(requirement) for requirement in [*project["dependencies"], *extras]]
    print("\n".join(pins), flush=True)
    try:
        if options.folder is not None:
            attempt(options.folder, pins)
    except subprocess.CalledProcessError as error:
        print(f"error: status {error.returncode} of {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
