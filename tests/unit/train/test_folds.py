"""Training by folds: what each fold sees, what it cannot see, and how the whole goes on after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Mono  # noqa: E402
from tamis.base.documents import Query  # noqa: E402
from tamis.base.errors import CorruptError, InputError  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.core.ranking import Ranking  # noqa: E402
from tamis.evaluate.folds import Fold, read_folds  # noqa: E402
from tamis.formats import read_corpus, read_qrels, read_run  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.rank.given_run import Documents  # noqa: E402
from tamis.train import folds as module  # noqa: E402
from tamis.train.folds import DONE, RUN, fold_recipe, held_out, open_folds, pipeline_of, train_folds  # noqa: E402
from tamis.train.recipe import Examples, Folds, Loss, Recipe, read_recipe  # noqa: E402
from tamis.train.state import STATE  # noqa: E402
from tamis.train.watch import Watch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("sieve", "flour", "cake", "onion", "soup", "butter", "steel", "spoon", "water")
GROUPS = [["q0", "q1", "q2"], ["q3", "q4", "q5"], ["q6", "q7", "q8"]]
JUDGED = {f"q{n}": {f"d{n}": 1, f"d{n + 9}": 1, f"d{(n + 4) % 9}": 0} for n in range(9)}


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine queries of a word, each with two relevant documents that have it, and all documents as
    candidates."""
    where = tmp_path_factory.mktemp("folds")
    tiny_checkpoint(where / "model", layers=1, hidden=16, heads=2, positions=32)
    texts = {f"d{n}": f"{WORDS[n % 9]} and {WORDS[(n * 2 + 1) % 9]}" for n in range(18)}
    (where / "c.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in texts.items())
    )
    (where / "q.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{n}", "text": word}) + "\n" for n, word in enumerate(WORDS))
    )
    (where / "bm25.txt").write_text(
        "".join(f"q{q} Q0 d{n} {n + 1} {20 - n} x\n" for q in range(9) for n in range(18))
    )
    (where / "folds.json").write_text(json.dumps(GROUPS))
    return where


def written(
    made: Path,
    folder: Path,
    judged: Mapping[str, Mapping[str, int]] = JUDGED,
    folds: str = "",
    rest: str = "",
) -> Path:
    """A recipe with those judgments."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{qid} 0 {docid} {grade}\n" for qid, found in judged.items() for docid, grade in found.items()]
    (folder / "qrels.txt").write_text("".join(lines))
    files = f"""
        queries = "{made / "q.jsonl"}"
        qrels = "{folder / "qrels.txt"}"
        corpus = ["{made / "c.jsonl"}"]
        run = "{made / "bm25.txt"}"
    """
    folds = folds or f'files = ["{made / "folds.json"}"]'
    text = f"""
        [model]
        start = "{made / "model"}"
        [[data]]
        {files}
        [dev]
        every = 2
        {files}
        [folds]
        {folds}
        [optimiser]
        learning_rate = 1e-2
        steps = 4
        [examples]
        group = 3
        random = 0.3
        [run]
        batch = 2
        checkpoint_every = 2
        [limits]
        total = 24
        {rest}
    """
    (folder / "recipe.toml").write_text(text.replace("\\", "/"))
    return folder / "recipe.toml"


def recipe(made: Path, folder: Path, **options: Any) -> Recipe:
    return read_recipe(written(made, folder, **options))


def weights(out: Path, fold: int) -> bytes:
    return (out / f"fold-{fold}" / "last" / "model.safetensors").read_bytes()


# -- what a fold sees


def test_each_fold_learns_from_its_training_queries_and_its_dev_run_has_others_of_them(
    made: Path, tmp_path: Path
) -> None:
    plan = recipe(made, tmp_path)
    for fold, group in zip(open_folds(plan), GROUPS, strict=True):
        assert fold.test == tuple(group) and len(fold.validation) == 1
        mine = fold_recipe(plan, fold)
        assert mine.dev is not None and mine.folds is None
        assert mine.data[0].only == fold.train and mine.dev.only == fold.validation
        seen = {*fold.train, *fold.validation}
        assert seen == {qid for other in GROUPS for qid in other if other != group}
        assert not set(fold.train) & set(fold.validation)
    assert open_folds(plan) == open_folds(plan)


def test_what_a_fold_names_for_validation_is_its_dev_run() -> None:
    fold = Fold(("q1", "q2"), ("q3",), ("q4",))
    assert held_out(fold, {}, 0.5, [0]) == fold
    with pytest.raises(InputError, match="has none for the dev run"):
        held_out(Fold(("q1", "q2"), ("q3",)), {"q3": {"d": 1}}, 0.5, [0])
    many = Fold(tuple(f"q{n}" for n in range(40)), ("t",))
    judged = {qid: {"d": 1} for qid in many.train}
    drawn = held_out(many, judged, 0.1, [0])
    assert len(drawn.validation) == 4 and len(drawn.train) == 36
    assert drawn != held_out(many, judged, 0.1, [1])
    assert len(held_out(many, judged, 0.999, [0]).train) == 1  # one at least is learned from


def test_without_a_dev_run_nothing_is_held_out(made: Path, tmp_path: Path) -> None:
    plan = changed(recipe(made, tmp_path), dev=None)
    assert [len(fold.train) for fold in open_folds(plan)] == [6, 6, 6]


def test_folds_are_made_where_none_are_given(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, tmp_path, folds="count = 3\nseed = 4")
    folds = open_folds(plan)
    assert sorted(qid for fold in folds for qid in fold.test) == [f"q{n}" for n in range(9)]
    assert folds != open_folds(recipe(made, tmp_path, folds="count = 3\nseed = 5"))


def test_folds_are_made_of_those_queries_that_are_learned_from(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, tmp_path, folds="count = 2")
    some = changed(plan, dev=None, data=(changed(plan.data[0], only=("q1", "q4", "q7")),))
    assert sorted(qid for fold in open_folds(some) for qid in fold.test) == ["q1", "q4", "q7"]


def test_only_what_can_be_measured_is_held_out(made: Path, tmp_path: Path) -> None:
    """A query with nothing relevant has no measure, and one that `only` leaves out is not ranked."""
    judged = {**JUDGED, **{qid: {"d1": 0} for qid in ("q1", "q4", "q7")}}
    plan = recipe(made, tmp_path, judged=judged, folds=f'files = ["{made / "folds.json"}"]\nheld_out = 0.9')
    assert plan.dev is not None
    plan = changed(plan, dev=changed(plan.dev, only=("q0", "q1", "q3", "q4", "q6", "q7")))
    held = [set(fold.validation) for fold in open_folds(plan)]
    assert held == [{"q3", "q6"}, {"q0", "q6"}, {"q0", "q3"}]


def test_another_collection_is_learned_from_whole_and_own_choices_stay(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, tmp_path)
    (data,) = plan.data
    plan = changed(plan, data=(changed(data, whole=True), changed(data, only=("q0", "q5", "q7"))))
    first, second = fold_recipe(plan, Fold(("q0", "q7", "q8"), ("q5",), ("q1",))).data
    assert first.only is None and second.only == ("q0", "q7")


# -- what a fold cannot see


def test_no_judgment_of_a_test_query_can_change_its_folds_model(made: Path, tmp_path: Path) -> None:
    """The judgments of the first fold's test queries are turned round, and name other documents."""
    leaked = {qid: {"d17": 1, "d16": 1, "d2": 0} if qid in GROUPS[0] else JUDGED[qid] for qid in JUDGED}
    outs = {"true": tmp_path / "true", "leaked": tmp_path / "leaked"}
    for name, judged in (("true", JUDGED), ("leaked", leaked)):
        train_folds(recipe(made, outs[name], judged=judged), outs[name], device="cpu")
    assert weights(outs["true"], 1) == weights(outs["leaked"], 1)
    # and where they are learned from they do change it
    assert weights(outs["true"], 2) != weights(outs["leaked"], 2)
    for fold in ("best", "last"):
        one, other = (out / "fold-1" / fold / "model.safetensors" for out in outs.values())
        assert one.read_bytes() == other.read_bytes()
    one, other = ((out / "fold-1" / "log.jsonl").read_text().splitlines() for out in outs.values())
    assert [json.loads(line).get("dev") for line in one] == [json.loads(line).get("dev") for line in other]


# -- what comes of it


def test_every_query_is_ranked_by_the_model_that_has_not_seen_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = (
        written(made, tmp_path, folds=f'files = ["{made / "folds.json"}"]\ndepth = 5'),
        tmp_path / "out",
    )
    assert main(["train", str(path), "--out", str(out), "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[:3]] == [str(out / f"fold-{n}" / "best") for n in (1, 2, 3)]
    assert said[3] == f"{out / RUN}: 9 queries of 3 test folds"
    assert [fold.test for fold in read_folds(out / "folds.json")] == [tuple(group) for group in GROUPS]

    run = read_run(out / RUN)
    assert list(run) == [f"q{n}" for n in range(9)]
    texts = Documents(read_corpus(made / "c.jsonl"), only=[f"d{n}" for n in range(5)])
    for number, group in enumerate(GROUPS, start=1):
        mono = Mono(str(out / f"fold-{number}" / "best"), device="cpu", limit=24)
        for qid in group:
            query = Query(qid, WORDS[int(qid[1])])
            given = Ranking(query, tuple(f"d{n}" for n in range(5)), -np.arange(5.0), texts=texts)
            assert list(run[qid][0]) == list(mono.apply([given])[0].ids)
    about = json.loads((out / f"{RUN}.json").read_text())
    assert about["queries"] == 9 and len(about["pipelines"]) == 3
    assert not list(out.glob("fold-*/*.journal"))

    assert main(["train", str(path), "--out", str(out), "--device", "cpu"]) == 2
    assert "contains a training run: add --resume" in capsys.readouterr().err
    assert main(["train", str(path), "--out", str(out), "--device", "cpu", "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["queries"] == 9 and [fold["steps"] for fold in found["folds"]] == [4, 4, 4]


def test_a_query_without_candidates_is_said_and_left_out(made: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("".join(f"q{q} Q0 d1 1 1 x\n" for q in (0, 1, 3, 6, 7, 8)))
    folds = f'files = ["{made / "folds.json"}"]\nrun = "{short}"'
    told: list[str] = []

    class Told(Watch):
        def left_out(self, what: str) -> None:
            told.append(what)

    plan = recipe(made, tmp_path, folds=folds)
    result = train_folds(plan, tmp_path / "out", device="cpu", watch=Told())
    assert result.left_out == ("q2", "q4", "q5") and result.queries == 6
    assert told == ["3 test queries without candidates: q2, q4, q5"]
    assert list(read_run(result.run)) == ["q0", "q1", "q3", "q6", "q7", "q8"]


# -- going on


class Killed(Exception):
    pass


class Lethal(Watch):
    """Ends the work at a step of a fold, or when so many queries have been ranked."""

    def __init__(self, fold: str = "", step: int = 0, ranked: int = 0) -> None:
        self.fold, self.step, self.ranked, self.folds = fold, step, ranked, list[str]()

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        self.folds.append(what)

        def tell(line: Mapping[str, Any]) -> None:
            if what == self.fold and line["step"] == self.step:
                raise Killed

        return _given(tell)

    def ranking(self, what: str, count: int) -> AbstractContextManager[Callable[[int], object]]:
        def advance(more: int) -> None:
            if self.ranked:
                self.ranked -= more
                if self.ranked <= 0:
                    raise Killed

        return _given(advance)


class _given(AbstractContextManager[Any]):
    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, *error: object) -> None:
        pass


def test_after_a_kill_the_whole_goes_on_as_if_nothing_had_happened(made: Path, tmp_path: Path) -> None:
    plan, whole, killed = recipe(made, tmp_path), tmp_path / "whole", tmp_path / "killed"
    train_folds(plan, whole, device="cpu")
    with pytest.raises(Killed):
        train_folds(plan, killed, device="cpu", watch=Lethal("Fold 2 of 3", 4))
    assert (killed / "fold-1" / DONE).exists() and not (killed / "fold-2" / DONE).exists()
    assert (killed / "fold-2" / STATE).exists()
    done = (killed / "fold-1" / "last" / "model.safetensors").stat().st_mtime_ns
    second = Lethal(ranked=3)
    with pytest.raises(Killed):
        train_folds(plan, killed, device="cpu", resume=True, watch=second)
    assert second.folds == ["Fold 2 of 3", "Fold 3 of 3"]
    assert (killed / "fold-1" / "last" / "model.safetensors").stat().st_mtime_ns == done
    third = Lethal()
    train_folds(plan, killed, device="cpu", resume=True, watch=third)
    assert third.folds == []
    assert (killed / RUN).read_bytes() == (whole / RUN).read_bytes()
    assert all(weights(killed, fold) == weights(whole, fold) for fold in (1, 2, 3))


def test_what_is_done_is_not_ranked_again_and_another_pipeline_trains_nothing(
    made: Path, tmp_path: Path
) -> None:
    plan, out = recipe(made, tmp_path), tmp_path / "out"
    train_folds(plan, out, device="cpu")
    before = (out / RUN).read_bytes()
    train_folds(plan, out, device="cpu", resume=True, watch=Lethal(ranked=1))  # nothing is
    assert plan.folds is not None
    other = changed(plan, folds=changed(plan.folds, pipeline="mono(model={model}, score=logit) % 2"))
    watch = Lethal()
    train_folds(other, out, device="cpu", resume=True, watch=watch)
    assert watch.folds == [] and (out / RUN).read_bytes() != before
    assert {len(ids) for ids, _ in read_run(out / RUN).values()} == {2}


def test_a_fold_that_was_trained_otherwise_is_not_taken_for_this_one(made: Path, tmp_path: Path) -> None:
    plan, out = recipe(made, tmp_path), tmp_path / "out"
    train_folds(plan, out, device="cpu")
    slower = changed(plan, optimiser=changed(plan.optimiser, learning_rate=1e-3))
    with pytest.raises(InputError, match="was trained by another recipe, on other folds or other data"):
        train_folds(slower, out, device="cpu", resume=True)
    other = {**JUDGED, "q3": {"d5": 1}}
    with pytest.raises(InputError, match="was trained by another recipe"):
        train_folds(recipe(made, tmp_path, judged=other), out, device="cpu", resume=True)
    before = (out / "folds.json").read_bytes()
    other = recipe(made, tmp_path, folds="count = 3")
    with pytest.raises(
        InputError, match=r"folds.json has other folds than the recipe: resume with the folds"
    ):
        train_folds(other, out, device="cpu", resume=True)
    assert (out / "folds.json").read_bytes() == before


def test_what_was_damaged_on_disk_is_said_or_made_again(made: Path, tmp_path: Path) -> None:
    plan, out = recipe(made, tmp_path), tmp_path / "out"
    train_folds(plan, out, device="cpu")
    run, about, done = (out / RUN).read_bytes(), out / f"{RUN}.json", out / "fold-2" / DONE
    for damaged in ("{", "[]", "{}"):
        about.write_text(damaged)
        train_folds(plan, out, device="cpu", resume=True)
        assert (out / RUN).read_bytes() == run and json.loads(about.read_text())["queries"] == 9
    whole = done.read_text()
    for damaged in ("{", "[]", "{}", whole.replace('"steps"', '"stops"')):
        done.write_text(damaged)
        with pytest.raises(CorruptError, match=r"done.json is damaged: delete it"):
            train_folds(plan, out, device="cpu", resume=True)
    done.unlink()
    train_folds(plan, out, device="cpu", resume=True)
    shutil.rmtree(out / "fold-2" / "best")
    with pytest.raises(InputError, match=r"best is gone: delete .*fold-2: --resume trains it again"):
        train_folds(plan, out, device="cpu", resume=True)
    shutil.rmtree(out / "fold-2")
    train_folds(plan, out, device="cpu", resume=True)
    assert (out / RUN).read_bytes() == run


# -- which stage, and what is refused


def test_the_stage_reads_as_the_model_was_trained(made: Path, tmp_path: Path) -> None:
    assert pipeline_of(recipe(made, tmp_path)) == "mono(model={model}, query_limit=64, limit=24)"
    for kind, stage in (
        ("parade-max", "parade(model={model})"),
        ("cedr-knrm", "cedr(model={model})"),
        (
            "maxp",
            "maxp(mono(model={model}, query_limit=4, limit=16), window=8, stride=6, unit=tokens, title=once, "
            "passages=3)",
        ),
    ):
        plan = f'[longdoc]\nkind = "{kind}"\nwindow = 8\nstride = 6\nquery = 4\nsequence = 16\npassages = 3'
        assert pipeline_of(read_recipe(written(made, tmp_path, rest=plan))) == stage
        module._check_pipeline(stage)


def test_models_of_long_documents_have_folds_too(made: Path, tmp_path: Path) -> None:
    plan = '[longdoc]\nkind = "maxp"\nwindow = 8\nstride = 6\nquery = 4\nsequence = 16\npassages = 3'
    path, out = written(made, tmp_path, rest=plan), tmp_path / "out"
    assert main(["train", str(path), "--out", str(out), "--device", "cpu"]) == 0
    assert len(read_run(out / RUN)) == 9 and len(read_qrels(tmp_path / "qrels.txt")) == 9


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seed = 1", "[folds] has not one of files and count: give one of them"),
        ('count = 3\nfiles = ["f"]', "[folds] has not one of files and count"),
        ("count = 0", "count of [folds] is 0: it must be a whole number of at least 1"),
        ("count = 3\nheld_out = 1", "held_out of [folds] is 1: it must be a number from 0 up to 1"),
        ("count = 3\nfold = 1", "[folds] has no field 'fold'"),
        ("count = 3\npipeline = 'mono'", "pipeline of [folds] is 'mono': write {model} where the model goes"),
        (
            "count = 3\npipeline = 'mono(model=\"{model}\")'",
            "write {model} where the model goes, without quotes",
        ),
    ],
)
def test_folds_that_cannot_be_meant(line: str, said: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        recipe(made, tmp_path, folds=line)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("field", list(Folds.model_fields))
def test_every_field_has_a_type_that_is_checked(field: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=rf"{field} of \[folds\] is datetime.date\(2020, 1, 1\): it must be "
    ):
        recipe(made, tmp_path, folds=f"{field} = 2020-01-01")


def test_what_cannot_be_trained_by_folds_is_refused_before_any_work(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, tmp_path)
    (data,) = plan.data
    assert plan.folds is not None
    for values, said in (
        ({"data": (changed(data, whole=True),)}, "every [[data]] is whole: leave one to the folds"),
        ({"folds": None, "data": (changed(data, whole=True),)}, "[[data]] is whole, and there are no folds"),
        ({"data": (changed(data, run=None),)}, "[folds] lacks run: give the candidates"),
        ({"data": (type(data)(set="s"),)}, "s cannot be split into folds: give queries and qrels, or whole"),
    ):
        with pytest.raises(InputError) as caught:
            changed(plan, **values)
        assert said in str(caught.value)
    for folds, said in (
        (Folds(count=2, pipeline="mono(modl={model})"), "mono has no option 'modl'"),
        (Folds(count=2, pipeline="bm25 >> mono(model={model})"), "bm25 in pipeline of [folds] searches"),
        (Folds(count=99), "99 folds of 9 queries"),
        (Folds(count=2, run=str(made / "folds.json")), "folds.json"),
    ):
        with pytest.raises(InputError) as caught:
            train_folds(changed(plan, folds=folds), tmp_path / "out", device="cpu")
        assert said in str(caught.value)
    assert not (tmp_path / "out").exists()
    (tmp_path / "other.json").write_text('[["x1"], ["x2"]]')
    other = changed(plan, folds=Folds(files=(str(tmp_path / "other.json"),)))
    with pytest.raises(InputError, match="has no training query of fold 1: check that the folds are of"):
        train_folds(other, tmp_path / "out", device="cpu")
    (tmp_path / "half.txt").write_text("q0 Q0 d1 1 1 x\nq3 Q0 d1 1 1 x\n")
    half = changed(plan, folds=changed(plan.folds, run=str(tmp_path / "half.txt")))
    with pytest.raises(InputError, match="has no candidates for the test queries of fold 3: give a run"):
        train_folds(half, tmp_path / "out", device="cpu")


def test_a_fold_that_cannot_be_trained_is_named_before_the_others_are(made: Path, tmp_path: Path) -> None:
    nothing = {**JUDGED, **{qid: {"d1": 0} for qid in GROUPS[0]}}
    two = tmp_path / "two.json"
    two.write_text(json.dumps([GROUPS[0], GROUPS[1]]))
    plan = recipe(made, tmp_path, judged=nothing, folds=f'files = ["{two}"]')
    with pytest.raises(InputError, match="fold 2 has no query with a relevant document for its training in"):
        train_folds(changed(plan, dev=None), tmp_path / "out", device="cpu")
    split = {"train_qids": GROUPS[1], "predict": {"dev": GROUPS[0], "test": GROUPS[2]}}
    two.write_text(json.dumps({"s1": split}))
    with pytest.raises(InputError, match="fold 1 has no query with a relevant document for its dev run in"):
        train_folds(plan, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()
    plan = recipe(made, tmp_path)
    large = changed(plan, examples=Examples("balanced"), loss=Loss("pointwise"))
    large = changed(large, data=(changed(plan.data[0], sample=99),))
    with pytest.raises(InputError, match=r"^fold-1: a sample of 99 relevant documents where there are 10"):
        train_folds(large, tmp_path / "out", device="cpu")
