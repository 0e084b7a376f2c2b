"""What the scripts share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tamis.errors import TamisError


def run(main: Callable[[], object]) -> None:
    """A script's `main`: what its caller can get wrong is one line, with exit status 2."""
    try:
        main()
    except (TamisError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
