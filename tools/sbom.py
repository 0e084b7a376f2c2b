"""Print a software bill of materials of what a lock file installs, as CycloneDX 1.5 JSON. It needs no
network: names, versions, hashes and who needs what are all in the file.

    python tools/sbom.py                         # constraints/core.txt
    python tools/sbom.py constraints/test.txt

The same file gives the same document, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>.*?))?(?: \\)?$")
_HASH = re.compile(r"^    --hash=sha256:(?P<digest>[0-9a-f]{64})(?: \\)?$")
_VIA = re.compile(r"^    # (?:via(?P<first> \S.*)?|  (?P<more>\S.*))$")


@dataclass
class Pin:
    """A package of a lock file: `marker` says where it is installed, `via` which packages need it."""

    name: str
    version: str
    marker: str = ""
    hashes: list[str] = field(default_factory=list)
    via: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{canonical(self.name)}@{self.version}"


def canonical(name: str) -> str:
    """
    >>> canonical("PyStemmer"), canonical("ir_measures")
    ('pystemmer', 'ir-measures')
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> list[Pin]:
    """The packages of a file that tools/lock.py wrote.

    >>> lines = ["a==1.0 ; os_name == 'nt' \\\\", "    --hash=sha256:" + "0" * 64, "    # via", "    #   b"]
    >>> [pin] = read_lock("\\n".join(lines))
    >>> pin.name, pin.version, pin.marker, len(pin.hashes), pin.via
    ('a', '1.0', "os_name == 'nt'", 1, ['b'])
    """
    pins: list[Pin] = []
    for number, line in enumerate(text.splitlines(), 1):
        if pin := _PIN.match(line):
            pins.append(Pin(pin["name"], pin["version"], pin["marker"] or ""))
        elif found := _HASH.match(line):
            pins[-1].hashes.append(found["digest"])
        elif via := _VIA.match(line):
            if needs := (via["first"] or via["more"] or "").strip():
                pins[-1].via.append(needs)
        elif line.strip() and not line.startswith("#"):
            raise SystemExit(f"line {number} is not one of a lock file: make it with tools/lock.py")
    return pins


def bill(pins: list[Pin], name: str, version: str) -> dict[str, Any]:
    """The document, for a program of this name and version."""
    root = f"pkg:pypi/{name}@{version}"
    # a package may be locked at several versions, for several platforms
    refs: dict[str, list[str]] = {}
    for pin in pins:
        refs.setdefault(canonical(pin.name), []).append(pin.purl)
    needs: dict[str, set[str]] = {root: set(), **{pin.purl: set() for pin in pins}}
    for pin in pins:
        for parent in pin.via:
            parent = re.sub(r"\[.*\]", "", parent)
            for ref in [root] if parent.startswith(f"{name} (") else refs.get(canonical(parent), []):
                needs[ref].add(pin.purl)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([vars(pin) for pin in pins]))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "purl": root,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_component(pin) for pin in pins],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in sorted(needs)],
    }


def _component(pin: Pin) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        # of each file that may be installed: one a platform
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes],
    }
    if pin.marker:
        component["properties"] = [{"name": "tamis:installed-where", "value": pin.marker}]
    return component


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("lock", nargs="?", type=Path, default=ROOT / "constraints" / "core.txt")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = read_lock(options.lock.read_text(encoding="utf-8"))
    print(json.dumps(bill(pins, project["name"], project["version"]), indent=2))


if __name__ == "__main__":
    main()
