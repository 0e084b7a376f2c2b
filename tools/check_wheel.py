"""Build the wheel, and try it in fresh environments: `python tools/check_wheel.py [--models DIR]`.

The wheel must be below 80 MB (a registry refuses files above 100). It is installed in a new environment of
each of Python 3.11, 3.12 and 3.13 that is on the machine. There, without the hub, it must index a few
documents, search them, and rerank by every bundled model. Packages that tamis depends on are installed from
wherever pip finds them. The exit status is 1 if anything fails, or if no Python was found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
LARGEST = 80e6
#: All that the wheel is built from.
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
#: What must be there for a Python to make an environment: a version manager's name for it may lead nowhere.
USABLE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
TRY = """
import json, subprocess, sys
from pathlib import Path

import tamis
from tamis.models.bundled import bundled_models

assert Path(tamis.__file__).is_relative_to(sys.prefix), f"{tamis.__file__} is not of this environment"
texts = [
    "Sydney is the most populous city of Australia and has its busiest airport.",
    "Canberra is the capital city of Australia and the seat of its government.",
    "Eggs are rich in protein.",
]
with open("texts.jsonl", "w") as file:
    file.writelines(json.dumps({"id": str(n), "text": text}) + "\\n" for n, text in enumerate(texts))

def tamis_says(*arguments):
    done = subprocess.run([sys.executable, "-m", "tamis", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"tamis {' '.join(arguments)}: {done.stderr}"
    return done.stdout

tamis_says("index", "texts.jsonl", "-o", "idx")
query, found = "what is the capital of australia", []
for stages in ["bm25", *(f"bm25 >> {'duo' if m == 'duo' else 'mono'}(model={m})" for m in bundled_models())]:
    said = json.loads(tamis_says("search", "idx", query, "--pipeline", stages, "--json"))
    first = said["results"][0]["id"]
    assert stages == "bm25" or first == "1", f"{stages} puts document {first} first"
    found.append(stages)
print(tamis.__version__, "searches and reranks:", ", ".join(found))
"""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--models", type=Path, help="folder of models to bundle instead of those in src")
    arguments.add_argument("--wheel", type=Path, help="try this wheel, build none")
    arguments.add_argument(
        "--python", action="append", default=[], help="a Python to try it with as well; may be repeated"
    )
    given = arguments.parse_args()
    pythons = found(given.python)
    with tempfile.TemporaryDirectory(prefix="tamis-wheel-") as scratch:
        wheel = given.wheel.resolve() if given.wheel else built(Path(scratch), given.models)
        size = wheel.stat().st_size
        failures = [] if size < LARGEST else [f"{wheel.name} has {size / 1e6:.1f} MB"]
        print(f"{wheel.name}: {size / 1e6:.1f} MB, {LARGEST / 1e6:.0f} MB at most", flush=True)
        for version in VERSIONS:
            if version not in pythons:
                print(f"Python {version}: skipped, not on this machine (give one with --python)", flush=True)
        for version, python in pythons.items():
            problem = tried(wheel, python, Path(scratch) / version)
            failures += [f"Python {version}: {problem}"] if problem else []
            print(f"Python {version}: {problem or 'ok'}", flush=True)
    if not pythons:
        failures.append("no Python to try it with")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def built(scratch: Path, models: Path | None) -> Path:
    """A wheel of a copy of the sources, in which a build leaves its own files."""
    tree = scratch / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.onnx")
            shutil.copytree(source, tree / name, ignore=left_out)
        else:
            shutil.copyfile(source, tree / name)
    if models:
        bundled = tree / "src" / "tamis" / "models_data"
        shutil.rmtree(bundled)
        shutil.copytree(models, bundled)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(scratch / "dist"),
        str(tree),
    ]
    subprocess.run(command, check=True)
    (wheel,) = (scratch / "dist").glob("tamis-*.whl")
    return wheel


def found(named: list[str]) -> dict[str, str]:
    """Pythons that can make an environment, by version; one that is named must be able to."""
    pythons: dict[str, str] = {}
    for python in named:
        version = version_of(python)
        if version is None:
            raise SystemExit(f"error: {python} is no Python with venv and ensurepip: name another")
        pythons[version] = python
    for python in (each for version in VERSIONS for each in candidates(version)):
        version = version_of(python)
        if version is not None:
            pythons.setdefault(version, python)
    return dict(sorted(pythons.items()))


def version_of(python: str) -> str | None:
    try:
        done = subprocess.run([python, "-c", USABLE], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def candidates(version: str) -> Iterator[str]:
    """Where a Python of a version may be: on the path, or among pyenv's."""
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}*/bin/python{version}")))


def tried(wheel: Path, python: str, folder: Path) -> str:
    """What is wrong with the wheel in a new environment; nothing, if all went well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    place = folder / "empty"
    place.mkdir(parents=True)
    own = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    for command, variables in (
        ([python, "-m", "venv", str(folder / "env")], {}),
        ([str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)], {}),
        ([str(own), "-c", TRY], offline),
    ):
        done = subprocess.run(command, cwd=place, env=environment | variables, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
    print(done.stdout.strip(), flush=True)
    shutil.rmtree(folder)
    return ""


if __name__ == "__main__":
    sys.exit(main())
