"""Interpolate, normalise and fuse: values worked by hand, and what is kept, dropped and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking, Run
from tamis.base.errors import InputError, TamisError, UnknownDocumentError
from tamis.core.language import Call
from tamis.core.ranking import ScoreKind, Span
from tamis.core.stage import Stage
from tamis.index.feedback import RM3
from tamis.rank.combine import (
    Fuse,
    Interpolate,
    Normalise,
    fuse_rankings,
    fuse_runs,
    min_max,
    reciprocal_rank,
    z_norm,
)

QUERY = Query("q1", "sieve")


def ranking(
    scores: Mapping[str, float], kind: ScoreKind = ScoreKind.RETRIEVAL, query: Query = QUERY
) -> Ranking:
    return Ranking(query, tuple(scores), np.array(list(scores.values()), dtype=np.float64), kind)


class Table(Stage):
    """Gives every query the same candidates, in the order of the table."""

    def __init__(self, scores: Mapping[str, float], kind: ScoreKind = ScoreKind.PROBABILITY) -> None:
        self.scores, self.kind = scores, kind
        self.depths: list[int | None] = []
        self.prepared = 0

    @property
    def expression(self) -> Call:
        return Call("table")

    @property
    def resources(self) -> str:
        return f"table of {len(self.scores)}"

    def prepare(self) -> None:
        self.prepared += 1

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.depths.append(depth)
        return [ranking(self.scores, self.kind, each.query) for each in rankings]


FIRST = ranking({"a": 30.0, "b": 15.0, "c": 10.0})  # min-max: 1, 0.25, 0
MONO = {"b": 0.9, "c": 0.5, "a": 0.2}


def scores_of(found: Ranking) -> dict[str, float]:
    return {hit.id: pytest.approx(hit.score, abs=1e-12) for hit in found}


# -- formulae
# ------------------------------------------------------------------------------------------------------------


def test_min_max() -> None:
    assert min_max(np.array([10.0, 30.0, 15.0])).tolist() == [0.0, 1.0, 0.25]
    assert min_max(np.array([-4.0, -8.0, -5.0])).tolist() == [1.0, 0.0, 0.75]
    assert min_max(np.array([7.5, 7.5])).tolist() == [0.0, 0.0]  # s_max = s_min
    assert min_max(np.array([7.5])).tolist() == [0.0]
    assert min_max(np.zeros(0)).tolist() == []
    assert min_max(np.array([2, 1], dtype=np.float32)).dtype == np.float64


def test_z_norm() -> None:
    # mean 5, deviation sqrt((9 + 1 + 1 + 1 + 0 + 0 + 4 + 16) / 8) = 2
    scores = np.array([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert z_norm(scores).tolist() == [-1.5, -0.5, -0.5, -0.5, 0.0, 0.0, 1.0, 2.0]
    assert z_norm(np.array([0.1, 0.1, 0.1])).tolist() == [0.0, 0.0, 0.0]  # their mean is not 0.1
    assert z_norm(np.array([3.0])).tolist() == [0.0]
    assert z_norm(np.zeros(0)).tolist() == []


def test_reciprocal_rank() -> None:
    assert reciprocal_rank(3).tolist() == [1 / 61, 1 / 62, 1 / 63]
    assert reciprocal_rank(2, k=0).tolist() == [1.0, 0.5]


@pytest.mark.parametrize("largest", [5e-324, 1e-200, 1.0, 1e200, 1.7e308])
def test_normalising_scores_of_any_size(largest: float) -> None:
    scores = np.array([largest, 0.0, -largest])
    assert min_max(scores).tolist() == [1.0, 0.5, 0.0]
    assert z_norm(scores).tolist() == pytest.approx([1.5**0.5, 0.0, -(1.5**0.5)])
    assert z_norm(scores[:2]).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("function", [min_max, z_norm])
@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_scores_must_be_finite(function, score: float) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TamisError, match="a score is not a finite number"):
        function(np.array([1.0, score]))


# -- interpolate
# ------------------------------------------------------------------------------------------------------------


def test_interpolation_is_the_equation() -> None:
    found = Interpolate(Table(MONO), alpha=0.3)(FIRST)
    # a 0.3 * 1 + 0.7 * 0.2, b 0.3 * 0.25 + 0.7 * 0.9, c 0.3 * 0 + 0.7 * 0.5
    assert found.ids == ("b", "a", "c")
    assert scores_of(found) == {"b": 0.705, "a": 0.44, "c": 0.35}
    assert found.kind is ScoreKind.COMBINED


def test_alpha_goes_from_the_stage_to_what_came_in() -> None:
    assert Interpolate(Table(MONO), alpha=0)(FIRST).ids == ("b", "c", "a")
    assert Interpolate(Table(MONO), alpha=1)(FIRST).ids == ("a", "b", "c")
    assert Interpolate(Table(MONO), alpha=1)(FIRST).scores.tolist() == [1.0, 0.25, 0.0]


def test_raw_and_z() -> None:
    raw = Interpolate(Table(MONO), alpha=0.3, normalise="raw")(FIRST)
    assert scores_of(raw) == {"a": 9.14, "b": 5.13, "c": 3.35}
    # both lists by their own mean and deviation
    z = Interpolate(Table({"b": 0.9, "a": 0.1}), alpha=0.25, normalise="z")(ranking({"a": 8.0, "b": 6.0}))
    assert scores_of(z) == {"b": 0.5, "a": -0.5}  # b 0.25 * -1 + 0.75 * 1


@pytest.mark.parametrize("margins", [{"b": 2.0, "c": 0.5, "a": -1.0}])
def test_the_form_of_a_probability_changes_nothing(margins: dict[str, float]) -> None:
    p = {identity: 1 / (1 + np.exp(-margin)) for identity, margin in margins.items()}
    shown = [
        Table(p),
        Table(margins, ScoreKind.LOGIT),
        Table({identity: np.log(each) for identity, each in p.items()}, ScoreKind.LOG_PROBABILITY),
    ]
    first, *others = (Interpolate(stage, alpha=0.3)(FIRST) for stage in shown)
    # b 0.3 * 0.25 + 0.7 * 0.8807970780, c 0.7 * 0.6224593312, a 0.3 + 0.7 * 0.2689414214
    expected = {"b": 0.6915579546, "a": 0.4882589950, "c": 0.4357215319}
    for found in (first, *others):
        assert found.ids == ("b", "a", "c")
        assert found.scores.tolist() == pytest.approx(list(expected.values()))
    # raw means raw
    raw = Interpolate(shown[1], alpha=0.5, normalise="raw")(FIRST)
    assert scores_of(raw) == {"a": 14.5, "b": 8.5, "c": 5.25}


def test_scores_that_are_no_probabilities_are_brought_to_scale() -> None:
    other = Table({"b": 9.0, "c": 8.0, "a": 5.0}, ScoreKind.RETRIEVAL)  # min-max: 1, 0.75, 0
    assert scores_of(Interpolate(other, alpha=0.5)(FIRST)) == {"b": 0.625, "a": 0.5, "c": 0.375}


def test_incoming_scores_that_are_all_equal_count_nothing() -> None:
    flat = ranking({"a": 7.0, "b": 7.0, "c": 7.0})
    found = Interpolate(Table(MONO), alpha=0.3)(flat)
    assert scores_of(found) == {"b": 0.63, "c": 0.35, "a": 0.14}


def test_min_max_is_of_the_whole_list_that_came_in() -> None:
    # c and a are cut off, but the list they came in is b's scale: 0.25
    found = Interpolate(Table(MONO) % 1, alpha=0.3)(FIRST)
    assert scores_of(found) == {"b": 0.705}


def test_the_stage_decides_which_candidates_there_are() -> None:
    found = Interpolate(Table({"b": 0.9, "new": 0.8}), alpha=0.3)(FIRST)
    assert scores_of(found) == {"b": 0.705, "new": 0.56}  # new as the last: 0.3 * 0 + 0.7 * 0.8
    raw = Interpolate(Table({"b": 0.9, "new": 0.8}), alpha=0.5, normalise="raw")(FIRST)
    assert scores_of(raw) == {"b": 7.95, "new": 5.4}  # 0.5 * 10 + 0.5 * 0.8
    nothing = ranking({})
    assert scores_of(Interpolate(Table({"new": 0.8}), alpha=0.5)(nothing)) == {"new": 0.4}
    assert len(Interpolate(Table({}))(FIRST)) == 0


def test_equal_scores_stay_in_the_stages_order() -> None:
    saturated = {"z": 1.0, "y": 1.0, "x": 1.0}  # by margins that the probabilities no longer tell apart
    assert Interpolate(Table(saturated), alpha=0)(ranking({"x": 3.0, "y": 2.0, "z": 1.0})).ids == tuple("zyx")


def test_the_stage_is_asked_for_all_it_has() -> None:
    stage = Table(MONO)
    found = (Interpolate(stage, alpha=1) % 1)(FIRST)
    assert stage.depths == [None]
    assert found.ids == ("a",)  # the stage's last


def test_interpolation_needs_scores() -> None:
    stage = Table(MONO)
    for bare in (Ranking(QUERY), Ranking(QUERY, ("a",), np.zeros(1))):
        with pytest.raises(TamisError, match="interpolate has no scores to work on for query 'q1': put"):
            Interpolate(stage)(bare)
    assert not stage.depths  # said before anything was inferred


# -- normalise
# ------------------------------------------------------------------------------------------------------------


def test_normalise_keeps_candidates_and_order() -> None:
    found = Normalise()(FIRST)
    assert (found.ids, found.scores.tolist()) == (FIRST.ids, [1.0, 0.25, 0.0])
    assert found.kind is ScoreKind.COMBINED
    tied = ranking({"b": 7.0, "a": 7.0})
    assert Normalise()(tied).ids == ("b", "a")
    assert Normalise(how="z")(ranking({"a": 3.0, "b": 1.0})).scores.tolist() == [1.0, -1.0]
    assert len(Normalise()(ranking({}))) == 0
    with pytest.raises(TamisError, match="normalise has no scores to work on"):
        Normalise()(Ranking(QUERY))


# -- fuse
# ------------------------------------------------------------------------------------------------------------

ONE = {"a": 30.0, "b": 15.0, "c": 10.0}  # min-max: 1, 0.25, 0
TWO = {"c": 8.0, "a": 6.0, "d": 4.0}  # min-max: 1, 0.5, 0


def test_reciprocal_rank_fusion() -> None:
    found = fuse_rankings([ranking(ONE), ranking(TWO)], k=60)
    assert found.ids == ("a", "c", "b", "d")
    assert scores_of(found) == {
        "a": 1 / 61 + 1 / 62,
        "c": 1 / 63 + 1 / 61,
        "b": 1 / 62,
        "d": 1 / 63,
    }
    assert found.kind is ScoreKind.COMBINED
    assert scores_of(fuse_rankings([ranking(ONE), ranking(TWO)], k=0))["a"] == 1.5


def test_comb_sum_and_comb_mnz() -> None:
    both = [ranking(ONE), ranking(TWO)]
    found = fuse_rankings(both, "combsum")
    assert found.ids == ("a", "c", "b", "d")
    assert scores_of(found) == {"a": 1.5, "c": 1.0, "b": 0.25, "d": 0.0}
    # a and c are in two lists, though c's score in the first is 0
    assert scores_of(fuse_rankings(both, "combmnz")) == {"a": 3.0, "c": 2.0, "b": 0.25, "d": 0.0}


def test_equal_fused_scores_go_by_id() -> None:
    assert fuse_rankings([ranking({"b": 2.0, "a": 1.0}), ranking({"a": 2.0, "b": 1.0})]).ids == ("a", "b")


@pytest.mark.parametrize("how", ["rrf", "combsum", "combmnz"])
def test_the_order_of_the_lists_does_not_matter(how) -> None:  # type: ignore[no-untyped-def]
    generator = np.random.default_rng(0)
    lists = [
        ranking({f"d{i}": score for i, score in zip(generator.permutation(20)[:15], scores, strict=True)})
        for scores in -np.sort(-generator.random((5, 15)))
    ]
    found = fuse_rankings(lists, how)
    assert fuse_rankings(lists[::-1], how) == found
    assert fuse_rankings(lists[2:] + lists[:2], how) == found


def test_fusing_one_ranking_keeps_its_order() -> None:
    for how in ("rrf", "combsum", "combmnz"):
        assert fuse_rankings([ranking(ONE), ranking({})], how).ids == ("a", "b", "c")  # type: ignore[arg-type]


def test_only_reciprocal_ranks_need_no_scores() -> None:
    unscored = Ranking(QUERY, ("a", "b"), np.zeros(2))
    assert fuse_rankings([unscored, ranking({"b": 1.0})]).ids == ("b", "a")
    with pytest.raises(TamisError, match="combsum has no scores to work on"):
        fuse_rankings([unscored, ranking({"b": 1.0})], "combsum")


def test_rankings_of_different_queries_do_not_fuse() -> None:
    with pytest.raises(InputError, match="fuse needs rankings of one query"):
        fuse_rankings([ranking(ONE), ranking(TWO, query=Query("q2", "flour"))])
    with pytest.raises(InputError, match="fuse needs rankings of one query"):
        fuse_rankings([])


def test_fuse_as_a_stage() -> None:
    one, two = Table(ONE), Table(TWO, ScoreKind.RETRIEVAL)
    found = (Fuse(one, two) % 2)([QUERY, Query("q2", "flour")])
    assert [(each.query.id, each.ids) for each in found] == [("q1", ("a", "c")), ("q2", ("a", "c"))]
    assert (one.depths, two.depths) == ([None], [None])  # each as deep as it says itself
    cut = Fuse(one % 2, two % 1)(QUERY)
    assert (one.depths[1:], two.depths[1:]) == ([2], [1])
    assert set(cut.ids) == {"a", "b", "c"}
    assert Fuse(one, two, how="combmnz")(QUERY) == fuse_rankings([ranking(ONE), ranking(TWO)], "combmnz")


def test_one_stage_is_fused_with_the_ranking_that_comes_in() -> None:
    one, two = ranking(ONE), Table(TWO)
    assert Fuse(two, k=10)(one) == fuse_rankings([one, two(one)], k=10)
    assert repr(Table(ONE) >> Fuse(two, k=10) % 2) == "table >> fuse(table, k=10) % 2"
    empty = Ranking(QUERY, (), np.zeros(0), ScoreKind.RETRIEVAL)
    assert Fuse(Table({}))(empty).ids == ()
    with pytest.raises(InputError, match="fuses it with the ranking that comes in, and none does"):
        Fuse(two)(QUERY)


def test_fused_evidence_is_the_firsts() -> None:
    spans = {"a": [Span(0, 3, 1.0)]}
    one = Ranking(QUERY, ("a",), np.ones(1), ScoreKind.LOGIT, evidence=spans)
    two = Ranking(QUERY, ("a", "b"), np.ones(2), ScoreKind.LOGIT, evidence={"a": [], "b": [Span(1, 2, 0.5)]})
    assert fuse_rankings([one, two]).evidence == {**spans, "b": [Span(1, 2, 0.5)]}


def test_fused_runs(tmp_path: Path) -> None:
    ranking_of_two = ranking({"d": 3.0}, query=Query("q2", "flour"))
    ours, theirs = Run([ranking(ONE), ranking_of_two], {"pipeline": "bm25"}), Run([ranking(TWO)])
    theirs.write(tmp_path / "theirs.run")
    found = fuse_runs([Run.read(tmp_path / "theirs.run"), ours])
    assert list(found) == ["q1", "q2"]
    assert found["q1"] == fuse_rankings([ranking(ONE), ranking(TWO)])  # with the query's text
    assert found["q2"].ids == ("d",)
    assert (found.manifest["fused"], found.manifest["k"], found.manifest["queries"]) == ("rrf", 60, 2)
    assert found.manifest["of"] == [{}, {"pipeline": "bm25"}]
    assert "k" not in fuse_runs([ours, theirs], "combsum").manifest
    assert len(fuse_runs([])) == 0


# -- over an index
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [
        Document("d1", "a cook's sieve"),
        Document("d2", "sieve the flour, sieve it again"),
        Document("d3", "flour and bread and more flour and bread"),
        Document("d4", "soup"),
    ]
    return Index.build(documents, tmp_path_factory.mktemp("combine") / "idx", positions=True)


def test_two_first_stages_and_the_same_as_text(index: Index) -> None:
    stage = Fuse(index.bm25(k1=1.2) % 2, index.ql(), how="combsum") % 3
    text = "fuse(bm25(k1=1.2) % 2, ql, how=combsum) % 3"
    assert repr(stage) == text
    assert index.pipeline(text).fingerprint == stage.fingerprint
    found = index.pipeline(text)("sieve flour")
    assert found == stage("sieve flour")
    assert set(found.ids) == {"d1", "d2", "d3"}
    assert found.ids[0] == "d2"
    assert found.documents()[0].text.startswith("sieve the flour")


def test_feedback_after_fusion(index: Index) -> None:
    bm25 = index.bm25()
    found = (Fuse(bm25, index.ql()) >> RM3(docs=1) % 3)("sieve")
    assert found.origin is bm25
    assert found.ids[0] in ("d1", "d2")


def test_a_first_stage_interpolated_with_another(index: Index) -> None:
    text = "bm25 % 1 >> interpolate(ql, alpha=0.4, normalise=z)"
    stage = index.bm25() % 1 >> Interpolate(index.ql(), alpha=0.4, normalise="z")
    assert repr(stage) == text
    found = index.pipeline(text)("sieve flour")
    assert found == stage("sieve flour")
    assert set(found.ids) == {"d1", "d2", "d3"}


def test_documents_of_two_indexes(index: Index, tmp_path: Path) -> None:
    other = Index.build([Document("e1", "another sieve")], tmp_path / "idx")
    found = Fuse(index.bm25(), other.bm25())("sieve")
    assert {document.id for document in found.documents()} == {"d1", "d2", "e1"}
    assert found.texts is not None
    with pytest.raises(UnknownDocumentError):
        found.texts.document("e2")
    same = Fuse(index.bm25(), index.ql())("sieve")
    assert same.texts is index


# -- what they pass on, what they refuse
# ------------------------------------------------------------------------------------------------------------


def test_resources_and_preparation_are_passed_on() -> None:
    one, two = Table(ONE), Table(TWO)
    inner = Interpolate(one % 5)
    outer = Fuse(inner, two)
    assert inner.resources == "table of 3"
    assert outer.resources == "table of 3\ntable of 3"
    outer.prepare()
    assert (one.prepared, two.prepared) == (1, 1)
    assert Interpolate(Table({})).fingerprint != Interpolate(Table(ONE)).fingerprint
    assert Fuse(one, Table({})).fingerprint != Fuse(one, two).fingerprint


def test_what_they_print_as() -> None:
    table = Table(ONE)
    assert repr(Interpolate(table)) == "interpolate(table)"
    assert repr(Interpolate(table % 9 >> table, alpha=np.float64(0.3))) == (
        "interpolate(table % 9 >> table, alpha=0.3)"
    )
    assert repr(Interpolate(table, 1, "raw")) == "interpolate(table, alpha=1.0, normalise=raw)"
    assert repr(Normalise()) == "normalise"
    assert repr(Normalise("z")) == "normalise(how=z)"
    assert repr(Fuse(table, table, k=np.int64(10)) % 5) == "fuse(table, table, k=10) % 5"
    assert repr(Fuse(table, Fuse(table, table), how="combmnz")) == (
        "fuse(table, fuse(table, table), how=combmnz)"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: Interpolate(t, alpha=1.5), "interpolate with alpha=1.5: use an alpha between 0 and 1"),
        (lambda t: Interpolate(t, alpha=np.nan), "interpolate with alpha=nan: use an alpha between 0 and 1"),
        (lambda t: Interpolate(t, normalise="max"), "interpolate with normalise='max': use minmax, raw, z"),
        (lambda t: Interpolate("mono"), "interpolate of 'mono': give stages, such as index.bm25()"),
        (lambda t: Normalise("raw"), "normalise with how='raw': use minmax, z"),
        (lambda t: Fuse(), "fuse needs a stage: give one or more, as in fuse(bm25, ql)"),
        (lambda t: Fuse("bm25", t), "fuse of 'bm25': give stages, such as index.bm25()"),
        (lambda t: Fuse(t, t, how="sum"), "fuse with how='sum': use rrf, combsum, combmnz"),
        (lambda t: Fuse(t, t, k=-1), "fuse with k=-1: use a whole number of at least 0"),
        (lambda t: Fuse(t, t, k=0.5), "fuse with k=0.5: use a whole number of at least 0"),
        (lambda t: Fuse(t, t, k=np.inf), "fuse with k=inf: use a whole number of at least 0"),
        (lambda t: Fuse(t, t, k=np.nan), "fuse with k=nan: use a whole number of at least 0"),
        (
            lambda t: Fuse(t, t, how="combsum", k=9),
            "fuse with how=combsum has no k: leave k out, or use how=rrf",
        ),
    ],
)
def test_what_they_refuse(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        make(Table(ONE))
    assert str(caught.value) == message
