"""From the pipeline language to stages: stages within stages, kinds of options, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from tamis import Ranking
from tamis.base.errors import ExpressionError
from tamis.core.language import Call, Value
from tamis.core.registry import BUILT_IN, build
from tamis.core.stage import Pipeline, Stage, TopK
from tamis.index.feedback import RM3
from tamis.rank.combine import Fuse, Interpolate, Normalise


class Probe(Stage):
    """A stage with every kind of option."""

    def __init__(
        self,
        model: str | None = None,
        aggregate: Literal["sum", "binary"] = "sum",
        m: int | None = None,
        threshold: float | None = None,
        size: int | Literal["all"] = "all",
        exact: bool = False,
        alpha: float = 0.5,
    ) -> None:
        self.got: dict[str, Value] = {
            "model": model,
            "aggregate": aggregate,
            "m": m,
            "threshold": threshold,
            "size": size,
            "exact": exact,
            "alpha": alpha,
        }

    @property
    def expression(self) -> Call:
        return Call("probe")

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return list(rankings)


class Both(Probe):
    """A stage of exactly two."""

    def __init__(self, first: Stage, second: Stage, weight: float = 0.5) -> None:
        self.inner = (first, second)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "probe", Probe)
    monkeypatch.setitem(BUILT_IN, "both", Both)


# -- stages within stages
# ------------------------------------------------------------------------------------------------------------


def test_a_stage_may_take_stages() -> None:
    built = build("interpolate(probe % 100 >> rm3, alpha=0.3, normalise=z) % 7")
    assert isinstance(built, TopK)
    outer = built.stage
    assert isinstance(outer, Interpolate)
    assert (outer.alpha, outer.normalise) == (0.3, "z")
    assert isinstance(outer.stage, Pipeline)
    first, second = outer.stage.stages
    assert isinstance(first, TopK)
    assert isinstance(first.stage, Probe)
    assert first.k == 100
    assert isinstance(second, RM3)


def test_a_stage_may_take_any_number_of_stages() -> None:
    built = build("fuse(rm3, normalise(how=z), interpolate(fuse(rm3, rm3)), how=rrf, k=10)")
    assert isinstance(built, Fuse)
    assert [type(stage) for stage in built.stages] == [RM3, Normalise, Interpolate]
    assert (built.how, built.k) == ("rrf", 10)
    assert repr(built) == "fuse(rm3, normalise(how=z), interpolate(fuse(rm3, rm3)), k=10)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("interpolate", "interpolate takes a stage: write interpolate(stage)"),
        ("interpolate(alpha=0.3)", "interpolate takes a stage: write interpolate(stage)"),
        ("interpolate(rm3, rm3)", "interpolate takes a stage, not 2: write interpolate(stage)"),
        ("both(rm3)", "both takes 2 stages, not 1: write both(first, second)"),
        ("interpolate(0.3)", "interpolate takes its options as name=value: it takes alpha, normalise"),
        ("interpolate(rm3, 0.3)", "interpolate takes its options as name=value: it takes alpha, normalise"),
        ('fuse(rm3, "ql")', "fuse takes its options as name=value: it takes how, k"),
        ("interpolate(stage=rm3)", "interpolate has no option 'stage': it takes alpha, normalise"),
        ("fuse(rm3, rm3, stages=2)", "fuse has no option 'stages': it takes how, k"),
        ("normalise(rm3)", "normalise takes its options as name=value: it takes how"),
        ("fuse", "in fuse: fuse needs a stage: give one or more, as in fuse(bm25, ql)"),
        (
            "interpolate(rm4)",
            f"'rm4' is not a stage: did you mean rm3? Use {', '.join(BUILT_IN)}, probe, both",
        ),
        ("interpolate(rm3(terms=0))", "in rm3(terms=0): rm3 with terms=0, docs=10, weight=0.5: use terms"),
        ("interpolate(rm3, alpha=2)", "in interpolate(rm3, alpha=2): interpolate with alpha=2.0: use an"),
        (
            "interpolate(rm3, normalise=max)",
            "normalise of interpolate cannot be 'max': give minmax, raw or z",
        ),
        ("fuse(rm3, rm3, how=combsum, k=9)", "in fuse(rm3, rm3, how=combsum, k=9): fuse with how=combsum"),
        ("fuse(rm3, rm3, how=sum)", "how of fuse cannot be 'sum': give rrf, combsum or combmnz"),
        ("fuse(rm3, bm25)", "a first stage needs an index: give the index to search"),
    ],
)
def test_stages_within_stages_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        build(text)
    assert str(caught.value).startswith(message)


# -- options
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("probe", "model", None),
        ("probe(model=none)", "model", None),
        ('probe(model="none")', "model", "none"),
        ('probe(model="models/mono base")', "model", "models/mono base"),
        ("probe(aggregate=binary)", "aggregate", "binary"),
        ("probe(m=10)", "m", 10),
        ("probe(m=none)", "m", None),
        ("probe(threshold=1)", "threshold", 1.0),
        ("probe(threshold=none)", "threshold", None),
        ("probe(size=all)", "size", "all"),
        ("probe(size=3)", "size", 3),
        ("probe(exact=true)", "exact", True),
        ("probe(alpha=1)", "alpha", 1.0),
    ],
)
def test_an_option_is_what_its_annotation_says(text: str, name: str, value: Value) -> None:
    built = build(text)
    assert isinstance(built, Probe)
    assert built.got[name] == value
    assert type(built.got[name]) is type(value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model=3", "model of probe cannot be 3: give a word or none"),
        ("aggregate=median", "aggregate of probe cannot be 'median': give sum or binary"),
        ("aggregate=none", "aggregate of probe cannot be None: give sum or binary"),
        ("aggregate=true", "aggregate of probe cannot be True: give sum or binary"),
        ("m=2.0", "m of probe cannot be 2.0: give a whole number or none"),
        ("m=true", "m of probe cannot be True: give a whole number or none"),
        ("threshold=low", "threshold of probe cannot be 'low': give a number or none"),
        ("threshold=true", "threshold of probe cannot be True: give a number or none"),
        ("size=some", "size of probe cannot be 'some': give a whole number or all"),
        ("exact=1", "exact of probe cannot be 1: give true or false"),
        ("alpha=none", "alpha of probe cannot be None: give a number"),
        (
            "Model=a",
            "probe has no option 'Model': it takes model, aggregate, m, threshold, size, exact, alpha",
        ),
    ],
)
def test_options_that_cannot_be(option: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        build(f"probe({option})")
    assert str(caught.value) == message
