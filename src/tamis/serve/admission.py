"""Whether one more request can be finished in time beside the accepted ones. The model lane runs the request
with the earliest deadline first. If any order keeps all deadlines, that one does (Jackson, 1955: scheduling a
production line to minimize maximum tardiness), so only this order needs checking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Promise(NamedTuple):
    """Work that is to be done by a deadline: both in seconds, the deadline on the clock of the caller."""

    deadline: float
    seconds: float


def fits(free: float, new: Promise, promised: Sequence[Promise]) -> bool:
    """Whether new work, starting at `free`, can be finished in time without making accepted work late.
    Accepted work that is late in any case is no reason to refuse.

    >>> promised = [Promise(2.0, 1.0), Promise(5.0, 1.0)]
    >>> fits(0.0, Promise(3.0, 2.0), promised), fits(0.0, Promise(3.0, 2.5), promised)
    (True, False)
    >>> fits(0.0, Promise(4.0, 3.0), promised), fits(0.0, Promise(4.5, 3.5), promised)
    (True, False)
    """
    at = free + sum(each.seconds for each in promised if each.deadline <= new.deadline)
    if at + new.seconds > new.deadline:
        return False
    for each in sorted(each for each in promised if each.deadline > new.deadline):
        at += each.seconds
        if at <= each.deadline < at + new.seconds:
            return False
    return True


def wait_until_it_fits(backlog: float, seconds: float, allowed: float) -> int | None:
    """After how many whole seconds, at least 1, work that takes `seconds` and is allowed `allowed` would fit,
    if nothing else comes meanwhile; None if it does not even fit alone.

    >>> [wait_until_it_fits(*each, 2.0) for each in ((4.0, 0.5), (1.0, 0.5), (0.0, 3.0))]
    [3, 1, None]
    """
    if seconds > allowed:
        return None
    return max(1, math.ceil(backlog + seconds - allowed))
