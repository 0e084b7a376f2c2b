"""The unit for systemd in docs/how-to/deploy.md: systemd takes it, and what it starts is a command."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tamis.cli.arguments import ArgumentParser
from tamis.cli.serve import add_arguments
from tamis.serve.limits import LONGEST_DEADLINE, SLOW_CLIENT

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "deploy.md"


@pytest.fixture
def unit() -> str:
    found = re.search(r'^```ini title="tamis.service"\n(.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def settings(unit: str) -> dict[str, list[str]]:
    found = defaultdict(list)
    for line in unit.splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def test_what_it_starts_is_a_command(unit: str) -> None:
    program, verb, *arguments = shlex.split(*settings(unit)["ExecStart"])
    assert (Path(program).name, verb) == ("tamis", "serve")
    parser = ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(arguments)
    assert settings(unit)["ReadOnlyPaths"] == [str(given.index)]


def test_a_stop_waits_for_what_was_accepted(unit: str) -> None:
    assert int(*settings(unit)["TimeoutStopSec"]) > LONGEST_DEADLINE + SLOW_CLIENT


def test_what_it_writes_is_in_its_cache(unit: str) -> None:
    (cache,) = settings(unit)["CacheDirectory"]
    places = [each.partition("=")[2] for each in shlex.split(*settings(unit)["Environment"])]
    assert all(place.startswith(f"/var/cache/{cache}/") for place in places)
    assert settings(unit)["DynamicUser"] == ["yes"]
    assert settings(unit)["ProtectSystem"] == ["strict"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_it(unit: str, tmp_path: Path) -> None:
    (program,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    here = tmp_path / "tamis.service"
    here.write_text(unit.replace(program, "/bin/true"))  # one that is there
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)], capture_output=True, text=True, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if "tamis" in line]
    assert (done.returncode, about_it) == (0, [])
