"""Commands, called in this process as a shell would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tamis.cli import main


@dataclass
class Said:
    """What a command returned, and printed on standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Tamis:
    """`tamis("search", "idx", "sieve")` runs a command and returns what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> Said:
        self.capsys.readouterr()
        status = main(list(map(str, arguments)))
        return Said(status, *self.capsys.readouterr())
