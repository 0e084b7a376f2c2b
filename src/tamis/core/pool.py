"""The models that a process has in memory: one of each, however many stages name it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tamis.base.errors import InputError
from tamis.core.runtime import Runtime

M = TypeVar("M")


class ModelPool:
    """Gives every stage that asks for the same model the same scorer: one with the same class, name and
    options, such as the architectures, the device and the precision. A scorer is loaded when it is first
    used.

    With `most`, no more than so many are held, and the one that was asked for least lately goes first: those
    who have it keep it, the next gets another. Those that were asked for by way of `pinned` stay, and do not
    count. Safe for several threads.

    >>> from tamis.infer.scorer import Scorer
    >>> pool = ModelPool(most=1)
    >>> mono = pool.get(Scorer, "mono", precision="int8")
    >>> pool.get(Scorer, "mono", precision="int8") is mono
    True
    >>> _ = pool.get(Scorer, "duo")
    >>> pool.get(Scorer, "mono", precision="int8") is mono
    False
    """

    def __init__(self, most: int | None = None) -> None:
        if most is not None and most < 1:
            raise InputError(f"a pool of {most} models", remedy="use at least 1, or none for any number")
        self._held, self._pins = _Held(most), False

    @property
    def pinned(self) -> ModelPool:
        """The same pool, for whoever asks for models that are to stay."""
        other = ModelPool()
        other._held, other._pins = self._held, True
        return other

    @property
    def dropped(self) -> int:
        """How many models have been dropped: whoever keeps stages may keep what was dropped alive."""
        return self._held.dropped

    @property
    def scorers(self) -> list[Any]:
        """Those that are held, the one that was asked for least lately first."""
        with self._held.lock:
            return list(self._held.scorers.values())

    def get(self, kind: Callable[..., M], model: str | Path, **options: Any) -> M:
        """The scorer `kind(model, **options)`, made if there is none."""
        key = kind, str(model), frozenset(options.items())
        held = self._held
        with held.lock:
            if key not in held.scorers:
                held.scorers[key] = kind(model, **options)
            scorer: M = held.scorers[key]
            held.scorers.move_to_end(key)
            if self._pins:
                held.pinned.add(key)
            held.drop()
            return scorer


@dataclass(slots=True)
class _Held:
    """What a pool holds, for all who ask it."""

    most: int | None
    scorers: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    pinned: set[Hashable] = field(default_factory=set)
    dropped: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def drop(self) -> None:
        """Down to the most, the oldest first."""
        if self.most is None:
            return
        others = [key for key in self.scorers if key not in self.pinned]
        for key in others[: max(len(others) - self.most, 0)]:
            del self.scorers[key]
            self.dropped += 1


def shared(runtime: Runtime) -> Runtime:
    """The runtime for many pipelines: with a pool of models, and with its file of scores opened once.

    >>> runtime = shared(Runtime(workers=1))
    >>> runtime.pool is not None, shared(runtime).pool is runtime.pool
    (True, True)
    """
    if isinstance(runtime.cache, str | Path):
        from tamis.storage.score_cache import ScoreCache

        runtime = replace(runtime, cache=ScoreCache(runtime.cache))
    return runtime if runtime.pool is not None else replace(runtime, pool=ModelPool())
