"""What is won beyond one process and one machine, part by part.

    python bench/scale.py --part ray [--data DIR] [--rounds 5] [--out results.json]
    python bench/scale.py --part opensearch --cluster HOST:PORT [--rounds 3] [--out results.json]

A part is a module beside this one, with `add_arguments(parser)` and `measure(arguments)`, which returns what
it has measured as plain data and prints it on the way.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path

from machine import processor, versions

#: Each part: its module, and the packages whose versions matter.
PARTS = {
    "ray": ("scale_ray", ("tamis", "ray", "onnxruntime")),
    "opensearch": ("scale_opensearch", ("tamis", "opensearch-py", "numba")),
}


def main() -> None:
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--part", choices=PARTS, required=True, help="what is measured")
    module, packages = PARTS[first.parse_known_args()[0].part]
    part = import_module(module)
    parser = argparse.ArgumentParser(parents=[first], description=part.__doc__)
    parser.add_argument("--out", type=Path, help="a file for the results")
    part.add_arguments(parser)
    arguments = parser.parse_args()
    result = {"processor": processor(), "versions": versions(packages), **part.measure(arguments)}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
