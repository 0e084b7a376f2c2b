"""docs/dependencies.md gives a reason for each dependency, and for nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def declared() -> dict[str, list[str]]:
    """The requirements of pyproject.toml, under the headings that the page gives them."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    extras = {f"Extra `{name}`": needed for name, needed in project.get("optional-dependencies", {}).items()}
    return {"Core": project["dependencies"], **extras, "Build": pyproject["build-system"]["requires"]}


def explained() -> dict[str, list[str]]:
    sections = re.split(r"^## ", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8"), flags=re.M)
    return {
        section.partition("\n")[0].strip(): re.findall(r"^- `([^`]+)`: \w", section, flags=re.M)
        for section in sections[1:]
    }


@pytest.mark.parametrize("section", sorted(declared().keys() | explained().keys()))
def test_every_dependency_has_its_line(section: str) -> None:
    assert explained().get(section) == declared().get(section)


def test_every_range_has_both_ends() -> None:
    for requirements in declared().values():
        for requirement in requirements:
            assert re.fullmatch(r"[\w.-]+(\[[\w,]+\])?>=[\d.]+,<[\d.]+", requirement)
