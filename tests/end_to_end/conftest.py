from __future__ import annotations

import pytest

from tests.end_to_end.commands import Tamis


@pytest.fixture
def tamis(capsys: pytest.CaptureFixture[str]) -> Tamis:
    """The function that runs a command."""
    return Tamis(capsys)
