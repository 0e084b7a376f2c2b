"""The models' formulae, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import Document, Index
from tamis.base.errors import InputError
from tamis.index.score import BM25, Collection, Model, QueryLikelihood, Terms, TfIdf, lucene_idf

# Four documents of five tokens on average. One of them holds the term, twice, and has four tokens.
COLLECTION = Collection(documents=4, tokens=20)
TERM = Terms(weight=np.array([1.0]), df=np.array([1]), cf=np.array([2]))
TF, LENGTH = np.array([2]), np.array([4])
DIRICHLET, EXACT = QueryLikelihood(mu=10.0), QueryLikelihood(mu=10.0, variant="exact")
JELINEK_MERCER = QueryLikelihood(smoothing="jelinek-mercer", lam=0.1)
EXACT_JELINEK_MERCER = QueryLikelihood(smoothing="jelinek-mercer", lam=0.1, variant="exact")
ALL: list[Model] = [
    BM25(),
    BM25(variant="robertson"),
    BM25(variant="atire"),
    BM25(variant="bm25l"),
    BM25(variant="bm25+"),
    TfIdf(),
    DIRICHLET,
    EXACT,
    JELINEK_MERCER,
    EXACT_JELINEK_MERCER,
]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # relative length 0.6 + 0.4 * 4/5 = 0.92; k1 times it 0.828; idf log(1 + 3.5/1.5) = 1.203973
        # 1.203973 * 2 / 2.828
        (BM25(), 0.8514659),
        # saturated tf 2 * 1.9 / 2.828 = 1.343706; idf log(3.5/1.5) = 0.847298
        (BM25(variant="robertson"), 1.1385190),
        # idf log(4/1) = 1.386294
        (BM25(variant="atire"), 1.8627718),
        # c = 2/0.92 + 0.5 = 2.673913; idf log(5/1.5) = 1.203973; 1.203973 * 1.9 * c / (0.9 + c)
        (BM25(variant="bm25l"), 1.7114869),
        # idf log(5/1) = 1.609438; 1.609438 * (1 + 1.343706)
        (BM25(variant="bm25+"), 3.7720490),
        # no length: 1.203973 * 2 / 2.9
        (BM25(b=0.0), 0.8303260),
        # all length: relative length 0.8; 1.203973 * 2 / 2.72
        (BM25(b=1.0), 0.8852741),
        # no tf: the idf
        (BM25(k1=0.0), 1.2039728),
        (BM25(k1=0.0, variant="atire"), 1.3862944),
        # idf 1 + log(5/2) = 1.916291; 1.916291 * sqrt(2) / sqrt(4)
        (TfIdf(), 1.3550222),
        # P = 3/21; log(1 + 2 / (10/7)) + log(10/14) = log(2.4 * 10/14)
        (DIRICHLET, 0.5389965),
        # P = 3/21; log(1 + 0.9 * 2/4 / (0.1 * 3/21)) = log(32.5)
        (JELINEK_MERCER, 3.4812401),
        # P = 2/20; log(1 + 2 / (10 * 0.1)) = log(3)
        (EXACT, 1.0986123),
        # P = 2/20; log(1 + 0.9 * 2/4 / (0.1 * 0.1)) = log(46)
        (EXACT_JELINEK_MERCER, 3.8286414),
    ],
    ids=repr,
)
def test_contribution(model: Model, expected: float) -> None:
    value = model.contribution(TF, LENGTH, TERM, COLLECTION)
    assert value.dtype == np.float32
    assert value.tolist() == pytest.approx([expected], rel=1e-6)
    twice = Terms(2 * TERM.weight, TERM.df, TERM.cf)
    assert model.contribution(TF, LENGTH, twice, COLLECTION).tolist() == pytest.approx(
        [2 * expected], rel=1e-6
    )


def test_exact_likelihood_is_contribution_and_prior() -> None:
    for model, expected in (
        (EXACT, math.log((2 + 10 * 0.1) / (4 + 10))),
        (EXACT_JELINEK_MERCER, math.log(0.9 * 2 / 4 + 0.1 * 0.1)),
    ):
        prior = model.prior(LENGTH, TERM, COLLECTION)
        assert prior is not None
        total = model.contribution(TF, LENGTH, TERM, COLLECTION) + prior
        assert total.tolist() == pytest.approx([expected], rel=1e-6)


def test_the_prior_of_a_query_holds_the_terms_that_a_document_lacks() -> None:
    # of a document of four tokens without either: 1 * log(1/14) + 2 * log(3/14), P = 0.1 and 0.3
    terms = Terms(np.array([1.0, 2.0]), np.array([1, 3]), np.array([2, 6]))
    prior = EXACT.prior(LENGTH, terms, COLLECTION)
    assert prior is not None
    assert prior.tolist() == pytest.approx([math.log(1 / 14) + 2 * math.log(3 / 14)], rel=1e-6)


def test_only_exact_likelihoods_have_a_prior() -> None:
    for model in ALL:
        prior = model.prior(LENGTH, TERM, COLLECTION)
        assert (prior is not None) == (model in (EXACT, EXACT_JELINEK_MERCER))


def test_lucenes_likelihood_is_never_negative() -> None:
    # log(1 + 1 / (10/7)) = 0.5306 and log(10/24) = -0.8755
    assert DIRICHLET.contribution(np.array([1]), np.array([14]), TERM, COLLECTION).tolist() == [0.0]


def test_a_term_in_more_than_half_of_the_documents() -> None:
    often = Terms(np.array([1.0]), np.array([3]), np.array([3]))
    # log(1.5 / 3.5) = -0.847298
    assert BM25(variant="robertson").contribution(TF, LENGTH, often, COLLECTION)[0] == pytest.approx(
        -1.138519
    )
    assert BM25().contribution(TF, LENGTH, often, COLLECTION)[0] > 0


def test_idf() -> None:
    # log(1 + 3.5/1.5), log(1 + 0.5/4.5)
    assert lucene_idf(np.array([1, 4]), 4).tolist() == pytest.approx([1.2039728, 0.1053605])


@pytest.mark.parametrize("model", ALL, ids=repr)
def test_contributions_grow_with_tf_and_shrink_with_length(model: Model) -> None:
    """The index's bounds rest on it; rounding may step back by a bit."""
    tf, length = np.arange(1, 300)[:, None], np.arange(1, 1000, 7)
    values = model.contribution(tf, length, TERM.column(), COLLECTION)[0].astype(np.float64)
    assert values.shape == (299, 143)
    slack = 1e-6 * np.abs(values).max()
    assert (np.diff(values, axis=0) >= -slack).all()
    assert (np.diff(values, axis=1) <= slack).all()
    prior = model.prior(length, TERM, COLLECTION)
    assert prior is None or (np.diff(prior) <= 0).all()


@pytest.mark.parametrize(
    "model",
    [
        *ALL,
        BM25(b=1.0),
        BM25(b=1.0, variant="bm25l"),
        *(BM25(k1=k1, b=b) for k1 in (1e-300, 1e-45, 1e-40, 1e-38, 1e-20, 1000) for b in (0.4, 0.9999999)),
        *(QueryLikelihood(mu=mu) for mu in (1e-9, 1e6)),
        QueryLikelihood(smoothing="jelinek-mercer", lam=1e-9),
    ],
    ids=repr,
)
def test_an_empty_document_makes_no_trouble(model: Model) -> None:
    with np.errstate(all="raise"):
        value = model.contribution(np.array([1]), np.array([0]), TERM, COLLECTION)
    assert np.isfinite(value).all()


def test_an_empty_collection_has_a_mean_length() -> None:
    assert Collection(0, 0).mean_length == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BM25(k1=-0.1), "BM25 with k1=-0.1, b=0.4: use 0 <= k1 <= 1000 and 0 <= b <= 1"),
        (lambda: BM25(k1=1e30), "BM25 with k1=1e+30"),
        (lambda: BM25(k1=math.inf), "BM25 with k1=inf"),
        (lambda: BM25(k1=math.nan), "BM25 with k1=nan"),
        (lambda: BM25(b=1.1), "BM25 with k1=0.9, b=1.1"),
        (lambda: BM25(b=math.nan), "BM25 with k1=0.9, b=nan"),
        (lambda: BM25(variant="bm25f"), "BM25 has no variant 'bm25f': use lucene, robertson"),  # type: ignore[arg-type]
        (lambda: QueryLikelihood(mu=0.0), "query likelihood with mu=0.0"),
        (lambda: QueryLikelihood(mu=1e30), "lam=0.1: use 1e-09 <= mu <= 1,000,000 and 1e-09 <= lam < 1"),
        (lambda: QueryLikelihood(mu=1e-320), "query likelihood with mu=1e-320"),
        (lambda: QueryLikelihood(lam=1e-320), "query likelihood with mu=1000.0, lam=1e-320"),
        (lambda: QueryLikelihood(mu=math.inf), "query likelihood with mu=inf"),
        (lambda: QueryLikelihood(lam=1.0), "query likelihood with mu=1000.0, lam=1.0"),
        (lambda: QueryLikelihood(smoothing="laplace"), "smoothing='laplace'"),  # type: ignore[arg-type]
        (lambda: QueryLikelihood(variant="robertson"), "variant='robertson'"),  # type: ignore[arg-type]
    ],
)
def test_impossible_parameters(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)


def test_scores_of_an_index(tmp_path: Path) -> None:
    """Two documents of 100 and 4 tokens, mean length 52. For Lucene the long one has 96."""
    documents = [Document("long", "a " * 3 + "b " * 97), Document("short", "a b c d")]
    index = Index.build(documents, tmp_path / "idx", analyzer="whitespace")
    weights = {"a": 1.0, "c": 2.0}
    # idf of a log(1 + 0.5/2.5) = 0.182322, of c log(1 + 1.5/1.5) = 0.693147
    # short: k1 * (0.6 + 0.4 * 4/52) = 0.567692; 0.182322 / 1.567692 + 2 * 0.693147 / 1.567692
    # long: k1 * (0.6 + 0.4 * 96/52) = 1.204615; 0.182322 * 3 / 4.204615
    ids, scores = index.search(weights, BM25(), 10)
    assert ids == ["short", "long"]
    assert scores.tolist() == pytest.approx([1.0005890, 0.1300869], rel=1e-5)
    # idf of a log(3/2.5), and the exact 100 tokens: c = 3 / (0.6 + 0.4 * 100/52) + 0.5 = 2.691011
    # 0.182322 * 1.9 * 2.691011 / (0.9 + 2.691011)
    # short: c = 1 / (0.6 + 0.4 * 4/52) + 0.5 = 2.085366
    ids, scores = index.search({"a": 1.0}, BM25(variant="bm25l"), 10)
    assert ids == ["long", "short"]
    assert scores.tolist() == pytest.approx([0.2595914, 0.2419782], rel=1e-5)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"lam": 0.5}, "lam, which dirichlet"), ({"smoothing": "jelinek-mercer", "mu": 5}, "mu, which jelinek")],
)
def test_a_parameter_of_the_other_smoothing_is_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"query likelihood with {said}.* smoothing does not have"):
        QueryLikelihood(**other)
