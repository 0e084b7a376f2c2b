"""Pruned search, exhaustive search and a plain reading of the formulae find the same documents."""

from __future__ import annotations

import math
import os
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis import Document, Index
from tamis.index.score import BM25, Model, QueryLikelihood, TfIdf, Variant

EXAMPLES = 1500 if os.environ.get("TAMIS_HYPOTHESIS") == "thorough" else 40
VARIANTS: tuple[Variant, ...] = ("lucene", "robertson", "atire", "bm25l", "bm25+")

# -- the reference: one document after the other, one term after the other, in double precision
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistics:
    documents: int  # that hold a term
    tokens: int
    df: Counter[str]
    cf: Counter[str]


def statistics_of(documents: Iterable[Counter[str]]) -> Statistics:
    held = [terms for terms in documents if terms]
    df, cf = Counter[str](), Counter[str]()
    for terms in held:
        df.update(terms.keys())
        cf.update(terms)
    return Statistics(len(held), cf.total(), df, cf)


def lucene_length(length: int) -> int:
    """24, and of what is above it the first four bits."""
    above = length - 24
    if above < 0:
        return length
    shift = max(above.bit_length() - 4, 0)
    return 24 + (above >> shift << shift)


def bm25(model: BM25, tf: int, length: int, df: int, collection: Statistics) -> tuple[float, float]:
    """A contribution, and the size of what was subtracted to get it."""
    n, mean = collection.documents, collection.tokens / collection.documents
    k1, b = model.k1, model.b
    if model.variant == "lucene":
        idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
        return idf * tf / (tf + k1 * (1 - b + b * lucene_length(length) / mean)), idf
    relative = 1 - b + b * length / mean
    saturated = tf * (k1 + 1) / (tf + k1 * relative)
    if model.variant == "robertson":
        value = math.log((n - df + 0.5) / (df + 0.5)) * saturated
    elif model.variant == "atire":
        value = math.log(n / df) * saturated
    elif model.variant == "bm25l":
        c = tf / relative
        value = math.log((n + 1) / (df + 0.5)) * (k1 + 1) * (c + 0.5) / (k1 + c + 0.5)
    else:
        value = math.log((n + 1) / df) * (saturated + 1)
    return value, abs(value)


def contribution(
    model: Model, term: str, tf: int, length: int, collection: Statistics
) -> tuple[float, float]:
    df, cf = collection.df[term], collection.cf[term]
    if isinstance(model, BM25):
        return bm25(model, tf, length, df, collection)
    if isinstance(model, TfIdf):
        idf = 1 + math.log((collection.documents + 1) / (df + 1))
        value = math.sqrt(tf) * idf / math.sqrt(lucene_length(length))
        return value, value
    assert isinstance(model, QueryLikelihood)
    lucene = model.variant == "lucene"
    p = (cf + lucene) / (collection.tokens + lucene)
    known_length = lucene_length(length) if lucene else length
    if model.smoothing == "jelinek-mercer":
        value = math.log(1 + (1 - model.lam) * tf / known_length / (model.lam * p))
        return value, value
    seen = math.log(1 + tf / (model.mu * p))
    if not lucene:
        return seen, seen
    shorter = math.log(model.mu / (known_length + model.mu))
    return max(0.0, seen + shorter), seen - shorter


def prior(
    model: Model, weights: Mapping[str, float], length: int, collection: Statistics
) -> tuple[float, float]:
    """What every document found gets, and the size of its parts."""
    if not isinstance(model, QueryLikelihood) or model.variant == "lucene":
        return 0.0, 0.0
    parts = []
    for term, weight in weights.items():
        p = collection.cf[term] / collection.tokens
        if model.smoothing == "jelinek-mercer":
            parts.append(weight * math.log(model.lam * p))
        else:
            parts += [weight * math.log(p), weight * math.log(model.mu / (length + model.mu))]
    return sum(parts), sum(map(abs, parts))


@dataclass(frozen=True)
class Scored:
    score: float
    error: float  # what single precision may have done to it
    certain: bool  # terms that cancel out to nothing leave a document unfound, or nearly found


def reference(
    documents: Mapping[str, Counter[str]], weights: Mapping[str, float], model: Model, allowed: set[str]
) -> dict[str, Scored]:
    """The score of every allowed document that holds a term of the query."""
    collection = statistics_of(documents.values())
    known = {term: weight for term, weight in weights.items() if weight and collection.df[term]}
    scored = {}
    for identity, terms in documents.items():
        matching = [term for term in known if term in terms]
        if identity not in allowed or not matching:
            continue
        length = terms.total()
        parts = [contribution(model, term, terms[term], length, collection) for term in matching]
        values = [known[term] * value for term, (value, _) in zip(matching, parts, strict=True)]
        scale = sum(abs(known[term]) * size for term, (_, size) in zip(matching, parts, strict=True))
        base, base_scale = prior(model, known, length, collection)
        found = sum(values)
        error = 1e-5 * sum(map(abs, values)) + 1e-6 * (scale + base_scale)
        scored[identity] = Scored(found + base, error, abs(found) > 1e-6 * scale)
    return scored


def check_against_reference(
    ids: Sequence[str], scores: Sequence[float], scored: Mapping[str, Scored], k: int
) -> None:
    assert len(set(ids)) == len(ids) <= k
    for identity, score in zip(ids, scores, strict=True):
        assert abs(scored[identity].score - score) <= scored[identity].error, (identity, score, scored)
    assert list(ids) == [i for _, i in sorted(zip([-s for s in scores], ids, strict=True))]
    left_out = [each for identity, each in scored.items() if identity not in set(ids) and each.certain]
    if len(ids) < k:
        assert not left_out
    for each in left_out:
        assert each.score <= scores[-1] + each.error


# -- small collections of every kind
# ------------------------------------------------------------------------------------------------------------

TERMS = ["a", "b", "c", "d", "e"]
counts = st.one_of(
    st.integers(1, 4), st.sampled_from([1, 1, 1, 2, 15, 40, 100]), st.sampled_from([254, 255, 256, 300, 1000])
)
document_terms = st.dictionaries(st.sampled_from(TERMS), counts, max_size=4).map(Counter)
weights = st.one_of(
    st.sampled_from([1.0, 1.0, 2.0, 3.0, 0.5]), st.sampled_from([0.0, -1.0, -0.3]), st.floats(0.01, 10)
)
queries = st.dictionaries(st.sampled_from([*TERMS, "unknown"]), weights, max_size=5)
k1s, bs = st.sampled_from([0.0, 0.4, 0.9, 1.2, 3.0]), st.sampled_from([0.0, 0.4, 0.75, 1.0])


@st.composite
def models(draw: st.DrawFn) -> list[Model]:
    """All of them, with parameters drawn."""
    bm25s = [BM25(draw(k1s), draw(bs), variant) for variant in VARIANTS]
    mu, lam = draw(st.sampled_from([0.5, 10.0, 1000.0])), draw(st.sampled_from([0.1, 0.5, 0.9]))
    smoothed = [
        model
        for variant in ("lucene", "exact")
        for model in (
            QueryLikelihood(mu, variant=variant),
            QueryLikelihood(smoothing="jelinek-mercer", lam=lam, variant=variant),
        )
    ]
    return [*bm25s, TfIdf(), *smoothed]


@dataclass(frozen=True)
class Case:
    """A collection as it is built: documents in their order, where to commit, which to delete."""

    documents: dict[str, Counter[str]]
    commit_every: int
    deleted: set[str]
    queries: list[dict[str, float]]
    models: list[Model]
    ks: list[int]
    only: set[str] | None
    without: set[str] | None

    @property
    def live(self) -> dict[str, Counter[str]]:
        return {i: terms for i, terms in self.documents.items() if i not in self.deleted}

    @property
    def allowed(self) -> set[str]:
        return ((set(self.live) if self.only is None else self.only) - (self.without or set())) & set(
            self.live
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # few kinds of documents for many documents, so that ties are common
    kinds = draw(st.lists(document_terms, min_size=1, max_size=6))
    chosen = draw(st.lists(st.sampled_from(kinds), max_size=30))
    # ids in another order than the documents, and not only ASCII
    ids = draw(st.permutations([f"{'dé'[i % 2]}{i}" for i in range(len(chosen))]))
    some = st.none() | st.sets(st.sampled_from([*ids, "nobody"]), max_size=len(ids))
    return Case(
        documents=dict(zip(ids, chosen, strict=True)),
        commit_every=draw(st.integers(max(1, -(-len(ids) // 4)), max(1, len(ids)))),
        deleted=draw(st.sets(st.sampled_from(ids), max_size=len(ids) // 2)) if ids else set(),
        queries=draw(st.lists(queries, min_size=2, max_size=3)),
        models=draw(models()),
        ks=draw(st.lists(st.integers(1, 12) | st.just(1000), min_size=1, max_size=2)),
        only=draw(some),
        without=draw(some),
    )


def text_of(terms: Counter[str]) -> str:
    return " ".join(terms.elements())


@pytest.mark.filterwarnings("error")
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_four_ways_to_search_agree(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        documents = [Document(identity, text_of(terms)) for identity, terms in case.documents.items()]
        index = Index.build(
            documents, Path(folder, "idx"), analyzer="whitespace", commit_every=case.commit_every
        )
        assert len(index.segments) <= 4
        if case.deleted:
            index.delete(case.deleted)
        filters = {"only": case.only, "without": case.without}
        for query in case.queries:
            for model in case.models:
                scored = reference(case.live, query, model, case.allowed)
                for k in case.ks:
                    ids, scores = index.search(query, model, k, backend="numba", **filters)
                    plain_ids, plain_scores = index.search(query, model, k, backend="numpy", **filters)
                    assert ids == plain_ids, (model, query, k)
                    assert scores.tolist() == plain_scores.tolist(), (model, query, k)
                    check_against_reference(ids, scores.tolist(), scored, k)
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr("tamis.index.search._worth_tables", lambda *_: False)
                        bare_ids, bare_scores = index.search(query, model, k, **filters)
                    assert ids == bare_ids, (model, query, k)
                    assert scores.tolist() == bare_scores.tolist(), (model, query, k)


# -- large collections: many windows of documents, many blocks of postings
# ------------------------------------------------------------------------------------------------------------


def large_collection(size: int, seed: int) -> dict[str, Counter[str]]:
    """Terms from everywhere to nowhere. `far`, `ends` and `boom` stand so thinly that their blocks span more
    than 16 bits of documents; `here` fills a few windows and is absent elsewhere; `loud` and `boom` have tfs
    beyond a byte, those of `boom` ever higher."""
    generator = np.random.default_rng(seed)
    documents = [Counter[str]() for _ in range(size)]
    shares = {"every": 0.9, "most": 0.5, "common": 0.2, "some": 0.02, "rare": 0.002, "loud": 0.01}
    for term, share in shares.items():
        for number in np.flatnonzero(generator.random(size) < share).tolist():
            documents[number][term] = int(generator.geometric(0.6))
    for number in range(0, size, size // 150):
        documents[number]["far"] = 1 + number % 3
    for i, number in enumerate(range(3, size, size // 150)):
        documents[number]["boom"] = 1 if i % 10 else 256 + 20 * i
    for number in (0, 1, 2, size - 2, size - 1):
        documents[number]["ends"] = 2
    for number in range(17_000, min(38_000, size), 3):
        documents[number]["here"] = 1
    loud = [number for number in range(size) if "loud" in documents[number]]
    for number, tf in zip(loud[::40], [254, 255, 256, 257, 300, 400, 5000] * size, strict=False):
        documents[number]["loud"] = tf
    for number in generator.integers(0, size, 300).tolist():
        documents[number]["filler"] = int(generator.integers(1, 400))
    names = generator.permutation(size).tolist()  # the order of ids is not that of documents
    return {f"d{name}": terms for name, terms in zip(names, documents, strict=True)}


@dataclass(frozen=True)
class Large:
    documents: dict[str, Counter[str]]  # those not deleted
    index: Index


@pytest.fixture(scope="module", params=["one segment", "three segments, some deleted"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    several = request.param != "one segment"
    documents = large_collection(100_000 if several else 80_000, seed=3 + several)
    index = Index.build(
        (Document(identity, text_of(terms)) for identity, terms in documents.items()),
        tmp_path_factory.mktemp("large") / "idx",
        analyzer="whitespace",
        commit_every=70_000 if several else None,  # one segment of many windows and one of two
    )
    if several:
        gone = list(documents)[::7]
        index.delete(gone)
        index.add([Document(f"new{i}", "every here loud") for i in range(300)])
        for identity in gone:
            del documents[identity]
        documents |= {f"new{i}": Counter(["every", "here", "loud"]) for i in range(300)}
    assert len(index.segments) == (3 if several else 1)
    yield Large(documents, index)


LARGE_MODELS: list[Model] = [
    BM25(),
    BM25(k1=1.2, b=0.75),
    BM25(k1=0.0),  # every tf alike: more ties than anything else
    BM25(k1=9.0, b=0.0),  # only tf counts, up to the highest
    BM25(b=1.0, variant="atire"),
    BM25(variant="bm25l"),
    BM25(variant="bm25+"),
    BM25(variant="robertson"),
    TfIdf(),
    QueryLikelihood(),
    QueryLikelihood(mu=10.0, variant="exact"),
    QueryLikelihood(smoothing="jelinek-mercer"),
    QueryLikelihood(smoothing="jelinek-mercer", lam=0.7, variant="exact"),
]
LARGE_QUERIES: list[dict[str, float]] = [
    {"every": 1.0},
    {"loud": 1.0},
    {"boom": 1.0},
    {"far": 1.0, "every": 1.0},
    {"ends": 1.0, "far": 1.0, "loud": 0.5, "boom": 0.7},
    {"rare": 1.0, "some": 1.0, "most": 1.0, "every": 1.0},
    {"here": 1.0, "common": 2.0, "loud": 1.0, "far": 1.0, "unknown": 1.0},
    {"most": 0.2, "some": 0.1, "every": 0.05, "common": 0.3, "rare": 0.001, "here": 1.5, "filler": 0.7},
]


@pytest.mark.parametrize("model", LARGE_MODELS, ids=repr)
def test_pruning_loses_nothing_in_large_collections(large: Large, model: Model) -> None:
    for query in LARGE_QUERIES:
        everything, all_scores = large.index.search(query, model, 5000, backend="numpy")
        for k in (1, 3, 10, 100, 1000, 5000):
            ids, scores = large.index.search(query, model, k, backend="numba")
            assert ids == everything[:k], (query, k)
            assert scores.tolist() == all_scores[:k].tolist(), (query, k)


def test_filters_hold_in_large_collections(large: Large) -> None:
    live = list(large.documents)
    for filters in ({"only": live[::97]}, {"without": live[::50]}, {"only": live[:99], "without": live[:50]}):
        for query in LARGE_QUERIES[1::2]:
            pruned = large.index.search(query, BM25(), 200, backend="numba", **filters)
            plain = large.index.search(query, BM25(), 200, backend="numpy", **filters)
            assert pruned[0] == plain[0]
            assert pruned[1].tolist() == plain[1].tolist()
            assert set(plain[0]) <= set(filters.get("only", live)) - set(filters.get("without", ()))


@pytest.mark.parametrize("model", [BM25(), BM25(variant="bm25+"), QueryLikelihood(variant="exact")], ids=repr)
def test_the_formulae_hold_in_large_collections(large: Large, model: Model) -> None:
    for query in (LARGE_QUERIES[4], LARGE_QUERIES[6]):
        scored = reference(large.documents, query, model, set(large.documents))
        ids, scores = large.index.search(query, model, 1000, backend="numba")
        check_against_reference(ids, scores.tolist(), scored, 1000)


@pytest.mark.parametrize(
    "model", [BM25(), BM25(variant="robertson"), QueryLikelihood(variant="exact")], ids=repr
)
def test_a_query_of_many_terms_takes_memory_by_its_postings(tmp_path: Path, model: Model) -> None:
    """And not by its terms times the lengths of documents times the highest tf: a thousandfold."""
    documents = {f"d{i}": Counter({f"t{i}": 1, "common": 2 * i + 1}) for i in range(600)}
    index = Index.build(
        [Document(identity, text_of(terms)) for identity, terms in documents.items()],
        tmp_path / "idx",
        analyzer="whitespace",
    )
    query = dict.fromkeys(["common", *(f"t{i}" for i in range(600))], 1.0)
    tracemalloc.start()
    ids, scores = index.search(query, model, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60_000_000
    check_against_reference(ids, scores.tolist(), reference(documents, query, model, set(documents)), 1000)


def test_terms_that_add_nothing_to_most_documents(tmp_path: Path) -> None:
    """Lucene's query likelihood is zero where a term is rarer than in the collection: here in every document
    but one, for four terms at once, so that every posting of a full window adds zero."""
    documents = [Document(f"d{i}", "a b c d e f g h") for i in range((1 << 14) - 1)]
    documents.append(Document("loud", " ".join(["a b c d"] * 5000)))
    index = Index.build(documents, tmp_path / "idx", analyzer="whitespace")
    query = dict.fromkeys("abcd", 1.0)
    plain = index.search(query, QueryLikelihood(), 5, backend="numpy")
    pruned = index.search(query, QueryLikelihood(), 5, backend="numba")
    assert pruned[0] == plain[0]
    assert pruned[1].tolist() == plain[1].tolist()
    assert plain[0][0] == "loud"


def test_a_term_that_counts_against_only_beyond_a_byte(tmp_path: Path) -> None:
    """Up to a tf of 255 the clipped likelihood of a long document is zero, which a negative weight leaves."""
    documents = {"d0": Counter({"a": 300, "b": 1}), "d1": Counter({"a": 300})}
    index = Index.build(
        [Document(identity, text_of(terms)) for identity, terms in documents.items()],
        tmp_path / "idx",
        analyzer="whitespace",
    )
    model = QueryLikelihood(mu=0.5)
    for query in ({"a": -1.0}, {"b": 1.0, "a": -1.0}):
        pruned = index.search(query, model, 10, backend="numba")
        plain = index.search(query, model, 10, backend="numpy")
        assert pruned[0] == plain[0]
        assert pruned[1].tolist() == plain[1].tolist()
        check_against_reference(
            plain[0], plain[1].tolist(), reference(documents, query, model, set(documents)), 10
        )
