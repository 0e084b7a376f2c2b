"""Runs against baselines: which differences are significant.

Every run is tested against every baseline, and a baseline against the earlier baselines, on every measure.
The queries are those with a relevant document, the same for all runs: a query that is missing from a run
counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError
from tamis.core.ranking import Ranking
from tamis.evaluate.measures import DEFAULT_MEASURES, Evaluation, evaluate, parse_measures, with_companions
from tamis.evaluate.significance import (
    CORRECTIONS,
    PERMUTATIONS,
    RESAMPLES,
    Correction,
    Interval,
    IntervalMethod,
    Test,
    WinTieLoss,
    bootstrap_interval,
    cohens_d,
    hedges_g,
    randomisation_test,
    t_test,
    win_tie_loss,
    without_spread,
)
from tamis.formats import Qrels

Family = int | Literal["all", "measure"]
"""The tests that one correction covers: all of a comparison, those of one measure, or a number of tests, of
which some were made elsewhere."""

LETTERS = "abcdefghijklmnoprstuvwxyz"  # one per baseline; Unicode has no superscript q


class Marks(NamedTuple):
    """The letters of the baselines that a run is significantly better than, and of those it is worse than."""

    better: str
    worse: str


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A run against a baseline on one measure; differences are the run's values minus the baseline's."""

    run: str
    baseline: str
    measure: str
    difference: float  # the mean over queries
    interval: Interval  # of that mean
    p: float
    corrected_p: float
    significant: bool
    d: float  # Cohen's d_z; infinite for equal differences, NaN for one query
    g: float  # the same with Hedges' correction
    counts: WinTieLoss
    undefined: str  # why nothing can be tested and p is 1; usually empty


@dataclass(frozen=True, slots=True)
class Settings:
    """How the differences were tested."""

    test: Test
    correction: Correction
    alpha: float
    family: Family
    interval: IntervalMethod
    permutations: int
    resamples: int
    seed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The values of all runs, and the tests between them."""

    evaluations: dict[str, Evaluation]  # of the runs, by name
    baselines: tuple[str, ...]
    measures: tuple[str, ...]
    tests: tuple[PairedTest, ...]  # by measure
    settings: Settings
    judged: dict[str, dict[str, float]]  # by run: how much of the first k is judged, such as Judged@10

    @property
    def queries(self) -> list[str]:
        return list(next(iter(self.evaluations.values())).per_query[self.measures[0]])

    @property
    def letters(self) -> dict[str, str]:
        """The letter of each baseline."""
        return dict(zip(self.baselines, LETTERS, strict=False))

    @property
    def family_size(self) -> int:
        """The number of tests that one correction covers."""
        family = self.settings.family
        if isinstance(family, int):
            return family
        return len(self.tests) // (1 if family == "all" else len(self.measures))

    def marks(self, run: str, measure: str) -> Marks:
        found = [t for t in self.tests if t.run == run and t.measure == measure and t.significant]
        better = "".join(self.letters[t.baseline] for t in found if t.difference > 0)
        worse = "".join(self.letters[t.baseline] for t in found if t.difference < 0)
        return Marks(better, worse)

    def differences(self, test: PairedTest) -> dict[str, float]:
        """The data of a test: the run's value minus the baseline's, by query."""
        ours = self.evaluations[test.run].per_query[test.measure]
        theirs = self.evaluations[test.baseline].per_query[test.measure]
        return {qid: ours[qid] - theirs[qid] for qid in ours}


def compare(
    qrels: Qrels,
    runs: Mapping[str, Mapping[str, Ranking]],
    measures: Sequence[str] = DEFAULT_MEASURES,
    *,
    baselines: Sequence[str] = (),
    test: Test = "t",
    correction: Correction = "holm",
    alpha: float = 0.05,
    family: Family = "all",
    interval: IntervalMethod = "bca",
    permutations: int = PERMUTATIONS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Test runs, by name, against the baselines: by default the first run.

    A difference is significant if the corrected p-value is below `alpha`; each interval has a confidence of
    1 - `alpha`, without correction.

    >>> from tamis.base.documents import Query
    >>> def ranked(*ids):
    ...     return {"q1": Ranking(Query("q1", ""), ids, np.arange(len(ids), 0, -1.0))}
    >>> found = compare({"q1": {"d1": 1}}, {"bm25": ranked("d2", "d1"), "mono": ranked("d1", "d2")}, ["RR"])
    >>> [(t.run, t.baseline, t.difference, t.p, t.undefined) for t in found.tests]
    [('mono', 'bm25', 0.5, 1.0, 'one query')]
    """
    settings = Settings(test, correction, alpha, family, interval, permutations, resamples, seed)
    _check(settings, runs, baselines)
    first = tuple(dict.fromkeys(baselines)) or (next(iter(runs)),)
    names = tuple(map(str, parse_measures(measures)))
    if not names:
        raise InputError("no measure to compare by", remedy="give at least one")
    # the comparison is unfair if the runs' shares of judged documents differ: show these shares
    judged = [name for name in with_companions(names) if name.startswith("Judged@")]
    evaluations = {name: _evaluate(qrels, name, run, [*names, *judged]) for name, run in runs.items()}
    pairs = list(_pairs(runs, first))
    tests: list[PairedTest] = []
    for measure in names:
        for run, baseline in pairs:
            d = _differences(evaluations[run], evaluations[baseline], measure)
            tests.append(_test(d, run, baseline, measure, settings))
    return Comparison(
        evaluations,
        first,
        names,
        tuple(_corrected(tests, len(pairs), settings)),
        settings,
        {name: {j: found.mean[j] for j in judged} for name, found in evaluations.items()},
    )


def _check(settings: Settings, runs: Mapping[str, object], baselines: Sequence[str]) -> None:
    if len(runs) < 2:
        raise InputError("fewer than two runs to compare", remedy="give a run and a baseline")
    for name in baselines:
        if name not in runs:
            raise InputError(f"the baseline {name!r} is not among the runs", remedy="give it as a run too")
    if len(baselines) > len(LETTERS):
        raise InputError(f"{len(baselines)} baselines", remedy=f"give at most {len(LETTERS)}")
    if not 0 < settings.alpha < 1:
        raise InputError(
            f"an alpha of {settings.alpha}", remedy="give a number between 0 and 1, such as 0.05"
        )
    for what, value, known in (
        ("test", settings.test, get_args(Test)),
        ("correction", settings.correction, get_args(Correction)),
        ("interval", settings.interval, get_args(IntervalMethod)),
    ):
        if value not in known:
            raise InputError(f"{value!r} is not a valid {what}", remedy=f"use {' or '.join(known)}")
    if not isinstance(settings.family, int) and settings.family not in ("all", "measure"):
        raise InputError(f"{settings.family!r} is not a valid family", remedy="use all, measure or a number")


def _evaluate(qrels: Qrels, name: str, run: Mapping[str, Ranking], measures: Sequence[str]) -> Evaluation:
    try:
        return evaluate(qrels, run, measures)
    except InputError as error:
        raise InputError(f"{name}: {error.problem}", remedy=error.remedy) from error


def _pairs(runs: Mapping[str, object], baselines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs of runs to test; a baseline is tested against the earlier ones."""
    for run in runs:
        for position, baseline in enumerate(baselines):
            if run not in baselines or position < baselines.index(run):
                yield run, baseline


def _differences(run: Evaluation, baseline: Evaluation, measure: str) -> Array:
    ours, theirs = run.per_query[measure], baseline.per_query[measure]
    d = np.array([ours[qid] - theirs[qid] for qid in ours])
    if not np.isfinite(d).all():
        raise TamisError(f"{measure} is not a number for some query", remedy="choose another measure")
    return d


def _test(d: Array, run: str, baseline: str, measure: str, settings: Settings) -> PairedTest:
    counts = win_tie_loss(d)
    undefined = ""
    if counts.ties == len(d):
        undefined = "no difference"
    elif len(d) == 1:
        undefined = "one query"
    elif settings.test == "t" and without_spread(d):
        undefined = "equal differences"
    if settings.test == "t":
        p = t_test(d)
    else:
        p = randomisation_test(d, permutations=settings.permutations, seed=settings.seed)
    interval = bootstrap_interval(
        d,
        confidence=1 - settings.alpha,
        method=settings.interval,
        resamples=settings.resamples,
        seed=settings.seed,
    )
    return PairedTest(
        run=run,
        baseline=baseline,
        measure=measure,
        difference=float(d.mean()),
        interval=interval,
        p=p,
        corrected_p=p,  # corrected when all tests of the family are done
        significant=False,
        d=cohens_d(d),
        g=hedges_g(d),
        counts=counts,
        undefined=undefined,
    )


def _corrected(tests: Sequence[PairedTest], pairs: int, settings: Settings) -> Iterator[PairedTest]:
    """The tests with their p-values corrected per family; `tests` is sorted by measure."""
    correct = CORRECTIONS[settings.correction]
    size = pairs if settings.family == "measure" else len(tests)
    declared = settings.family if isinstance(settings.family, int) else None
    for start in range(0, len(tests), size):
        members = tests[start : start + size]
        for member, p in zip(members, correct([m.p for m in members], declared), strict=True):
            yield replace(member, corrected_p=p, significant=p < settings.alpha)
