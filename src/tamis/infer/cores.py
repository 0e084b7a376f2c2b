"""How many processor cores torch uses, which is the whole process's affair."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()


@contextmanager
def cores(count: int | None) -> Iterator[None]:
    """Let torch use so many meanwhile, and then as many as before; None leaves it as it is.

    >>> with cores(None):
    ...     pass
    """
    if count is None:
        yield
        return
    import torch

    # one at a time: of two that overlap, the later to end would leave what the earlier had set
    with _LOCK:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
