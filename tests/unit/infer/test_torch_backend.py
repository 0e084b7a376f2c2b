"""The torch backend on the processor: scores, what it refuses, and what it does when memory runs out."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError, TamisError  # noqa: E402
from tamis.infer.engine import Engine, OutOfMemory  # noqa: E402
from tamis.infer.onnx_backend import OnnxBackend  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.templates import Inputs  # noqa: E402

LENGTHS = [7, 30, 3, 12, 12, 1, 25]


def inputs(segments: int = 2, vocabulary: int = 400) -> Inputs:
    generator = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    ids = generator.integers(0, vocabulary, offsets[-1]).astype(np.int32)
    return Inputs(ids, generator.integers(0, max(segments, 1), offsets[-1]).astype(np.uint8), offsets)


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "distilbert"])
def test_its_scores_are_those_of_onnx_runtime(family, labels, tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path, family, labels=labels))
    some = inputs(checkpoint.config.segments)
    ours = Engine(TorchBackend(checkpoint, device="cpu")).margins(some)
    assert ours.dtype == np.float32
    assert ours.std() > 0.05
    assert np.abs(ours - Engine(OnnxBackend(checkpoint, "fp32")).margins(some)).max() < 1e-5


def test_two_labels_give_the_second_less_the_first(tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path, labels=2))
    backend = TorchBackend(checkpoint, device="cpu")
    some = inputs().take([0])
    arrays = (some.ids[None], some.segments[None].astype(np.int32), some.lengths)
    with torch.inference_mode():
        logits = backend.network.encoder.padded(*map(torch.tensor, arrays))[0].tolist()
    assert backend.margins(some)[0] == pytest.approx(logits[1] - logits[0], abs=1e-6)


def test_it_says_what_it_is(tmp_path, tiny_checkpoint):
    backend = TorchBackend(load_checkpoint(tiny_checkpoint(tmp_path)), device="cpu")
    assert backend.description == "torch, processor, fp32"
    assert (backend.numerics, backend.layout, backend.workers) == ("torch-cpu-fp32", "padded", 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"device": "tpu"}, r"no device 'tpu': use auto, cuda"),
        ({"device": "xla"}, r"no device 'xla': use auto"),
        ({"device": "cuda:99"}, r"torch finds no device 'cuda:99' here: use device='auto'"),
        ({"device": "cpu", "precision": "bf16"}, r"bf16 is for CUDA cards, not for cpu: use fp32"),
        ({"device": "cpu", "precision": "fp16"}, r"fp16 is for CUDA cards, not for cpu: use fp32"),
        ({"device": "cpu", "precision": "int8"}, r"no precision 'int8' with torch: use auto, fp32"),
    ],
)
def test_devices_and_precisions_that_there_are_not(options, problem, tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path))
    with pytest.raises(InputError, match=problem):
        TorchBackend(checkpoint, **options)


@pytest.mark.parametrize(
    ("field", "problem"),
    [("ids", "token 400 in a model that has 400"), ("segments", "segment 2 in a model that has 2")],
)
def test_numbers_outside_a_table_are_refused(field, problem, tmp_path, tiny_checkpoint):
    backend = TorchBackend(load_checkpoint(tiny_checkpoint(tmp_path)), device="cpu")
    some = inputs()
    getattr(some, field)[3] = 400 if field == "ids" else 2
    with pytest.raises(InputError, match=problem):
        backend.margins(some)


def test_an_input_too_long_is_refused(tmp_path, tiny_checkpoint):
    backend = TorchBackend(load_checkpoint(tiny_checkpoint(tmp_path, positions=29)), device="cpu")
    with pytest.raises(InputError, match="position 29 in a model that has 29"):
        backend.margins(inputs())


def out_of_memory_above(backend: TorchBackend, tokens: int, error: Exception) -> list[int]:
    """Make the device as small as that; returns the sizes of the batches it was given."""
    encoder, sizes = backend.network.encoder, []
    forward = encoder.padded

    def small_device(ids, *rest):
        sizes.append(ids.numel())
        if ids.numel() > tokens:
            raise error
        return forward(ids, *rest)

    encoder.padded = small_device
    return sizes


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GiB)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_where_memory_runs_out_smaller_batches_give_the_same_scores(error, tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path))
    expected = Engine(TorchBackend(checkpoint, device="cpu")).margins(inputs())
    backend = TorchBackend(checkpoint, device="cpu")
    sizes = out_of_memory_above(backend, 40, error)
    assert np.abs(Engine(backend).margins(inputs()) - expected).max() < 1e-5
    assert sizes[0] == len(LENGTHS) * max(LENGTHS)
    assert max(sizes[-2:]) <= 40


def test_an_input_that_never_fits_is_an_error_and_other_errors_stay_what_they_are(tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path))
    backend = TorchBackend(checkpoint, device="cpu")
    out_of_memory_above(backend, 20, torch.OutOfMemoryError("out of memory"))
    with pytest.raises(OutOfMemory):
        backend.margins(inputs())
    with pytest.raises(TamisError, match="an input of 30 tokens does not fit the memory of torch, processor"):
        Engine(backend).margins(inputs())
    backend = TorchBackend(checkpoint, device="cpu")
    out_of_memory_above(backend, 20, RuntimeError("an illegal instruction"))
    with pytest.raises(RuntimeError, match="an illegal instruction"):
        Engine(backend).margins(inputs())
