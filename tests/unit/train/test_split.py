"""A step that is split, over parts, batches or processes, learns what it would learn whole, however unlike
its groups are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models.architecture import architecture  # noqa: E402
from tamis.models.templates import Tokenised  # noqa: E402
from tamis.train.ranking import RankingTask  # noqa: E402
from tamis.train.recipe import Data, Examples, Limits, Loss, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.sets import Group, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples as Drawn  # noqa: E402
from tamis.train.start import begin  # noqa: E402
from tamis.train.streams import Batch, Stream  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

#: How many documents each group has, and how many of them are relevant: for some queries none, for one all.
GROUPS = ((2, 1), (5, 0), (3, 2), (7, 1), (4, 0), (2, 1), (6, 3), (3, 3))
DOCUMENTS = 20
SMALL = {"window": 8, "stride": 6, "passages": 5, "sequence": 16, "query": 4, "tokens": 40}


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "model", layers=1, hidden=16, heads=2, positions=64
    )


def made() -> tuple[TrainingSet, list[Group]]:
    rng = np.random.default_rng(0)
    count = len(GROUPS)
    data = TrainingSet(
        Tokenised.of([rng.integers(100, 390, 3).tolist() for _ in GROUPS]),
        Tokenised.of([rng.integers(100, 390, rng.integers(1, 30)).tolist() for _ in range(DOCUMENTS)]),
        [f"q{n}" for n in range(count)],
        [f"d{n}" for n in range(DOCUMENTS)],
        Judged(np.arange(count + 1), np.arange(count), np.ones(count, np.int64)),
    )
    groups = []
    for query, (size, relevant) in enumerate(GROUPS):
        documents, teacher = rng.choice(DOCUMENTS, size, replace=False), rng.normal(size=size)
        labels = (np.arange(size) < relevant).astype(np.float32)
        weight = float(rng.uniform(0.3, 1.0))  # of a curriculum
        groups.append(Group(query, documents, labels, teacher.astype(np.float32), weight))
    return data, groups


def learned(
    folder: Path,
    loss: Loss,
    kind: Any,
    *,
    accumulate: int = 1,
    tokens: int | None = None,
    world: int = 1,
    alone: bool = False,
) -> tuple[int, float, Any]:
    """How many parts a step of all groups has, its loss, and its gradient."""
    data, groups = made()
    size = len(groups) // accumulate
    stream = Stream(lambda number: Batch(data, groups[number * size : (number + 1) * size]), 1)
    recipe = Recipe(
        Model(str(folder), third_segment=True),
        (Data(set="unused"),),
        Optimiser(steps=1, dropout=0.0, accumulate=accumulate),
        Run(batch=size, tokens=tokens),
        Examples(kind, group=7, alone=alone),
        loss,
        Limits(8, 48),
    )
    task = RankingTask(recipe, begin(recipe), Drawn(stream, ""), device="cpu")
    task.module.double()
    return taught(task, world)


def taught(task: RankingTask, world: int) -> tuple[int, float, Any]:
    parts = [part for rank in range(world) for part in task.parts(0, rank, world)]
    losses = [task.module(part.batch) * part.share / world for part in parts]
    torch.stack(losses).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in task.module.parameters() if p.grad is not None])
    return len(parts), sum(loss.item() for loss in losses), gradient


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (Loss("pointwise", alpha=0.5), "grouped"),
        (Loss("logit_mse_ce", alpha=0.5), "grouped"),
        (Loss("hinge", margin=3.0), "grouped"),
        (Loss("softmax"), "grouped"),
        (Loss("margin_mse", labels=0.5), "grouped"),
        (Loss("kl", labels=0.5), "grouped"),
        (Loss("kl", labels=0.5), "duo_lists"),
        (Loss("kl", labels=0.5), "duo_lists, alone"),
    ],
)
def test_a_split_step_is_the_whole_one(loss: Loss, kind: Any, folder: Path) -> None:
    kind, _, alone = kind.partition(", ")
    learn = partial(learned, folder, loss, kind, alone=bool(alone))
    parts, value, gradient = learn()
    assert parts == 1 and gradient.abs().max() > 0
    for split in ({"tokens": 60}, {"accumulate": 2}, {"world": 2}, {"accumulate": 4, "tokens": 60}):
        several, same, found = learn(**split)
        assert several > 1
        assert same == pytest.approx(value, rel=1e-6), split
        assert torch.allclose(found, gradient, rtol=1e-5, atol=1e-8 * float(gradient.abs().max())), split


def test_texts_that_are_read_alone_too_add_what_mono_would_learn(folder: Path) -> None:
    loss = Loss("kl", labels=0.5)
    _, both, gradient = learned(folder, loss, "duo_lists", alone=True)
    parts = [learned(folder, loss, kind) for kind in ("duo_lists", "grouped")]
    assert both == pytest.approx(sum(value for _, value, _ in parts), rel=1e-9)
    assert torch.allclose(gradient, sum(found for _, _, found in parts))


def learned_of_documents(
    folder: Path,
    loss: Loss,
    kind: Any,
    gains: Path | None,
    *,
    accumulate: int = 1,
    tokens: int = 10**6,
    world: int = 1,
) -> tuple[int, float, Any]:
    data, groups = made()
    size = len(groups) // accumulate
    stream = Stream(lambda number: Batch(data, groups[number * size : (number + 1) * size]), 1)
    more: dict[str, Any] = {"parade": {"kind": "max"}, "maxp": {"keep": 0.5}}.get(kind, {})
    of = architecture(kind)
    recipe = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(steps=1, dropout=0.0, accumulate=accumulate),
        Run(batch=size, tokens=tokens),
        Examples("grouped", group=7),
        loss,
        architecture=of(of.Settings(**SMALL, **more)),
        gains=None if gains is None else str(gains),
    )
    task = RankingTask(recipe, begin(recipe), Drawn(stream, "", sets=[data]), device="cpu")
    return taught(task, world)


@pytest.mark.parametrize("kind", ["parade", "maxp", "pcgm"])
@pytest.mark.parametrize(
    "loss",
    [
        Loss("pointwise", alpha=0.5),
        Loss("logit_mse_ce", alpha=0.5),
        Loss("hinge", margin=3.0),
        Loss("softmax"),
        Loss("margin_mse", labels=0.5),
        Loss("kl", labels=0.5),
    ],
    ids=lambda loss: loss.name,
)
def test_a_split_step_of_documents_is_the_whole_one(
    loss: Loss, kind: Any, folder: Path, tmp_path: Path
) -> None:
    """Of PCGM gains are known for some groups, and for one more than for another."""
    gains = None
    if kind == "pcgm":
        gains, (_, groups) = tmp_path / "gains.jsonl", made()
        of = [
            (query, document) for query, few in ((0, 1), (3, 3)) for document in groups[query].documents[:few]
        ]
        lines = [{"query": f"q{query}", "document": f"d{document}", "gains": [1]} for query, document in of]
        gains.write_text("".join(json.dumps(line) + "\n" for line in lines))
    parts, value, gradient = learned_of_documents(folder, loss, kind, gains)
    assert parts == 1 and gradient.abs().max() > 0
    splits: list[dict[str, int]] = [{"tokens": 60}, {"world": 2}, {"world": 4, "tokens": 60}]
    if kind != "maxp":  # whose passages are drawn by the number of the batch
        splits += [{"accumulate": 2}, {"accumulate": 4, "tokens": 60}]
    for split in splits:
        several, same, found = learned_of_documents(folder, loss, kind, gains, **split)
        assert several > 1
        assert same == pytest.approx(value, rel=1e-5), split
        assert torch.allclose(found, gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max())), split


def test_a_processor_takes_a_large_batch_in_parts(folder: Path) -> None:
    """It cannot say that a batch does not fit: the system ends the program."""
    data, groups = made()
    many = groups * 40
    recipe = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(steps=1),
        Run(batch=len(many)),
        Examples("grouped", group=7),
        Loss("kl"),
        Limits(8, 48),
    )
    stream = Stream(lambda number: Batch(data, many), 1)
    task = RankingTask(recipe, begin(recipe), Drawn(stream, ""), device="cpu")
    tokens = [len(part.batch.inputs.ids) for part in task.parts(0, 0, 1)]
    assert max(tokens) <= 4096 < sum(tokens)


def test_queries_that_only_a_teacher_knows_say_nothing_to_a_hinge(folder: Path) -> None:
    """They come into a batch where a set has a teacher's scores: such a batch is no error, and no lesson."""
    data, groups = made()
    recipe = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(steps=1),
        loss=Loss("hinge"),
        limits=Limits(8, 48),
    )
    unjudged = Stream(lambda number: Batch(data, [groups[1], groups[4]]), 1)
    task = RankingTask(recipe, begin(recipe), Drawn(unjudged, ""), device="cpu")
    loss = task.module(task.parts(0, 0, 1)[0].batch)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in task.module.parameters())
