"""The reference pages of the documentation, as Markdown made from the code: they cannot say what it does not.

A page asks for a part by a line `<!-- generated: stages -->`; `PARTS` has their names.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from docs_python import MODULES, modules, top_level
from docs_recipes import RECIPES, architectures, recipes
from docs_text import definition, docstring, table

from tamis.cli import VERBS
from tamis.cli.arguments import ArgumentParser
from tamis.core.language import Call, Value
from tamis.core.options import Kind, Parameter
from tamis.core.registry import declared, names, parameters_of

_WIDTH = 86
_WORDS = {
    float: "a number",
    int: "a whole number",
    str: "text",
    bool: "`true`, `false`",
    type(None): "`none`",
}
#: Stages that are a module of their own: its docstring has the model and the paper.
_TOLD_BY_MODULE = ("sdm", "rm3", "birch")


# -- the pipeline language
# ------------------------------------------------------------------------------------------------------------


def stages() -> str:
    """Each stage of the language: what it does, and its options."""
    return "\n\n".join(_stage(name) for name in names())


def overview() -> str:
    """All stages, each with its options and their defaults, and with the first sentence of what is said."""
    rows = [
        [f"[`{name}`](#{name})", f"`{shown}`" if (shown := _options_of(name)) else "", _sentence(name)]
        for name in names()
    ]
    return table(["stage", "options and their defaults", ""], rows)


def _options_of(name: str) -> str:
    options = {key: each for key, each in parameters_of(name).items() if each.kind is Kind.OPTION}
    return str(Call("x", (), tuple((key, _default(each)) for key, each in options.items())))[2:-1]


def _sentence(name: str) -> str:
    """The first sentence of what is said of a stage."""
    about = docstring(declared(name)).partition("\n\n")[0]
    return " ".join(re.split(r"(?<!\bal)(?<!\bEq)(?<!\bEqs)\.(?=\s|$)", about)[0].split())


def _stage(name: str) -> str:
    giver, parameters = declared(name), parameters_of(name)
    options = {key: each for key, each in parameters.items() if each.kind is Kind.OPTION}
    inside = [
        ("*" if each.kind is Kind.STAGES else "") + key
        for key, each in parameters.items()
        if each.kind is not Kind.OPTION
    ]
    shown = str(Call(name, (), tuple((key, _default(each)) for key, each in options.items())))
    if inside:
        shown = shown.replace("(", f"({', '.join(inside)}, ", 1)
    rows = [
        [
            f"`{key}`",
            f"`{str(Call('x', (), ((key, _default(each)),)))[len(key) + 3 : -1]}`",
            values(each.annotation),
        ]
        for key, each in options.items()
    ]
    of_module = [docstring(import_module(giver.__module__))] if name in _TOLD_BY_MODULE else []
    about = str(giver.role).capitalize()
    parts = [f"### {name}", f"```text\n{shown}\n```", *of_module, docstring(giver), f"{about}."]
    return "\n\n".join([*parts, table(["option", "default", "may be"], rows)] if rows else parts)


def _default(option: Parameter) -> Value:
    return "..." if option.required else option.default  # type: ignore[no-any-return]


def values(annotation: Any) -> str:
    """
    >>> values(Literal['sum', 'min']), values(int | None)
    ('`sum`, `min`', 'a whole number, `none`')
    """
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    named = [
        ", ".join(f"`{each}`" for each in get_args(kind))
        if get_origin(kind) is Literal
        else _WORDS.get(kind, f"`{kind.__name__.lower()}(...)`")  # a stage, in `choose`
        for kind in kinds
    ]
    return ", ".join(named)


# -- the command line
# ------------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Each verb of the command line, as its own `--help` has it."""
    return "\n\n".join(map(_command, VERBS))


def _command(verb: str) -> str:
    module = import_module(f"tamis.cli.{verb}")
    formatter = partial(argparse.HelpFormatter, width=_WIDTH)
    parser = ArgumentParser(prog=f"tamis {verb}", formatter_class=formatter)
    module.add_arguments(parser)
    arguments = [part for number, group in enumerate(parser._action_groups) for part in _group(group, number)]
    usage = parser.format_usage().removeprefix("usage: ").replace("[-h] ", "").rstrip()
    usage = re.sub(r"\n {7}", "\n", usage)  # it was indented by "usage: "
    about = inspect.cleandoc(module.main.__doc__ or "")
    parts = [f"## tamis {verb}", f"```text\n{usage}\n```", about, *arguments, parser.epilog or ""]
    return "\n\n".join(filter(None, parts))


def _group(group: argparse._ArgumentGroup, number: int) -> list[str]:
    """The arguments of a group, after its title; the first two, arguments and options, need none."""
    actions = [each for each in group._group_actions if not isinstance(each, argparse._HelpAction)]
    title = [f"*{(group.title or '').capitalize()}*"] if number > 1 and actions else []
    return title + [definition(_invocation(each), (each.help or "").replace("%%", "%")) for each in actions]


def _invocation(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    argument = "" if action.nargs == 0 else f" {action.metavar or _choices(action)}"
    return f"{', '.join(action.option_strings)}{argument}"


def _choices(action: argparse.Action) -> str:
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


# -- measures
# ------------------------------------------------------------------------------------------------------------

_FORMULAE = {
    "P": "precision",
    "R": "recall",
    "Success": "success",
    "RR": "reciprocal_rank",
    "AP": "average_precision",
    "Rprec": "r_precision",
    "Bpref": "bpref",
    "Judged": "judged",
    "RBP": "rank_biased_precision",
    "RBPResidual": "rbp_residual",
    "nDCG": "ndcg",
}


def own_measures() -> str:
    """The measures that tamis has a formula for."""
    from tamis.evaluate import formulae
    from tamis.evaluate.engines import RBPResidual

    known = _measures() | {"RBPResidual": (RBPResidual, ["RBPResidual"])}
    rows = [
        [
            ", ".join(f"`{alias}`" for alias in known[name][1]),
            " ".join((getattr(formulae, function).__doc__ or "").split(">>>")[0].split()),
            _measure_options(known[name][0]),
        ]
        for name, function in _FORMULAE.items()
    ]
    return table(["measure", "of a query", "options"], rows)


def other_measures() -> str:
    """The others that ir_measures names."""
    rows = [
        [", ".join(f"`{alias}`" for alias in aliases), _measure_options(measure)]
        for name, (measure, aliases) in _measures().items()
        if name not in _FORMULAE
    ]
    return table(["measure", "options"], rows)


def _measures() -> dict[str, tuple[Any, list[str]]]:
    """Each measure of ir_measures by its own name, with all the names it goes by."""
    from ir_measures import measures

    found: dict[str, tuple[Any, list[str]]] = {}
    for alias, measure in sorted(measures.registry.items(), key=lambda item: item[0].lower()):
        found.setdefault(measure.NAME, (measure, []))[1].append(alias)
    for name, (_, aliases) in found.items():
        aliases.sort(key=lambda alias: alias != name)
    return found


def _measure_options(measure: Any) -> str:
    options = ["`@k`" if option == "cutoff" else f"`{option}`" for option in measure.SUPPORTED_PARAMS]
    return ", ".join(options)


#: What a page may ask for, by name.
PARTS: dict[str, Callable[[], str]] = {
    "stages": stages,
    "overview of stages": overview,
    "architectures": architectures,
    "commands": commands,
    "own measures": own_measures,
    "other measures": other_measures,
    "python": top_level,
    **{f"recipes {command}": partial(recipes, command) for command in RECIPES},
    **{f"python {group}": partial(modules, group) for group in MODULES},
}
