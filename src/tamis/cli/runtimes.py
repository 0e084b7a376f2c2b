"""What `tamis doctor` finds out about the runtimes of models: which are there, and which of them work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

_TIMEOUT = 120.0  # seconds: torch takes long to import from a slow disk

# Each line that it prints stands whatever comes after it, and what comes last may end the process: some
# processors announce matrix units (AMX) that they do not let programs use.
_TORCH = """
import contextlib, json
with contextlib.suppress(ImportError):
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from tamis.infer.scorer import cuda_present
import torch
def say(**found): print(json.dumps(found), flush=True)
say(version=torch.__version__)
say(cuda=torch.cuda.get_device_name() if cuda_present() else None, mps=torch.backends.mps.is_available())
a = torch.ones(64, 64, dtype=torch.bfloat16)
say(cpu_bf16=bool((a @ a == 64).all()))
"""


def onnx_runtime() -> dict[str, Any]:
    """Its version, and whether it runs a graph of one node."""
    try:
        import numpy as np
        import onnxruntime
        from onnx import TensorProto, helper

        value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", value[:1], value[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (doubled,) = session.run(None, {"x": np.array([1, 2], np.float32)})
        if doubled.tolist() != [2.0, 4.0]:
            raise ArithmeticError(f"1 + 1, 2 + 2 = {doubled.tolist()}")
    except Exception as error:  # report any problem with it here
        reason = " ".join(str(error).split())
        problem = f"ONNX Runtime does not work ({reason}): pip install --force-reinstall onnx onnxruntime"
        return {"works": False, "version": None, "problems": [problem]}
    return {"works": True, "version": onnxruntime.__version__, "problems": []}


@cache
def torch() -> dict[str, Any]:
    """The devices that torch can use, determined in a separate process, which it may crash. torch is
    optional: if it does not work, `failure` says why."""
    found: dict[str, Any] = dict.fromkeys(("version", "cuda", "mps", "cpu_bf16", "failure"))
    if find_spec("torch") is None:
        return found
    try:
        said = subprocess.run(
            [sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return found | {"failure": f"no answer in {_TIMEOUT:.0f} s"}
    for line in said.stdout.splitlines():
        found |= json.loads(line)
    if said.returncode and found["mps"] is None:
        complaint = said.stderr.strip().splitlines()
        return found | {"failure": complaint[-1] if complaint else _ending(said.returncode)}
    if said.returncode:
        found["cpu_bf16"] = _ending(said.returncode)
    return found


def _ending(status: int) -> str:
    """
    >>> _ending(1), _ending(-4)
    ('ends the process with status 1', 'kills the process (SIGILL)')
    """
    if status >= 0:
        return f"ends the process with status {status}"
    return f"kills the process ({signal.Signals(-status).name})"


def automatic(onnx: dict[str, Any], torch: dict[str, Any]) -> str | None:
    """The device and the precision that `auto` stands for, None where nothing works.

    >>> automatic({"works": True}, {"cuda": None})
    'cpu in int8, by ONNX Runtime'
    """
    if torch["cuda"]:
        return "cuda in bf16, by torch"
    return "cpu in int8, by ONNX Runtime" if onnx["works"] else None
