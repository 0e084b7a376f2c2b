"""The lock files are those of pyproject.toml, and the bill of materials is that of the lock."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}


@pytest.fixture(scope="module")
def tools() -> dict[str, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        return {name: import_module(name) for name in ("lock", "lowest", "sbom")}


def pins(tools: dict[str, ModuleType], name: str) -> list[Any]:
    text = (ROOT / "constraints" / name).read_text(encoding="utf-8")
    read: list[Any] = tools["sbom"].read_lock(text)
    return read


def needed(tools: dict[str, ModuleType], name: str) -> list[str]:
    return {
        "core.txt": PROJECT["dependencies"],
        "test.txt": [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]],
        "release.txt": tools["lock"].RELEASE,
    }[name]


@pytest.mark.parametrize("name", ["core.txt", "test.txt", "release.txt"])
def test_the_lock_has_every_dependency_within_its_range(tools: dict[str, ModuleType], name: str) -> None:
    """Make it again with tools/lock.py when this fails."""
    canonical = tools["sbom"].canonical
    locked: dict[str, list[Any]] = {}
    for pin in pins(tools, name):
        locked.setdefault(canonical(pin.name), []).append(pin)
    for requirement in map(Requirement, needed(tools, name)):
        each = locked.get(canonical(requirement.name), [])
        assert each, f"{requirement} is not in {name}"
        for pin in each:
            assert requirement.specifier.contains(pin.version), f"{pin.version} of {requirement}"


@pytest.mark.parametrize("name", ["core.txt", "test.txt", "release.txt"])
def test_every_package_of_the_lock_is_one_version_with_hashes(
    tools: dict[str, ModuleType], name: str
) -> None:
    """On every platform and Python: where it has several versions, their markers exclude each other."""
    every = pins(tools, name)
    assert all(pin.hashes for pin in every)
    assert "torch" not in {pin.name for pin in every}
    for python in PYTHONS:
        for platform, system in PLATFORMS.items():
            where = {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "sys_platform": platform,
                "platform_system": system,
                "os_name": "nt" if platform == "win32" else "posix",
            }
            names = [pin.name for pin in every if not pin.marker or Marker(pin.marker).evaluate(where)]
            assert len(set(names)) == len(names)
            assert {pin.name for pin in every if not pin.marker} <= set(names)


def test_the_tests_are_locked_at_the_versions_of_the_core(tools: dict[str, ModuleType]) -> None:
    core, test = ({(pin.name, pin.version) for pin in pins(tools, name)} for name in ("core.txt", "test.txt"))
    assert core <= test


@pytest.mark.parametrize("path", sorted((ROOT / "constraints").iterdir()), ids=lambda path: path.name)
def test_a_lock_does_not_say_where_packages_come_from(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    assert "://" not in content
    assert set(re.findall(r"--[a-z-]+", content)) == {"--hash"}


def test_the_bill_of_materials(tools: dict[str, ModuleType]) -> None:
    command = [sys.executable, str(ROOT / "tools" / "sbom.py")]
    printed = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert printed[0] == printed[1]
    document = json.loads(printed[0])
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", document["serialNumber"])
    assert document["metadata"]["component"]["version"] == PROJECT["version"]
    refs = [component["bom-ref"] for component in document["components"]]
    assert len(refs) == len(set(refs)) == len(pins(tools, "core.txt"))
    assert all(component["hashes"] for component in document["components"])
    needs = {each["ref"]: each["dependsOn"] for each in document["dependencies"]}
    assert set(needs) == {*refs, f"pkg:pypi/tamis@{PROJECT['version']}"}
    assert {one for each in needs.values() for one in each} == set(refs)  # nothing is there for no reason
    canonical = tools["sbom"].canonical
    direct = {re.split("[/@]", one)[1] for one in needs[f"pkg:pypi/tamis@{PROJECT['version']}"]}
    assert direct == {canonical(Requirement(each).name) for each in PROJECT["dependencies"]}


def test_what_the_release_runs_is_there() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [])]
    for step in steps:
        if "uses" in step:  # a tag can be moved, a commit cannot
            assert re.fullmatch(r"(actions/[a-z-]+|pypa/gh-action-pypi-publish)@[0-9a-f]{40}", step["uses"])
    commands = "\n".join(step.get("run", "") for step in steps)
    for path in re.findall(r"(?:constraints|tools|\.ci)/[\w.]+", commands):
        assert (ROOT / path).is_file(), path
    assert "pip-audit" in commands and "sbom.py" in commands
    for line in commands.splitlines():
        if " -r " in line:
            assert "--require-hashes" in line


def test_a_release_is_built_checked_attested_and_published_in_this_order() -> None:
    """Each job may do no more than it must, and only a tag is published."""
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    assert [jobs[name]["needs"] for name in ("build", "attest", "publish")] == [
        ["test", "lowest"],
        "build",
        "attest",
    ]
    assert (ROOT / jobs["lowest"]["uses"]).is_file()
    assert "permissions" not in jobs["build"] and "check_wheel.py" in str(jobs["build"])
    assert jobs["attest"]["permissions"] == {
        "contents": "read",
        "id-token": "write",
        "attestations": "write",
    }
    assert any("attest-build-provenance" in step.get("uses", "") for step in jobs["attest"]["steps"])
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "pypi"
    assert publish["if"] == "github.ref_type == 'tag'"
    assert "gh-action-pypi-publish" in publish["steps"][-1]["uses"]


def test_the_lowest_versions_are_those_of_the_project(tools: dict[str, ModuleType]) -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "lowest.py")], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(printed) == len(PROJECT["dependencies"])
    for pin, requirement in zip(
        map(Requirement, printed), map(Requirement, PROJECT["dependencies"]), strict=True
    ):
        (exact,) = pin.specifier
        assert pin.name == requirement.name and exact.operator == "=="
        assert requirement.specifier.contains(exact.version)
        assert f">={exact.version}" in str(requirement.specifier)


def test_the_lowest_versions_of_the_readers_of_files_are_tried_too() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((WORKFLOW.parent / "lowest.yml").read_text(encoding="utf-8"))
    (command,) = (
        step["run"] for step in workflow["jobs"]["test"]["steps"] if "lowest.py" in step.get("run", "")
    )
    for name in ("pdf", "arrow"):
        assert f"--extra {name} " in command


@pytest.mark.parametrize("name", ["lock", "lowest", "sbom"])
def test_the_tools_do_what_they_say(tools: dict[str, ModuleType], name: str) -> None:
    result = doctest.testmod(tools[name])
    assert result.attempted and not result.failed
