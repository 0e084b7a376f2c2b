"""The processes of a training run: one, or as many as `torchrun` has started."""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

# How long one waits for the others. While the first ranks the dev run, or writes, they wait in their next
# step, and torch would give up after 10 minutes on cards and 30 on processors. This is longer than any dev
# run, and nothing is gained by less: when a process dies, torchrun ends the others.
_TIMEOUT = timedelta(days=7)


class Processes:
    """Which of how many this process is, from the environment that `torchrun` sets.

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
        """Whether this is the one that writes."""
        return self.rank == 0

    def __enter__(self) -> Processes:
        # one within another is part of it: a run of several phases joins the others once
        if self.world > 1 and not dist.is_initialized():
            # torch imports this module later by itself, and the defaults of its functions would then hold
            # the group for good: see __exit__
            importlib.import_module("torch.distributed.nn.functional")
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=_TIMEOUT)
            self.joined = True
        return self

    def __exit__(self, *error: object) -> None:
        # Whatever holds the group keeps its threads alive until the interpreter ends, where they can abort
        # the process or keep it from ending. A wrapped module is of no use alone: it lets go of all it has.
        for wrapped in self._wrapped:
            vars(wrapped).clear()
        self._wrapped.clear()
        if self.joined:
            dist.destroy_process_group()
            self.joined = False

    def wrapped(self, module: nn.Module) -> nn.Module:
        """The module, its gradients averaged over the processes, while they are together. One that says it is
        `partial` has parameters that a step may not reach, the same in all processes."""
        if self.world == 1:
            return module
        partial = bool(getattr(module, "partial", False))
        wrapped = DistributedDataParallel(module, find_unused_parameters=partial)
        self._wrapped.append(wrapped)
        return wrapped

    def quiet(self, module: nn.Module) -> AbstractContextManager[object]:
        """While gradients are only added up, nothing need be sent."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def meet(self) -> None:
        """Wait until all are here."""
        self.mean(torch.zeros(1, device=self.device)).item()

    def mean(self, value: Tensor) -> Tensor:
        """Over all processes."""
        if self.world > 1:
            dist.all_reduce(value)
            value /= self.world
        return value


def own_device(device: str) -> str:
    """The card of this process among several, where one was not named.

    >>> own_device("cpu")
    'cpu'
    """
    local = os.environ.get("LOCAL_RANK")
    if local is not None and device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{local}"
    return device
