"""Sets how many processor cores torch uses; this is a setting of the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()


@contextmanager
def cores(count: int | None) -> Iterator[None]:
    """Let torch use `count` cores within the block; None changes nothing.

    >>> with cores(None):
    ...     pass
    """
    if count is None:
        yield
        return
    import torch

    # one block at a time: if two overlapped, the last to end would not restore the original number
    with _LOCK:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
