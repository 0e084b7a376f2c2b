"""What a server has done beside answering: the tokens of an index that has none yet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tamis.index.embedded import EmbeddedIndex
from tamis.infer.scorer import Scorer

_LOWEST = 19  # of the system's priorities


@contextmanager
def tokens_in_background(index: EmbeddedIndex, scorer: Scorer) -> Iterator[subprocess.Popen[bytes]]:
    """Within the block, a separate process makes the missing tokens of documents for a model: on one core and
    with the lowest priority, so that responses do not wait for it. Finished tokens are used at once; the rest
    is left for the next time."""
    command = [sys.executable, "-m", "tamis", "tokens", str(index.path), "--model", scorer.model]
    if scorer.revision is not None:
        command += ["--revision", scorer.revision]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        start_new_session=True,  # an interrupt at the terminal is for the server, which ends this one
    )
    if hasattr(os, "setpriority"):
        with suppress(OSError):  # it may have ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
