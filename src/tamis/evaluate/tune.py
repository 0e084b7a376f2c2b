"""Choose parameters by cross-validation: on the training queries of each fold, never on its test queries.

Every setting ranks every query once; folds differ only in the queries that decide. Each fold takes the
setting with the highest mean over its training (and validation) queries, the first in the order of the grid
if several are equal, and ranks its test queries with it. The test folds together are one run, as in Birch and
in Lin (2018): its mean is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, Run
from tamis.core.stage import Stage
from tamis.evaluate.folds import Fold, check_folds
from tamis.evaluate.grid import Grid, Setting, settings
from tamis.evaluate.judgments import with_relevant
from tamis.evaluate.measures import evaluate, parse_measures
from tamis.evaluate.sweep import run_each
from tamis.formats import Qrels


@dataclass(frozen=True, slots=True)
class Choice:
    """The setting chosen for one fold."""

    setting: Setting
    pipeline: str
    train: float  # the mean over the queries that it was tuned on
    test: float  # the mean over the test queries
    queries: int  # the number of test queries with a relevant document


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, and its mean over the training queries of each fold; None if a fold did not try it."""

    setting: Setting
    pipeline: str
    train: list[float | None]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The result of tuning: `run` has each query ranked with the setting of the fold that tests it."""

    measure: str
    mean: float  # over all test queries
    choices: list[Choice]  # one per fold
    per_query: dict[str, float]
    tried: list[Tried]
    left_out: list[str]  # queries that are not tested in any fold: they are not in the run
    run: Run

    def as_json(self) -> dict[str, Any]:
        """Everything except the run, as plain data."""
        return {
            "measure": self.measure,
            "mean": self.mean,
            "folds": [
                {
                    "setting": choice.setting,
                    "pipeline": choice.pipeline,
                    "train": choice.train,
                    "test": choice.test,
                    "queries": choice.queries,
                }
                for choice in self.choices
            ],
            "tried": [{"setting": each.setting, "train": each.train} for each in self.tried],
            "per_query": self.per_query,
            "left_out": self.left_out,
        }


@dataclass(slots=True)
class _Best:
    """The best setting of a fold so far, and its rankings of the fold's test queries."""

    number: int
    place: int  # in the order of the fold's settings
    train: float
    rankings: list[Ranking]
    test: dict[str, float]


def cross_validate(
    pipeline_of: Callable[[Setting], Stage],
    grid: Grid | Sequence[Sequence[Setting]],
    queries: Iterable[Query],
    qrels: Qrels,
    folds: Sequence[Fold],
    measure: str = "AP",
    *,
    progress: Callable[[int], object] | None = None,
) -> CrossValidation:
    """Tune a pipeline on the training folds, and rank each fold's test queries with the best setting there.

    `grid` is the values of each parameter, or a list of settings for each fold (as `around` makes them).
    `progress` receives how many more settings are done. A judged query without results counts as zero; one
    without a relevant document is not counted.

    >>> import tempfile
    >>> from tamis import Document, Index
    >>> texts = {"d1": "sieve sieve", "d2": "sieve and a long tail of other words"}
    >>> index = Index.build([Document(*item) for item in texts.items()], tempfile.mkdtemp() + "/idx")
    >>> result = cross_validate(
    ...     lambda setting: index.bm25(b=setting["b"]), {"b": [0.0, 1.0]},
    ...     [Query("q1", "sieve"), Query("q2", "tail")], {"q1": {"d1": 1}, "q2": {"d2": 1}},
    ...     [Fold(train=("q1",), test=("q2",)), Fold(train=("q2",), test=("q1",))], "RR")
    >>> result.mean, [choice.setting for choice in result.choices]
    (1.0, [{'b': 0.0}, {'b': 0.0}])
    """
    (name,) = map(str, parse_measures([measure]))
    by_fold = _settings_of(grid, len(folds))
    known = {query.id: query for query in queries}
    judged = with_relevant(qrels)
    _check(folds, known, judged)
    wanted = {qid for fold in folds for qid in (*fold.seen, *fold.test)}
    counted = {qid: grades for qid, grades in judged.items() if qid in wanted}

    distinct = {_key(setting): setting for tries in by_fold for setting in tries}
    places = [{_key(setting): place for place, setting in enumerate(tries)} for tries in by_fold]
    stages = [pipeline_of(setting) for setting in distinct.values()]
    tried = [
        Tried(setting, repr(stage), [None] * len(folds))
        for setting, stage in zip(distinct.values(), stages, strict=True)
    ]
    keys = list(distinct)
    best: list[_Best | None] = [None] * len(folds)
    asked = [query for qid, query in known.items() if qid in wanted]
    for number, run in run_each(stages, asked, progress=progress):
        values = evaluate(counted, run, [name]).per_query[name]
        for i, fold in enumerate(folds):
            place = places[i].get(keys[number])
            if place is None:
                continue
            train = _mean(values, fold.seen)
            tried[number].train[i] = train
            before = best[i]
            # settings do not arrive in the order of the grid: of equal ones the first in the grid wins
            if before is None or (train, -place) > (before.train, -before.place):
                rankings = [run[qid] for qid in fold.test if qid in run]
                test = {qid: values[qid] for qid in fold.test if qid in values}
                best[i] = _Best(number, place, train, rankings, test)
    return _joined(name, [each for each in best if each is not None], tried, known)


def _joined(
    measure: str, best: Sequence[_Best], tried: Sequence[Tried], known: Mapping[str, Query]
) -> CrossValidation:
    from tamis import __version__

    choices = [
        Choice(
            tried[each.number].setting,
            tried[each.number].pipeline,
            each.train,
            _mean(each.test, each.test),
            len(each.test),
        )
        for each in best
    ]
    found = {ranking.query.id: ranking for each in best for ranking in each.rankings}
    values = {qid: value for each in best for qid, value in each.test.items()}
    in_order = [qid for qid in known if qid in found]
    manifest = {
        "tamis": __version__,
        "measure": measure,
        "pipelines": [choice.pipeline for choice in choices],
        "settings_tried": len(tried),
        "queries": len(in_order),
    }
    return CrossValidation(
        measure,
        _mean(values, values),
        choices,
        {qid: values[qid] for qid in in_order if qid in values},
        list(tried),
        [qid for qid in known if qid not in found],
        Run((found[qid] for qid in in_order), manifest),
    )


def _settings_of(grid: Grid | Sequence[Sequence[Setting]], folds: int) -> list[list[Setting]]:
    if isinstance(grid, Mapping):
        return [settings(grid)] * folds
    if len(grid) != folds or not all(grid):
        raise InputError(
            f"{len(grid)} lists of settings for {folds} folds", remedy="give each fold a list of some"
        )
    return [list(tries) for tries in grid]


def _check(folds: Sequence[Fold], known: Mapping[str, Query], judged: Qrels) -> None:
    for number, fold in enumerate(folds, start=1):
        for part, qids in (("training", fold.seen), ("test", fold.test)):
            if not any(qid in judged for qid in qids):
                raise InputError(
                    f"no {part} query of fold {number} has a relevant document",
                    remedy="check that folds and judgments have the same queries",
                )
            missing = [qid for qid in qids if qid in judged and qid not in known]
            if missing:
                raise InputError(
                    f"the queries lack {len(missing)} of fold {number}, such as {missing[0]!r}",
                    remedy="give all queries of the folds, or take them out of the folds",
                )
    check_folds(folds)


def _key(setting: Setting) -> str:
    return repr(sorted(setting.items()))


def _mean(values: Mapping[str, float], qids: Iterable[str]) -> float:
    """The mean over the queries that count. The sum is exact, so equal settings are equal in any order."""
    found = [values[qid] for qid in qids if qid in values]
    return fsum(found) / len(found)
