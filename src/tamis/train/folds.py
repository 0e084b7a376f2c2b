"""Training by folds: cross-validation of a model, as in the papers when there are few judged queries.

    [folds]
    files = ["robust04.folds.json"]    # or count = 5: see `tamis.evaluate.folds`
    run = "robust04.bm25.txt"          # what the models rerank

For each fold the recipe is trained on the fold's training queries only: data and dev run are limited to their
ids (`only`) before anything else is done with them. The fold's model then reranks the candidates of the
fold's test queries, which it has not seen, and the test folds together are one run. (Folds that are made here
are stratified by the number of relevant documents of a query: only the choice of the fold depends on the
judgments of its test queries.)

    OUT/folds.json          the folds
    OUT/fold-1/ ...         one training each, as without folds; `done.json` when it has ended
    OUT/test.run            all test queries, each ranked by the model of its fold; test.run.json beside it

After a kill, finished folds are skipped, the interrupted fold resumes from its state, and queries that were
already ranked are not ranked again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import xxhash

from tamis.base.errors import CorruptError, InputError, TamisError, some
from tamis.core.journal import remove as remove_journal
from tamis.core.language import parse
from tamis.core.ranking import Ranking, Run
from tamis.core.registry import build, searches
from tamis.core.runtime import Device, Runtime
from tamis.core.stage import Stage
from tamis.evaluate.folds import Fold, make_folds, read_folds, write_folds
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.formats.irds import dataset_name
from tamis.index.index import Index
from tamis.index.manifest import is_index
from tamis.index.place import is_address
from tamis.models.architectures.duo import Duo
from tamis.models.architectures.mono import Mono
from tamis.models.settings import changed
from tamis.rank.given_run import GivenRun
from tamis.storage.files import atomic_write, make_folder, open_bytes, read_text, storage_errors
from tamis.train.dev import texts_of_candidates
from tamis.train.gains import gains_fingerprint, read_gains
from tamis.train.loop import SHARE, Result
from tamis.train.processes import Processes, own_device
from tamis.train.ranking import train_by_recipe
from tamis.train.recipe import Data, Dev, Folds, Recipe
from tamis.train.start import begin
from tamis.train.state import has_state
from tamis.train.triples import file_fingerprint
from tamis.train.watch import Watch

FOLDS, DONE, RUN = "folds.json", "done.json", "test.run"
_JOURNAL = "test.journal"
_R = TypeVar("_R", bound=Recipe)


@dataclass(frozen=True, slots=True)
class FoldsResult:
    """The result of training by folds."""

    run: Path  # of all test queries
    queries: int  # the number of queries in it
    folds: tuple[Result, ...]
    left_out: tuple[str, ...]  # test queries without candidates


def train_folds(
    recipe: Recipe,
    out: str | Path,
    *,
    device: Device = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> FoldsResult:
    """Train a model for each fold of a recipe, and rank each fold's test queries with it."""
    out, watch = Path(out), watch or Watch()
    folds = open_folds(recipe)
    template = pipeline_of(recipe)
    _check_pipeline(template)
    folders = [out / f"fold-{number}" for number in range(1, len(folds) + 1)]
    _check_out(out, folders, folds, resume)
    candidates, left_out = _candidates(recipe, folds)
    if left_out:
        watch.left_out(f"{len(left_out):,} test queries without candidates: {some(left_out)}")
    own = own_device(device)
    with Processes(torch.device("cpu" if own == "auto" else own)) as processes:
        if processes.first:
            with storage_errors(out):
                make_folder(out)
            write_folds(out / FOLDS, folds)
        results, contents = [], _Contents()
        for number, (fold, folder) in enumerate(zip(folds, folders, strict=True), start=1):
            told = _OfFold(watch, f"Fold {number} of {len(folds)}")
            mine = fold_recipe(recipe, fold)
            digest = _digest(mine, contents)
            results.append(_trained(mine, digest, folder, device, resume, told, processes))
    run = out / RUN
    if processes.first:
        pipelines = [template.replace("{model}", json.dumps(str(result.model))) for result in results]
        stages = [build(each, runtime=Runtime(device)) for each in pipelines]
        _rank(candidates, stages, folds, folders, run, watch)
    return FoldsResult(run, len(candidates.given), tuple(results), tuple(left_out))


# -- the data of each fold
# ------------------------------------------------------------------------------------------------------------


def open_folds(recipe: Recipe) -> list[Fold]:
    """The folds of a recipe, read or made; each has training queries, and queries for the dev run if there is
    one."""
    plan, data = _plan(recipe), _tested(recipe)
    known = _cut(data.only, [query.id for query in read_queries(str(data.queries), field=data.field)])
    if plan.files:
        folds = read_folds(*plan.files)
    else:
        if data.qrels is None:
            raise InputError(f"{data.name} has no qrels to make folds of", remedy="give [folds] files")
        folds = make_folds(read_qrels(data.qrels), plan.count or 0, seed=plan.seed, queries=known)
    for number, fold in enumerate(folds, start=1):
        if not set(fold.train).intersection(known):
            raise InputError(
                f"{data.name} has no training query of fold {number}",
                remedy="check that the folds are of these queries",
            )
    if recipe.dev is not None:
        measured = _measured(recipe.dev)
        folds = [
            held_out(fold, measured, plan.held_out, [plan.seed, number]) for number, fold in enumerate(folds)
        ]
        _require_some([fold.validation for fold in folds], measured, f"its dev run in {recipe.dev.qrels}")
    for data in recipe.data:
        if data.qrels is not None and data.teacher is None and not data.whole:
            able = _cut(data.only, _answered(read_qrels(data.qrels), recipe.examples.relevant))
            _require_some([fold.train for fold in folds], able, f"its training in {data.qrels}")
    return folds


def held_out(fold: Fold, measured: Collection[str], share: float, seed: Sequence[int]) -> Fold:
    """Move some of a fold's training queries, drawn at random from those that can be measured, to its
    validation queries; a fold that already has validation queries is unchanged.

    >>> fold = held_out(Fold(("q1", "q2", "q3"), ("q4",)), {"q1", "q3"}, 0.1, [0])
    >>> sorted(fold.train + fold.validation), len(fold.validation), "q2" in fold.train
    (['q1', 'q2', 'q3'], 1, True)
    """
    if fold.validation:
        return fold
    able = [qid for qid in fold.train if qid in measured]
    if not able or len(fold.train) < 2:
        raise InputError(
            f"a fold of {len(fold.train)} training queries has none for the dev run",
            remedy="check that folds and dev run are of the same queries, or leave out [dev]",
        )
    count = min(max(ceil(share * len(able)), 1), len(fold.train) - 1)
    drawn = {able[place] for place in np.random.default_rng(list(seed)).permutation(len(able))[:count]}
    rest = tuple(qid for qid in fold.train if qid not in drawn)
    return Fold(rest, fold.test, tuple(qid for qid in able if qid in drawn))


def fold_recipe(recipe: _R, fold: Fold) -> _R:
    """The recipe of one fold: it trains on the fold's training queries, and its dev run has the fold's
    validation queries. Neither contains test queries, so the trained model does not depend on them.

    >>> from tamis.train.recipe import Model, Optimiser
    >>> data = Data(queries="q.jsonl", qrels="r.txt", corpus=("idx",), run="bm25.txt")
    >>> recipe = Recipe(Model("m"), (data,), Optimiser(steps=1), folds=Folds(count=2))
    >>> fold_recipe(recipe, Fold(("q1", "q2"), ("q3",))).data[0].only
    ('q1', 'q2')
    """
    data = tuple(
        each if each.whole else changed(each, only=_cut(each.only, fold.train)) for each in recipe.data
    )
    dev = recipe.dev and changed(recipe.dev, only=_cut(recipe.dev.only, fold.validation))
    # `whole` has been applied, and has no meaning in a recipe without folds
    return changed(recipe, data=tuple(changed(each, whole=False) for each in data), dev=dev, folds=None)


def _cut(only: Iterable[str] | None, queries: Iterable[str]) -> tuple[str, ...]:
    wanted = None if only is None else frozenset(only)
    return tuple(qid for qid in queries if wanted is None or qid in wanted)


def _answered(qrels: Qrels, grade: int = 1) -> list[str]:
    """The queries that have a document of at least this grade."""
    return [qid for qid, judged in qrels.items() if max(judged.values(), default=0) >= grade]


def _measured(dev: Dev) -> frozenset[str]:
    """The queries of a dev run for which measures are defined."""
    asked = _cut(dev.only, [query.id for query in read_queries(dev.queries, field=dev.field)])
    return frozenset(_answered(read_qrels(dev.qrels))).intersection(asked)


def _require_some(queries: Sequence[Sequence[str]], able: Iterable[str], what: str) -> None:
    """Check, before any fold is trained, that each has a query with a relevant document."""
    able = frozenset(able)
    for number, own in enumerate(queries, start=1):
        if able.isdisjoint(own):
            raise InputError(
                f"fold {number} has no query with a relevant document for {what}",
                remedy="check that folds, queries and qrels belong together, or use fewer folds",
            )


def _plan(recipe: Recipe) -> Folds:
    if recipe.folds is None:
        raise InputError("the recipe has no folds", remedy="add a table [folds]")
    return recipe.folds


def _tested(recipe: Recipe) -> Data:
    """The data with the test queries."""
    return next(data for data in recipe.data if not data.whole)


# -- training
# ------------------------------------------------------------------------------------------------------------


def _check_out(out: Path, folders: Sequence[Path], folds: Sequence[Fold], resume: bool) -> None:
    """Refuse to overwrite another run, or to resume with other folds than at the start."""
    begun = any((folder / DONE).exists() or has_state(folder) for folder in (out, *folders))
    if begun and not resume:
        raise InputError(f"{out} contains a training run", remedy="add --resume, or give another folder")
    if begun and (out / FOLDS).exists() and read_folds(out / FOLDS) != list(folds):
        raise InputError(
            f"{out / FOLDS} has other folds than the recipe",
            remedy="resume with the folds it was started with, or train into another folder",
        )


def _trained(
    recipe: Recipe,
    digest: str,
    folder: Path,
    device: str,
    resume: bool,
    watch: Watch,
    processes: Processes,
) -> Result:
    done = _read_done(folder)
    processes.require_same(done is None, f"another state in {folder} than the first process sees", SHARE)
    if done is not None:
        before, result = done
        if before != digest:
            raise InputError(
                f"{folder} was trained by another recipe, on other folds or other data",
                remedy="resume with what it was started with, or train into another folder",
            )
        if not result.model.is_dir():
            raise InputError(f"{result.model} is gone", remedy=f"delete {folder}: --resume trains it again")
        return result
    try:
        result = train_by_recipe(recipe, folder, device=device, resume=resume, watch=watch)
    except InputError as error:
        raise InputError(f"{folder.name}: {error.problem}", remedy=error.remedy) from error
    if processes.first:
        with atomic_write(folder / DONE, "w") as file:
            content = {**asdict(result), "model": result.model.name, "digest": digest}
            file.write(json.dumps(content, indent=1) + "\n")
    return result


def _read_done(folder: Path) -> tuple[str, Result] | None:
    """The digest of a finished fold, and its result."""
    path = folder / DONE
    if not path.exists():
        return None
    try:
        content = json.loads(read_text(path))
        return content.pop("digest"), Result(**{**content, "model": folder / content["model"]})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CorruptError(f"{path} is damaged", remedy="delete it: --resume writes it again") from None


class _Contents:
    """Digests of file contents: each file is read once, however many folds use it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def start(self, recipe: Recipe) -> str:
        """The digest of the model that training starts from, including its weights."""
        return self._once("start", recipe.model.start, lambda _: begin(recipe).fingerprint)

    def file(self, path: str) -> str:
        return self._once("file", path, _file_digest)

    def corpus(self, path: str) -> str:
        return self._once("corpus", path, _corpus_digest)

    def _once(self, kind: str, name: str, made: Callable[[str], str]) -> str:
        if (kind, name) not in self._known:
            self._known[kind, name] = made(name)
        return self._known[kind, name]


def _file_digest(path: str) -> str:
    if dataset_name(path) is not None:  # from ir_datasets, where the name identifies the content
        return path
    seen = xxhash.xxh3_128()
    with open_bytes(path) as file:
        while some := file.read(1 << 20):
            seen.update(some)
    return str(seen.hexdigest())


def _corpus_digest(path: str) -> str:
    if is_address(path) or is_index(path):
        return Index.open(path).fingerprint
    if not Path(path).is_dir():
        return _file_digest(path)
    seen = xxhash.xxh3_128()
    for document in read_corpus(path):  # only it knows which files of a folder are read
        seen.update(repr((document.id, document.contents)).encode())
    return str(seen.hexdigest())


def _digest(recipe: Recipe, contents: _Contents) -> str:
    """A digest of the recipe with its queries, of its start and of its training data, including only the
    judgments and gains that it sees. The task's identity is not used, because making the task means to read
    and tokenise everything again, even for finished folds."""
    seen = xxhash.xxh3_128(f"{recipe!r} {contents.start(recipe)}".encode())
    sources: list[Data | Dev] = [*recipe.data, *([recipe.dev] if recipe.dev else [])]
    for each in sources:
        found = [contents.corpus(path) for path in each.corpus]
        files = (each.queries, each.run, getattr(each, "teacher", None))
        found += [contents.file(path) for path in files if path is not None]
        if isinstance(each, Data) and each.set is not None:
            found.append(contents.file(str(Path(each.set) / "set.json")))
        if isinstance(each, Data) and each.triples is not None:
            found.append(file_fingerprint(each.triples))
        seen.update(" ".join(found).encode())
        if each.qrels is not None:
            judged = read_qrels(each.qrels)
            wanted = sorted(judged if each.only is None else judged.keys() & set(each.only))
            seen.update(repr([(qid, sorted(judged[qid].items())) for qid in wanted]).encode())
    if recipe.gains is not None and recipe.architecture is not None:
        gains = read_gains(recipe.gains, recipe.architecture.settings.gains)
        asked = [qid for each in recipe.data for qid in each.only or ()]
        whole = any(each.only is None for each in recipe.data)
        seen.update(gains_fingerprint(gains, None if whole else frozenset(asked)).encode())
    return str(seen.hexdigest())


class _OfFold(Watch):
    """Adds the name of the fold to each job."""

    def __init__(self, watch: Watch, name: str) -> None:
        self.watch, self.name = watch, name

    def reading(self, what: str, noun: str) -> AbstractContextManager[Callable[[int], object]]:
        return self.watch.reading(f"{what} ({self.name.lower()})", noun)

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        return self.watch.training(self.name, steps, measure)

    def left_out(self, what: str) -> None:
        self.watch.left_out(f"{self.name}: {what}")


# -- testing
# ------------------------------------------------------------------------------------------------------------


def pipeline_of(recipe: Recipe) -> str:
    """The pipeline that reranks with a fold's model: the recipe's, or else the model's stage; {model} is the
    model.

    >>> from tamis.train.recipe import Examples, Limits, Loss, Model, Optimiser
    >>> recipe = Recipe(Model("m"), (Data(set="s"),), Optimiser(steps=1), limits=Limits(32, 256))
    >>> pipeline_of(recipe)
    'mono(model={model}, query_limit=32, limit=256)'
    >>> pipeline_of(changed(recipe, examples=Examples("duo"), loss=Loss("duo")))
    'duo(model={model}, query_limit=32, limit=256)'
    """
    if recipe.folds is not None and recipe.folds.pipeline is not None:
        return recipe.folds.pipeline
    kind = recipe.architecture or (Duo() if recipe.examples.in_pairs else Mono())
    return kind.pipeline(recipe.limits.query or kind.query_limit, recipe.limits.total)


def _check_pipeline(template: str) -> None:
    """Check, before hours of training, that the pipeline can be built and ranks the candidates it
    receives."""
    node = parse(template.replace("{model}", json.dumps("model")))
    for name in searches(node):
        raise InputError(
            f"{name} in pipeline of [folds] searches, but the candidates come from the run",
            remedy="leave it out",
        )
    build(node)


def _candidates(recipe: Recipe, folds: Sequence[Fold]) -> tuple[GivenRun, list[str]]:
    """The candidates of all test queries, and the queries without candidates."""
    plan, data = _plan(recipe), _tested(recipe)
    path = str(plan.run or data.run)
    queries = {query.id: query for query in read_queries(str(data.queries), field=data.field)}
    run = Run.read(path, queries=queries.values())
    for number, fold in enumerate(folds, start=1):
        if not any(qid in run and qid in queries for qid in fold.test):
            raise InputError(
                f"{path} has no candidates for the test queries of fold {number}",
                remedy="give a run of all queries",
            )
    asked = [qid for fold in folds for qid in fold.test]
    tested = set(asked)
    given = Run(ranking.head(plan.depth) for qid, ranking in run.items() if qid in tested and qid in queries)
    texts = texts_of_candidates(given.values(), data.corpus, path)
    return GivenRun(given, texts), [qid for qid in asked if qid not in given]


def _rank(
    candidates: GivenRun,
    stages: Sequence[Stage],
    folds: Sequence[Fold],
    folders: Sequence[Path],
    path: Path,
    watch: Watch,
) -> None:
    """Rank the test queries of each fold with its stage, as one run."""
    from tamis import __version__

    given, about = candidates.given, path.with_name(f"{path.name}.json")
    whole = [candidates >> stage for stage in stages]
    fingerprints = [stage.fingerprint for stage in whole]
    if path.exists() and _fingerprints(about) == fingerprints:
        return
    found: dict[str, Ranking] = {}
    journals = [folder / _JOURNAL for folder in folders]
    with watch.ranking("the test queries", len(given)) as advance:
        for stage, fold, journal in zip(whole, folds, journals, strict=True):
            queries = [given[qid].query for qid in fold.test if qid in given]
            found.update(stage.run(queries, progress=advance, journal=journal))
    run = Run(found[qid] for qid in given)
    manifest = {
        "tamis": __version__,
        "pipelines": list(map(repr, stages)),
        "fingerprints": fingerprints,
        "queries": len(run),
        "results": sum(map(len, run.values())),
    }
    run.write(path)
    with atomic_write(about, "w") as file:
        file.write(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    for journal in journals:
        with suppress(TamisError):  # the run is complete: a remaining journal is not an error
            remove_journal(journal)


def _fingerprints(about: Path) -> list[str] | None:
    """The fingerprints of the stages that ranked a run, from the file beside it; None if it is unreadable."""
    if not about.exists():
        return None
    try:
        return list(json.loads(read_text(about))["fingerprints"])
    except (ValueError, TypeError, KeyError):
        return None
