"""The loss of a batch: every value of a recipe's [loss] reaches it, on whatever device the margins are."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models.templates import Inputs  # noqa: E402
from tamis.train.batch import RankingBatch, all_pairs  # noqa: E402
from tamis.train.ranking_loss import ranking_loss  # noqa: E402
from tamis.train.recipe import Loss, LossName  # noqa: E402

LN2, LN3 = math.log(2), math.log(3)


def batch(labels: list[float], teacher: list[float] | None = None, lists: bool = False) -> RankingBatch:
    """One group of so many texts."""
    count = len(labels)
    inputs = Inputs(np.zeros(count, np.int32), np.zeros(count, np.uint8), np.arange(count + 1))
    return RankingBatch(
        inputs,
        np.array([0, count]),
        np.array(labels, np.float32),
        None if teacher is None else np.array(teacher, np.float32),
        np.ones(1, np.float32),
        pairs=all_pairs(np.array([count])) if lists else None,
    )


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("name", get_args(LossName))
def test_what_margins_are_compared_with_goes_where_they_are(name: Any, lists: bool) -> None:
    """`meta` stands for Apple's GPUs: like them it refuses a tensor that was left in memory."""
    group = batch([1.0, 0.0, 0.0], [2.0, 1.0, 0.0], lists)
    margins = torch.zeros(6 if lists else 3, device="meta")
    assert ranking_loss(margins, group, Loss(name, alpha=0.5, labels=0.5)).device == margins.device


@pytest.mark.parametrize("name", ["pointwise", "duo"])
def test_the_temperature_of_a_target_between_label_and_teacher(name: Any) -> None:
    """A teacher's ln 3 / 2 at a temperature of 1/2 is a probability of 3/4, a student's ln 3 is one too. Of a
    margin of 0 the loss is ln 2 whatever the target."""
    margins, taught = torch.tensor([LN3, 0.0]), batch([1.0, 0.0], [LN3 / 2, -LN3 / 2])
    target = 0.25 + 0.75 * 3 / 4
    first = -target * math.log(3 / 4) - (1 - target) * math.log(1 / 4)
    found = ranking_loss(margins, taught, Loss(name, alpha=0.25, temperature=0.5))
    assert found.item() == pytest.approx((first + LN2) / 2)


def test_the_temperature_of_kl() -> None:
    """The teacher's shares are 3/4 and 1/4, the student's a half each."""
    found = ranking_loss(torch.zeros(2), batch([1.0, 0.0], [LN3 / 2, 0.0]), Loss("kl", temperature=0.5))
    assert found.item() == pytest.approx(3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2))


def test_as_much_of_the_labels_as_a_recipe_says() -> None:
    """Of two texts that score alike the relevant one has half of the softmax: ln 2."""
    taught = batch([1.0, 0.0], [LN3, 0.0])
    kl = 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)
    assert ranking_loss(torch.zeros(2), taught, Loss("kl", labels=2.0)).item() == pytest.approx(kl + 2 * LN2)
    found = ranking_loss(torch.zeros(2), taught, Loss("margin_mse", labels=0.1))
    assert found.item() == pytest.approx(LN3**2 + 0.1 * LN2)
