"""Runs models with torch: CUDA GPUs in bf16 with packed inputs, Apple's GPUs and the processor in fp32.

A model with exits reads one query at a time, so that the scores of a query do not depend on other queries,
not even in one bit. Its candidates are packed if the device has a kernel for that, and otherwise padded in
rectangles of similar lengths. The states of live candidates stay in memory between exits: 1.6 GB in fp32 for
a thousand inputs of 512 tokens in a model of 768 dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array, Layout, batches
from tamis.base.errors import InputError
from tamis.infer.engine import Check, OutOfMemory, no_check
from tamis.infer.walk import Keep, exit_margins
from tamis.models.checkpoint import Checkpoint
from tamis.models.config import EncoderConfig
from tamis.models.exit_network import ExitNetwork, Walk
from tamis.models.network import Network, open_network
from tamis.models.templates import Inputs
from tamis.models.tokenizer import open_tokenizer

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {"cuda": "CUDA", "mps": "Metal", "cpu": "processor"}

#: Tokens per batch. A large GPU is fully used from about 16,000; a thousand passages fit into one batch.
TOKEN_BUDGETS = {"cuda": 1 << 17, "mps": 1 << 14, "cpu": 1 << 12}
#: The budgets if inputs are documents: a document is longer than a padded rectangle on a processor, and on a
#: GPU the states of every layer are kept.
_DOCUMENT_BUDGETS = {"cuda": 1 << 16, "mps": 1 << 13, "cpu": 1 << 14}


class TorchBackend:
    """A checkpoint on a device of torch.

    `device` is auto (the first available of cuda, mps, cpu), cuda, cuda:1, mps or cpu; `precision` is auto
    (bf16 on CUDA GPUs that support it, else fp32), fp32, bf16 or fp16. `compile` makes the first batch about
    a minute slower, and the following ones faster.
    """

    workers = 1  # a device runs one batch after the other

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str = "auto",
        precision: str = "auto",
        compile: bool = False,
    ) -> None:
        self.device = device_of(device)
        self.precision = precision_of(precision, self.device)
        self.config, self.architecture = checkpoint.config, checkpoint.architecture
        self.compiled = compile
        self._special = open_tokenizer(checkpoint).special
        network = open_network(checkpoint).to(self.device)
        network.in_precision(PRECISIONS[self.precision])
        network.packed = packs(self.config, self.device, self.precision)
        if compile:
            network.compile()
        self.network: Network = network
        documents = self.architecture.of_passages
        self.layout: Layout = "packed" if network.packed or documents else "padded"
        self.token_budget = (_DOCUMENT_BUDGETS if documents else TOKEN_BUDGETS)[self.device.type]

    @property
    def on_torch_threads(self) -> bool:
        return self.device.type == "cpu"

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
        """The scores of each input, in the form of its architecture."""
        if not self.architecture.of_passages:  # in documents, each passage has its own positions
            check(inputs, self.config)

        def score() -> Array:
            values: Array = self.network(inputs).float().cpu().numpy()
            return values  # only the line above waits for the device

        return self.architecture.rows(self._fitting(score), inputs, self._special)

    def walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check = no_check) -> Array:
        """See `tamis.infer.engine.Backend`."""
        network = self.network
        assert isinstance(network, ExitNetwork)
        check(inputs, self.config)
        return self._fitting(lambda: self._walk(network, inputs, keep, token_budget, wanted))

    def _walk(
        self, network: ExitNetwork, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check
    ) -> Array:
        walks: list[tuple[Array, Walk]] = []

        def ask(exit: int, live: Array) -> Array:
            nonlocal walks
            if exit == 0:
                together = batches(inputs.lengths, token_budget, self.layout)
                walks = [(numbers, network.begin(inputs.take(numbers))) for numbers in together]
            else:
                walks = _thinned(walks, live, self.device)
            # start all of them before reading any result, because reading waits for the device
            asked = [(numbers, _next(walk, wanted)) for numbers, walk in walks]
            margins = np.empty(len(inputs), np.float32)
            for numbers, some in asked:
                margins[numbers] = some.cpu().numpy()
            return margins[live]

        return exit_margins(len(inputs), len(network.exit_layers), ask, keep, self.description)

    def _fitting(self, score: Callable[[], Array]) -> Array:
        """The result of `score`; raises `OutOfMemory` if the device does not have enough memory."""
        try:
            with torch.inference_mode():
                return score()
        except RuntimeError as error:  # includes torch.OutOfMemoryError, which only CUDA raises
            if not is_out_of_memory(error):
                raise
        # Outside the handler, because the exception keeps the tensors of the failed batch alive.
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        raise OutOfMemory


def _next(walk: Walk, wanted: Check) -> Tensor:
    wanted()
    return walk.scores()


def _thinned(
    walks: list[tuple[Array, Walk]], going_on: Array, device: torch.device
) -> list[tuple[Array, Walk]]:
    """The walks with only the inputs `going_on`; walks without any are dropped."""
    left = []
    for numbers, walk in walks:
        rows = np.flatnonzero(np.isin(numbers, going_on))
        if len(rows):
            if len(rows) < len(numbers):
                walk.keep(torch.from_numpy(rows).to(device))
            left.append((numbers[rows], walk))
    return left


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
        # Some processors, mainly virtual ones, announce matrix units (AMX) that programs cannot use;
        # half-precision products then kill the whole process with an illegal instruction.
        raise InputError(
            f"{name} is for CUDA cards, not for {device.type}",
            remedy="use fp32, or int8 without torch on the processor",
        )
    return name


def packs(config: EncoderConfig, device: torch.device, precision: str) -> bool:
    """Whether torch's flash attention for inputs of different lengths is available here."""
    if device.type != "cuda" or precision == "fp32":
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401 (torch 2.10)
    except ImportError:
        return False
    recent = torch.cuda.get_device_capability(device) >= (8, 0)
    return recent and config.head_size % 8 == 0 and config.head_size <= 256


def check(inputs: Inputs, config: EncoderConfig) -> None:
    """Raise an error for indices outside a table. On a GPU they would break all later use of the GPU by this
    process."""
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
