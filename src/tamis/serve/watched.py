"""Giving up work that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable

from tamis.columns import Array
from tamis.infer.engine import Backend, Engine, Layout
from tamis.models.templates import Inputs


class Abandoned(Exception):
    """Nobody waits any more for what a lane is doing."""


class Watched:
    """A backend that asks before each batch whether it is still wanted."""

    def __init__(self, backend: Backend, check: Callable[[], None]) -> None:
        self.backend, self.check = backend, check

    @property
    def description(self) -> str:
        return self.backend.description

    @property
    def numerics(self) -> str:
        return self.backend.numerics

    @property
    def layout(self) -> Layout:
        return self.backend.layout

    @property
    def token_budget(self) -> int:
        return self.backend.token_budget

    @property
    def workers(self) -> int:
        return self.backend.workers

    def margins(self, inputs: Inputs) -> Array:
        self.check()
        return self.backend.margins(inputs)


def watch(engine: Engine, check: Callable[[], None]) -> None:
    """Have an engine's backend ask `check` before each batch."""
    if not isinstance(engine.backend, Watched):
        engine.backend = Watched(engine.backend, check)
