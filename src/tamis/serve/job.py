"""A request on its way through the stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

from tamis.core.ranking import Ranking
from tamis.infer.scorer import Tally
from tamis.serve.pipelines import Step


@dataclass(frozen=True, slots=True)
class Done:
    """A stage that has finished for a request."""

    step: Step
    ranking: Ranking
    whole: Ranking  # before the cut, where the stage has ranked more than it keeps
    seconds: float
    waited: float
    tally: Tally


def _to_nobody() -> None:
    """The outcome of a request that needs only the last one."""


class Job:
    """A request on its way. Lanes alone change it; `future` ends it, and is cancelled at the deadline or when
    its client leaves. `news` is called, in the thread of a lane, when one more stage has finished."""

    def __init__(
        self,
        steps: Sequence[Step],
        ranking: Ranking,
        deadline: float,
        news: Callable[[], object] = _to_nobody,
    ) -> None:
        self.steps, self.ranking, self.deadline = tuple(steps), ranking, deadline
        self.done: list[Done] = []
        self.granted: dict[str, int] = {}  # by lane: how many of the stages it has agreed to
        self._handed_on: list[int] = []  # by two threads: appending is safe, counting is not
        self._news = news
        self.since = time.monotonic()
        self.future: Future[None] = Future()

    @property
    def step(self) -> Step:
        return self.steps[len(self.done)]

    @property
    def work(self) -> int:
        return self.step.work(len(self.ranking))

    @property
    def handed_on(self) -> int:
        """The number of finished stages after which the next step is decided."""
        return max(self._handed_on, default=0)

    @property
    def expected(self) -> int:
        """How many stages it is going to get, so far as it is decided."""
        return min(self.granted.values(), default=len(self.steps))

    @property
    def abandoned(self) -> bool:
        """Whether the client no longer waits for it."""
        return self.future.cancelled() or time.monotonic() >= self.deadline

    def hand_on_to(self, to: Callable[[Job], None]) -> None:
        """Pass it on after a finished stage, and report the ranking."""
        count = len(self.done)
        to(self)
        self._handed_on.append(count)
        self._news()

    def end(self, error: Exception | None = None) -> None:
        with suppress(InvalidStateError):  # the deadline came first
            self.future.set_exception(error) if error else self.future.set_result(None)
