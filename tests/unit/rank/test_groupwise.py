"""Groupwise scoring functions: the network by hand, its gradient, the stage, its file, and what it learns."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Groupwise, Index, Query, Ranking, ScoreKind
from tamis.base.errors import ExpressionError, InputError, TamisError
from tamis.core.plan import plan
from tamis.core.ranking import Run
from tamis.core.registry import build
from tamis.rank.groups import drawn_groups
from tamis.rank.groupwise import GroupwiseModel, gathered
from tamis.train.groupwise import Lists, loss_and_gradient, step_groups, train_groupwise

WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle"]
HIDDEN = (np.array([[1.0, 0.0, -1.0, 0.0], [0.0, 2.0, 0.0, 1.0]]), np.array([0.5, -1.0]))
OUTPUT = (np.array([[1.0, -1.0], [3.0, 0.25]]), np.array([0.0, 10.0]))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    rng = np.random.default_rng(0)
    documents = [
        Document(f"d{n:03}", "castle " + " ".join(rng.choice(WORDS, rng.integers(1, 30)))) for n in range(60)
    ]
    return Index.build(documents, tmp_path_factory.mktemp("idx") / "idx")


@pytest.fixture(scope="module")
def judged(index: Index) -> tuple[Run, dict[str, dict[str, int]]]:
    """Relevant is the shortest of a query's twelve candidates, which its length tells only beside others'."""
    queries = [Query(f"q{n}", f"castle {WORDS[n]} {WORDS[(n + 3) % 10]}") for n in range(10)]
    run = (index.bm25() % 12).run(queries)
    qrels = {
        qid: {min(ranking.ids, key=lambda each: (len(index.document(each).text.split()), each)): 1}
        for qid, ranking in run.items()
    }
    return run, qrels


def saved(path: Path, features: tuple[str, ...] = ("score", "length")) -> str:
    GroupwiseModel(features, [HIDDEN, OUTPUT], texts=2, normalise="raw").save(path)
    return str(path)


# -- the network


def test_the_network_by_hand() -> None:
    """Of (1, 2) and (3, 4): hidden 1 - 3 + 0.5 < 0 and 4 + 4 - 1 = 7, so -7 and 10 + 1.75. The other way
    round: 3 - 1 + 0.5 = 2.5 and 8 + 2 - 1 = 9."""
    model = GroupwiseModel(("score", "length"), [HIDDEN, OUTPUT], texts=2)
    found = model.scores(np.array([[[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [1.0, 2.0]]]))
    assert found.tolist() == [[-7.0, 11.75], [2.5 - 9, 10 + 7.5 + 2.25]]
    assert model.scores(np.zeros((0, 2, 2))).shape == (0, 2)


def test_the_loss_by_hand() -> None:
    """Two groups of one, a weight that doubles: t is 2 log 2 and 0, p 4/5 and 1/5, once for each query."""
    layers = [(np.array([[2.0]]), np.zeros(1))]
    rows = np.array([[math.log(2)], [0.0], [math.log(2)], [0.0]])
    lists = Lists(rows, np.array([1.0, 0.0, 0.0, 3.0]), np.array([0, 2, 4]))
    value, ((weights, biases),) = loss_and_gradient(layers, lists, np.arange(4)[:, None])
    assert value == pytest.approx((math.log(5 / 4) + 3 * math.log(5)) / 2)
    assert weights.item() == pytest.approx(math.log(2) * ((4 / 5 - 1) + 3 * 4 / 5) / 2)
    assert biases.item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("widths", [(6, 3), (6, 5, 3), (6, 5, 4, 3)])
def test_the_gradient_is_that_of_differences(widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    layers = [(rng.normal(size=(out, wide)), rng.normal(size=out)) for wide, out in pairwise(widths)]
    offsets = np.array([0, 4, 5, 12])
    lists = Lists(rng.normal(size=(12, 2)), rng.integers(0, 3, 12).astype(float), offsets)
    groups = step_groups(offsets, 3, seed=4)
    _, found = loss_and_gradient(layers, lists, groups)
    for layer, slopes in zip(layers, found, strict=True):
        for part, slope in zip(layer, slopes, strict=True):
            for place in np.ndindex(part.shape):
                before, step = part[place], 1e-6
                part[place] = before + step
                above, _ = loss_and_gradient(layers, lists, groups)
                part[place] = before - step
                below, _ = loss_and_gradient(layers, lists, groups)
                part[place] = before
                assert slope[place] == pytest.approx((above - below) / (2 * step), abs=1e-6)


# -- the stage


def test_the_stage_by_hand(index: Index, tmp_path: Path) -> None:
    """Against the groups and the sums, made one by one."""
    given = (index.bm25() % 7)("castle song")
    path = saved(tmp_path / "gsf.json")
    lengths = [len(index.document(each).text.split()) for each in given.ids]
    rows = np.stack([given.scores, np.array(lengths, float)], axis=1)
    model, sums = GroupwiseModel.read(path), np.zeros(7)
    for group in drawn_groups(7, 2, rounds=3, seed=5):
        scores = model.scores(gathered(rows, group[None]))[0]
        for number, score in zip(group.tolist(), scores.tolist(), strict=True):
            if number >= 0:
                sums[number] += score
    found = Groupwise(model=path, rounds=3, seed=5, index=index)(given)
    order = np.argsort(-sums, kind="stable")
    assert found.ids == tuple(given.ids[number] for number in order)
    assert found.scores == pytest.approx(sums[order]) and found.kind is ScoreKind.COMBINED


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_any_number_of_candidates(count: int, index: Index, tmp_path: Path) -> None:
    found = index.bm25()("castle song").head(count)
    ranked = Groupwise(model=saved(tmp_path / "gsf.json"), index=index)(found)
    assert sorted(ranked.ids) == sorted(found.ids)
    nothing = (index.bm25() >> Groupwise(model=saved(tmp_path / "gsf.json"), index=index))("zzz")
    assert len(nothing) == 0


def test_it_is_a_stage_of_the_language(index: Index) -> None:
    for text in ('groupwise(model="a/b.json", rounds=3, seed=1)', "groupwise(ql, bm25 >> rm3)", "groupwise"):
        assert repr(build(text, index)) == text
    for option, said in (
        ("rounds=0", "groupwise in 0 rounds: use 1"),
        ("seed=-1", "the seed -1: use a whole number"),
    ):
        with pytest.raises(ExpressionError, match=said):
            build(f"groupwise({option})")
    with pytest.raises(InputError, match="groupwise of 3: give stages"):
        Groupwise(3)  # type: ignore[arg-type]


def test_it_finds_nothing_itself(index: Index, tmp_path: Path) -> None:
    with pytest.raises(TamisError, match=r"groupwise has no candidates to order for query '0': put a stage"):
        Groupwise(model=saved(tmp_path / "gsf.json"), index=index)("castle")


def test_a_plan_knows_that_it_keeps_its_candidates(index: Index) -> None:
    steps = plan(build("groupwise(ql, mono)", index), [100])
    assert [step.leave.tolist() for step in steps] == [[100], [100], [100]]
    assert [int(step.inferences[0]) for step in steps] == [0, 100, 0]


def test_features_that_are_stages(index: Index, tmp_path: Path) -> None:
    """Given as they were in training, or refused."""
    path = saved(tmp_path / "gsf.json", ("ql", "score"))
    given = (index.bm25() % 6)("castle song")
    assert len(build(f'groupwise(ql, model="{path}")', index)(given)) == 6
    said = rf'gsf.json was trained with ql: write groupwise\(ql, model="{path}"\)'
    for text in ("groupwise", "groupwise(ql(mu=3)", "groupwise(ql, bm25"):
        expression = f'{text}, model="{path}")' if "(" in text else f'groupwise(model="{path}")'
        with pytest.raises(InputError, match=said):
            build(expression, index)(given)
    plain = saved(tmp_path / "plain.json")
    with pytest.raises(InputError, match="was trained with no stages: write groupwise"):
        build(f'groupwise(ql, model="{plain}")', index).prepare()
    with pytest.raises(InputError, match="length of groupwise needs an index: give the index"):
        Groupwise(model=plain).prepare()


def test_what_it_depends_on(index: Index, tmp_path: Path) -> None:
    one = Groupwise(model=saved(tmp_path / "gsf.json"), index=index).fingerprint
    assert Groupwise(model=str(tmp_path / "gsf.json"), index=index).fingerprint == one
    changed = [(HIDDEN[0] + 1, HIDDEN[1]), OUTPUT]
    GroupwiseModel(("score", "length"), changed, texts=2, normalise="raw").save(tmp_path / "gsf.json")
    assert Groupwise(model=str(tmp_path / "gsf.json"), index=index).fingerprint != one


def test_no_torch_is_loaded(index: Index, tmp_path: Path) -> None:
    path = saved(tmp_path / "gsf.json", ("score", "matched"))
    program = f"""
import sys, tamis
index = tamis.Index.open({str(index.path)!r})
print(len(index.pipeline('bm25 % 5 >> groupwise(model="{path}")')("castle song")), "torch" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["5", "False"]


# -- its file


def test_a_model_is_saved_and_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(5, 4)), rng.normal(size=5)), (rng.normal(size=(2, 5)), rng.normal(size=2))]
    model = GroupwiseModel(("ql", "score"), layers, 2, "z", loss=0.25, queries=7, seed=3)
    model.save(tmp_path / "gsf.json")
    again = GroupwiseModel.read(tmp_path / "gsf.json")
    for name in ("features", "texts", "normalise", "loss", "queries", "seed"):
        assert getattr(again, name) == getattr(model, name)
    for one, other in zip(again.layers, model.layers, strict=True):
        assert all(np.array_equal(*parts) for parts in zip(one, other, strict=True)), "to the last bit"


@pytest.mark.parametrize(
    "change",
    [
        {"layers": []},
        {"texts": 3},
        {"features": ["score"]},
        {"features": ["length", "score"]},
        {"normalise": "max"},
        {"layers": [{"weights": [[1, 2, 3, 4], [5, 6, 7, None]], "biases": [0, 0]}]},
        {"layers": [{"weights": [[1, 2, 3, 4], [5, 6, 7, math.nan]], "biases": [0, 0]}]},
        {"layers": [{"weights": [[1, 2, 3, 4]], "biases": [0]}]},
        {"layers": "none"},
    ],
)
def test_a_file_that_is_no_model(change: dict[str, object], tmp_path: Path) -> None:
    path = Path(saved(tmp_path / "gsf.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"gsf.json: not a groupwise model: give a file that one was saved"):
        GroupwiseModel.read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Groupwise(model=str(tmp_path / "none.json")).prepare()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for, a device that never ends would be read."""
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/null", "-"):
        # in a process of its own, so that the test ends if it waits
        code = f"from tamis.rank.groupwise import GroupwiseModel; GroupwiseModel.read({path!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], input="", capture_output=True, text=True, timeout=60
        )
        assert f"{path}: not a regular file: give a file that a model was saved to" in done.stderr
    with pytest.raises(InputError, match="is a folder: give a file"):
        GroupwiseModel.read(tmp_path)


# -- training


def test_it_learns_what_no_candidate_tells_alone(
    index: Index, judged: tuple[Run, dict[str, dict[str, int]]], tmp_path: Path
) -> None:
    run, qrels = judged
    model = train_groupwise(run, qrels, ["score", "length"], index=index, steps=200, seed=1)
    assert model.queries == 10 and model.loss < 0.5 < math.log(12)
    model.save(tmp_path / "gsf.json")
    stage = Groupwise(model=str(tmp_path / "gsf.json"), index=index)
    first = [stage(ranking).ids[0] for ranking in run.values()]
    right = sum(one in qrels[qid] for qid, one in zip(run, first, strict=True))
    assert right >= 9 > sum(ranking.ids[0] in qrels[qid] for qid, ranking in run.items())


def test_training_is_repeatable(index: Index, judged: tuple[Run, dict[str, dict[str, int]]]) -> None:
    def trained(**options: object) -> list[list[float]]:
        model = train_groupwise(*judged, ["score", "ql"], index=index, steps=5, **options)  # type: ignore[arg-type]
        assert model.features == ("ql", "score"), "stages first"
        return [weights.ravel().tolist() for weights, _ in model.layers]

    assert trained() == trained() != trained(seed=1)
    assert len(trained(hidden=(8, 4), texts=3)) == 3


def test_weights_of_documents_count(judged: tuple[Run, dict[str, dict[str, int]]]) -> None:
    run, qrels = judged
    doubled = {qid: dict.fromkeys(each, 2.0) for qid, each in qrels.items()}
    one = train_groupwise(run, qrels, ["score"], steps=1)
    two = train_groupwise(run, qrels, ["score"], steps=1, weights=doubled)
    assert two.loss == pytest.approx(2 * one.loss)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"texts": 0}, r"groups of 0, layers of \[32\] and 300 steps: use at least 1 of each"),
        ({"hidden": (0,)}, r"layers of \[0\]"),
        ({"steps": 0}, "0 steps"),
        ({"learning_rate": 0.0}, "a learning rate of 0.0: use a number above 0"),
        (
            {"learning_rate": 1e300},
            "a learning rate of 1e[+]300 leads to weights that are not numbers: use a sma",
        ),
        ({"learning_rate": np.inf}, "a learning rate of inf leads to weights"),
        ({"seed": -1}, "seed"),
        ({"weights": {"q": {"a": -1.0}}}, "a weight of query 'q' is below 0 or not a number"),
        ({"features": ["length"]}, "length of groupwise needs an index: give `index`"),
        ({"features": []}, "groupwise without a feature"),
        ({"qrels": {"q": {"z": 1}}}, "no relevant document is among the candidates"),
        ({"qrels": {}}, "no query with candidates has a relevant document"),
    ],
)
def test_what_cannot_be_trained(options: dict[str, object], said: str) -> None:
    ranking = Ranking(Query("q", ""), ("a", "b"), np.array([2.0, 1.0]), ScoreKind.RETRIEVAL)
    given = {"candidates": {"q": ranking}, "qrels": {"q": {"a": 1}}, "features": ["score"]}
    with pytest.raises(InputError, match=said):
        train_groupwise(**given | options)  # type: ignore[arg-type]
