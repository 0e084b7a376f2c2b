"""Folds for cross-validation: read the papers' published files, make folds, write them.

A fold is defined by its test queries; the other queries are for tuning. Formats:

- a JSON list of lists of query ids, the test queries of each fold: Anserini's and Birch's files;
- a JSON object of splits, `{"s1": {"train_qids": [...], "predict": {"dev": [...], "test": [...]}}, ...}`:
  Capreolus's files, with the folds of MaxP, CEDR and PARADE;
- a text file for each fold, with a query id at the start of every line: lists of ids, and the runs that CEDR
  publishes (`f1.test.run`, ...);
- a text file of two columns, a query id and the name of its fold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tamis.base.errors import InputError, quoted
from tamis.base.nested import parse_json
from tamis.evaluate.chance import seeded
from tamis.evaluate.judgments import checked
from tamis.formats import Qrels
from tamis.formats.lines import read_lines, split_columns
from tamis.storage.files import PathLike, atomic_write, read_text


@dataclass(frozen=True, slots=True)
class Fold:
    """The queries to train on, those for validation during training (may be empty), and those to test on."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()

    @property
    def seen(self) -> tuple[str, ...]:
        """All queries that may be used before the test."""
        return self.train + self.validation


def folds_of(groups: Sequence[Sequence[str]], *, validation: bool = False) -> list[Fold]:
    """One fold per group of queries, which is its test set. With `validation`, the next group is for
    validation: 3 + 1 + 1 groups of five, as in MaxP's reproduction on Robust04, and 1 + 1 + 1 of three, as on
    GOV2.

    >>> folds_of([["q1"], ["q2"], ["q3"]], validation=True)[2]
    Fold(train=('q2',), test=('q3',), validation=('q1',))
    """
    least = 3 if validation else 2
    if len(groups) < least:
        raise InputError(f"{len(groups)} groups of queries", remedy=f"use at least {least}")
    _check_groups(groups)
    made = []
    for number, group in enumerate(groups):
        next_one = (number + 1) % len(groups) if validation else None
        rest = [each for i, each in enumerate(groups) if i not in (number, next_one)]
        train = tuple(qid for each in rest for qid in each)
        made.append(Fold(train, tuple(group), () if next_one is None else tuple(groups[next_one])))
    return made


def make_folds(
    qrels: Qrels, number: int = 5, *, seed: int = 0, validation: bool = False, queries: Iterable[str] = ()
) -> list[Fold]:
    """Make folds of equal size (up to one query) and similar difficulty: stratified by the number of relevant
    documents. Queries without a relevant document are not in any fold.

    The queries are sorted by that number, and each block of `number` queries is spread at random over the
    folds. If `queries` is set, only these are used.

    >>> qrels = {f"q{n}": {f"d{i}": 1 for i in range(n)} for n in range(1, 7)}
    >>> [fold.test for fold in make_folds(qrels, 2, seed=1)]
    [('q1', 'q4', 'q5'), ('q2', 'q3', 'q6')]
    """
    wanted = set(queries)
    relevant = {
        qid: found
        for qid, grades in checked(qrels).items()
        if (not wanted or qid in wanted) and (found := sum(grade > 0 for grade in grades.values()))
    }
    if number < 2 or number > len(relevant):
        raise InputError(
            f"{number} folds of {len(relevant)} queries with a relevant document",
            remedy="use at least 2 folds, and no more folds than queries",
        )
    generator = seeded(seed)
    # shuffled first, so that queries with equal numbers do not keep the order of the file
    known = list(relevant)
    shuffled = [known[place] for place in generator.permutation(len(known))]
    shuffled.sort(key=relevant.__getitem__, reverse=True)
    groups: list[set[str]] = [set() for _ in range(number)]
    for start in range(0, len(shuffled), number):
        stratum = shuffled[start : start + number]
        for fold, qid in zip(generator.permutation(number), stratum, strict=False):
            groups[fold].add(qid)
    in_order = [[qid for qid in relevant if qid in group] for group in groups]
    return folds_of(in_order, validation=validation)


# -- files
# ------------------------------------------------------------------------------------------------------------


def read_folds(*paths: PathLike) -> list[Fold]:
    """The folds in a file, or in one text file per fold.

    >>> file = getfixture("tmp_path") / "folds.json"
    >>> _ = file.write_text('[["301", "302"], ["303"]]')
    >>> read_folds(file)
    [Fold(train=('303',), test=('301', '302'), validation=()), Fold(train=('301', '302'), test=('303',), ...]
    """
    if len(paths) > 1:
        return folds_of([_first_column(path) for path in paths])
    (path,) = paths
    text = read_text(path)
    try:
        return (
            _from_json(parse_json(text)) if text.lstrip()[:1] in ("[", "{") else folds_of(_two_columns(path))
        )
    except json.JSONDecodeError as error:
        problem, remedy = f"not JSON ({error.msg})", "check the file"
        raise InputError(problem, remedy=remedy, path=str(path), line=error.lineno) from error
    except ValueError as error:  # JSON that is nested too deeply, or a number of thousands of digits
        raise InputError(f"not folds ({error})", remedy="check the file", path=str(path)) from error
    except InputError as error:
        if error.path is not None:
            raise
        raise InputError(error.problem, remedy=error.remedy, path=str(path)) from error


def write_folds(path: PathLike, folds: Sequence[Fold]) -> None:
    """Write folds as JSON: the list of their test queries, or the object of splits if some queries are for
    validation or not all others are for training.

    >>> file = getfixture("tmp_path") / "folds.json"
    >>> write_folds(file, folds_of([["q1"], ["q2"]]))
    >>> print(file.read_text())
    [
     ["q1"],
     ["q2"]
    ]
    """
    groups = [fold.test for fold in folds]
    if len(folds) > 1 and list(folds) == folds_of(groups):
        brackets, lines = "[]", [json.dumps(group, ensure_ascii=False) for group in groups]
    else:
        brackets = "{}"
        lines = [
            f"{json.dumps(f's{number}')}: {json.dumps(_as_split(fold), ensure_ascii=False)}"
            for number, fold in enumerate(folds, start=1)
        ]
    with atomic_write(path, "w") as stream:
        stream.write(f"{brackets[0]}\n " + ",\n ".join(lines) + f"\n{brackets[1]}\n")


def _as_split(fold: Fold) -> dict[str, Any]:
    return {"train_qids": fold.train, "predict": {"dev": fold.validation, "test": fold.test}}


def _from_json(data: Any) -> list[Fold]:
    try:
        if isinstance(data, list):
            return folds_of([_ids(group) for group in data])
        folds = []
        for split in data.values():
            train, predict = _ids(split["train_qids"]), split["predict"]
            folds.append(Fold(train, _ids(predict["test"]), _ids(predict.get("dev", ()))))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "not the folds that are known here",
            remedy='write a list of lists of query ids, or {"s1": {"train_qids": ..., "predict": ...}, ...}',
        ) from error
    if not folds:
        raise InputError("contains no folds", remedy="check the file")
    check_folds(folds)
    return folds


def _ids(values: Any) -> tuple[str, ...]:
    """Ids as text, also where JSON has numbers, and each once: the lists published for GOV2 repeat some."""
    if not isinstance(values, list | tuple) or not all(type(each) in (str, int) for each in values):
        raise TypeError("not a list of ids")
    return tuple(dict.fromkeys(map(str, values)))


def _first_column(path: PathLike) -> list[str]:
    return list(dict.fromkeys(split_columns(line)[0] for _, line in read_lines(path)))


def _two_columns(path: PathLike) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        cells = split_columns(line)
        if len(cells) != 2:
            raise InputError(
                f"{len(cells)} columns where a file of folds has 2",
                remedy="write a query id and its fold, or give a file for each fold",
                path=str(path),
                line=number,
            )
        groups.setdefault(cells[1], []).append(cells[0])
    return list(groups.values())


# -- validation of folds
# ------------------------------------------------------------------------------------------------------------


def _check_groups(groups: Sequence[Sequence[str]]) -> None:
    if not all(groups):
        raise InputError("a fold has no queries", remedy="leave it out")
    twice = [qid for qid, times in Counter(qid for group in groups for qid in group).items() if times > 1]
    if twice:
        raise InputError(f"the query {quoted(twice[0])} is in two folds", remedy="test each query once")


def check_folds(folds: Sequence[Fold]) -> None:
    """Raise an error unless each query is tested at most once, and never in a fold that trains on it.

    >>> check_folds([Fold(train=("q1", "q2"), test=("q2",))])
    Traceback (most recent call last):
    tamis.base.errors.InputError: the query 'q2' is in the training and the test part of one fold: take it ...
    """
    if not folds:
        raise InputError("there are no folds", remedy="give at least one")
    _check_groups([fold.test for fold in folds])
    for fold in folds:
        leaked = set(fold.test).intersection(fold.seen)
        if leaked:
            raise InputError(
                f"the query {quoted(min(leaked))} is in the training and the test part of one fold",
                remedy="take it out of one of them",
            )
        if not fold.seen:
            raise InputError("a fold has no training queries", remedy="leave it out")
