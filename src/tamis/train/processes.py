"""The processes of a training run: one, or as many as `torchrun` started."""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from itertools import count

import torch
import xxhash
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from tamis.base.errors import InputError, TamisError, some

# How long a process waits for the others. While the first ranks the dev run, or writes, they wait in their
# next step, and torch would give up after 10 minutes on GPUs and 30 on CPUs. This time is longer than any dev
# run, and a shorter one has no advantage: when a process dies, torchrun ends the others on its machine, and
# those on other machines lose their connection to it.
_TIMEOUT = timedelta(days=7)
_groups = count()  # that this process has joined


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
        if self.world > 1 and device.type == "mps":
            raise InputError(
                "several processes cannot share an Apple GPU", remedy="train in one, or with --device cpu"
            )

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
            missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
            if missing:
                raise InputError(
                    f"WORLD_SIZE is {self.world}, and {some(missing)} are missing",
                    remedy="start the processes with torchrun, or unset WORLD_SIZE",
                )
            store, rank, world = next(rendezvous("env://", timeout=_TIMEOUT))
            # under a name of its own: the store still has the addresses of a group that was left
            store = PrefixStore(f"tamis {next(_groups)}", store)
            try:
                dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_TIMEOUT)
            except RuntimeError as error:
                self._check_lost(error)
                raise
            self.joined = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *trace: object) -> None:
        # Any reference to the group keeps its threads alive until the interpreter ends, when they can abort
        # the process or keep it from ending. A wrapped module is useless without the group, so it is emptied.
        for wrapped in self._wrapped:
            vars(wrapped).clear()
        self._wrapped.clear()
        if self.joined:
            dist.destroy_process_group()
            self.joined = False
        self._check_lost(error)

    def _check_lost(self, error: BaseException | None) -> None:
        """One line for what gloo or NCCL say in many."""
        if self.world > 1 and _is_lost(error):
            raise TamisError(
                f"process {self.rank} of {self.world} lost its connection to the others",
                remedy="look at what the one that ended first has said, and add --resume",
            ) from None

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

    def require_same(self, seen: object, problem: str, remedy: str) -> None:
        """Refuse to go on where some processes see something else than the first, on other machines perhaps:
        they would learn as if they were one, or wait for each other without end. `seen` is told apart by its
        `repr`, and `problem` says what is wrong with those."""
        if self.world == 1:
            return
        digest = xxhash.xxh3_64_intdigest(repr(seen).encode()) >> 1  # fits an int64
        own = torch.tensor([digest], device=self.device)
        every = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(every, own)
        first, *others = [int(each.item()) for each in every]
        apart = [str(rank) for rank, each in enumerate(others, start=1) if each != first]
        if apart:
            which = "process" if len(apart) == 1 else "processes"
            raise InputError(f"{which} {some(apart)} of {self.world}: {problem}", remedy=remedy)


def _is_lost(error: BaseException | None) -> bool:
    """Whether gloo or NCCL say that the process at the other end has gone: only their text tells.

    >>> _is_lost(RuntimeError("[.../gloo/transport/tcp/pair.cc:537] Connection closed by peer"))
    True
    """
    text = str(error) if isinstance(error, RuntimeError) else ""
    return "gloo" in text or "ncclRemoteError" in text


def own_device(device: str) -> str:
    """The GPU of this process, if there are several processes and none was named.

    >>> own_device("cpu")
    'cpu'
    """
    local = os.environ.get("LOCAL_RANK")
    if local is not None and device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{local}"
    return device
