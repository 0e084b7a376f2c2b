"""Settings to try: grids of parameters, the papers' grids, and pipelines with placeholders for parameters.

The papers' grids: `INTERPOLATION` (alpha), `BIRCH[n - 1]` (alpha and the weights of n sentences, in steps of
0.1), `BIRCH_W4` (the fourth weight, for `around` the best of `BIRCH[2]`), `BM25`, `QL` and `RM3`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from tamis.base.errors import ExpressionError, InputError
from tamis.core.language import Call, Node, Then, Value, parse
from tamis.core.pool import shared
from tamis.core.registry import build
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Stage
from tamis.evaluate.first_stage import begun_with

if TYPE_CHECKING:
    from tamis.index.index import Index

Grid = Mapping[str, Sequence[Value]]
Setting = dict[str, Value]

_HOLE = re.compile(r"\{([^{}]*)\}")
_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')  # a comma outside quotes
_MOST = 100_000  # settings: a larger number is probably a typing error


# -- the papers'
# ------------------------------------------------------------------------------------------------------------

TENTHS = tuple(step / 10 for step in range(11))

#: Eq. 16 of the survey: the weight of the first stage's score in the sum.
INTERPOLATION: Grid = {"alpha": TENTHS}

#: Birch with one, two and three sentences (w1 is 1): 11, 121 and 1,331 settings.
BIRCH: tuple[Grid, ...] = (
    {"alpha": TENTHS},
    {"alpha": TENTHS, "w2": TENTHS},
    {"alpha": TENTHS, "w2": TENTHS, "w3": TENTHS},
)

#: With four sentences, every w4 is tried around the best setting of three: `around(best, BIRCH[2],
#: BIRCH_W4)`.
BIRCH_W4: Grid = {"w4": TENTHS}

#: The grids of Lin (2018) and Yang et al. (2019) on Robust04, from Anserini's files. RM3's has 27,500
#: settings; every fifth value of a parameter is a good start: `{"terms": RM3["terms"][4::5], ...}`.
BM25: Grid = {
    "k1": tuple(step / 10 for step in range(1, 41)),
    "b": tuple(step / 10 for step in range(1, 11)),
}
QL: Grid = {"mu": tuple(range(250, 10_001, 250))}
RM3: Grid = {"terms": tuple(range(1, 51)), "docs": tuple(range(1, 51)), "weight": TENTHS}


# -- settings
# ------------------------------------------------------------------------------------------------------------


def settings(grid: Grid) -> list[Setting]:
    """All combinations of a grid's values, in order: the last parameter changes fastest.

    >>> settings({"k1": [0.9, 1.2], "b": [0.4]})
    [{'k1': 0.9, 'b': 0.4}, {'k1': 1.2, 'b': 0.4}]
    """
    empty = next((name for name, values in grid.items() if not values), None)
    if not grid or empty is not None:
        raise InputError(f"no value for {empty or 'anything'} to try", remedy="give at least one")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def around(best: Mapping[str, Value], grid: Grid, more: Grid | None = None) -> list[Setting]:
    """The settings next to `best` in its grid: each parameter unchanged, one step less and one step more.
    They are combined with all values of `more`, a grid of parameters that `best` does not have.

    >>> len(around({"alpha": 0.5, "w2": 0.0, "w3": 1.0}, BIRCH[2], BIRCH_W4))  # 3 * 2 * 2 * 11
    132
    """
    near = {}
    for name, values in grid.items():
        if best.get(name) not in values:
            raise InputError(
                f"{name}={best.get(name)} is not in the grid", remedy="give a setting of the grid"
            )
        place = list(values).index(best[name])
        near[name] = values[max(place - 1, 0) : place + 2]
    return settings({**near, **(more or {})})


def parse_grid(texts: Iterable[str]) -> Grid:
    """Parse a grid from a command line: `name=value,value,...` or `name=first:last:step`, including the last.

    >>> parse_grid(["k1=0.4,0.9", "b=0.2:0.8:0.2", "aggregate=sum,min"])
    {'k1': (0.4, 0.9), 'b': (0.2, 0.4, 0.6, 0.8), 'aggregate': ('sum', 'min')}
    """
    grid: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise InputError(
                f"{text!r} is not a valid part of a grid", remedy="write name=0.4,0.9 or name=0.1:1:0.1"
            )
        if name in grid:
            raise InputError(f"the grid has {name} twice", remedy="give all its values at once")
        found = [value for each in _COMMA.split(values) for value in _values(each.strip(), text)]
        if len(set(map(repr, found))) < len(found):
            raise InputError(f"{text!r} has a value twice", remedy="give each once")
        grid[name] = tuple(found)
    number = prod(map(len, grid.values()))
    if number > _MOST:
        raise InputError(f"a grid of {number:,} settings", remedy=f"use at most {_MOST:,}")
    return grid


def _values(text: str, whole: str) -> list[Value]:
    if ":" not in text or text.startswith('"'):
        try:
            node = parse(f"stage(value={text})")
        except ExpressionError as error:
            raise InputError(
                f"{text!r} in {whole!r} is not a value", remedy="use numbers, words or quoted texts"
            ) from error
        assert isinstance(node, Call)
        ((_, value),) = node.options
        assert not isinstance(value, Node)  # only some options may be a Node
        return [value]
    try:
        first, last, step = map(Decimal, text.split(":"))
        count = int((last - first) / step) + 1
    except (ValueError, ArithmeticError) as error:
        raise InputError(
            f"{text!r} is not a valid range", remedy="write first:last:step, as in 0.1:1:0.1"
        ) from error
    if not 0 < count <= _MOST:
        raise InputError(f"the range {text!r} has {max(count, 0):,} values", remedy=f"use 1 to {_MOST:,}")
    # decimals, so that 0.1 * 3 is 0.3
    steps = [first + step * number for number in range(count)]
    whole_numbers = not set(text) & set(".eE")
    return [int(each) if whole_numbers else float(each) for each in steps]


# -- pipelines with placeholders
# ------------------------------------------------------------------------------------------------------------


def fill(template: str, setting: Mapping[str, Value]) -> str:
    """A pipeline's expression with the placeholders replaced by the values of a setting.

    >>> fill("bm25(k1={k1}, b={b}) % 100", {"k1": 0.9, "b": 0.4})
    'bm25(k1=0.9, b=0.4) % 100'
    """
    check_holes(template, setting)
    return _HOLE.sub(lambda hole: _printed(setting[hole[1].strip()]), template)


def pipelines_of(
    template: str,
    index: Index | None = None,
    runtime: Runtime | None = None,
    *,
    first: Stage | None = None,
) -> Callable[[Mapping[str, Value]], Stage]:
    """A function that builds the pipeline of a setting; stages that several settings share are built once.

    `first` is the stage that every pipeline begins with, the candidates of a run; the template may name it
    `given`.

    >>> pipelines_of("rm3(terms={n}) % 10")({"n": 20})
    rm3(terms=20) % 10
    """
    build_once = builder(index, shared(runtime or Runtime()), first)
    return lambda setting: build_once(parse(fill(template, setting)))


def builder(index: Index | None, runtime: Runtime, first: Stage | None = None) -> Callable[[Node], Stage]:
    """A function that builds pipelines; stages that several pipelines share are built once. With `first`, the
    stage that `given` stands for, each pipeline begins with it.

    >>> build_once = builder(None, Runtime())
    >>> one, other = (build_once(parse(f"rm3 >> normalise % {k}")) for k in (5, 9))
    >>> one.parts[0] is other.parts[0]
    True
    """
    made: dict[str, Stage] = {}

    def build_once(node: Node) -> Stage:
        start, nodes = begun_with(first, node.stages if isinstance(node, Then) else [node])
        stages = [] if start is None else [made.setdefault(repr(start), start)]
        for each in nodes:
            if str(each) not in made:
                made[str(each)] = build(each, index, runtime)
        stages += [made[str(each)] for each in nodes]
        return Pipeline(stages) if len(stages) > 1 else stages[0]

    return build_once


def check_holes(template: str, names: Iterable[str]) -> None:
    """Refuse a template whose placeholders do not match the names.

    >>> check_holes("bm25(k1={k1})", ["b"])
    Traceback (most recent call last):
    tamis.base.errors.ExpressionError: the pipeline has {k1}, and the grid has no values for it: add ...
    """
    holes = [hole.strip() for hole in _HOLE.findall(template)]
    known = list(names)
    for hole in holes:
        if hole not in known:
            raise ExpressionError(
                f"the pipeline has {{{hole}}}, and the grid has no values for it",
                remedy=f"add --grid {hole}=...",
            )
    for name in known:
        if name not in holes:
            raise ExpressionError(
                f"the grid has {name}, which is not in the pipeline", remedy=f"write {{{name}}} in it"
            )


def spelled(value: Value) -> str:
    """A value in the form that a grid uses.

    >>> spelled(0.9), spelled("sum"), spelled(True), spelled(None)
    ('0.9', 'sum', 'true', 'none')
    """
    return value if isinstance(value, str) else _printed(value)


def _printed(value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) or value is None else repr(value)
