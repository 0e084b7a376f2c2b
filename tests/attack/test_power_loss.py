"""A power cut at any moment leaves the last commit or the new one, whole; and what was promised is kept."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index
from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core import journal
from tamis.core.journal import Job, Journal, digest
from tamis.core.ranking import Ranking, Run
from tamis.index.verify import verify
from tamis.index.writer import create
from tamis.infer.tokens import TokenStore, build_tokens
from tamis.models.tokenizer import Tokenizer
from tests.attack.power_loss import Moment, Recorder, restore

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
State = dict[str, str] | None


def document(identity: str, version: int = 0) -> Document:
    return Document(identity, f"sieve {identity} flour version{version}")


def texts(index: Index) -> State:
    return {each.id: each.text for each in index}


@pytest.fixture
def after() -> Iterator[Path]:
    """Where the states are restored: in memory, where the system has such, since they need not last."""
    shared = Path("/dev/shm")
    where = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as name:
        yield Path(name)


def check_all(recorder: Recorder, folder: Path, check: Callable[[Moment, Path], None]) -> None:
    number = 0
    for number, (moment, state) in enumerate(recorder.states()):
        place = restore(state, folder / str(number))
        try:
            check(moment, place)
        except BaseException as error:
            error.add_note(f"{moment.event}; {sorted(state)}; in {place}")
            raise
        shutil.rmtree(place)
    assert number > 10


# -- the index


def test_commits(tmp_path: Path, after: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    committed: list[State] = [None]
    with Recorder(root) as recorder:

        def done(index: Index) -> None:
            committed.append(texts(index))
            recorder.promise()

        with create(root / "deep" / "idx", positions=True) as writer:
            for name in "abc":
                writer.add(document(name))
            writer.commit()
        index = Index.open(root / "deep" / "idx")
        done(index)
        index.add([document("d")])
        done(index)
        index.add([document("a", 1)], on_duplicate="replace")
        done(index)
        index.delete(["b"])
        done(index)
        index.merge()
        done(index)
        Index.build([document("z")], root / "deep" / "idx", overwrite=True)
        done(Index.open(root / "deep" / "idx"))

    def check(moment: Moment, place: Path) -> None:
        folder = place / "deep" / "idx"
        try:
            found = texts(Index.open(folder))
        except InputError:  # there is none
            found = None
        assert found in committed[moment.promised : moment.promised + 2]
        if found is None:
            Index.build([document("n")], folder)
        else:
            assert verify(folder) == []
            Index.open(folder).add([document("n")])
        assert texts(Index.open(folder)) == {**(found or {}), "n": document("n").text}
        named = {segment.info.name for segment in Index.open(folder).segments}
        assert verify(folder) == []
        assert {path.name for path in (folder / "segments").iterdir()} == named
        assert {path.name for path in folder.iterdir()} == {"manifest.json", "segments", "lock"}

    check_all(recorder, after, check)


# -- tokens


def test_tokens(tmp_path: Path, after: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    root = tmp_path / "root"
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path / "model"))
    index = Index.build([document("a"), document("b")], root / "idx")
    expected = TokenStore(index, tokenizer).texts(["a", "b"]).ids.tolist()
    with Recorder(root) as recorder:
        build_tokens(index, tokenizer)
        recorder.promise()
        build_tokens(index, tokenizer, limit=600)  # others in their place
        recorder.promise()

    def check(moment: Moment, place: Path) -> None:
        opened = Index.open(place / "idx")
        store = TokenStore(opened, tokenizer)
        assert store.texts(["a", "b"]).ids.tolist() == expected
        if moment.promised:
            assert store.documents in ((2,) if moment.promised == 2 else (0, 2))
        assert build_tokens(opened, tokenizer).documents == 2
        assert not list((place / "idx").rglob(".tamis-*"))

    check_all(recorder, after, check)


# -- journals and runs


def ranking(number: int) -> Ranking:
    return Ranking(Query(f"q{number}", "sieve"), (f"d{number}",), np.array([number], np.float32))


def test_journals(tmp_path: Path, after: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SYNC_EVERY", 0.0)  # each batch is made durable, not one in five seconds
    root = tmp_path / "root"
    root.mkdir()
    queries = [ranking(n).query for n in range(5)]
    job = Job("bm25", "a1", (("bm25", "a1"),), digest(queries), len(queries))
    with Recorder(root) as recorder, Journal(root / "a.journal", job, at_once=1) as written:
        for number in range(5):
            written.append([ranking(number)], 0.1)
            recorder.promise()

    def check(moment: Moment, place: Path) -> None:
        with Journal(place / "a.journal", job, at_once=1) as again:
            done = [each.query.id for each in again.done]
            assert done == [f"q{n}" for n in range(len(done))]
            assert moment.promised <= len(done)
            again.append([ranking(len(done))], 0.1)

    check_all(recorder, after, check)


def test_runs(tmp_path: Path, after: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Recorder(root) as recorder:
        for number in range(8):
            Run([ranking(number)]).write(root / "a.run")
            recorder.promise()

    def check(moment: Moment, place: Path) -> None:
        path = place / "a.run"
        found = [*Run.read(path)] if path.exists() else []
        last, next_one = moment.promised - 1, moment.promised
        assert found in ([f"q{last}"] if last >= 0 else [], [f"q{next_one}"])

    check_all(recorder, after, check)


# -- training


@needs_torch
def test_states_of_training(tmp_path: Path, after: Path) -> None:
    import torch

    from tamis.train.state import State as Training
    from tamis.train.state import clear_remains, load_state, save_state

    root = tmp_path / "root"
    root.mkdir()
    with Recorder(root) as recorder:
        for step in range(1, 5):
            save_state(Training("r", {"a": torch.full((3,), float(step))}, {}, step), root / "out")
            recorder.promise()

    def check(moment: Moment, place: Path) -> None:
        clear_remains(place / "out")
        state = load_state(place / "out", "r")
        step = 0 if state is None else state.step
        assert step in (moment.promised, moment.promised + 1)
        assert state is None or state.weights["a"].tolist() == [step] * 3

    check_all(recorder, after, check)


@needs_torch
@pytest.mark.parametrize("kind", ["listwise", "parade"])
def test_models_that_are_replaced(
    kind: str, tmp_path: Path, after: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    from tamis.models.architecture import architecture
    from tamis.models.checkpoint import WEIGHTS, load_checkpoint, save_checkpoint
    from tamis.train.state import clear_remains

    root = tmp_path / "root"
    (root / "out").mkdir(parents=True)
    start = tiny_checkpoint(tmp_path / "model", layers=1, hidden=8, heads=2)
    model = architecture(kind)().begin(load_checkpoint(start))
    with Recorder(root) as recorder:
        for number in range(1, 4):
            head = {name: np.full_like(tensor, number) for name, tensor in model.head.items()}
            tensors = {name: np.full_like(model.tensors[name], number) for name in model.tensors}
            save_checkpoint(replace(model, tensors=tensors, head=head), root / "out" / "best")
            recorder.promise()

    def check(moment: Moment, place: Path) -> None:
        clear_remains(place / "out")
        found = 0.0  # of the first one a part may be there, but the weights come last
        if (place / "out" / "best" / WEIGHTS).exists():
            left = load_checkpoint(place / "out" / "best")
            assert left.architecture == model.architecture
            values = [*left.tensors.values(), *left.head.values()]
            (found,) = {value for each in values for value in np.unique(each).tolist()}
        assert found in (moment.promised, moment.promised + 1)

    check_all(recorder, after, check)
