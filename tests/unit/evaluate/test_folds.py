"""Folds: the files that papers publish, folds that we make, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.base.errors import InputError
from tamis.evaluate.folds import Fold, folds_of, make_folds, read_folds, write_folds

GROUPS = [["301", "302"], ["303"], ["304", "305"]]
TESTS = [("301", "302"), ("303",), ("304", "305")]


def graded(counts: list[int]) -> dict[str, dict[str, int]]:
    """Judgments with so many relevant documents a query, and one that is not."""
    return {f"q{n}": {"no": 0, **{f"d{i}": 1 for i in range(count)}} for n, count in enumerate(counts)}


# -- files
# ------------------------------------------------------------------------------------------------------------


def test_lists_of_ids_as_anserini_has_them(tmp_path: Path) -> None:
    file = tmp_path / "folds.json"
    file.write_text('[ [ "301", "302" ],\n  [303],\n  ["304", "305"] ]')
    folds = read_folds(file)
    assert [fold.test for fold in folds] == TESTS
    assert folds[1] == Fold(train=("301", "302", "304", "305"), test=("303",))


def test_splits_as_capreolus_has_them(tmp_path: Path) -> None:
    file = tmp_path / "folds.json"
    split = {"train_qids": ["1", "2"], "predict": {"dev": ["3"], "test": ["4", "4"]}}
    other = {"train_qids": ["3", "4"], "predict": {"dev": ["1"], "test": ["2"]}}
    file.write_text(json.dumps({"s1": split, "s2": other}))
    first, second = read_folds(file)
    assert first == Fold(("1", "2"), ("4",), ("3",))  # an id that is listed twice is one query
    assert first.seen == ("1", "2", "3")
    assert second.test == ("2",)


def test_a_file_for_each_fold(tmp_path: Path) -> None:
    """Lists of ids, or runs as CEDR has them: the first column counts."""
    (tmp_path / "f1.test.run").write_text("301 Q0 d1 1 9.5 run\n301 Q0 d2 2 9.1 run\n302 Q0 d9 1 3.3 run\n")
    (tmp_path / "f2.txt").write_text("303\n")
    (tmp_path / "f3.txt").write_text("304\n\n305\n")
    folds = read_folds(tmp_path / "f1.test.run", tmp_path / "f2.txt", tmp_path / "f3.txt")
    assert folds == folds_of(GROUPS)


def test_two_columns(tmp_path: Path) -> None:
    file = tmp_path / "folds.tsv"
    file.write_text("301\tA\n303\tB\n302\tA\n304\tC\n305\tC\n")
    assert read_folds(file) == folds_of(GROUPS)


@pytest.mark.parametrize("validation", [False, True])
def test_what_is_written_is_read(tmp_path: Path, validation: bool) -> None:
    folds = folds_of(GROUPS, validation=validation)
    write_folds(tmp_path / "folds.json", folds)
    assert read_folds(tmp_path / "folds.json") == folds
    assert isinstance(json.loads((tmp_path / "folds.json").read_text()), dict if validation else list)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[["1"], ["1", "2"]]', "the query '1' is in two folds"),
        ('[["1"]]', "1 groups of queries: use at least 2"),
        ('[["1"], []]', "a fold has no queries"),
        ('[["1"], [2.5]]', "not the folds that are known here"),
        ('{"s1": ["1"]}', "not the folds that are known here"),
        ('[["1"],\n["2"', "line 2: not JSON"),
        ("1 A\n2\n", "line 2: 1 columns where a file of folds has 2"),
        ("", "0 groups of queries"),
        (
            '{"a": {"train_qids": ["1"], "predict": {"test": ["1"]}}}',
            "'1' is in the training and the test part of one fold",
        ),
        (
            '{"a": {"train_qids": ["1"], "predict": {"dev": ["2"], "test": ["2"]}}}',
            "'2' is in the training and the test part of one fold",
        ),
        ('{"a": {"train_qids": [], "predict": {"test": ["2"]}}}', "a fold has no training queries"),
        ("{}", "contains no folds"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "folds"
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        read_folds(file)
    assert problem in str(raised.value)
    assert str(raised.value).startswith(str(file))


# -- made
# ------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 30), min_size=10, max_size=40).filter(lambda n: sum(map(bool, n)) >= 5),
    st.integers(2, 5),
    st.integers(0, 3),
)
def test_every_query_is_tested_once_in_folds_of_one_size(counts: list[int], number: int, seed: int) -> None:
    qrels = graded(counts)
    folds = make_folds(qrels, number, seed=seed)
    tested = [qid for fold in folds for qid in fold.test]
    counted = {qid for qid, count in zip(qrels, counts, strict=True) if count}
    assert len(tested) == len(counted)
    assert set(tested) == counted
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    for fold in folds:
        assert set(fold.train) == counted - set(fold.test)


def test_folds_are_alike_in_relevant_documents() -> None:
    """Of five strata of three, each of the three folds has one of each."""
    counts = [1, 1, 1, 10, 10, 10, 50, 50, 50, 200, 200, 200, 900, 900, 900]
    qrels = graded(counts)
    for seed in range(5):
        for fold in make_folds(qrels, 3, seed=seed):
            assert sorted(counts[int(qid[1:])] for qid in fold.test) == [1, 10, 50, 200, 900]


def test_a_seed_makes_the_folds() -> None:
    qrels = graded([1] * 30)
    assert make_folds(qrels, 5, seed=3) == make_folds(qrels, 5, seed=3)
    assert make_folds(qrels, 5, seed=3) != make_folds(qrels, 5, seed=4)


def test_validation_is_the_next_group() -> None:
    folds = make_folds(graded([1] * 10), 5, validation=True)
    for fold, after in zip(folds, [*folds[1:], folds[0]], strict=True):
        assert fold.validation == after.test
        assert len(fold.train) == 6
        assert not set(fold.train) & {*fold.test, *fold.validation}


def test_only_some_queries_take_part() -> None:
    folds = make_folds(graded([1] * 10), 2, queries=["q1", "q2", "q3", "elsewhere"])
    assert {qid for fold in folds for qid in fold.test} == {"q1", "q2", "q3"}


@pytest.mark.parametrize("number", [1, 4])
def test_folds_that_cannot_be_made(number: int) -> None:
    with pytest.raises(InputError, match=f"{number} folds of 3 queries"):
        make_folds(graded([1, 2, 3, 0]), number)
