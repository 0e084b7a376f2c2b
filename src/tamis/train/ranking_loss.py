"""The loss of a batch of examples: the one of `tamis.train.losses` that a recipe chooses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.train import losses
from tamis.train.batch import RankingBatch, couples
from tamis.train.recipe import Loss


def ranking_loss(margins: Tensor, batch: RankingBatch, loss: Loss) -> Tensor:
    """The loss of a batch whose inputs have these margins.

    >>> from tamis.models.templates import Inputs
    >>> inputs = Inputs(np.zeros(2, np.int32), np.zeros(2, np.uint8), np.arange(3))
    >>> batch = RankingBatch(inputs, np.array([0, 2]), np.array([1.0, 0.0]), None, np.ones(1))
    >>> ranking_loss(torch.zeros(2), batch, Loss("hinge", margin=0.5)).item()
    0.5
    """
    if loss.taught and batch.teacher is None:
        raise InputError(
            f"the loss {loss.name} needs a teacher's scores, and a group has none",
            remedy="give scores to all, or use a loss that learns from labels",
        )

    expected = len(batch.labels) if batch.pairs is None else len(batch.pairs)
    if margins.shape != (expected,):
        raise InputError(
            f"the network gives {list(margins.shape)} where {expected:,} scores are expected",
            remedy="return one number for each thing that is scored from forward",
        )

    def there(values: Array) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(values))
        if margins.is_cuda:  # from pinned memory, so that nothing waits for the copy
            return host.pin_memory().to(margins.device, non_blocking=True)
        return host.to(margins.device)

    labels, offsets, weights = there(batch.labels), there(batch.offsets), there(batch.weights)
    each = there(np.repeat(batch.weights, np.diff(batch.offsets)))  # the weight of each input
    teacher = None if batch.teacher is None else there(batch.teacher)
    if batch.pairs is not None:
        margins = losses.list_scores(margins, there(batch.pairs), len(batch.labels))
    if loss.name in ("pointwise", "duo"):
        target = labels
        if teacher is not None and loss.alpha < 1:
            target = loss.alpha * labels + (1 - loss.alpha) * torch.sigmoid(teacher / loss.temperature)
        return batch.portion.texts * losses.pointwise(margins, target, each)
    if loss.name == "logit_mse_ce":
        taught = torch.zeros_like(margins) if teacher is None else teacher
        return batch.portion.texts * losses.logit_mse_ce(margins, taught, labels, loss.alpha, each)
    if loss.name == "hinge":
        scores = torch.sigmoid(margins) if loss.probabilities else margins
        better, worse = map(there, couples(batch.labels, batch.offsets))
        if not len(better):  # queries that have only a teacher's scores
            return 0.0 * margins.sum()
        found = losses.hinge(scores[better], scores[worse], loss.margin, each[better])
        return batch.portion.couples * found
    if loss.name == "softmax":
        return batch.portion.answered * losses.softmax(margins, labels, offsets, weights)
    if loss.name == "listwise":
        return batch.portion.answered * losses.listwise(margins, labels, offsets, each)
    assert teacher is not None
    if loss.name == "margin_mse":
        found = losses.margin_mse(margins, teacher, offsets=offsets, weights=weights)
        learned = batch.portion.several * found
    else:
        learned = losses.kl(margins, teacher, offsets, loss.temperature, weights)
    if not loss.labels:
        return learned
    labelled = batch.portion.answered * losses.softmax(margins, labels, offsets, weights)
    return learned + loss.labels * labelled
