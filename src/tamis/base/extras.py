"""The commands that install optional packages; they work wherever tamis was installed from."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

#: The disk space of large packages, for users who install them.
_SIZES = {"torch": "about 5 GB; less than 1 GB if built for the CPU alone"}


def install(package: str) -> str:
    """The command that installs an optional package, in a version that tamis supports. It names the package
    and not an extra of tamis, because pip can find extras only where it can find tamis.

    >>> install("torch")
    "pip install 'torch<...,>=...' (about 5 GB; less than 1 GB if built for the CPU alone)"
    >>> install("pyndeval")
    'pip install pyndeval'
    """
    size = f" ({_SIZES[package]})" if package in _SIZES else ""
    found = _required(package)
    return f"pip install '{found}'{size}" if found != package else f"pip install {package}{size}"


def _required(package: str) -> str:
    """The package with the versions that tamis supports."""
    try:
        every = requires("tamis") or []
    except PackageNotFoundError:  # not installed: imported from its sources
        every = []
    names = (re.match(rf"{re.escape(package)}(?![\w.-])[^;\s]*", each) for each in every)
    return next((found[0] for found in names if found), package)
