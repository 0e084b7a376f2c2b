"""The pipeline language: what is printed parses to the same, text and Python agree, nothing else gets in."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tamis import Document, Index
from tamis.base.errors import ExpressionError
from tamis.core.defaults import NAMED
from tamis.core.language import Call, Keep, Node, Then, Value, parse
from tamis.core.registry import BUILT_IN, build
from tamis.index.dependence import SDM, Dependence
from tamis.index.feedback import RM3
from tamis.index.retriever import Retriever
from tamis.index.score import QueryLikelihood
from tamis.rank.combine import Fuse, Interpolate, Normalise

EXAMPLES = 10_000 if os.environ.get("TAMIS_HYPOTHESIS") == "thorough" else 200

# -- printing and parsing
# ------------------------------------------------------------------------------------------------------------

CONSTANTS = ["true", "false", "none"]
RESERVED = {*CONSTANTS, *NAMED}
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED)
option_names = names | st.sampled_from(["k1", "b", "Mu", "true", "none", "top-k", "a.b"])
strings = st.one_of(
    st.text(max_size=10),  # quotes, line breaks, lone surrogates and all
    st.sampled_from(
        [*CONSTANTS, "True", "", "bm25+", "a-b", "1", "-5", "1e9", "inf", "nan", "a b", ">>", "%"]
    ),
)
values = st.one_of(
    strings,
    st.integers(-(10**17) + 1, 10**18 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)
ks = st.integers(1, 10**18 - 1)
options = st.dictionaries(option_names, values, max_size=3).map(lambda found: tuple(found.items()))


def pipelines_of(calls: st.SearchStrategy[Call]) -> st.SearchStrategy[Node]:
    kept: st.SearchStrategy[Call | Keep] = calls | st.builds(Keep, calls, ks)
    return kept | st.lists(kept, min_size=2, max_size=3).map(lambda stages: Then(tuple(stages)))


def calls_with(arguments: st.SearchStrategy[Node | Value]) -> st.SearchStrategy[Call]:
    inside = st.lists(arguments, max_size=2).map(tuple)
    # only of a stage that is known does its signature say that an option is a stage
    chosen = st.builds(lambda found, stage: (*found, ("choose", stage)), options, arguments)
    return st.builds(Call, names, inside, options) | st.builds(Call, st.just("maxp"), inside, chosen)


nodes = pipelines_of(
    st.recursive(calls_with(values), lambda calls: calls_with(values | pipelines_of(calls)), max_leaves=6)
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes)
def test_what_is_printed_parses_to_the_same(node: Node) -> None:
    again = parse(str(node))
    assert again == node
    assert repr(again) == repr(node)  # 1, 1.0 and True are equal, but not the same
    assert str(again) == str(node)


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes, st.data())
def test_white_space_and_needless_parentheses_mean_nothing(node: Node, data: st.DataObject) -> None:
    blank = st.sampled_from(["", " ", "\n\t", "  "])
    stages = node.stages if isinstance(node, Then) else (node,)
    text = ">>".join(f"{data.draw(blank)}({stage}{data.draw(blank)})" for stage in stages)
    assert parse(f"({text}){data.draw(blank)}") == node


@given(st.sampled_from(sorted(NAMED)), st.none() | ks, nodes | st.none())
def test_a_name_is_read_as_its_pipeline_in_parentheses(name: str, k: int | None, after: Node | None) -> None:
    cut, more = "" if k is None else f" % {k}", "" if after is None else f" >> {after}"
    whole = parse(f"({NAMED[name]}){cut}{more}")
    assert parse(f"{name}{cut}{more}") == whole
    assert parse(f"fuse({name}{cut}, ql)") == parse(f"fuse(({NAMED[name]}){cut}, ql)")


pieces = st.sampled_from(
    [
        "bm25",
        "rm3",
        ">>",
        "%",
        "(",
        ")",
        ",",
        "=",
        "k1",
        "10",
        "-1",
        "0.5",
        "1e9",
        '"',
        '"a"',
        "true",
        " ",
        "\\",
    ]
)


@settings(max_examples=5 * EXAMPLES, deadline=None)
@given(st.text(max_size=20) | st.lists(pieces, max_size=12).map("".join))
@example("(" * 100_000)
@example("a(" * 100_000)
@example("a(choose=" * 100_000)
@example("bm25 % " + "9" * 5_000)
@example("bm25(k1=" + "9" * 5_000 + ")")
@example("bm25(k1=1e999)")
@example("bm25((true))")
@example('bm25("\\ud800")')
@example('bm25("\\x")')
@example("bm25 % ²")
@example("bm25 % ٣")
@example("\ud800")
def test_garbage_is_an_error_with_its_place(text: str) -> None:
    try:
        node = parse(text)
    except ExpressionError as error:
        place = re.match(r"column (\d+) of the pipeline ", str(error))
        assert place
        assert 1 <= int(place[1]) <= len(text) + 1
        assert "\n" not in error.problem.replace(text, "")
    else:
        assert parse(str(node)) == node


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected the name of a stage"),
        ("   ", 4, "expected the name of a stage"),
        ("bm25 >>", 8, "expected the name of a stage"),
        ("bm25 % lots", 8, "expected a whole number of at least 1 after %, found 'lots'"),
        ("bm25 % 0", 8, "expected a whole number of at least 1 after %, found '0'"),
        ("bm25 % -5", 8, "expected a whole number of at least 1 after %, found '-5'"),
        ("bm25 % 2.5", 8, "expected a whole number of at least 1 after %, found '2.5'"),
        ("bm25 %", 7, "expected a whole number of at least 1 after %"),
        ("bm25 rm3", 6, "expected the end or >>, found 'rm3'"),
        ("bm25(k1=)", 9, "expected a value, found ')'"),
        ("bm25(k1=0.9", 12, "expected a comma or a closing parenthesis"),
        ("bm25(k1=0.9 b=0.4)", 13, "expected a comma or a closing parenthesis, found 'b'"),
        ("bm25(k1=1, k1=2)", 12, "k1 is given twice"),
        ("fuse(n=1, bm25)", 11, "a plain argument must come before name=value"),
        ("bm25 & rm3", 6, "'&' is not expected here"),
        ("bm25 > rm3", 6, "'>' is not expected here"),
        ("BM25", 1, "'BM25' is not the name of a stage (lower case)"),
        ("true", 1, "'true' is not the name of a stage (lower case)"),
        ("(bm25", 6, "expected a closing parenthesis"),
        ("bm25)", 5, "expected the end or >>, found ')'"),
        ('rm3(a="\\q")', 7, '"\\q" is not a valid quoted text'),
        ("bm25(k1=1e999)", 9, "1e999 is too large a number"),
        ("bm25(k1=1.2.3)", 9, "'1' is not expected here"),
        ("10", 1, "expected the name of a stage, found '10'"),
    ],
)
def test_errors_name_the_column_and_the_problem(text: str, column: int, problem: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.problem == f"column {column} of the pipeline {text!r}: {problem}"
    assert bool(caught.value.remedy) == problem.endswith("is not expected here")


# -- what it means
# ------------------------------------------------------------------------------------------------------------

a, b, c = Call("a"), Call("b"), Call("c")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("a % 5 >> b % 3", Then((Keep(a, 5), Keep(b, 3)))),  # % binds tighter
        ("a >> b >> c", Then((a, b, c))),
        ("(a >> b) >> c", Then((a, b, c))),
        ("a >> (b >> c)", Then((a, b, c))),
        ("(a >> b) % 3", Then((a, Keep(b, 3)))),
        ("(a >> b % 2) % 3 >> c", Then((a, Keep(b, 2), c))),
        ("a % 5 % 3", Keep(a, 3)),  # of two cuts the smaller holds
        ("a % 3 % 5", Keep(a, 3)),
        ("a()", a),
        ("a(b)", Call("a", (b,))),  # a bare word in first place is a stage ...
        ('a("b")', Call("a", ("b",))),
        ("a(x=b)", Call("a", (), (("x", "b"),))),  # ... and a word as a value
        ("a(b % 2 >> c, 1, x=-.5e1)", Call("a", (Then((Keep(b, 2), c)), 1), (("x", -5.0),))),
        ("a(true, none, x=false, y=bm25+)", Call("a", (True, None), (("x", False), ("y", "bm25+")))),
        ('a(x="tr\\u00e9s \\"bon\\"")', Call("a", (), (("x", 'trés "bon"'),))),
    ],
)
def test_precedence_and_forms(text: str, node: Node) -> None:
    assert repr(parse(text)) == repr(node)


# -- over an index
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document("d1", "a cook's sieve"), Document("d2", "sieve the flour"), Document("d3", "bread")]
    return Index.build(documents, tmp_path_factory.mktemp("expression") / "idx", positions=True)


def test_text_and_python_agree(index: Index) -> None:
    jelinek_mercer = QueryLikelihood(smoothing="jelinek-mercer", lam=0.5)
    for text, stage in (
        ("bm25", index.bm25()),
        ("bm25(k1=1.2, b=0.75)", index.bm25(k1=1.2, b=0.75)),
        ("bm25(variant=bm25+)", index.bm25(variant="bm25+")),
        ("bm25 % 10 >> rm3", index.bm25() % 10 >> RM3()),
        ("bm25 >> rm3(terms=20) % 7", (index.bm25() >> RM3(terms=20)) % 7),
        ("bm25 % 5 % 9 >> (rm3 % 2 >> rm3)", index.bm25() % 5 % 9 >> (RM3() % 2 >> RM3())),
        ("ql(mu=10)", index.ql(mu=10)),
        ("ql(mu=10)", index.ql(mu=np.float64(10))),
        ("ql(smoothing=jelinek-mercer, lam=0.5)", Retriever(index, jelinek_mercer)),
        ("tfidf % 3", index.tfidf() % 3),
        ("sdm(window=4, mu=9.5)", SDM(index, Dependence(window=np.int64(4), mu=9.5))),
        ("bm25 >> rm3(terms=5, weight=1)", index.bm25() >> RM3(terms=np.int64(5), weight=1)),
        ("bm25 >> normalise(how=z)", index.bm25() >> Normalise("z")),
        ("fuse(bm25, ql % 2, k=9) % 3", Fuse(index.bm25(), index.ql() % 2, k=np.int64(9)) % 3),
        (
            "bm25 >> interpolate(ql >> rm3 % 2, alpha=1)",
            index.bm25() >> Interpolate(index.ql() >> RM3() % 2, alpha=np.float64(1)),
        ),
    ):
        built = index.pipeline(text)
        assert repr(built) == repr(stage)
        assert built.fingerprint == stage.fingerprint
        assert built("sieve") == stage("sieve")


numbers = st.floats(0, 5) | st.integers(0, 5)
positive = st.floats(0.1, 1e6) | st.integers(1, 10**6)
bm25_texts = st.builds(
    "bm25(k1={}, b={}, variant={})".format,
    numbers,
    st.floats(0, 1),
    st.sampled_from(["lucene", "robertson", "atire", "bm25l", '"bm25+"']),
)
variants = st.sampled_from(["lucene", "exact"])
ql_texts = st.builds("ql(mu={}, smoothing=dirichlet, variant={})".format, positive, variants) | st.builds(
    "ql(smoothing=jelinek-mercer, lam={}, variant={})".format, st.floats(0.01, 0.99), variants
)
sdm_texts = st.builds("sdm(window={}, mu={})".format, st.integers(2, 50), positive)
rm3_texts = st.builds(
    "rm3(terms={}, docs={}, weight={})".format, st.integers(1, 50), st.integers(1, 50), st.floats(0, 1)
)
stage_texts = (
    st.sampled_from(["bm25", "ql", "sdm", "tfidf", "rm3", "normalise", "normalise(how=z)"])
    | bm25_texts
    | ql_texts
    | sdm_texts
    | rm3_texts
)


def pipeline_texts(stages: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    kept = stages | st.builds("{} % {}".format, stages, st.integers(1, 10**6))
    return st.lists(kept, min_size=1, max_size=3).map(" >> ".join)


def texts_of_stages_of(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Stages that take stages."""
    stages = st.lists(pipeline_texts(inner), min_size=2, max_size=3).map(", ".join)
    return st.one_of(
        st.builds(
            "interpolate({}, alpha={}, normalise={})".format,
            pipeline_texts(inner),
            st.floats(0, 1) | st.integers(0, 1),
            st.sampled_from(["minmax", "raw", "z"]),
        ),
        st.builds("fuse({}, k={})".format, stages, st.integers(0, 100)),
        st.builds("fuse({}, how={})".format, stages, st.sampled_from(["rrf", "combsum", "combmnz"])),
    )


any_texts = st.recursive(stage_texts, texts_of_stages_of, max_leaves=4)


@settings(max_examples=EXAMPLES, deadline=None)
@given(pipeline_texts(any_texts))
def test_a_stage_prints_as_what_builds_it(index: Index, text: str) -> None:
    built = index.pipeline(text)
    assert parse(repr(built)) == built.expression
    again = index.pipeline(repr(built))
    assert again.expression == built.expression
    assert again.fingerprint == built.fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm52", f"'bm52' is not a stage: did you mean bm25? Use {', '.join([*BUILT_IN, *NAMED])}"),
        ("bm25 >> mono2", f"'mono2' is not a stage: did you mean mono? Use {', '.join([*BUILT_IN, *NAMED])}"),
        ("bm25(k2=1)", "bm25 has no option 'k2': it takes k1, b, variant"),
        ("tfidf(k1=1)", "tfidf has no option 'k1': it takes none"),
        ("bm25(0.9)", "bm25 takes its options as name=value: it takes k1, b, variant"),
        ("bm25(k1=lots)", "k1 of bm25 cannot be 'lots': give a number"),
        ("bm25(k1=true)", "k1 of bm25 cannot be True: give a number"),
        ("rm3(terms=2.5)", "terms of rm3 cannot be 2.5: give a whole number"),
        ("bm25(ql)", "bm25 takes its options as name=value: it takes k1, b, variant"),
        ("bm25(variant=1)", "variant of bm25 cannot be 1: give lucene, robertson, atire, bm25l or bm25+"),
        ("ql(variant=old)", "variant of ql cannot be 'old': give lucene or exact"),
        ("bm25(b=2)", "in bm25(b=2): BM25 with k1=0.9, b=2.0: use 0 <= k1 <= 1000 and 0 <= b <= 1"),
    ],
)
def test_what_cannot_be_built_is_an_error_with_a_remedy(index: Index, text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        build(text, index)
    assert str(caught.value) == message


def test_a_first_stage_needs_an_index() -> None:
    with pytest.raises(ExpressionError, match="a first stage needs an index: give the index to search"):
        build("bm25 >> rm3")
