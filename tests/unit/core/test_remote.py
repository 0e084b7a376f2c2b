"""A pipeline whose rerankers work in workers ranks as it does in one process: which stages these are, what is
sent, and what comes back. The workers are threads here, and all that reaches them has been pickled."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tamis
from tamis.base.errors import InputError, TamisError
from tamis.core.cluster import Done, Job, begin, in_order, work
from tamis.core.remote import Reranking
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline
from tamis.formats import read_corpus, read_queries
from tamis.infer.tokens import TokenStore, build_tokens
from tamis.models.bundled import bundled_tokenizer
from tamis.rank.given_run import Documents, GivenRun
from tamis.storage.score_cache import ScoreCache

DEMO = Path(tamis.__file__).parent / "demo_data"
NANO = "mono(model=mono-nano)"


class Threads:
    """A cluster of two threads."""

    def __init__(self, on_this_machine: bool = True) -> None:
        self.on_this_machine = on_this_machine
        self.sent: list[Any] = []

    def __str__(self) -> str:
        return "threads"

    @contextmanager
    def start(self, job: Job) -> Iterator[Threads]:
        with ThreadPoolExecutor(2, initializer=begin, initargs=(pickle.loads(pickle.dumps(job)), 1)) as pool:
            self._pool = pool
            yield self

    def map(self, tasks: Iterable[Any]) -> Iterator[Done]:
        return in_order(self._submit, tasks, under_way=4)

    def _submit(self, task: Any) -> Future[Done]:
        self.sent.append(task)
        return self._pool.submit(_copied, pickle.dumps(task))


def _copied(task: bytes) -> Done:
    done: Done = pickle.loads(pickle.dumps(work(pickle.loads(task))))
    return done


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> tamis.Index:
    return tamis.Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), tmp_path_factory.mktemp("remote") / "idx")


@pytest.fixture(scope="module")
def queries() -> list[tamis.Query]:
    return read_queries(DEMO / "queries.jsonl")[:20]


def same(one: tamis.Run, other: tamis.Run) -> bool:
    """To the last bit, with the evidence."""
    alike = [
        (a == b, a.evidence == b.evidence, a.scores.dtype == b.scores.dtype, a.texts is b.texts)
        for a, b in zip(one.values(), other.values(), strict=True)
    ]
    return list(one) == list(other) and all(map(all, alike))


@pytest.mark.parametrize(
    ("pipeline", "in_workers"),
    [
        (f"bm25 % 12 >> {NANO} % 5", f"{NANO} % 5"),
        (f"bm25 % 12 >> {NANO} % 5 >> rm3 % 9", f"{NANO} % 5"),
        (f"bm25 % 9 >> normalise >> interpolate({NANO}, alpha=0.3)", f"interpolate({NANO}, alpha=0.3)"),
        (f"bm25 % 5 >> fuse({NANO}, interpolate({NANO})) % 4", f"fuse({NANO}, interpolate({NANO})) % 4"),
        (f"bm25 % 5 >> maxp({NANO}, window=40, stride=20)", f"maxp({NANO}, window=40, stride=20)"),
        (
            f"bm25 % 5 >> {NANO} >> maxp({NANO}, choose=bm25, passages=2) >> normalise",
            NANO,
        ),
        ("bm25 % 5 >> normalise", "normalise"),
    ],
)
def test_it_ranks_as_in_one_process(
    pipeline: str, in_workers: str, index: tamis.Index, queries: list[tamis.Query]
) -> None:
    local = index.pipeline(pipeline).run(queries)
    stage = index.pipeline(pipeline)
    remote = stage.run(queries, on=Threads())
    assert same(local, remote)
    assert remote.manifest["fingerprint"] == local.manifest["fingerprint"]
    assert remote.manifest["cluster"]["stages"] == in_workers
    assert sum(each["queries"] for each in remote.manifest["cluster"]["workers"]) == len(queries)


def test_what_models_have_done_is_counted_here(index: tamis.Index, queries: list[tamis.Query]) -> None:
    expression = f"bm25 % 12 >> {NANO} % 5"
    remote = index.pipeline(expression).run(queries, on=Threads()).manifest["models"]
    local = index.pipeline(expression)
    local.run(queries)
    from tamis.core.plan import work_done

    (known,) = work_done(local)
    assert [{**each, "runs_on": known["runs_on"]} for each in remote] == [known]
    assert (
        remote[0]["runs_on"].endswith("1 core, in 2 workers of threads") or "1 worker" in remote[0]["runs_on"]
    )


def test_only_texts_that_are_read_are_sent(index: tamis.Index, queries: list[tamis.Query]) -> None:
    threads = Threads()
    (index.bm25() % 30 >> tamis.Duo("duo", k=3)).run(queries[:1], on=threads)
    (ranking,) = threads.sent[1]  # the first task only asks what workers have
    assert len(ranking.ids) == 30
    assert ranking.texts.document(ranking.ids[2]).text and ranking.origin is None
    with pytest.raises(TamisError, match="was not sent to the worker"):
        ranking.texts.document(ranking.ids[3])


def test_candidates_of_a_run_are_reranked(index: tamis.Index, queries: list[tamis.Query]) -> None:
    given = (index.bm25() % 10).run(queries)
    ids = {doc_id for ranking in given.values() for doc_id in ranking.ids}
    first = GivenRun(given, Documents(map(index.document, sorted(ids)), only=ids))
    whole = first >> tamis.Mono("mono-nano")
    assert same(whole.run(queries), whole.run(queries, on=Threads()))


def test_a_journal_is_that_of_one_process(
    index: tamis.Index, queries: list[tamis.Query], tmp_path: Path
) -> None:
    """A run may go on elsewhere than where it began."""

    def stop(more: int) -> None:
        raise KeyboardInterrupt

    stage = index.pipeline(f"bm25 % 9 >> {NANO}")
    whole = stage.run(queries)
    for name, first, then in (("a", None, Threads()), ("b", Threads(), None)):
        journal = tmp_path / name

        with pytest.raises(KeyboardInterrupt):
            stage.run(queries, journal=journal, on=first, progress=stop)
        resumed = stage.run(queries, journal=journal, on=then)
        assert same(whole, resumed) and resumed.manifest["resumed"] == 8


def test_scores_do_not_depend_on_the_batch_or_the_cores(
    index: tamis.Index, queries: list[tamis.Query]
) -> None:
    """Which queries share a batch, and how many threads a worker has: sums in int8 are exact."""
    candidates = (index.bm25() % 15)(queries)
    together = tamis.Mono("mono-nano", device="cpu", workers=1)(candidates)
    apart = [tamis.Mono("mono-nano", device="cpu", workers=2)(each) for each in candidates]
    assert together == apart


def test_the_cache_is_that_of_the_stages(
    index: tamis.Index, queries: list[tamis.Query], tmp_path: Path
) -> None:
    stage = index.pipeline(f"bm25 % 9 >> {NANO}", Runtime(cache=tmp_path / "scores.db"))
    plain = index.pipeline(f"bm25 % 9 >> {NANO}").run(queries)
    for cached in (0, 180):
        run = stage.run(queries, on=Threads())
        assert same(plain, run)
        assert sum(each["cached"] for each in run.manifest["models"]) == cached
    assert len(ScoreCache(tmp_path / "scores.db")) == 180
    with pytest.raises(InputError, match="a score cache is a file of this machine"):
        stage.run(queries, on=Threads(on_this_machine=False))


def test_tokens_are_made_there(index: tamis.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.infer.tokens._BATCH", 100)
    both = {}
    for name, on in (("here", None), ("there", Threads())):
        shutil.copytree(index.path, tmp_path / name)
        copy = tamis.Index.open(tmp_path / name)
        copy.add([tamis.Document("new", "a sieve")])
        build_tokens(copy, bundled_tokenizer(), on=on)
        copy.merge()  # whose texts are then known, but for those of a document added meanwhile
        copy.add([tamis.Document("newer", "a sieve of wire")])
        copy.merge()
        build_tokens(copy, bundled_tokenizer(), on=on)
        ids = list(copy.ids())
        both[name] = TokenStore(copy, bundled_tokenizer()).texts(ids).ids.tolist()
        assert on is None or sum(map(len, on.sent)) < 2 * len(ids)
    assert both["here"] == both["there"]


def test_what_cannot_work_there(index: tamis.Index, queries: list[tamis.Query]) -> None:
    class Own(tamis.Mono):
        """Not known by its name in another process."""

    with pytest.raises(InputError, match=r"no stage of bm25 % 9 can work on a cluster: all need the index"):
        index.pipeline("bm25 % 9").run(queries, on=Threads())
    with pytest.raises(InputError, match="no stage of"):
        (index.bm25() % 9 >> Own("mono-nano")).run(queries, on=Threads())
    with pytest.raises(InputError, match="nosuch"):
        index.pipeline("bm25 % 9 >> mono(model=nosuch)").run(queries, on=Threads())


def test_models_in_folders_must_be_there(tiny_checkpoint: Any, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    stage = tamis.Mono(str(folder))
    job = Reranking.of([stage])
    assert job.named == (str(folder),)
    (folder / "config.json").rename(tmp_path / "config.json")
    folder.rename(tmp_path / "moved")
    with pytest.raises(InputError, match=r"the worker .* has no .*model: copy it there"):
        job.start(cores=1)
    assert Pipeline([stage]).parts == (stage,)
