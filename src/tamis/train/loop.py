"""The training loop: AdamW, its schedule, batches made ahead, a log, a dev measure, and a state on disk.

It trains a `Task`: a module whose forward takes a batch and returns its loss. All random numbers of a step
depend on the seed, the step and the process, so that a resumed run gives the same result as an uninterrupted
one: on a CPU bit for bit.

`torchrun` starts several processes, one per device, and sets the rank of each in its environment. Each takes
its share of every batch, torch's DistributedDataParallel averages the gradients, and the first process
writes.
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
_AHEAD = 2  # steps whose batches are prepared while the device works


@dataclass(frozen=True, slots=True)
class Part:
    """A batch, or a part of one that fits into the device."""

    batch: Any
    pairs: int  # the number of its inputs
    share: float = 1.0  # its share of the step's loss
    names: Callable[[], str] = str  # of its queries and documents, for errors


class Task(Protocol):
    """The model in training, its data and its dev measure."""

    @property
    def module(self) -> nn.Module:
        """The module; its forward takes a batch and returns the loss."""
        ...

    @property
    def identity(self) -> str:
        """A fingerprint of everything that the training depends on."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of matrix products if it is not that of the weights."""
        ...

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """The share of process `rank` of `world` in step `step`; called in a thread."""
        ...

    def save(self, folder: Path) -> None: ...

    def evaluate(self) -> float:
        """The dev measure; larger is better."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a training run."""

    model: Path  # the best weights by the dev measure, or the last without a dev run
    steps: int
    loss: float | None  # of the log's last line; None if nothing was left to do
    best: float | None  # of the dev measure
    best_step: int | None
    seconds: float  # since the run started or resumed
    stopped: bool = False  # before the last step, because the dev measure stopped rising


def learning_rate(step: int, optimiser: Optimiser) -> float:
    """The learning rate of step 0, 1, ...: it rises to the peak over the warm-up, then falls linearly to 0,
    which it would reach at the step after the last. (step + 1, because a step at rate 0 changes nothing.)

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
    """Parameters grouped by weight decay and rate. Parameters that add or scale (biases, norms) do not decay:
    they are not matrices whose size could be shifted between layers. `scale` is the rate as a multiple of the
    schedule's: heads have a separate one because they start at random, unlike a pooler.

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
    """The parameters in a head that were pretrained."""
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
    """Train to the last step, or resume from the state in `out`. `progress` receives each line of the log.

    `out` gets the models `best/` (with a dev measure) and `last/`; `log.jsonl`; and `state/`, to resume from.
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
                if isinstance(layer, Layer):  # all have one code, so it is compiled once
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

    # -- resuming

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
        log = Log(self.out, self.step or -1) if first else None  # a run from the start drops all lines
        if first and self.every and not self.step and self.best is None:
            self.report(log, {"step": 0, "dev": self.evaluate()})
        since, pairs = time.perf_counter(), 0
        # it may have stopped early before it was resumed; after the last step nothing can be stopped early
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
        raise TamisError(  # outside the handler, whose exception keeps the failed batch in memory
            f"{max(part.pairs for part in parts):,} inputs at once do not fit into {self.task.device}",
            remedy="give [run] tokens (or fewer), by which batches are split, and --resume",
        )

    def advance(self, parts: Sequence[Part]) -> None:
        """One step."""
        # the seed depends on the step, not on earlier ones, so the generators' states need not be saved
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
        # do not wait for a GPU: while it works on this step, the loss of the step before is read
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
        """Whether none of the last `patience` dev runs was better than an earlier one. Their number follows
        from the step, so it is not saved for a resumed run."""
        patience, every = self.settings.patience, self.every
        if patience is None or every is None:
            return False
        since = 0
        if self.processes.first and self.best_step is not None:
            since = self.step // every - self.best_step // every
        # only the first process has measured, but all must stop
        told = torch.tensor([float(since >= patience)], device=self.task.device)
        return bool(self.processes.mean(told).item() > 0)

    def report(self, log: Log | None, line: Mapping[str, Any]) -> None:
        if log is not None:
            log.write(line)
        if self.progress is not None:
            self.progress(line)


class _Unread:
    """A step's loss and norm, in transfer from the device."""

    def __init__(self, step: int, parts: Sequence[Part], values: Tensor) -> None:
        self.step, self.parts = step, parts
        # sent now, with a separate event to wait for: a later request would wait for all work that the GPU
        # has received until then, and leave it idle
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
    """Combine three numbers into a seed, so that all steps and processes draw different numbers."""
    return int(xxhash.xxh3_64_intdigest(f"{seed} {step} {rank}".encode())) >> 1


def _ahead(made: Iterator[Sequence[Part]]) -> Iterator[Sequence[Part]]:
    """The items of an iterator, each made in a thread while earlier ones are used."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Sequence[Part] | None]] = deque(
            pool.submit(next, made, None) for _ in range(_AHEAD)
        )
        while (parts := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, made, None))
            yield parts
