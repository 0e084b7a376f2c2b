"""How a step's groups are shared among processes, and split if a device cannot process them at once."""

from __future__ import annotations

import torch

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.train.recipe import Run

_ON_PROCESSOR = 4096  # tokens at once: about 6 GB for a BERT-base


def own_places(groups: int, rank: int, world: int) -> range:
    """Which groups of a batch process `rank` of `world` has.

    >>> list(own_places(5, rank=1, world=2))
    [1, 3]
    """
    places = range(rank, groups, world)
    if not places:
        some = "1 group" if groups == 1 else f"{groups} groups"
        raise InputError(f"{some} for {world} processes", remedy="use a larger batch, or fewer devices")
    return places


def at_once(run: Run, device: torch.device) -> int | None:
    """The number of tokens that go through the model together; None: all of a batch. A CPU is busy with few,
    and cannot report that they do not fit: the system ends the program.

    >>> at_once(Run(), torch.device("cpu")), at_once(Run(), torch.device("cuda"))
    (4096, None)
    """
    return run.tokens or (_ON_PROCESSOR if device.type == "cpu" else None)


def split_groups(tokens: Array, most: int | None) -> list[list[int]]:
    """The groups that go through the model together; a single group may exceed the limit.

    >>> import numpy as np
    >>> split_groups(np.array([3, 3, 3, 9]), 6)
    [[0, 1], [2], [3]]
    """
    found: list[list[int]] = [[]]
    so_far = 0
    for number, count in enumerate(tokens.tolist()):
        if most is not None and found[-1] and so_far + count > most:
            found.append([])
            so_far = 0
        found[-1].append(number)
        so_far += count
    return found
