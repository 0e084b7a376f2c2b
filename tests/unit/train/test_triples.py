"""Triples as training data, by text and by id, and samples of a set: pairs that are given or drawn once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Document, Index  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import Tokenised  # noqa: E402
from tamis.models.tokenizer import Tokenizer  # noqa: E402
from tamis.models.weights import stored_tensors  # noqa: E402
from tamis.train.fixed import fixed, sample  # noqa: E402
from tamis.train.ranking import train_by_recipe  # noqa: E402
from tamis.train.recipe import Data, Folds, Limits, Loss, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples, open_examples  # noqa: E402
from tamis.train.streams import Batch  # noqa: E402
from tamis.train.triples import Lines, file_fingerprint  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES = {"q1": "onion soup", "q2": "a steel spoon", "q3": "cake"}
TEXTS = {"d1": "soup of onion", "d2": "spoons of steel", "d3": "flour and butter", "d4": "water"}
IDS = [("q1", "d1", "d4"), ("q2", "d2", "d3"), ("q3", "d3", "d1"), ("q1", "d1", "d2"), ("q2", "d2", "d4")]


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("triples")
    tiny_checkpoint(where / "model", layers=1, hidden=16, heads=2, positions=32)
    (where / "q.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in QUERIES.items()))
    (where / "c.tsv").write_text("".join(f"{docid}\t{text}\n" for docid, text in TEXTS.items()))
    Index.build([Document(*item) for item in TEXTS.items()], where / "idx")
    (where / "ids.tsv").write_text("".join("\t".join(row) + "\n" for row in IDS))
    with gzip.open(where / "texts.tsv.gz", "wt") as file:
        for query, relevant, other in IDS:
            file.write(f"{QUERIES[query]}\t{TEXTS[relevant]}\t{TEXTS[other]}\n\n")
    return where


def source(made: Path, kind: str) -> Data:
    if kind == "texts":
        return Data(triples=str(made / "texts.tsv.gz"))
    corpus = made / ("idx" if kind == "index" else "c.tsv")
    return Data(triples=str(made / "ids.tsv"), queries=str(made / "q.tsv"), corpus=(str(corpus),))


def recipe(made: Path, *data: Data, **changes: Any) -> Recipe:
    least = Recipe(
        Model(str(made / "model")),
        data,
        Optimiser(learning_rate=1e-2, steps=6),
        Run(batch=4, checkpoint_every=2, log_every=1),
        Drawn("balanced"),
        Loss("pointwise"),
        Limits(8, 24),
    )
    return changed(least, **changes)


def opened(made: Path, plan: Recipe) -> Examples:
    return open_examples(plan, Tokenizer(made / "model"))


def shown(batch: Batch) -> list[tuple[list[int], list[list[int]], list[float]]]:
    """The tokens of each group: its query, its documents, its labels."""
    data = batch.data
    return [
        (
            data.queries.take([group.query]).ids.tolist(),
            [data.documents.take([int(n)]).ids.tolist() for n in group.documents],
            group.labels.tolist(),
        )
        for group in batch.groups
    ]


def wanted(made: Path, *places: int) -> list[tuple[list[int], list[list[int]], list[float]]]:
    def tokens(text: str) -> list[int]:
        found: list[int] = Tokenizer(made / "model").encode([text]).ids.tolist()
        return found

    rows = [IDS[place] for place in places]
    return [(tokens(QUERIES[q]), [tokens(TEXTS[a]), tokens(TEXTS[b])], [1.0, 0.0]) for q, a, b in rows]


@pytest.mark.parametrize("kind", ["texts", "index", "files"])
def test_batches_are_the_lines_in_their_order_and_then_again(kind: str, made: Path) -> None:
    stream = opened(made, recipe(made, source(made, kind))).stream
    assert shown(stream.batch(0)) == wanted(made, 0, 1)
    assert shown(stream.batch(1)) == wanted(made, 2, 3)
    assert shown(stream.batch(2)) == wanted(made, 4, 0)
    again = opened(made, recipe(made, source(made, kind))).stream
    assert shown(again.batch(7)) == wanted(made, 4, 0) and shown(again.batch(1)) == wanted(made, 2, 3)


def test_every_kind_of_examples_that_has_pairs(made: Path) -> None:
    data = source(made, "texts")
    duo = opened(made, recipe(made, data, examples=Drawn("duo"), loss=Loss("duo"))).stream.batch(0)
    assert [group.documents.tolist() for group in duo.groups] == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert [group.labels.tolist() for group in duo.groups] == [[1, 0], [0, 1]] * 2
    pairs = opened(made, recipe(made, data, examples=Drawn(group=2), loss=Loss("hinge"))).stream.batch(0)
    assert shown(pairs) == wanted(made, 0, 1, 2, 3)


def test_texts_are_cut_and_epochs_are_counted(made: Path) -> None:
    data = changed(source(made, "files"), text_limit=1)
    stream = opened(made, recipe(made, data, optimiser=Optimiser(epochs=2))).stream
    assert stream.epoch == 3  # five triples, two a batch
    assert all(len(tokens) == 1 for _, texts, _ in shown(stream.batch(0)) for tokens in texts)


def test_it_trains_goes_on_after_a_kill_and_follows_another_set(made: Path, tmp_path: Path) -> None:
    first = changed(source(made, "texts"), steps=4)
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    then = Data(
        queries=str(made / "q.tsv"),
        qrels=str(tmp_path / "qrels.txt"),
        corpus=(str(made / "c.tsv"),),
        skip=True,
    )
    plan = recipe(made, first, then)
    whole = train_by_recipe(plan, tmp_path / "whole", device="cpu")

    class Killed(Exception):
        pass

    from tamis.train.ranking import train
    from tamis.train.start import load_start

    def tell(line: Any) -> None:
        if line["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        start = load_start(plan.model, 0)
        train(plan, opened(made, plan), tmp_path / "killed", start=start, device="cpu", progress=tell)
    again = train_by_recipe(plan, tmp_path / "killed", device="cpu", resume=True)
    one, other = (stored_tensors(result.model / "model.safetensors") for result in (whole, again))
    assert all(np.array_equal(one[name].read(), other[name].read()) for name in one)


def test_other_data_have_another_fingerprint(made: Path, tmp_path: Path) -> None:
    prints = [
        opened(made, recipe(made, source(made, kind))).fingerprint for kind in ("texts", "index", "files")
    ]
    other = tmp_path / "q.tsv"
    other.write_text((made / "q.tsv").read_text().replace("cake", "bread"))
    prints.append(opened(made, recipe(made, changed(source(made, "files"), queries=str(other)))).fingerprint)
    assert len(set(prints)) == 4
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 3_000_000)
    other.write_bytes(b"a" * 2_999_999 + b"b")
    assert file_fingerprint(one) != file_fingerprint(other)


@given(
    rows=st.lists(st.integers(0, 99), min_size=1, max_size=9),
    asked=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5),
)
def test_lines_by_number_are_those_of_the_file_without_end(
    rows: list[int], asked: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_text("".join(f"{row}\n" for row in rows))
    lines = Lines(file)
    for start, count in asked:
        found = [int(line.text) for line in lines.take(start, count)]
        assert found == [rows[(start + n) % len(rows)] for n in range(count)]
    assert lines.count() == len(rows)


# -- what is refused


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        (
            "soup\tonion",
            "texts",
            ", line 2: 2 columns where triples have 3: write a query, a relevant document",
        ),
        ("q1 d1 d2 d3", "index", ", line 2: 4 columns where triples have 3"),
        ("q9 d1 d2", "index", ", line 2: the query 'q9' is not among the queries: give all of them, or"),
        ("q1 d1 d9", "index", ", line 2: the corpus has no document 'd9'"),
        ("q1 d9 d2", "files", ", line 2: the corpus has no document 'd9'"),
    ],
)
def test_a_bad_line_is_named(line: str, kind: str, said: str, made: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(("a\tb\tc" if kind == "texts" else "q1\td1\td2") + f"\n{line}\n")
    stream = opened(made, recipe(made, changed(source(made, kind), triples=str(path)))).stream
    with pytest.raises(InputError) as caught:
        stream.batch(0)
    assert str(caught.value).startswith(f"{path}{said}") and "\n" not in str(caught.value)


def test_ids_are_not_learned_from_as_if_they_were_texts(made: Path) -> None:
    plan = recipe(made, Data(triples=str(made / "ids.tsv")))
    said = r"ids\.tsv, line 1: these look like ids .*\('q1', 'd1', 'd4'\): give queries and corpus too"
    with pytest.raises(InputError, match=said):
        opened(made, plan)


def test_a_batch_of_single_words_is_no_reason_to_stop(made: Path, tmp_path: Path) -> None:
    lines = ["onion soup\tsoup of onion\twater\n"] * 3 + ["cake\tflour\twater\n"] * 8
    (tmp_path / "triples.tsv").write_text("".join(lines))
    plan = recipe(made, Data(triples=str(tmp_path / "triples.tsv")))
    assert len(opened(made, plan).stream.batch(1).data) == 2


def test_files_that_are_not_there_or_empty(made: Path, tmp_path: Path) -> None:
    data = source(made, "texts")
    with pytest.raises(InputError, match=r"none.tsv: no such file: check the path"):
        opened(made, recipe(made, changed(data, triples=str(tmp_path / "none.tsv"))))
    for content in ("", "\n \n"):
        (tmp_path / "empty.tsv").write_text(content)
        with pytest.raises(InputError, match=r"empty.tsv: contains no triples: check the file"):
            opened(made, recipe(made, changed(data, triples=str(tmp_path / "empty.tsv")))).stream.batch(0)
    (tmp_path / "latin.tsv").write_bytes(b"caf\xe9\tb\tc\n")
    with pytest.raises(InputError, match=r"^[^,]*latin.tsv, line 1: not UTF-8"):
        opened(made, recipe(made, changed(data, triples=str(tmp_path / "latin.tsv")))).stream.batch(0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"qrels": "r"}, "[[data]] has triples with qrels: leave out one of them"),
        ({"set": "s"}, "[[data]] has triples with set"),
        ({"sample": 3}, "[[data]] has triples with sample"),
        ({"only": ("q1",)}, "[[data]] has triples with only"),
        ({"skip": True}, "[[data]] has triples with skip"),
        (
            {"queries": "q"},
            "[[data]] has triples with one of queries and corpus: give both, for triples of ids",
        ),
        ({"corpus": ("c",)}, "[[data]] has triples with one of queries and corpus"),
    ],
)
def test_triples_say_all_there_is_to_say(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Data(triples="t", **fields)
    assert said in str(caught.value)


def test_recipes_that_triples_or_samples_do_not_fit(made: Path) -> None:
    triples, some = Data(triples="t"), Data(set="s", sample=9)
    for data, changes, said in (
        (
            triples,
            {"examples": Drawn(group=3)},
            "t: triples are pairs, and the examples are grouped of 3: use",
        ),
        (some, {"examples": Drawn(group=8)}, "s: a sample is of pairs, and the examples are grouped of 8"),
        (
            some,
            {"examples": Drawn("teacher_pairs"), "loss": Loss("duo")},
            "pairs, and the examples are teacher_pairs: use balanced or duo examples, or groups of 2",
        ),
        (
            triples,
            {"loss": Loss("pointwise", alpha=0.5)},
            "triples have neither ranks nor a teacher's scores",
        ),
        (
            triples,
            {"examples": Drawn("balanced", curriculum="rank", curriculum_steps=3)},
            "triples have neither ranks nor a teacher's scores",
        ),
        (triples, {"folds": Folds(count=2, run="r")}, "t cannot be split into folds"),
    ):
        with pytest.raises(InputError) as caught:
            recipe(made, data, **changes)  # type: ignore[arg-type]
        assert said in str(caught.value)
    with pytest.raises(InputError, match="a batch of 3 has no two halves"):
        opened(made, recipe(made, source(made, "texts"), run=Run(batch=3)))


# -- samples


def judged_set() -> TrainingSet:
    """Twenty queries with three relevant documents each among ten candidates of their own."""
    count = 20
    documents = np.arange(10 * count, dtype=np.int32)
    relevant = (np.arange(count)[:, None] * 10 + np.array([1, 4, 7])).ravel().astype(np.int32)
    return TrainingSet(
        Tokenised.of([[7 + n] for n in range(count)]),
        Tokenised.of([[50 + n] for n in range(10 * count)]),
        [f"q{n}" for n in range(count)],
        [f"d{n}" for n in range(10 * count)],
        Judged(np.arange(count + 1) * 3, relevant, np.ones(len(relevant), np.int32)),
        Candidates(np.arange(count + 1) * 10, documents, -documents.astype(np.float32)),
    )


@pytest.mark.parametrize("count", [1, 7, 60])
def test_a_sample_is_so_many_positives_and_as_many_negatives(count: int) -> None:
    data = judged_set()
    groups = sample(data, count, seed=3)
    positives = [int(group.documents[0]) for group in groups]
    assert len(set(positives)) == count and all(n % 10 in (1, 4, 7) for n in positives)
    for group in groups:
        first, second = group.documents.tolist()
        assert first // 10 == second // 10 == group.query and second % 10 not in (1, 4, 7)
        assert group.labels.tolist() == [1.0, 0.0]
    same, other = ([group.documents.tolist() for group in sample(data, count, seed=seed)] for seed in (3, 4))
    assert same == [group.documents.tolist() for group in groups] and same != other


def test_nothing_but_the_sample_is_ever_seen(made: Path, tmp_path: Path) -> None:
    judged_set().save(tmp_path / "set")
    plan = recipe(made, Data(set=str(tmp_path / "set"), sample=6))
    stream = opened(made, plan).stream
    assert stream.epoch == 3  # six pairs, two a batch

    def pairs(numbers: range) -> list[tuple[int, ...]]:
        return [tuple(g.documents.tolist()) for n in numbers for g in stream.batch(n).groups]

    epochs = [pairs(range(start, start + 3)) for start in (0, 3, 30)]
    assert len(set(epochs[0])) == 6
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs) and epochs[0] != epochs[1]
    duo = opened(made, changed(plan, examples=Drawn("duo"), loss=Loss("duo"))).stream.batch(0)
    assert [g.documents.tolist() for g in duo.groups[1::2]] == [
        g.documents.tolist()[::-1] for g in duo.groups[0::2]
    ]


def test_a_sample_of_more_than_there_is() -> None:
    with pytest.raises(InputError, match="a sample of 61 relevant documents where there are 60: draw fewer"):
        sample(judged_set(), 61, seed=0)
    groups = sample(judged_set(), 3, seed=0)
    assert len(fixed(judged_set(), groups, 2, seed=0).batch(1).groups) == 2
