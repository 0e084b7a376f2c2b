"""The losses: values and gradients worked by hand, and gradients against differences in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from tamis.base.errors import InputError  # noqa: E402
from tamis.train import losses  # noqa: E402

torch.set_num_threads(1)

Loss = Callable[[Tensor], Tensor]
LOG2, LOG3 = math.log(2), math.log(3)
ENDS = torch.tensor([0, 3, 5])
LABELS = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0])
TEACHER = torch.tensor([2.0, -1.0, 0.5, 1.0, 0.0], dtype=torch.float64)
PAIRS = torch.tensor([[0, 1], [0, 2], [4, 3]])
BOTH = torch.tensor([[0, 1], [1, 0]])

# Each loss as a function of five scores (of logit_mse_ce: of five margins).
ALL: dict[str, Loss] = {
    "pointwise": lambda s: losses.pointwise(s, LABELS),
    "duo": lambda s: losses.duo(s, LABELS > 0),
    "hinge": lambda s: losses.hinge(s[:2], s[3:]),
    "softmax": lambda s: losses.softmax(s, LABELS, ENDS),
    "listwise": lambda s: losses.listwise(s, LABELS, ENDS),
    "margin_mse of groups": lambda s: losses.margin_mse(s, TEACHER, offsets=ENDS),
    "margin_mse of pairs": lambda s: losses.margin_mse(s, TEACHER, pairs=PAIRS),
    "mse": lambda s: losses.mse(s, TEACHER),
    "logit_mse_ce": lambda s: losses.logit_mse_ce(s, TEACHER, LABELS, alpha=0.3),
    "kl": lambda s: losses.kl(s, TEACHER, ENDS, temperature=0.5),
    "kl of all pairs of a list": lambda s: losses.kl(
        losses.list_scores(s[:2], BOTH, 2), TEACHER[:2], torch.tensor([0, 2])
    ),
}
every_loss = pytest.mark.parametrize("loss", ALL.values(), ids=ALL.keys())


def with_gradient(loss: Loss, scores: list[float] | list[list[float]]) -> tuple[float, list[float]]:
    variable = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    value = loss(variable)
    value.backward()
    assert variable.grad is not None
    return value.item(), variable.grad.flatten().tolist()


def close(values: list[float]) -> object:
    return pytest.approx(values, abs=1e-12)


# -- worked by hand
# ------------------------------------------------------------------------------------------------------------


def test_pointwise() -> None:
    """s = log 3 is a probability of 3/4: the loss is log 4/3 for a relevant text and log 4 for another, the
    gradient p - y."""
    value, gradient = with_gradient(lambda s: losses.pointwise(s, torch.tensor([1, 0, 1])), [LOG3, LOG3, 0.0])
    assert value == pytest.approx((math.log(4 / 3) + math.log(4) + LOG2) / 3)
    assert gradient == close([-0.25 / 3, 0.75 / 3, -0.5 / 3])


def test_pointwise_with_weights() -> None:
    """Weights multiply, and the mean goes on to divide by the number of examples."""
    weights = torch.tensor([1.0, 0.5])
    value, gradient = with_gradient(lambda s: losses.pointwise(s, torch.tensor([1, 0]), weights), [0.0, LOG3])
    assert value == pytest.approx((LOG2 + 0.5 * math.log(4)) / 2)
    assert gradient == close([-0.25, 0.5 * 0.75 / 2])


def test_pointwise_with_soft_labels() -> None:
    """The gradient is p - y for any y: none where the probability is the label's."""
    _, gradient = with_gradient(lambda s: losses.pointwise(s, torch.tensor([0.75, 0.25])), [LOG3, LOG3])
    assert gradient == close([0.0, 0.25])


def test_duo() -> None:
    """p_ij = 3/4 both ways: right for (better, worse), wrong for (worse, better)."""
    value, gradient = with_gradient(lambda s: losses.duo(s, torch.tensor([True, False])), [LOG3, LOG3])
    assert value == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert gradient == close([-0.125, 0.375])


def test_hinge() -> None:
    """Differences 2, 0.5 and -1: nothing to learn, half of the margin, and two."""
    worse = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    value, gradient = with_gradient(lambda s: losses.hinge(s, worse), [3.0, 1.5, 0.0])
    assert value == pytest.approx((0 + 0.5 + 2) / 3)
    assert gradient == close([0, -1 / 3, -1 / 3])
    assert losses.hinge(torch.tensor([1.5]), torch.tensor([1.0]), margin=0.25).item() == 0


def test_softmax() -> None:
    """The mass of the positives: 3/6 in the first group, 3/4 in the second, which has two of them. The
    gradient is the softmax less each positive's share of the positives' mass."""
    scores = [LOG3, LOG2, 0.0, 0.0, 0.0, LOG2]
    labels, offsets = torch.tensor([1, 0, 0, 1, 0, 1]), torch.tensor([0, 3, 6])
    value, gradient = with_gradient(lambda s: losses.softmax(s, labels, offsets), scores)
    assert value == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    first = [3 / 6 - 1, 2 / 6, 1 / 6]
    second = [1 / 4 - 1 / 3, 1 / 4, 2 / 4 - 2 / 3]
    assert gradient == close([each / 2 for each in first + second])


def test_listwise() -> None:
    """Eqs. 37 and 38: p is 3/6, 2/6, 1/6 in the first group and 1/4, 1/4, 2/4 in the second. The third has no
    positive. The gradient is the positives' w y, together times p less each one's own."""
    scores = [LOG3, LOG2, 0.0, 0.0, 0.0, LOG2, 9.0]
    labels, offsets = torch.tensor([1, 0, 0, 1, 0, 2, 0]), torch.tensor([0, 3, 6, 7])
    weights = torch.tensor([0.5, 7, 7, 3, 7, 0.25, 7])
    value, gradient = with_gradient(lambda s: losses.listwise(s, labels, offsets, weights), scores)
    assert value == pytest.approx((0.5 * math.log(2) + 3 * math.log(4) + 2 * 0.25 * math.log(2)) / 2)
    first = [0.5 * (3 / 6 - 1), 0.5 * 2 / 6, 0.5 * 1 / 6]
    second = [3.5 / 4 - 3, 3.5 / 4, 3.5 * 2 / 4 - 0.5]
    assert gradient == close([each / 2 for each in first + second] + [0])


def test_with_one_positive_a_group_listwise_is_softmax() -> None:
    scores = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    labels, offsets = torch.tensor([0, 1, 0, 0, 0, 0, 0, 1, 0]), torch.tensor([0, 3, 5, 9])
    assert losses.listwise(scores, labels, offsets).item() == pytest.approx(
        losses.softmax(scores, labels, offsets).item()
    )
    with pytest.raises(InputError, match="9 scores with 3 weights: give as many of each"):
        losses.listwise(scores, labels, offsets, torch.ones(3))


def test_groups_without_a_positive_do_not_count() -> None:
    scores, offsets = [LOG3, 0.0, 7.0, 8.0], torch.tensor([0, 2, 4])
    value, gradient = with_gradient(lambda s: losses.softmax(s, torch.tensor([1, 0, 0, 0]), offsets), scores)
    assert value == pytest.approx(math.log(4 / 3))
    assert gradient == close([-0.25, 0.25, 0, 0])
    value, gradient = with_gradient(lambda s: losses.softmax(s, torch.zeros(4), offsets), scores)
    assert value == 0
    assert gradient == [0, 0, 0, 0]


def test_margin_mse_of_a_group() -> None:
    """Errors 1, 0, -1: the pairs differ by 1, 2 and 1, so the mean square is (1 + 4 + 1) / 3 = 2. The second
    group's errors are equal, its margins right; the third has no pair."""
    student, teacher = [3.0, 1.0, 0.0, 5.0, 6.0, 9.0], [2.0, 1.0, 1.0, 1.0, 2.0, 0.0]
    target, offsets = torch.tensor(teacher, dtype=torch.float64), torch.tensor([0, 3, 5, 6])
    value, gradient = with_gradient(lambda s: losses.margin_mse(s, target, offsets=offsets), student)
    assert value == pytest.approx(2 / 2)  # two groups with pairs
    assert gradient == close([2 * 2 / 2 * 1 / 2, 0, -2 * 2 / 2 * 1 / 2, 0, 0, 0])


def test_margin_mse_of_a_group_is_that_of_all_its_pairs() -> None:
    scores = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    teacher = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = torch.combinations(torch.arange(7))
    by_pairs = losses.margin_mse(scores, teacher, pairs=pairs)
    by_group = losses.margin_mse(scores, teacher, offsets=torch.tensor([0, 7]))
    assert by_pairs.item() == pytest.approx(by_group.item(), rel=1e-12)


def test_margin_mse_of_pairs() -> None:
    """Margins 2 and 4 where the teacher has 1 and 1."""
    teacher = torch.tensor([1.0, 0.0, 0.0])
    value, gradient = with_gradient(
        lambda s: losses.margin_mse(s, teacher, pairs=torch.tensor([[0, 1], [0, 2]])), [4.0, 2.0, 0.0]
    )
    assert value == pytest.approx((1 + 9) / 2)
    assert gradient == close([1 + 3, -1, -3])


def test_mse() -> None:
    value, gradient = with_gradient(lambda s: losses.mse(s, torch.tensor([1.0, 0.0])), [3.0, 1.0])
    assert value == pytest.approx((4 + 1) / 2)
    assert gradient == close([2, 1])


def test_logit_mse_ce_of_two_labels() -> None:
    """Logits (0, log 3), label 1: cross-entropy log 4/3 with gradient (1/4, -1/4); the teacher is 1 and 2
    away: 5 with gradient (-2, -4)."""
    teacher = torch.tensor([[1.0, LOG3 + 2]], dtype=torch.float64)
    value, gradient = with_gradient(
        lambda s: losses.logit_mse_ce(s, teacher, torch.tensor([1]), alpha=0.25), [[0.0, LOG3]]
    )
    assert value == pytest.approx(0.25 * math.log(4 / 3) + 0.75 * 5)
    assert gradient == close([0.25 * 0.25 - 0.75 * 2, -0.25 * 0.25 - 0.75 * 4])


def test_logit_mse_ce_of_one_logit() -> None:
    """s = log 3, label 0: log 4 with gradient 3/4; the teacher is 1 below: 1 with gradient 2."""
    teacher = torch.tensor([LOG3 - 1], dtype=torch.float64)
    value, gradient = with_gradient(
        lambda s: losses.logit_mse_ce(s, teacher, torch.tensor([0]), alpha=0.5), [LOG3]
    )
    assert value == pytest.approx(0.5 * math.log(4) + 0.5 * 1)
    assert gradient == close([0.5 * 0.75 + 0.5 * 2])
    column = losses.logit_mse_ce(torch.tensor([[LOG3]]), teacher[:, None], torch.tensor([0]), alpha=0.5)
    assert column.item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, LOG2), (0.0, 4.0)])
def test_alpha_goes_from_the_teacher_to_the_labels(alpha: float, expected: float) -> None:
    found = losses.logit_mse_ce(torch.tensor([0.0]), torch.tensor([2.0]), torch.tensor([1]), alpha)
    assert found.item() == pytest.approx(expected)


def test_kl() -> None:
    """p = (3/4, 1/4), q = (1/2, 1/2): the divergence is 3/4 log 3/2 + 1/4 log 1/2, the gradient q - p."""
    teacher = torch.tensor([LOG3, 0.0, 5.0, 5.0], dtype=torch.float64)
    value, gradient = with_gradient(
        lambda s: losses.kl(s, teacher, torch.tensor([0, 2, 4])), [0.0, 0.0, 1.0, 1.0]
    )
    assert value == pytest.approx((0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2)
    assert gradient == close([-0.25 / 2, 0.25 / 2, 0, 0])


def test_the_temperature_is_the_teachers() -> None:
    """log 3 / (1/2) is log 9: p = (9/10, 1/10)."""
    teacher = torch.tensor([LOG3, 0.0], dtype=torch.float64)
    _, gradient = with_gradient(
        lambda s: losses.kl(s, teacher, torch.tensor([0, 2]), temperature=0.5), [0.0, 0.0]
    )
    assert gradient == close([0.5 - 0.9, 0.5 - 0.1])


def test_scores_of_a_list_are_mean_margins_in_both_orders() -> None:
    """Three texts a, b, c: a beats b by 2 in one order and by 4 in the other, loses to c by 1 and by 3."""
    pairs = torch.tensor([[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]])
    scores = losses.list_scores(torch.tensor([2.0, -1.0, -4.0, 0.0, 3.0, 0.0]), pairs, 3)
    assert scores.tolist() == [(2 + 4 - 1 - 3) / 4, (-4 - 2) / 4, (3 + 1) / 4]


def test_scores_of_a_list_have_the_differences_of_what_the_margins_are_differences_of() -> None:
    worth = torch.tensor([1.5, -2.0, 0.25, 4.0])
    pairs = torch.tensor([[i, j] for i in range(4) for j in range(4) if i != j])
    scores = losses.list_scores(worth[pairs[:, 0]] - worth[pairs[:, 1]], pairs, 4)
    assert torch.allclose(scores - scores[0], (worth - worth[0]) * 4 / 3)


def test_weights_of_groups() -> None:
    labels, offsets = torch.tensor([1, 0, 1, 0, 0]), torch.tensor([0, 2, 5])
    found = losses.softmax(torch.zeros(5), labels, offsets, torch.tensor([1.0, 0.5]))
    assert found.item() == pytest.approx((LOG2 + 0.5 * LOG3) / 2)


# -- every loss
# ------------------------------------------------------------------------------------------------------------


@every_loss
def test_gradients_are_those_of_differences(loss: Loss) -> None:
    scores = torch.tensor([0.3, -0.7, 1.1, 0.2, -0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (scores,), eps=1e-6, atol=1e-7)


@every_loss
def test_half_precision_is_summed_in_single(loss: Loss) -> None:
    scores = torch.tensor([0.25, -0.75, 1.0, 0.25, -0.5])
    assert loss(scores.bfloat16()).dtype == torch.float32
    assert loss(scores.bfloat16()).item() == pytest.approx(loss(scores).item())


@every_loss
@pytest.mark.parametrize("size", [100.0, 1e4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_scores_do_not_overflow(loss: Loss, size: float, sign: float) -> None:
    scores = (sign * size * torch.tensor([-1.0, 1.0, 0.5, 1.0, -1.0])).requires_grad_()
    value = loss(scores)
    value.backward()
    assert scores.grad is not None
    assert math.isfinite(value.item())
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("name", ["pointwise", "softmax"])
def test_an_extreme_score_is_not_forgotten(name: str) -> None:
    """A relevant text at -100 costs 100 where log(sigmoid) would say infinity, or clipping 16."""
    found = {
        "pointwise": losses.pointwise(torch.tensor([-100.0]), torch.tensor([1])),
        "softmax": losses.softmax(torch.tensor([-100.0, 0.0]), torch.tensor([1, 0]), torch.tensor([0, 2])),
    }
    assert found[name].item() == pytest.approx(100)


@every_loss
def test_what_is_not_a_number_stays_so(loss: Loss) -> None:
    """The loop must see it and stop."""
    assert math.isnan(loss(torch.tensor([math.nan, 1.0, 0.0, 2.0, 0.0])).item())


@pytest.mark.parametrize("name", ["softmax", "listwise", "margin_mse of groups", "kl", "pointwise"])
def test_the_order_within_a_group_does_not_matter(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    scores, teacher = torch.randn(2, 9, dtype=torch.float64, generator=generator)
    labels, offsets = torch.tensor([0, 1, 0, 1, 0, 0, 1, 0, 0]), torch.tensor([0, 4, 9])

    def loss(order: Tensor) -> float:
        own = scores[order], teacher[order], labels[order]
        value = {
            "softmax": lambda s, t, y: losses.softmax(s, y, offsets),
            "listwise": lambda s, t, y: losses.listwise(s, y, offsets),
            "margin_mse of groups": lambda s, t, y: losses.margin_mse(s, t, offsets=offsets),
            "kl": lambda s, t, y: losses.kl(s, t, offsets),
            "pointwise": lambda s, t, y: losses.pointwise(s, y),
        }[name](*own)
        return float(value.item())

    permuted = torch.cat([torch.randperm(4, generator=generator), 4 + torch.randperm(5, generator=generator)])
    across = torch.arange(9).roll(4)
    assert loss(permuted) == pytest.approx(loss(torch.arange(9)), rel=1e-12)
    if name != "pointwise":
        assert loss(across) != pytest.approx(loss(torch.arange(9)), rel=1e-3)


def test_no_gradient_reaches_a_teacher() -> None:
    teacher = torch.zeros(2, requires_grad=True)
    student, offsets = torch.ones(2, requires_grad=True), torch.tensor([0, 2])
    for loss in (
        losses.kl(student, teacher, offsets),
        losses.margin_mse(student, teacher, offsets=offsets),
        losses.mse(student, teacher),
        losses.logit_mse_ce(student, teacher, torch.tensor([1, 0]), 0.5),
    ):
        loss.backward()
    assert teacher.grad is None


# -- bad input
# ------------------------------------------------------------------------------------------------------------

NOTHING, NO_GROUP = torch.zeros(0), torch.tensor([0])


@pytest.mark.parametrize(
    "loss",
    [
        lambda: losses.pointwise(NOTHING, NOTHING),
        lambda: losses.duo(NOTHING, NOTHING),
        lambda: losses.hinge(NOTHING, NOTHING),
        lambda: losses.softmax(NOTHING, NOTHING, NO_GROUP),
        lambda: losses.margin_mse(NOTHING, NOTHING, offsets=NO_GROUP),
        lambda: losses.margin_mse(
            torch.zeros(2), torch.zeros(2), pairs=torch.zeros((0, 2), dtype=torch.long)
        ),
        lambda: losses.mse(NOTHING, NOTHING),
        lambda: losses.logit_mse_ce(NOTHING, NOTHING, NOTHING, 0.5),
        lambda: losses.kl(NOTHING, NOTHING, NO_GROUP),
    ],
)
def test_an_empty_batch_is_an_error(loss: Callable[[], Tensor]) -> None:
    with pytest.raises(InputError, match="an empty batch has no loss: give at least one"):
        loss()


TWO = torch.zeros(2)


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (lambda: losses.pointwise(TWO, torch.zeros(3)), "2 margins with 3 labels: give as many"),
        (lambda: losses.pointwise(TWO, TWO, torch.ones(1)), "2 losses with 1 weights"),
        (lambda: losses.hinge(TWO, torch.zeros(1)), "2 better with 1 worse"),
        (lambda: losses.softmax(TWO, TWO, torch.tensor([0, 3])), "groups from 0 to 3 of 2 scores"),
        (lambda: losses.softmax(TWO, TWO, torch.tensor([0, 0, 2])), "a group without a text: leave it out"),
        (lambda: losses.margin_mse(TWO, TWO), "give either pairs or offsets"),
        (lambda: losses.kl(TWO, TWO, torch.tensor([0, 2]), temperature=0.0), "a temperature of 0.0"),
        (lambda: losses.logit_mse_ce(TWO, TWO, TWO, alpha=1.5), "alpha is 1.5"),
        (lambda: losses.logit_mse_ce(TWO, torch.zeros(2, 2), TWO, 0.5), "as many labels"),
    ],
)
def test_bad_input_says_what_to_do(loss: Callable[[], Tensor], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        loss()
