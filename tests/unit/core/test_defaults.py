"""Pipelines with a name: they are what they stand for, wherever an expression may stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.base.errors import ExpressionError
from tamis.core.defaults import INTERACTIVE, NAMED
from tamis.core.language import parse
from tamis.core.registry import BUILT_IN, build, check_searches
from tamis.models.bundled import bundled_models
from tamis.serve.models import models_named


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder: Path = tmp_path_factory.mktemp("named") / "idx"
    return Index.build([Document("d1", "a fine sieve"), Document("d2", "sieve, soup and flour")], folder)


@pytest.mark.parametrize("name", NAMED)
def test_a_name_searches_with_bundled_models_and_prints_as_its_pipeline(name: str, index: Index) -> None:
    assert name not in BUILT_IN
    check_searches(parse(name))
    assert {each.model for each in models_named(parse(name))} <= set(bundled_models())
    named, whole = build(name, index), build(NAMED[name], index)
    assert repr(named) == repr(whole) == NAMED[name]
    assert named.fingerprint == whole.fingerprint


def test_names_compose() -> None:
    assert str(parse("fast % 10")) == f"{NAMED['fast']} % 10"
    assert str(parse("fast >> duo(k=10)")) == f"{NAMED['fast']} >> duo(k=10)"
    assert str(parse("fuse((fast), ql % 5)")) == f"fuse({NAMED['fast']}, ql % 5)"


def test_a_name_takes_no_options() -> None:
    with pytest.raises(ExpressionError, match=r"^column 5 of .*: fast is a whole pipeline and takes"):
        parse("fast(k=1)")


def test_the_default_ranks_as_its_pipeline_does(index: Index) -> None:
    query = "which sieve for flour"
    named, whole = (index.pipeline(each)(query) for each in (INTERACTIVE, NAMED[INTERACTIVE]))
    assert named.ids == whole.ids
    assert named.scores.tolist() == whole.scores.tolist()
    assert set(named.ids) == {"d1", "d2"}
