"""Train the models that come with tamis: one command for each, from collections to a folder to ship.

    python repro/models/retrain.py mono --data DIR --bases DIR --out OUT

NAME is mono, mono-tiny, mono-nano, duo, or mono-exits, which does not come with tamis. DIR of --data has the
collections (see prepare.py), that of --bases the teachers (see bases.py). What a step leaves in OUT, the next
command finds and does not make again; a step that was interrupted goes on. OUT/release/NAME is the result:
int8 weights, and the log.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tamis.cli import status_of
from tamis.models.checkpoint import load_checkpoint, save_checkpoint

HERE = Path(__file__).parent
LEFTOVERS = ("_name_or_path", "gradient_checkpointing", "transformers_version", "use_cache")  # of the start
NAMES = ("mono", "mono-tiny", "mono-nano", "mono-exits", "duo")
OF_MONO = ("mono-tiny", "mono-exits")  # which begin with layers of the new mono
# not duo, whose scores are chances of pairs already, nor mono-exits: each exit would need its own scale
CALIBRATED = ("mono", "mono-tiny", "mono-nano")
CROSS_ENCODER, FIRST_MONO, ENCODER = (
    f"bases/{name}" for name in ("ms-marco-MiniLM-L-12-v2", "first-mono", "gte-small")
)


@dataclass(frozen=True, slots=True)
class Step:
    """A command to run in OUT, what it needs, and the file that is there when it is done."""

    command: list[str]
    after: list[str]
    done: str


def steps(data: str) -> dict[str, Step]:
    def script(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(HERE / f"{name}.py"), *arguments]

    def train(recipe: str) -> Step:
        command = [sys.executable, "-m", "tamis", "train", recipe, "--out", recipe, "--resume"]
        after = ["teach", "mono"] if recipe in OF_MONO else ["teach"]
        return Step(command, after, f"{recipe}/last/model.safetensors")

    prepare = script("prepare", "--data", data, "--tokenizer", CROSS_ENCODER, "--out", ".")
    teachers = ("--cross-encoder", CROSS_ENCODER, "--first-mono", FIRST_MONO, "--encoder", ENCODER)
    teach = script("teach", "--set", "set", "--dev", "dev", *teachers, "--out", "taught")
    return {
        "prepare": Step(prepare, [], "set/set.json"),
        "teach": Step(teach, ["prepare"], "taught/set.json"),
        **{name: train(name) for name in NAMES},
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("name", choices=NAMES)
    arguments.add_argument("--data", type=Path, required=True, help="folder of the collections")
    arguments.add_argument("--bases", type=Path, required=True, help="folder of the teachers")
    arguments.add_argument("--out", type=Path, required=True, help="folder for all that is made")
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    bases = given.out / "bases"
    if not bases.exists():
        bases.unlink(missing_ok=True)  # a link that leads nowhere
        bases.symlink_to(given.bases.resolve(strict=True))
    do(given.name, steps(str(given.data.resolve())), given.out)
    folder = given.out / "release" / given.name
    release(given.out / given.name, folder)
    if given.name in CALIBRATED:
        command = [sys.executable, str(HERE / "calibrate.py"), f"release/{given.name}", "--dev", "dev"]
        call(command, given.out)


def do(name: str, every: dict[str, Step], out: Path) -> None:
    """A step, after those that it needs."""
    step = every[name]
    for needed in step.after:
        do(needed, every, out)
    if not (out / step.done).exists():
        print(f"-- {name}", flush=True)
        call(step.command, out)


def call(command: list[str], folder: Path) -> None:
    """One that fails has said why."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    if done.returncode:
        raise SystemExit(done.returncode)


def release(trained: Path, folder: Path) -> None:
    """The last weights, as int8, with the log of their training. The last, and not the best by the dev
    questions: of two that differ by less than the noise, the one whose rate has come down to 0."""
    checkpoint = load_checkpoint(trained / "last")
    names = {"0": "relevance"} if checkpoint.config.labels == 1 else {"0": "not relevant", "1": "relevant"}
    raw = {key: value for key, value in checkpoint.raw_config.items() if key not in LEFTOVERS}
    save_checkpoint(replace(checkpoint, raw_config=raw | {"id2label": names}), folder, "int8")
    shutil.copyfile(trained / "log.jsonl", folder / "training.jsonl")


if __name__ == "__main__":
    sys.exit(status_of(main))
