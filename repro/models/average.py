"""The mean of the weights of models that were trained from one start with different seeds.

    python average.py OUT/mono-1 OUT/mono-2 --out OUT/mono

Each is a folder that `tamis train` left. OUT/mono/last is the mean of their last weights, OUT/mono/log.jsonl
has the lines of all their logs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from script import run

from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.train.average import averaged


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("trained", type=Path, nargs="+", help="folders")
    arguments.add_argument("--out", type=Path, required=True, help="folder for last/ and log.jsonl")
    given = arguments.parse_args()
    save_checkpoint(averaged([load_checkpoint(each / "last") for each in given.trained]), given.out / "last")
    lines = [
        json.dumps({"run": each.name, **json.loads(line)})
        for each in given.trained
        for line in (each / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    (given.out / "log.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
