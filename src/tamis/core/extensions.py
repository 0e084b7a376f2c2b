"""What packages of others bring: stages and architectures, by the entry points of their distributions.

    [project.entry-points."tamis.stages"]
    boost = "my_package.boost:Boost"

An entry point is imported when its name is first used. One that cannot be imported is an error of one line
where it is used, a problem that `tamis doctor` tells of, and nothing to whoever does not use it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from tamis.base.errors import InputError
from tamis.base.extras import install

Group = Literal["tamis.stages", "tamis.architectures"]
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Extension:
    """An entry point: a name, what stands behind it, and the package that it comes with."""

    group: Group
    name: str
    value: str
    package: str
    problem: str = ""  # why the name cannot be used
    remedy: str = ""

    def load(self) -> Any:
        """What it stands for; an error of one line, whatever goes wrong."""
        if self.problem:
            raise self.error(self.problem, self.remedy)
        module, _, attribute = self.value.partition(":")
        try:
            from importlib import import_module

            found: Any = import_module(module.strip())
            for part in filter(None, attribute.strip().split(".")):
                found = getattr(found, part)
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            remedy = f"repair {self.package}, or uninstall it"
            if isinstance(error, ModuleNotFoundError) and error.name == "torch":
                remedy = install("torch")
            raise self.error(f"cannot be imported ({said})", remedy) from error
        return found

    def error(self, problem: str, remedy: str) -> InputError:
        """An error that names the entry point and its package."""
        return InputError(f"{self.name!r} of {self.package} ({self.group}) {problem}", remedy=remedy)


def extensions(group: Group, taken: Collection[str] = ()) -> Mapping[str, Extension]:
    """The entry points of a group by their names. Those whose name is not valid, or `taken` by tamis, or
    brought by two packages, are among them with their problem.

    >>> extensions("tamis.architectures", taken=["mono"]) == extensions("tamis.architectures", taken=["mono"])
    True
    """
    found: dict[str, Extension] = {}
    for each in _installed(group):
        problem = remedy = ""
        if not _NAME.fullmatch(each.name):
            problem, remedy = "is not a valid name", "use lower case letters, digits and _"
        elif each.name in taken:
            problem, remedy = "has a name that tamis uses itself", "give it another name"
        elif each.name in found and found[each.name].value != each.value:
            problem = f"has the name of one of {found[each.name].package}"
            remedy = "uninstall one of the two packages"
        elif each.name in found:
            continue  # the same distribution twice on the path
        found[each.name] = Extension(group, each.name, each.value, each.package, problem, remedy)
    return found


@cache
def _installed(group: Group) -> tuple[Extension, ...]:
    from importlib.metadata import distributions  # which a pipeline of our own stages never waits for

    found = [
        Extension(group, point.name, point.value, f"{each.name} {each.version}")
        for each in distributions()
        for point in each.entry_points
        if point.group == group
    ]
    return tuple(sorted(found, key=lambda each: (each.name, each.package, each.value)))
