"""Plans: hand-counted inferences, stages within stages, and calibration on real inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Duo, Index, Mono, Query, Ranking, Run, Stage
from tamis.core.language import Call
from tamis.core.plan import calibrate, counts, plan, rerankers, sample, work_done
from tamis.core.registry import build
from tamis.models.checkpoint import load_checkpoint
from tamis.rank.given_run import Documents, GivenRun


class Both(Stage):
    """Two stages, each given what comes in."""

    def __init__(self, *stages: Stage) -> None:
        self.stages = stages

    @property
    def parts(self) -> Sequence[Stage]:
        return self.stages

    @property
    def expression(self) -> Call:
        return Call("both", tuple(stage.expression for stage in self.stages))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return self.stages[0].apply(rankings)


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "mono", layers=1, positions=32)
    tiny_checkpoint(folder / "duo", layers=1, positions=32, segments=3)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(f"d{n}", f"the castle of king {n}") for n in range(30)]
    return Index.build(documents, tmp_path_factory.mktemp("plan") / "idx")


@pytest.mark.parametrize(
    ("pipeline", "candidates", "inferences"),
    [
        ("mono", [1000, 0, 3], [[1000, 0, 3]]),
        ("mono % 50 >> duo", [1000, 20, 1, 0], [[1000, 20, 1, 0], [50 * 49, 20 * 19, 0, 0]]),
        ("duo % 10 >> duo(k=3)", [60, 5], [[50 * 49, 5 * 4], [3 * 2, 3 * 2]]),
        ("mono % 30 % 20 >> duo(aggregate=sample, m=4)", [50, 3], [[50, 3], [20 * 4, 3 * 2]]),
        ("normalise >> mono", [7], [[0], [7]]),
    ],
)
def test_inferences_are_k0_and_k1_k1_less_1(
    pipeline: str, candidates: list[int], inferences: list[list[int]]
) -> None:
    stage = build(pipeline)
    assert [step.inferences.tolist() for step in plan(stage, candidates)] == inferences
    assert counts(stage) == "exact"


def test_a_search_is_taken_to_find_what_it_is_asked_for(index: Index) -> None:
    stage = index.pipeline("bm25 % 20 >> rm3 >> mono % 5 >> duo")
    steps = plan(stage, [0, 0])
    assert [step.leave.tolist() for step in steps] == [[20, 20], [1000, 1000], [5, 5], [5, 5]]
    assert [step.inferences.tolist() for step in steps] == [[0, 0], [0, 0], [1000, 1000], [20, 20]]
    assert counts(stage) == "most"
    assert plan(index.bm25(), [0])[0].leave.tolist() == [30], "all that there are"


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("firstp(mono)", "exact"),
        ("maxp(mono)", "most"),
        ("maxp(mono, passages=none)", "least"),
        ("if_unsure(mono)", "most"),
        ("maxp(mono, passages=5) >> maxp(mono, passages=none)", "either"),
        ("mono % 20 >> fuse(duo, birch(mono))", "least"),
    ],
)
def test_it_says_which_bound_its_numbers_are(pipeline: str, said: str) -> None:
    assert counts(build(pipeline)) == said


def test_whole_documents_count_each_passage() -> None:
    models = Path(__file__).parents[2] / "assets" / "checkpoints"
    for model, stage in (("parade-max", "parade"), ("vanilla", "cedr")):
        built = build(f'{stage}(model="{models / model}")')
        about = load_checkpoint(models / model).architecture.settings
        most = about.passages if stage == "parade" else -(-about.tokens // (about.sequence - about.query - 4))
        assert most > 1
        (step,) = plan(built, [0, 1, 10])
        assert (step.inferences.tolist(), counts(built)) == ([0, most, 10 * most], "most")


def test_stages_within_stages_are_counted(index: Index) -> None:
    inside = Both(build("mono % 4"), build("mono >> duo(k=3)"))
    steps = plan(index.bm25() % 10 >> inside % 7 >> build("mono(limit=100)"), [0])
    assert [str(step.stage)[:12] for step in steps] == [
        "bm25 % 10",
        "mono % 4",
        "mono",
        "duo(k=3)",
        "both(mono % ",
        "mono(limit=1",
    ]
    # at most 4 + 10 different candidates come out of both, of which 7 are kept
    assert [step.inferences.tolist() for step in steps] == [[0], [10], [10], [6], [0], [7]]
    assert [repr(model) for model in rerankers(inside)] == ["mono", "mono", "duo(k=3)"]


def test_learning_to_rank_keeps_the_candidates_that_come_in(index: Index) -> None:
    stage = build(
        'bm25 % 9 >> ltr(ql, bm25 % 2, mono % 4, ql % 20 >> mono, weights="1 1 1 1") % 5 >> mono', index
    )
    counts = [
        (step.enter.tolist(), step.leave.tolist(), step.inferences.tolist()) for step in plan(stage, [0])
    ]
    assert counts == [
        ([0], [9], [0]),
        ([9], [9], [0]),  # a search inside of it scores those, and finds none
        ([9], [9], [0]),
        ([9], [4], [9]),  # what a model drops is scored all the same
        ([9], [20], [0]),  # a pipeline that begins with a search ranks what it finds
        ([20], [20], [20]),
        ([9], [5], [0]),
        ([5], [5], [5]),
    ]


def test_no_queries_are_no_plan_to_sample(index: Index) -> None:
    assert sample(index.bm25(), []) == []
    assert sample(build("mono"), [Query("q", "castle")]) == []


def test_a_sample_is_spread_over_the_queries(index: Index) -> None:
    queries = [Query(f"q{n}", "castle" if n != 33 else "nothing of it") for n in range(100)]
    found = sample(index.bm25() % 5 >> build("mono"), queries)
    assert [ranking.query.id for ranking in found] == ["q0", "q66", "q99"], "q33 has no candidates"
    assert all(len(ranking) == 30 for ranking in found)


def test_a_calibration_times_real_inputs(index: Index, models: Path) -> None:
    rankings = sample(index.bm25(), [Query("q1", "castle"), Query("q2", "king")])
    for stage in (Mono(str(models / "mono")), Duo(str(models / "duo"))):
        measured = calibrate(stage, rankings)
        assert measured is not None
        assert measured.inferences > 1
        assert measured.seconds_each == pytest.approx(measured.seconds / measured.inferences)
        assert 0 < measured.seconds_each < 1
        assert stage.tally.inferences >= measured.inferences
    assert calibrate(Mono(str(models / "mono")), []) is None
    alone = [ranking.head(1) for ranking in rankings]
    assert calibrate(Duo(str(models / "duo")), alone) is None, "one candidate has no opponent"


def test_the_work_of_a_pipeline(index: Index, models: Path) -> None:
    stage = index.bm25() % 6 >> Mono(str(models / "mono")) % 3 >> Duo(str(models / "duo"))
    stage.run([Query("q1", "castle"), Query("q2", "king")])
    mono, duo = work_done(stage)
    assert (mono["inferences"], mono["cached"], duo["inferences"]) == (12, 0, 12)
    assert mono["truncation"]["texts"] == 12
    assert mono["runs_on"].startswith("ONNX Runtime, int8")
    assert work_done(index.bm25()) == []


# -- candidates from elsewhere
# ------------------------------------------------------------------------------------------------------------


def given(scores: Sequence[float] = (3.0, 2.0), text: str = "castle") -> GivenRun:
    query = Query("q1", "castle")
    ranking = Ranking(query, ("d1", "d2"), np.array(scores))
    documents = [Document("d1", text), Document("d2", "king")]
    return GivenRun(Run([ranking]), Documents(documents, only=["d1", "d2"]))


def test_a_given_run_hands_out_its_candidates() -> None:
    stage = given()
    (ranking,) = stage.apply([Ranking(Query("q1", "other words"))])
    assert (ranking.ids, ranking.scores.tolist()) == (("d1", "d2"), [3.0, 2.0])
    assert ranking.query.text == "other words"
    assert [document.text for document in ranking.documents()] == ["castle", "king"]
    with pytest.raises(Exception, match="no candidates for query 'q2'"):
        stage.apply([Ranking(Query("q2", "x"))])


def test_a_given_run_is_known_by_its_candidates_and_their_texts() -> None:
    assert given().fingerprint == given().fingerprint
    assert given().fingerprint != given(scores=(3.0, 1.0)).fingerprint
    assert given().fingerprint != given(text="castles").fingerprint


def test_an_index_says_what_it_does_not_hold(tmp_path: Path) -> None:
    index = Index.build([Document("d1", "a"), Document("d2", "b")], tmp_path / "idx", commit_every=1)
    index.delete(["d1"])
    assert index.missing(["d3", "d2", "d1"]) == ["d3", "d1"]
    index.add([Document("d1", "again")])
    assert index.missing(["d1", "d2"]) == []
