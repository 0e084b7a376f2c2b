"""Reproducible random numbers."""

from __future__ import annotations

import numpy as np

from tamis.base.errors import InputError


def seeded(seed: int) -> np.random.Generator:
    """A generator that draws the same numbers for the same seed.

    >>> seeded(7).integers(100, size=3).tolist() == seeded(7).integers(100, size=3).tolist()
    True
    """
    check_seed(seed)
    return np.random.default_rng(seed)


def check_seed(seed: int) -> None:
    """Refuse an invalid seed before long work begins.

    >>> check_seed(-1)
    Traceback (most recent call last):
    tamis.base.errors.InputError: the seed -1: use a whole number of at least 0
    """
    if seed < 0:
        raise InputError(f"the seed {seed}", remedy="use a whole number of at least 0")
