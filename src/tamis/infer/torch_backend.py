"""The encoder by torch: CUDA cards in bf16 with packed inputs, Apple's GPUs and the processor in fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.infer.engine import Layout, OutOfMemory
from tamis.models.checkpoint import Checkpoint
from tamis.models.config import EncoderConfig
from tamis.models.encoder import Encoder
from tamis.models.templates import Inputs

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {"cuda": "CUDA", "mps": "Metal", "cpu": "processor"}

#: Tokens a batch. A large card is busy from about 16,000; a thousand passages go through in one batch.
TOKEN_BUDGETS = {"cuda": 1 << 17, "mps": 1 << 14, "cpu": 1 << 12}
_PADDED_TO = 64  # longest inputs are rounded up to this, so that few different shapes are met


class TorchBackend:
    """A checkpoint on a device that torch knows.

    `device` is auto (the first there is of cuda, mps, cpu), cuda, cuda:1, mps or cpu; `precision` is auto
    (bf16 on CUDA cards that have it, else fp32), fp32, bf16 or fp16. `compile` trades a minute at the first
    batch for faster ones after it.
    """

    workers = 1  # a device runs one batch after the other

    def __init__(
        self, checkpoint: Checkpoint, device: str = "auto", precision: str = "auto", compile: bool = False
    ) -> None:
        self.device = device_of(device)
        self.precision = precision_of(precision, self.device)
        self.config = checkpoint.config
        self.layout: Layout = "packed" if has_packed_attention(self) else "padded"
        self.token_budget = TOKEN_BUDGETS[self.device.type]
        self.compiled = compile
        encoder = Encoder.from_checkpoint(checkpoint)
        head = encoder.head
        encoder = encoder.to(self.device, PRECISIONS[self.precision])
        head.float()  # so that logits are not rounded to eight bits, and candidates not tied
        forward = encoder.packed if self.layout == "packed" else encoder.padded
        self._forward: Callable[..., Tensor] = torch.compile(forward, dynamic=True) if compile else forward

    @property
    def description(self) -> str:
        name = _NAMES[self.device.type]
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        return f"torch, {name}, {self.precision}{', compiled' if self.compiled else ''}"

    @property
    def numerics(self) -> str:
        return f"torch-{self.device.type}-{self.precision}"

    def margins(self, inputs: Inputs) -> Array:
        """One float32 an input: its logit, or with two labels the second less the first."""
        check(inputs, self.config)

        def score() -> Array:
            values: Array = self._margins(self._forward(*self._arguments(inputs))).cpu().numpy()
            return values  # above, and only there, the device is waited for

        return self._fitting(score)

    def _margins(self, logits: Tensor) -> Tensor:
        return (logits[:, 0] if self.config.labels == 1 else logits[:, 1] - logits[:, 0]).float()

    def _fitting(self, score: Callable[[], Array]) -> Array:
        """What `score` returns; `OutOfMemory` if the device has not enough for it."""
        try:
            with torch.inference_mode():
                return score()
        except RuntimeError as error:  # torch.OutOfMemoryError is one, but only CUDA raises it
            if not is_out_of_memory(error):
                raise
        # Outside the handler, whose exception keeps the tensors of the failed batch alive.
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        raise OutOfMemory

    def _arguments(self, inputs: Inputs) -> tuple[Tensor | int, ...]:
        """What the encoder takes, on the device."""
        return self._packed(inputs) if self.layout == "packed" else self._padded(inputs)

    def _packed(self, inputs: Inputs) -> tuple[Tensor | int, ...]:
        """All of a batch's numbers go to the device in one copy, from memory that the device reads itself."""
        tokens, count = len(inputs.ids), len(inputs)
        host = torch.empty(2 * tokens + count + 1, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        numbers = host.numpy()
        numbers[:tokens], numbers[tokens : 2 * tokens] = inputs.ids, inputs.segments
        numbers[2 * tokens :] = inputs.offsets
        there = host.to(self.device, non_blocking=True)
        longest = _rounded(inputs, self.config)
        return there[:tokens], there[tokens : 2 * tokens], there[2 * tokens :], longest

    def _padded(self, inputs: Inputs) -> tuple[Tensor | int, ...]:
        lengths = inputs.lengths
        seen = np.arange(int(lengths.max())) < lengths[:, None]
        ids, segments = np.zeros(seen.shape, np.int32), np.zeros(seen.shape, np.int32)
        ids[seen], segments[seen] = inputs.ids, inputs.segments
        return tuple(torch.from_numpy(array).to(self.device) for array in (ids, segments, lengths))


def device_of(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in _NAMES:
        raise InputError(f"no device {name!r}", remedy="use auto, cuda, cuda:1, mps or cpu")
    present = {
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if not present[device.type]:
        raise InputError(f"torch finds no device {name!r} here", remedy="use device='auto' or 'cpu'")
    return device


def precision_of(name: str, device: torch.device) -> str:
    on_card = device.type == "cuda"
    if name == "auto":
        return "bf16" if on_card and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if name not in PRECISIONS:
        raise InputError(f"no precision {name!r} with torch", remedy="use auto, fp32, bf16 or fp16")
    if name != "fp32" and not on_card:
        # Some processors, virtual ones above all, announce matrix units (AMX) that they do not let programs
        # use; half-precision products then end the whole process with an illegal instruction.
        raise InputError(
            f"{name} is for CUDA cards, not for {device.type}",
            remedy="use fp32, or int8 without torch on the processor",
        )
    return name


def has_packed_attention(backend: TorchBackend) -> bool:
    """Whether torch's flash attention for inputs of different lengths runs here."""
    if backend.device.type != "cuda" or backend.precision == "fp32":
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401 (torch 2.10)
    except ImportError:
        return False
    recent = torch.cuda.get_device_capability(backend.device) >= (8, 0)
    return recent and backend.config.head_size % 8 == 0 and backend.config.head_size <= 256


def _rounded(inputs: Inputs, config: EncoderConfig) -> int:
    longest = int(inputs.lengths.max(initial=1))
    return min(-(-longest // _PADDED_TO) * _PADDED_TO, config.max_length)


def check(inputs: Inputs, config: EncoderConfig) -> None:
    """On a card, a number outside a table ends every later use of the card by this process."""
    for what, found, there_are in (
        ("token", inputs.ids, config.vocabulary),
        ("segment", inputs.segments, config.segments or 1),
        ("position", inputs.lengths - 1, config.max_length),
    ):
        largest = int(found.max(initial=0))
        if largest >= there_are:
            raise InputError(
                f"{what} {largest} in a model that has {there_are}",
                remedy="use the model's own tokenizer and limits",
            )


def is_out_of_memory(error: RuntimeError) -> bool:
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in said or "allocate memory" in said
