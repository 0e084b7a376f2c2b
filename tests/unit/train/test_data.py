"""What a recipe's [[data]] and [dev] say of their queries: which part of a topic, and which topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Mono
from tamis.base.errors import InputError
from tamis.models.settings import changed
from tamis.models.tokenizer import Tokenizer
from tamis.train.dev import open_dev
from tamis.train.recipe import Data, Dev, Examples, Limits, Model, Optimiser, Recipe, read_recipe
from tamis.train.sets import TrainingSet
from tamis.train.sources import open_examples, open_set, read_examples
from tamis.train.watch import Watch

TOPICS = """
<top>
<num> Number: 301
<title> soup
<desc> Description:
How is onion soup made?
</top>
<top>
<num> Number: 302
<title> steel
<desc> Description:
What are spoons made of?
</top>
"""


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("data")
    tiny_checkpoint(where / "model", layers=1, hidden=16, heads=2, positions=64)
    (where / "topics.txt").write_text(TOPICS)
    (where / "qrels.txt").write_text("301 0 d1 1\n302 0 d2 1\n302 0 d1 0\n")
    (where / "c.tsv").write_text("d1\tan onion in butter\nd2\ta spoon of steel\nd3\tflour\n")
    (where / "run.txt").write_text(
        "".join(f"{q} Q0 d{n} {n} {9 - n} x\n" for q in (301, 302) for n in (1, 2, 3))
    )
    return where


def data(made: Path, **changes: Any) -> Data:
    least = Data(
        queries=str(made / "topics.txt"),
        qrels=str(made / "qrels.txt"),
        corpus=(str(made / "c.tsv"),),
        run=str(made / "run.txt"),
    )
    return changed(least, **changes)


def opened(made: Path, **changes: Any) -> TrainingSet:
    return open_set(data(made, **changes), Examples(), Tokenizer(made / "model"))


def dev(made: Path, **changes: Any) -> Dev:
    given = data(made)
    least = Dev(str(given.queries), str(given.qrels), given.corpus, str(given.run))
    return changed(least, **changes)


@pytest.mark.parametrize(
    ("field", "text"),
    [("title", "soup"), ("desc", "How is onion soup made?"), ("desc-keywords", "onion soup made")],
)
def test_the_query_is_the_part_of_a_topic_that_the_recipe_names(field: Any, text: str, made: Path) -> None:
    tokenizer = Tokenizer(made / "model")
    wanted = tokenizer.encode([text]).ids.tolist()
    assert opened(made, field=field).queries.take([0]).ids.tolist() == wanted
    run = open_dev(dev(made, field=field))
    assert run.rankings[0].query.text == text
    inputs = Mono(str(made / "model"), device="cpu").build_inputs(run.rankings).inputs[0]
    assert inputs.take([0]).ids[1 : 1 + len(wanted)].tolist() == wanted


def test_only_some_queries_and_their_judgments(made: Path) -> None:
    some = opened(made, only=("302",))
    assert some.query_ids == ["302"] and len(some.judged.documents) == 2
    assert not some.report.unknown_queries
    run = open_dev(dev(made, only=("302",)))
    assert [ranking.query.id for ranking in run.rankings] == ["302"] and list(run.qrels) == ["302"]


def test_who_watches_is_told_of_what_was_left_out(made: Path, tmp_path: Path) -> None:
    told: list[str] = []

    class Told(Watch):
        def left_out(self, what: str) -> None:
            told.append(what)

    (tmp_path / "more.txt").write_text((made / "qrels.txt").read_text() + "999 0 d1 1\n")
    more = data(made, qrels=str(tmp_path / "more.txt"), skip=True)
    plan = Recipe(Model("m"), (data(made), more), Optimiser(steps=1), examples=Examples(group=2))
    read_examples(plan, Tokenizer(made / "model"), Told())
    assert told == [f"{made / 'topics.txt'}: left out: 1 unknown queries"]


@pytest.mark.parametrize(
    ("table", "line", "said"),
    [
        ("[[data]]", 'field = "body"', "field of [data] is 'body': it must be one of title, desc, narr, "),
        ("[dev]", 'field = "body"', "field of [dev] is 'body': it must be one of title, desc, narr, "),
        (
            "[[data]]",
            "only = [301]",
            "only of [data] is [301]: it must be a list of texts that are not empty",
        ),
    ],
)
def test_what_is_refused(table: str, line: str, said: str, made: Path, tmp_path: Path) -> None:
    files = 'queries = "q"\nqrels = "r"\ncorpus = ["c"]\nrun = "x"\n'
    text = f'[model]\nstart = "m"\n[[data]]\n{files}[dev]\n{files}[optimiser]\nsteps = 1\n'
    path = tmp_path / "recipe.toml"
    path.write_text(text.replace(f"{table}\n", f"{table}\n{line}\n"))
    with pytest.raises(InputError) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: {said}") and "\n" not in str(caught.value)


def test_a_saved_set_has_its_queries_already() -> None:
    for changes in ({"field": "desc"}, {"only": ("q1",)}):
        with pytest.raises(InputError, match="has a set with field or only, and its queries are tokens"):
            Data(set="s", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("total", "own", "kept"), [(512, None, 512), (900, None, 900), (900, 32, 32)])
def test_a_text_is_read_as_far_as_the_model_reads(
    total: int, own: int | None, kept: int, made: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.tsv").write_text("d1\t" + "onion " * 600 + "\nd2\ta spoon\nd3\tflour\n")
    files = data(made, corpus=(str(tmp_path / "c.tsv"),), text_limit=own)
    plan = Recipe(Model("unused"), (files,), Optimiser(steps=1), limits=Limits(total=total))
    found, _ = open_examples(plan, Tokenizer(made / "model")).stream.batch(0)
    assert found.documents.offsets[1] - found.documents.offsets[0] == kept
