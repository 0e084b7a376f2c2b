"""The pipeline language: `bm25(k1=0.9, b=0.4) % 1000 >> mono % 50 >> duo(aggregate=sum)`.

    pipeline = kept (">>" kept)*
    kept     = stage ("%" whole number)*          `%` binds tighter than `>>`, as in Python
    stage    = name ["(" [argument ("," argument)*] ")"] | "(" pipeline ")"
    argument = pipeline | value | name "=" (pipeline | value)
    value    = number | true | false | none | word | "quoted text"

An option is a stage where its signature says so (`choose=bm25`), and a bare word is a value elsewhere.

A name of `tamis.core.defaults` stands for a whole pipeline: `fast` is read as that pipeline in parentheses.

A strict parser: nothing is evaluated, and whatever it does not know is an error with its place. Printing a
parsed expression and parsing it again gives the same expression.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tamis.base.errors import QUOTED, ExpressionError, quoted
from tamis.core.defaults import NAMED

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Call:
    """A stage by name, with what stands between its parentheses."""

    name: str
    arguments: tuple[Node | Value, ...] = ()
    options: tuple[tuple[str, Node | Value], ...] = ()

    def __str__(self) -> str:
        inside = [_print_argument(argument) for argument in self.arguments]
        inside += [f"{name}={_print_option(self.name, name, value)}" for name, value in self.options]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


@dataclass(frozen=True, slots=True)
class Keep:
    """The first k of a stage's ranking: `stage % k`."""

    stage: Call
    k: int

    def __str__(self) -> str:
        return f"{self.stage} % {self.k}"


@dataclass(frozen=True, slots=True)
class Then:
    """Stages one after the other: `a >> b >> c`."""

    stages: tuple[Call | Keep, ...]

    def __str__(self) -> str:
        return " >> ".join(map(str, self.stages))


Node = Call | Keep | Then


def keep(node: Node, k: int) -> Node:
    """`node % k` in its one form: the cut belongs to the last stage, and of two cuts the smaller holds.

    >>> str(keep(parse("bm25 >> mono % 50"), 10))
    'bm25 >> mono % 10'
    """
    if isinstance(node, Then):
        last = keep(node.stages[-1], k)
        assert not isinstance(last, Then)
        return Then((*node.stages[:-1], last))
    if isinstance(node, Keep):
        return Keep(node.stage, min(node.k, k))
    return Keep(node, k)


def then(*nodes: Node) -> Node:
    """`a >> b`, flat whatever the grouping."""
    stages = [s for node in nodes for s in (node.stages if isinstance(node, Then) else (node,))]
    return stages[0] if len(stages) == 1 else Then(tuple(stages))


#: Characters that break lines, turn their direction, steer terminals, or are halves.
_UNSHOWN = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-+.][A-Za-z0-9_]+)*\+?")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
_QUOTED = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_TOKEN = re.compile(rf"\s*(?:(?P<op>>>|[%(),=])|(?P<quoted>{_QUOTED.pattern})|(?P<number>{_NUMBER.pattern})"
                    rf"|(?P<word>{_WORD.pattern})|(?P<end>\Z))")  # fmt: skip
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
CONSTANTS: dict[str, Value] = {"true": True, "false": False, "none": None}
_MOST_DIGITS = 18  # what fits 64 bits
_DEEPEST = 50  # stages within stages
_FORM = 'write it like bm25(k1=1.2) % 100 >> mono(model="a folder")'


def calls(node: Node, *, options: bool = True) -> Iterator[Call]:
    """The stages of a pipeline by their names and arguments, with those that are arguments or, unless told,
    options themselves.

    >>> [call.name for call in calls(parse("fuse(bm25, ql) % 10 >> interpolate(mono)"))]
    ['fuse', 'bm25', 'ql', 'interpolate', 'mono']
    """
    if isinstance(node, Then):
        for stage in node.stages:
            yield from calls(stage, options=options)
    elif isinstance(node, Keep):
        yield from calls(node.stage, options=options)
    else:
        yield node
        for inside in (*node.arguments, *(value for _, value in node.options if options)):
            if isinstance(inside, Call | Keep | Then):
                yield from calls(inside, options=options)


def parse(text: str) -> Node:
    """The expression that a text stands for.

    >>> parse("bm25 % 1000 >> mono")
    Then(stages=(Keep(stage=Call(name='bm25', arguments=(), options=()), k=1000), Call(name='mono',
    arguments=(), options=())))
    >>> str(parse("fast % 5")) == str(keep(parse(NAMED["fast"]), 5))
    True
    >>> parse("bm25 % lots")
    Traceback (most recent call last):
    tamis.base.errors.ExpressionError: column 8 of the pipeline 'bm25 % lots': expected a whole number of at
    least 1 after %, found 'lots'
    """
    parser = _Parser(text)
    node = parser.pipeline()
    parser.expect("end", "", "the end or >>")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while not self.tokens or self.tokens[-1][0] != "end":
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                start = len(text) - len(text[at:].lstrip())
                raise self.error(f"{text[start]!r} is not expected here", start, _FORM)
            self.tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            at = match.end()
        self.next = 0
        self.depth = 0

    def error(self, problem: str, at: int, remedy: str = "") -> ExpressionError:
        start = max(at - QUOTED // 2, 0) if len(self.text) > QUOTED else 0  # what is wrong must be in it
        pipeline = quoted(self.text[start:])
        return ExpressionError(f"column {at + 1} of the pipeline {pipeline}: {problem}", remedy=remedy)

    def peek(self, kind: str, value: str | None = None) -> bool:
        found_kind, found, _ = self.tokens[self.next]
        return found_kind == kind and (value is None or found == value)

    def take(self) -> str:
        _, value, _ = self.tokens[self.next]
        self.next += 1
        return value

    def expect(self, kind: str, value: str | None, wanted: str) -> str:
        found_kind, found, at = self.tokens[self.next]
        if found_kind != kind or (value is not None and found != value):
            raise self.error(
                f"expected {wanted}, found {quoted(found)}" if found else f"expected {wanted}", at
            )
        return self.take()

    def pipeline(self) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error("too many parentheses inside each other", self.tokens[self.next][2])
        nodes = [self.kept()]
        while self.peek("op", ">>"):
            self.take()
            nodes.append(self.kept())
        self.depth -= 1
        return then(*nodes)

    def kept(self) -> Node:
        node = self.stage()
        while self.peek("op", "%"):
            self.take()
            _, digits, at = self.tokens[self.next]
            k = self.number() if digits.isascii() and digits.isdigit() else 0
            if not isinstance(k, int) or k < 1:
                found = f", found {quoted(digits)}" if digits else ""
                raise self.error(f"expected a whole number of at least 1 after %{found}", at)
            node = keep(node, k)
        return node

    def stage(self) -> Node:
        if self.peek("op", "("):
            self.take()
            node = self.pipeline()
            self.expect("op", ")", "a closing parenthesis")
            return node
        name = self.expect("word", None, "the name of a stage")
        return self.named(name) if name in NAMED else self.call(name)

    def named(self, name: str) -> Node:
        if self.peek("op", "("):
            at, remedy = self.tokens[self.next][2], f"write it out to change it: {NAMED[name]}"
            raise self.error(f"{name} is a whole pipeline and takes no options", at, remedy)
        return parse(NAMED[name])

    def call(self, name: str) -> Call:
        at = self.tokens[self.next - 1][2]
        if not _NAME.fullmatch(name) or name in CONSTANTS:
            raise self.error(f"{quoted(name)} is not the name of a stage (lower case)", at)
        if not self.peek("op", "("):
            return Call(name)
        self.take()
        arguments: list[Node | Value] = []
        options: dict[str, Node | Value] = {}
        while not self.peek("op", ")"):
            if arguments or options:
                self.expect("op", ",", "a comma or a closing parenthesis")
            at = self.tokens[self.next][2]
            if self.peek("word") and self.tokens[self.next + 1][:2] == ("op", "="):
                option = self.take()
                self.take()
                if option in options:
                    raise self.error(f"{option[:QUOTED]} is given twice", at)
                options[option] = self.argument() if _takes_stage(name, option) else self.value()
            elif options:
                raise self.error("a plain argument must come before name=value", at)
            else:
                arguments.append(self.argument())
        self.take()
        return Call(name, tuple(arguments), tuple(options.items()))

    def argument(self) -> Node | Value:
        word = self.peek("word") and self.tokens[self.next][1] not in CONSTANTS
        return self.pipeline() if word or self.peek("op", "(") else self.value()

    def value(self) -> Value:
        kind, found, at = self.tokens[self.next]
        if kind == "word":
            self.take()
            return CONSTANTS.get(found, found)
        if kind == "number":
            return self.number()
        if kind == "quoted":
            self.take()
            try:
                return str(json.loads(found))
            except json.JSONDecodeError:
                raise self.error(f"{found[:QUOTED]} is not a valid quoted text", at) from None
        raise self.error(f"expected a value, found {quoted(found)}" if found else "expected a value", at)

    def number(self) -> int | float:
        _, found, at = self.tokens[self.next]
        whole = not set(found) & set(".eE")
        if len(found) > _MOST_DIGITS if whole else math.isinf(float(found)):
            raise self.error(f"{found[:QUOTED]} is too large a number", at)
        self.take()
        return int(found) if whole else float(found)


def _takes_stage(stage: str, option: str) -> bool:
    from tamis.core.registry import takes_stage  # which reads signatures: what is printed is in none of them

    return takes_stage(stage, option)


def _print_option(stage: str, name: str, value: Node | Value) -> str:
    if isinstance(value, Node):
        return str(value)
    word = isinstance(value, str) and _WORD.fullmatch(value)
    return _print_argument(value) if word and _takes_stage(stage, name) else _print_value(value)


def _print_argument(argument: Node | Value) -> str:
    # a bare word would be read as a stage
    if isinstance(argument, str):
        return _quoted(argument)
    return str(argument) if isinstance(argument, Node) else _print_value(argument)


def _print_value(value: Value) -> str:
    if isinstance(value, str):
        bare = _WORD.fullmatch(value) and value not in CONSTANTS
        return value if bare else _quoted(value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(value)


def _quoted(value: str) -> str:
    """As people write it; what no terminal should show, and a path can hold, is escaped.

    >>> print(_quoted("modèle"), _quoted("a\\ud800"))
    "modèle" "a\\ud800"
    """
    return json.dumps(value, ensure_ascii=bool(_UNSHOWN.search(value)))
