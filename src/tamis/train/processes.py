"""The processes of a training run: one, or as many as `torchrun` started."""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

# How long a process waits for the others. While the first ranks the dev run, or writes, they wait in their
# next step, and torch would give up after 10 minutes on GPUs and 30 on CPUs. This time is longer than any dev
# run, and a shorter one has no advantage: when a process dies, torchrun ends the others.
_TIMEOUT = timedelta(days=7)


class Processes:
    """The rank of this process and their number, from the environment that `torchrun` sets.

    >>> with Processes(torch.device("cpu")) as alone:
    ...     alone.rank, alone.world, alone.first
    (0, 1, True)
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.joined = False  # by this object
        self._wrapped: list[DistributedDataParallel] = []

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def __enter__(self) -> Processes:
        # a nested context reuses the outer one: a run of several phases joins the other processes once
        if self.world > 1 and not dist.is_initialized():
            # otherwise torch imports this module later, and the defaults of its functions would then hold the
            # group forever: see __exit__
            importlib.import_module("torch.distributed.nn.functional")
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=_TIMEOUT)
            self.joined = True
        return self

    def __exit__(self, *error: object) -> None:
        # Any reference to the group keeps its threads alive until the interpreter ends, when they can abort
        # the process or keep it from ending. A wrapped module is useless without the group, so it is emptied.
        for wrapped in self._wrapped:
            vars(wrapped).clear()
        self._wrapped.clear()
        if self.joined:
            dist.destroy_process_group()
            self.joined = False

    def wrapped(self, module: nn.Module) -> nn.Module:
        """The module, with gradients averaged over the processes if there are several. A module that is
        `partial` has parameters without a gradient in some steps, the same ones in all processes."""
        if self.world == 1:
            return module
        partial = bool(getattr(module, "partial", False))
        wrapped = DistributedDataParallel(module, find_unused_parameters=partial)
        self._wrapped.append(wrapped)
        return wrapped

    def quiet(self, module: nn.Module) -> AbstractContextManager[object]:
        """A context in which gradients are only accumulated, not sent."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def meet(self) -> None:
        """Wait until all processes have arrived here."""
        self.mean(torch.zeros(1, device=self.device)).item()

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a value over all processes."""
        if self.world > 1:
            dist.all_reduce(value)
            value /= self.world
        return value


def own_device(device: str) -> str:
    """The GPU of this process, if there are several processes and none was named.

    >>> own_device("cpu")
    'cpu'
    """
    local = os.environ.get("LOCAL_RANK")
    if local is not None and device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{local}"
    return device
