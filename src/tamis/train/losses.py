"""Losses: pure functions of scores and labels, independent of the model that made the scores.

A score s is a margin: a model's logit, or with two labels the second logit minus the first, so that
sigmoid(s) is P(relevant). Lists of scores are concatenated: those of group g are
`scores[offsets[g] : offsets[g + 1]]`. There is no padding, and no loop over groups. `offsets` may be on any
device; on the CPU it is also checked, which on a GPU would mean to wait for it.

Each loss is a mean over the examples, pairs or groups. A weight multiplies its loss before the mean, which
divides by their number, not by the sum of the weights: a batch of small weights counts less, as intended
(the curriculum of MacAvaney et al. 2020). Scores in half precision are summed in single precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tamis.base.errors import InputError

# -- one score at a time
# ------------------------------------------------------------------------------------------------------------


def pointwise(margins: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of each text separately, monoBERT's loss (Eq. 15):

        L = - sum over j in Jpos of log s_j - sum over j in Jneg of log(1 - s_j),    s_j = sigmoid(margin_j)

    `labels` are 1 and 0, or anything between for a soft target.

    >>> round(pointwise(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])).item(), 4)
    0.6931
    """
    scores = _exact(margins)
    _same_size(scores, labels, "margins", "labels")
    # from the logits, because log(sigmoid(-100)) is -inf in single precision where the loss is 100
    return _mean(
        F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none"), weights
    )


def duo(margins: Tensor, first_is_better: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of ordered pairs, duoBERT's loss (Eq. 32):

        L = - sum over i in Jpos, j in Jneg of log p_ij - sum over i in Jneg, j in Jpos of log(1 - p_ij)

    with p_ij = sigmoid(margin) the probability that the first text, i, beats the second, j. `first_is_better`
    is true or false, or a teacher's probability.

    >>> round(duo(torch.tensor([2.0, -2.0]), torch.tensor([True, False])).item(), 4)
    0.1269
    """
    return pointwise(margins, first_is_better, weights)


def mse(student: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
    """Squared error between the student's and the teacher's scores:

        L = (s - t)^2

    >>> mse(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])).item()
    2.0
    """
    scores = _exact(student)
    targets = teacher.detach().to(scores.dtype)
    _same_size(scores, targets, "student's scores", "teacher's")
    return _mean((scores - targets).square(), weights)


def logit_mse_ce(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    alpha: float,
    weights: Tensor | None = None,
) -> Tensor:
    """A student's loss on both the labels and its teacher (Eq. 39):

        L = alpha * L_CE + (1 - alpha) * ||r_t - r_s||^2

    with r the logits of teacher and student: one number per example, or a row of one or two. The square is
    summed over a row; L_CE is Eq. 15 for one logit, and the cross-entropy of the softmax for two.

    >>> student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> round(logit_mse_ce(student, teacher, torch.tensor([1]), alpha=0.5).item(), 4)
    2.3466
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha is {alpha}", remedy="use 0 (the teacher alone) to 1 (the labels alone)")
    if student_logits.shape != teacher_logits.shape:
        shapes = f"{tuple(student_logits.shape)} with a teacher's of {tuple(teacher_logits.shape)}"
        raise InputError(f"a student's logits of shape {shapes}", remedy="give both as many labels")
    _same_size(student_logits, labels, "rows of logits", "labels")
    rows = _exact(student_logits).reshape(len(labels), -1)
    targets = teacher_logits.detach().to(rows.dtype).reshape(len(labels), -1)
    squares = (targets - rows).square().sum(dim=1)
    if rows.shape[1] == 1:
        relevant = labels.to(rows.dtype)
        entropies = F.binary_cross_entropy_with_logits(rows[:, 0], relevant, reduction="none")
    else:
        entropies = F.cross_entropy(rows, labels.long(), reduction="none")
    return _mean(alpha * entropies + (1 - alpha) * squares, weights)


# -- pairs
# ------------------------------------------------------------------------------------------------------------


def hinge(better: Tensor, worse: Tensor, margin: float = 1.0, weights: Tensor | None = None) -> Tensor:
    """Pairwise hinge: the better text should score higher by `margin`,

        L = max(0, margin - s_better + s_worse)

    >>> hinge(torch.tensor([2.0, 0.5]), torch.tensor([0.0, 0.0])).item()
    0.25
    """
    high, low = _exact(better), _exact(worse)
    _same_size(high, low, "better", "worse")
    return _mean(F.relu(margin - high + low), weights)


def margin_mse(
    student: Tensor,
    teacher: Tensor,
    offsets: Tensor | None = None,
    pairs: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Squared error between the student's and the teacher's differences of texts (Hofstätter et al. 2020):

        L = mean over pairs (i, j) of ((s_i - s_j) - (t_i - t_j))^2

    Pass `pairs`, rows (i, j) of positions in the scores, or `offsets` for all pairs of each group. With
    e = s - t and m its mean in a group of n, the mean over all its pairs is 2 / (n - 1) * sum of (e_i - m)^2,
    so pairs are never formed. A group of one text has no pairs and does not count.

    >>> student, teacher = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([3.0, 0.0, 0.0])
    >>> round(margin_mse(student, teacher, offsets=torch.tensor([0, 3])).item(), 4)
    2.6667
    >>> margin_mse(student, teacher, pairs=torch.tensor([[0, 1]])).item()
    4.0
    """
    scores = _exact(student)
    targets = teacher.detach().to(scores.dtype)
    _same_size(scores, targets, "student's scores", "teacher's")
    errors = scores - targets
    if (offsets is None) == (pairs is None):
        raise InputError("margins need either pairs or groups", remedy="give either pairs or offsets")
    if pairs is not None:
        if not len(pairs):
            raise _empty()
        return _mean((errors[pairs[:, 0]] - errors[pairs[:, 1]]).square(), weights)
    assert offsets is not None
    groups = _groups(scores, offsets)
    means = _sums(errors, groups) / groups.sizes
    squares = _sums((errors - means[groups.members]).square(), groups)
    return _mean(squares * 2 / (groups.sizes - 1).clamp(min=1), weights, counted=groups.sizes > 1)


# -- lists
# ------------------------------------------------------------------------------------------------------------


def list_scores(margins: Tensor, pairs: Tensor, texts: int) -> Tensor:
    """The scores of a list's texts by a pairwise model, for the losses over lists: the mean of a text's
    margins against the others, in both orders,

        s_i = sum over j of (m_ij - m_ji) / (2 (n - 1))

    `pairs` are rows (i, j) of positions, with all n (n - 1) ordered pairs of each list. If m_ij is t_i - t_j
    for some t, then the differences of s are those of t times n / (n - 1).

    >>> pairs = torch.tensor([[0, 1], [1, 0]])
    >>> list_scores(torch.tensor([3.0, -1.0]), pairs, 2).tolist()
    [2.0, -2.0]
    """
    scores = _exact(margins)
    zeros = torch.zeros(texts, dtype=scores.dtype, device=scores.device)
    signed = zeros.index_add(0, pairs[:, 0], scores).index_add(0, pairs[:, 1], -scores)
    met = zeros.index_add(0, pairs.reshape(-1), torch.ones_like(scores).repeat(2))
    return signed / met.clamp(min=1)


def softmax(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy over each group, of the softmax's mass on its relevant texts,

        L = - log( sum over positives of exp(s_i) / sum over the group of exp(s_j) )

    With one positive per group, and negatives from the candidates, this is the localised contrastive
    estimation of Gao et al. 2021. A group without a positive does not count; if there is no positive at all
    the loss is 0.

    >>> scores, offsets = torch.tensor([0.0, 0.0, 0.0, 5.0]), torch.tensor([0, 3, 4])
    >>> labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> round(softmax(scores, labels, offsets).item(), 4)  # log 3; the second group has no positive
    1.0986
    """
    logits = _exact(scores)
    _same_size(logits, labels, "scores", "labels")
    groups = _groups(logits, offsets)
    relevant = labels > 0
    whole = _log_sums(logits, groups)
    # masked before exp: a negative far above every positive would overflow, and inf * 0 is NaN
    positive = _log_sums(logits.masked_fill(~relevant, -torch.inf), groups)
    has_positive = _sums(relevant.to(logits.dtype), groups) > 0
    return _mean(torch.where(has_positive, whole - positive, 0.0), weights, counted=has_positive)


def listwise(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of the softmax over each group (Eqs. 37 and 38; Ai et al. 2019):

        L = - sum of w_i y_i log p_i,    p_i = exp(t_i) / sum over the group of exp(t_j)

    y_i is the label, which may be a grade, and w_i a weight of its text, by default 1: if labels are clicks,
    the inverse of the propensity of its position. Unlike in `softmax`, each of several positives must have a
    high score; with one positive the two losses are equal. A group without a positive does not count.

    >>> scores, offsets = torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 2, 3])
    >>> round(listwise(scores, torch.tensor([1.0, 1.0, 0.0]), offsets).item(), 4)  # 2 log 2
    1.3863
    """
    logits = _exact(scores)
    _same_size(logits, labels, "scores", "labels")
    groups = _groups(logits, offsets)
    relevance = labels.to(logits.dtype)
    has_positive = _sums(relevance, groups) > 0
    if weights is not None:
        _same_size(logits, weights, "scores", "weights")
        relevance = relevance * weights.to(logits.dtype)
    surprise = _log_sums(logits, groups)[groups.members] - logits  # -log p_i
    return _mean(_sums(relevance * surprise, groups), None, counted=has_positive)


def kl(
    student: Tensor,
    teacher: Tensor,
    offsets: Tensor,
    temperature: float = 1.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Divergence of the student's distribution over each group from the teacher's,

        L = sum of p_i * (log p_i - log q_i),    p = softmax(t / temperature), q = softmax(s)

    Only the teacher's scores are divided: they may be cosines, z-scores or logits, while the student learns
    its own scale. A temperature below 1 sharpens the teacher's distribution.

    >>> student, teacher = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    >>> round(kl(student, teacher, torch.tensor([0, 2])).item(), 4)
    0.1109
    """
    if not temperature > 0:
        raise InputError(f"a temperature of {temperature}", remedy="use a number above 0")
    logits = _exact(student)
    targets = teacher.detach().to(logits.dtype) / temperature
    _same_size(logits, targets, "student's scores", "teacher's")
    groups = _groups(logits, offsets)
    log_q = logits - _log_sums(logits, groups)[groups.members]
    log_p = targets - _log_sums(targets, groups)[groups.members]
    return _mean(_sums(log_p.exp() * (log_p - log_q), groups), weights)


# -- concatenated groups
# ------------------------------------------------------------------------------------------------------------


class _Groups(NamedTuple):
    members: Tensor  # int64[n]: the group of each score
    sizes: Tensor  # int64[groups]


def _groups(scores: Tensor, offsets: Tensor) -> _Groups:
    count = len(offsets) - 1
    if count < 1:
        raise _empty()
    if offsets.device.type == "cpu":
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(scores):
            raise InputError(
                f"groups from {int(offsets[0])} to {int(offsets[-1])} of {len(scores)} scores",
                remedy="give offsets from 0 to the number of scores",
            )
        if int(offsets.diff().min()) < 1:
            raise InputError("a group without a text", remedy="leave it out")
    sizes = offsets.to(scores.device).diff()
    numbers = torch.arange(count, device=scores.device)
    # with the size known, there is no wait for a GPU
    return _Groups(torch.repeat_interleave(numbers, sizes, output_size=len(scores)), sizes)


def _sums(values: Tensor, groups: _Groups) -> Tensor:
    return values.new_zeros(len(groups.sizes)).index_add(0, groups.members, values)


def _log_sums(values: Tensor, groups: _Groups) -> Tensor:
    """log of the sum of exp(values) of each group; 0 for a group whose values are all -inf."""
    lowest = torch.full((len(groups.sizes),), -torch.inf, dtype=values.dtype, device=values.device)
    largest = lowest.scatter_reduce(0, groups.members, values.detach(), "amax")
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    sums = _sums((values - largest[groups.members]).exp(), groups)
    return torch.where(sums > 0, sums, 1.0).log() + largest


# -- means and checks
# ------------------------------------------------------------------------------------------------------------


def _mean(losses: Tensor, weights: Tensor | None, counted: Tensor | None = None) -> Tensor:
    """The mean of the weighted losses; if only some are counted, the others are zero."""
    if not len(losses):
        raise _empty()
    if weights is not None:
        _same_size(losses, weights, "losses", "weights")
        losses = losses * weights.to(losses.dtype)
    if counted is None:
        return losses.mean()
    return losses.sum() / counted.sum().clamp(min=1)


def _exact(scores: Tensor) -> Tensor:
    return scores if scores.dtype == torch.float64 else scores.float()


def _same_size(one: Tensor, other: Tensor, names: str, other_names: str) -> None:
    if not len(one):
        raise _empty()
    if len(one) != len(other):
        raise InputError(f"{len(one)} {names} with {len(other)} {other_names}", remedy="give as many of each")


def _empty() -> InputError:
    return InputError("an empty batch has no loss", remedy="give at least one example, pair or group")
