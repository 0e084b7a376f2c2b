"""The training loop: AdamW, its schedule, batches made ahead, a log, a dev measure, and a state on disk.

What is trained is a `Task`: a module whose forward takes a batch and gives its loss. All that a step draws at
random depends on the seed, the step and the process, so that a run that goes on from its state does what it
would have done: on a processor bit for bit.

Several processes, one a device, are started by `torchrun`, which tells each its rank in the environment. Each
takes its share of every batch, torch's DistributedDataParallel averages the gradients, and the first writes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from tamis.base.errors import TamisError
from tamis.models.encoder import Encoder, Layer
from tamis.storage.files import make_folder, storage_errors
from tamis.train.processes import Processes
from tamis.train.recipe import Optimiser, Run
from tamis.train.state import BEST, LAST, Log, State, clear_remains, load_state, require_new, save_state

Progress = Callable[[Mapping[str, Any]], object]
SHARE = "use a folder that all machines share, or copy it to each of them"
_AHEAD = 2  # steps whose batches are made while the device works


@dataclass(frozen=True, slots=True)
class Part:
    """A batch, or what fits the device of one."""

    batch: Any
    pairs: int  # how many inputs it has
    share: float = 1.0  # how much of the step's loss it is
    names: Callable[[], str] = str  # whose it is, for an error


class Task(Protocol):
    """What is trained, on what, for what."""

    @property
    def module(self) -> nn.Module:
        """Its forward takes a batch and gives the loss."""
        ...

    @property
    def identity(self) -> str:
        """Changes with whatever changes the training."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of matrix products where it is not that of the weights."""
        ...

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """The share that process `rank` of `world` has of step `step`; called in a thread."""
        ...

    def save(self, folder: Path) -> None: ...

    def evaluate(self) -> float:
        """The dev measure: the larger the better."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it."""

    model: Path  # the best weights by the dev measure, or without one the last
    steps: int
    loss: float | None  # of the log's last line; None where nothing was left to do
    best: float | None  # of the dev measure
    best_step: int | None
    seconds: float  # since it began, or went on
    stopped: bool = False  # before the last step, because the dev measure rose no more


def learning_rate(step: int, optimiser: Optimiser) -> float:
    """The rate of step 0, 1, ... before which so many have been done: up to the peak over the warm-up, then
    linearly towards 0, which the step after the last would have. (step + 1: a rate of 0 teaches nothing.)

    >>> plan = Optimiser(learning_rate=1.0, warm_up=2, steps=6)
    >>> [learning_rate(step, plan) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    steps = total_steps(optimiser)
    warm_up = warm_up_steps(optimiser)
    if step < warm_up:
        return optimiser.learning_rate * (step + 1) / warm_up
    if optimiser.schedule == "constant":
        return optimiser.learning_rate
    return optimiser.learning_rate * max(steps - step, 0) / (steps - warm_up)


def warm_up_steps(optimiser: Optimiser) -> int:
    """
    >>> warm_up_steps(Optimiser(warm_up=0.06, steps=1000)), warm_up_steps(Optimiser(warm_up=50, steps=1000))
    (60, 50)
    """
    if optimiser.warm_up < 1:
        return round(optimiser.warm_up * total_steps(optimiser))
    return int(optimiser.warm_up)


def total_steps(optimiser: Optimiser) -> int:
    if optimiser.steps is None:
        raise TamisError("epochs without data", remedy="say how many steps they are (`in_steps`)")
    return optimiser.steps


def parameter_groups(module: nn.Module, optimiser: Optimiser) -> list[dict[str, Any]]:
    """Parameters by their decay and rate. What adds or scales (biases, norms) does not decay: it has no
    matrix whose size could be traded between layers. `scale` is the rate as a multiple of the schedule's:
    heads have one of their own because they begin at random, which a pooler does not.

    >>> [group["weight_decay"] for group in parameter_groups(nn.Linear(2, 2), Optimiser(steps=1))]
    [0.01, 0.0]
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    pretrained = _poolers(module)
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = optimiser.weight_decay if parameter.ndim > 1 else 0.0
        rate = optimiser.learning_rate
        if "head" in name.split(".") and parameter not in pretrained:
            rate = optimiser.head_learning_rate or rate
        scale = rate / optimiser.learning_rate
        groups.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (scale, decay), parameters in groups.items()
    ]


def _poolers(module: nn.Module) -> set[nn.Parameter]:
    """What lies in a head and yet was pretrained."""
    encoders = (each for each in module.modules() if isinstance(each, Encoder))
    return {parameter for each in encoders if each.pooler for parameter in each.pooler.parameters()}


def fit(
    task: Task,
    optimiser: Optimiser,
    run: Run,
    out: str | Path,
    *,
    evaluate_every: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train to the last step, or go on from the state in `out`. `progress` is told each line of the log.

    `out` gets `best/` (with a dev measure) and `last/`, models; `log.jsonl`; and `state/`, to go on from.
    """
    folder = Path(out)
    require_new(folder, resume)
    with storage_errors(folder):
        make_folder(folder)
    with Processes(task.device) as processes, torch.random.fork_rng(devices=_cards(task.device)):
        processes.require_same(
            task.identity,
            "another recipe, other data or another model to start from than the first process has",
            "give all machines the same files, at the same paths",
        )
        if processes.world > 1:  # before anything is written: a batch that they cannot share is an error
            task.parts(0, processes.world - 1, processes.world)
        fitting = _Fitting(task, optimiser, run, folder, processes, evaluate_every, progress)
        if resume:
            fitting.load()
        processes.require_same(
            (fitting.step, fitting.best),
            f"another state in {folder} than the first process sees",
            SHARE,
        )
        return fitting.run_through()


def _cards(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


class _Fitting:
    """A training run in progress."""

    def __init__(
        self,
        task: Task,
        optimiser: Optimiser,
        run: Run,
        out: Path,
        processes: Processes,
        evaluate_every: int | None,
        progress: Progress | None,
    ) -> None:
        self.task, self.plan, self.settings, self.out = task, optimiser, run, out
        self.processes, self.every, self.progress = processes, evaluate_every, progress
        self.steps = total_steps(optimiser)
        self.module = task.module.train()
        if run.compile:
            for layer in self.module.modules():
                if isinstance(layer, Layer):  # all alike, so that one compilation serves all
                    layer.compile(dynamic=True)
        self.model = processes.wrapped(self.module)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.adam = torch.optim.AdamW(
            parameter_groups(self.module, optimiser),
            lr=optimiser.learning_rate,
            betas=optimiser.betas,
            eps=optimiser.epsilon,
            fused=task.device.type == "cuda",
        )
        self.step = 0
        self.losses: list[float] = []
        self.best: float | None = None
        self.best_step: int | None = None
        self.unread: deque[_Unread] = deque()

    # -- going on

    def load(self) -> None:
        state = load_state(self.out, self.task.identity)
        if state is None:
            return
        self.module.load_state_dict(state.weights)
        self.adam.load_state_dict(dict(state.optimiser))
        self.step, self.losses = state.step, list(state.losses)
        self.best, self.best_step = state.best, state.best_step

    def save(self) -> None:
        save_state(
            State(
                self.task.identity,
                self.module.state_dict(),
                self.adam.state_dict(),
                self.step,
                self.losses,
                self.best,
                self.best_step,
            ),
            self.out,
        )

    # -- the loop

    def run_through(self) -> Result:
        started, loss = time.perf_counter(), None
        first = self.processes.first
        if first:
            clear_remains(self.out)
        log = Log(self.out, self.step or -1) if first else None  # a run from the start keeps no line
        if first and self.every and not self.step and self.best is None:
            self.report(log, {"step": 0, "dev": self.evaluate()})
        since, pairs = time.perf_counter(), 0
        # before it was asked to go on; at the last step there was nothing left to be stopped
        stopped = 0 < self.step < self.steps and self.out_of_patience()
        for parts in _ahead(iter(()) if stopped else self.waiting()):
            self.try_to_advance(parts)
            pairs += sum(part.pairs for part in parts)
            due = self.step == self.steps
            measured = self.every is not None and (due or self.step % self.every == 0)
            logged = measured or due or self.step % self.settings.log_every == 0
            saved = due or self.step % self.settings.checkpoint_every == 0
            if logged or saved:
                self.read_losses(0)
            if logged:
                loss = math.fsum(self.losses) / len(self.losses)
                self.losses.clear()
                line = {"step": self.step, "loss": loss, "learning_rate": self.rate(self.step - 1)}
                line["pairs_per_second"] = round(
                    pairs * self.processes.world / (time.perf_counter() - since), 1
                )
                if first and measured:
                    line["dev"] = self.evaluate()
                stopped = measured and not due and self.out_of_patience()
                if first:
                    self.report(log, line | ({"stopped": True} if stopped else {}))
                since, pairs = time.perf_counter(), 0
            if first and (saved or stopped):
                self.save()
            if stopped:
                break
        if first:
            self.task.save(self.out / LAST)
        model = self.out / (LAST if self.best is None else BEST)
        seconds = time.perf_counter() - started
        return Result(model, self.step, loss, self.best, self.best_step, seconds, stopped)

    def waiting(self) -> Iterator[Sequence[Part]]:
        for step in range(self.step, self.steps):
            yield self.task.parts(step, self.processes.rank, self.processes.world)

    def rate(self, step: int) -> float:
        return learning_rate(step, self.plan)

    def try_to_advance(self, parts: Sequence[Part]) -> None:
        try:
            self.advance(parts)
        except torch.OutOfMemoryError:
            pass
        else:
            return
        raise TamisError(  # outside the handler, whose exception keeps the failed batch alive
            f"{max(part.pairs for part in parts):,} inputs at once do not fit into {self.task.device}",
            remedy="give [run] tokens (or fewer), by which batches are split, and --resume",
        )

    def advance(self, parts: Sequence[Part]) -> None:
        """One step."""
        # of the step, and not of what came before: then the state need not hold the generators' states
        torch.manual_seed(_mixed(self.settings.seed, self.step, self.processes.rank))
        for group in self.adam.param_groups:
            group["lr"] = self.rate(self.step) * group["scale"]
        kind, narrow = self.task.device.type, self.task.autocast
        total = torch.zeros((), device=self.task.device)
        for number, part in enumerate(parts, start=1):
            with self.processes.quiet(self.model) if number < len(parts) else nullcontext():
                with torch.autocast(kind, narrow) if narrow else nullcontext():
                    loss = self.model(part.batch) * part.share
                loss.backward()
            total += loss.detach()
        norm = clip_grad_norm_(self.parameters, self.plan.clip or math.inf)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        values = torch.stack([self.processes.mean(total), norm.detach()])
        self.unread.append(_Unread(self.step, parts, values))
        self.step += 1
        # a card is not waited for: while it works on this step, the loss of the one before is read
        self.read_losses(1 if kind == "cuda" else 0)

    def read_losses(self, leave: int) -> None:
        while len(self.unread) > leave:
            unread = self.unread.popleft()
            step, parts, (loss, norm) = unread.step, unread.parts, unread.values()
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"loss of step {step + 1:,} is {loss}"
                if math.isfinite(loss):
                    what = f"gradient of step {step + 1:,} is not finite"
                raise TamisError(
                    f"the {what}: {'; '.join(part.names() for part in parts)}",
                    remedy="look at these texts and scores, lower the learning rate or warm up longer",
                )
            self.losses.append(loss)

    def evaluate(self) -> float:
        self.module.eval()
        value = self.task.evaluate()
        self.module.train()
        if self.best is None or value > self.best:
            self.task.save(self.out / BEST)
            self.best, self.best_step = value, self.step
        return value

    def out_of_patience(self) -> bool:
        """Whether the last dev runs, so many as patience has, were no better than one before them. How many
        there were follows from the step, so that a run that goes on need not remember."""
        patience, every = self.settings.patience, self.every
        if patience is None or every is None:
            return False
        since = 0
        if self.processes.first and self.best_step is not None:
            since = self.step // every - self.best_step // every
        # the first process alone has measured, and all have to stop
        told = torch.tensor([float(since >= patience)], device=self.task.device)
        return bool(self.processes.mean(told).item() > 0)

    def report(self, log: Log | None, line: Mapping[str, Any]) -> None:
        if log is not None:
            log.write(line)
        if self.progress is not None:
            self.progress(line)


class _Unread:
    """A step's loss and norm on their way from the device."""

    def __init__(self, step: int, parts: Sequence[Part], values: Tensor) -> None:
        self.step, self.parts = step, parts
        # sent now and waited for by an event of its own: to ask the card for the values later would mean to
        # wait for all that it has been given until then, and to leave it idle
        self._values = values.to("cpu", non_blocking=values.is_cuda)
        self._sent: torch.cuda.Event | None = None
        if values.is_cuda:
            self._sent = torch.cuda.current_stream(values.device).record_event()

    def values(self) -> list[float]:
        if self._sent is not None:
            self._sent.synchronize()
        found: list[float] = self._values.tolist()
        return found


def _mixed(seed: int, step: int, rank: int) -> int:
    """One number of three, so that no two steps or processes draw alike."""
    return int(xxhash.xxh3_64_intdigest(f"{seed} {step} {rank}".encode())) >> 1


def _ahead(made: Iterator[Sequence[Part]]) -> Iterator[Sequence[Part]]:
    """What an iterator gives, made in a thread while what it gave before is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Sequence[Part] | None]] = deque(
            pool.submit(next, made, None) for _ in range(_AHEAD)
        )
        while (parts := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, made, None))
            yield parts
