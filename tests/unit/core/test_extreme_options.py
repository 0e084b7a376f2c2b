"""Options of searches at the ends of their ranges and beyond: an error that names the range, or finite scores
without a warning."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index
from tamis.base.errors import TamisError
from tamis.index.dependence import Dependence
from tamis.index.feedback import RM3
from tamis.index.score import BM25, QueryLikelihood

NUMBERS = ["0", "-1", "1e-300", "1e-45", "1e-20", "1e-9", "0.5", "1", "0.9999999999", "1000"]
NUMBERS += ["1e6", "1e30", "1e38", "1e39", "1e308", "-1e308", "999999999999999999"]
VARIANTS = ["lucene", "robertson", "atire", "bm25l", '"bm25+"']
TOGETHER = [
    f"bm25(variant={variant}, k1={k1}, b={b})"
    for variant in VARIANTS
    for k1 in ("0", "1e-300", "1e-19", "1000")
    for b in ("0", "1", "0.9999999999")
]
STAGES = [
    *(f"bm25(variant={variant}, {name}={{}})" for variant in VARIANTS for name in ("k1", "b")),
    *(f"ql(variant={variant}, mu={{}})" for variant in ("lucene", "exact")),
    *(f"ql(variant={variant}, smoothing=jelinek-mercer, lam={{}})" for variant in ("lucene", "exact")),
    *(f"sdm({name}={{}})" for name in ("terms", "ordered", "unordered", "window", "mu")),
    *(f"bm25 >> rm3({name}={{}})" for name in ("terms", "docs", "weight")),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(f"d{n}", f"{'sieve ' * (300 if n == 3 else 1)}soup w{n % 7}") for n in range(40)]
    documents += [Document("long", "sieve " + "pan " * 3000), Document("empty", "")]
    return Index.build(documents, tmp_path_factory.mktemp("extreme") / "idx", positions=True)


@pytest.mark.parametrize("stage", [*STAGES, *TOGETHER])
def test_a_number_is_refused_or_gives_finite_scores(index: Index, stage: str) -> None:
    ranked = 0
    for expression in map(stage.format, NUMBERS) if "{}" in stage else [stage]:
        for query in ("sieve soup w3", "sieve sieve pan", "nowhere"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    found = (index.pipeline(expression) % 50)(query)
                except TamisError:
                    continue
            assert np.isfinite(found.scores).all(), expression
            ranked += 1
    assert ranked


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    for make in (
        lambda: BM25(k1=value),
        lambda: BM25(b=value),
        lambda: QueryLikelihood(mu=value),
        lambda: QueryLikelihood(smoothing="jelinek-mercer", lam=value),
        lambda: Dependence(terms=value),
        lambda: Dependence(mu=value),
        lambda: RM3(weight=value),
    ):
        with pytest.raises(TamisError, match="use"):
            make()


def test_the_documented_ranges_are_those_of_the_code() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "pipelines.md"
    ranges = page.read_text(encoding="utf-8").split("## Ranges of options")[1].split("\n## ")[0]
    for row in (
        "| `bm25` | 0 <= k1 <= 1000, 0 <= b <= 1 |",
        "| `ql` | 1e-09 <= mu <= 1,000,000, 1e-09 <= lam < 1 |",
        "| `sdm` | window >= 2, 1e-09 <= mu <= 1,000,000, 0 <= terms, ordered, unordered <= 1e+30 |",
        "| `rm3` | terms >= 1, docs >= 1, 0 <= weight <= 1 |",
    ):
        assert row in ranges
    BM25(k1=1000, b=1)
    QueryLikelihood(mu=1e6)
    QueryLikelihood(mu=1e-9)
    Dependence(terms=1e30, mu=1e6, window=2)
    for refused in (
        lambda: BM25(k1=1001),
        lambda: QueryLikelihood(mu=1e6 + 1),
        lambda: Dependence(terms=2e30),
    ):
        with pytest.raises(TamisError):
            refused()
