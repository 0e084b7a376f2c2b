"""How models are run: what depends on the machine, and not on what is ranked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tamis.core.pool import ModelPool
    from tamis.storage.score_cache import ScoreCache

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "int8", "fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all models of a pipeline are told, so that the pipeline's expression need not say it.

    A `precision` in the expression holds before this one: scores depend on it, so it is part of what a stage
    is. The device, the processor cores (`workers`), the score `cache` and the `pool` that models are taken
    from are not.

    >>> from tamis.core.registry import build
    >>> build("mono(model=a) >> mono(model=b, precision=int8)", runtime=Runtime(precision="fp32"))
    mono(model=a, precision=fp32) >> mono(model=b, precision=int8)
    """

    device: Device = "auto"
    precision: Precision = "auto"
    workers: int | None = None
    cache: str | Path | ScoreCache | None = None
    pool: ModelPool | None = None
