"""An architecture: late interaction. Each word of the query looks for the word of the text that is most like
it (Khattab & Zaharia 2020), here in what one encoder makes of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.base.errors import InputError
from tamis.models.architecture import QUERY, TEXT, Architecture, Inputs, Part, Reading
from tamis.models.network import Encoder, Network
from tamis.models.settings import Count, NotNegative, Settings, Text
from tamis.train.learning import Learning, RankingBatch


class LateSettings(Settings):
    """How words are compared."""

    width: Count = 16  # of the vectors that are compared
    prompt: Text = "text :"  # before each text
    calm: NotNegative = 0.01  # in training: how much large scores cost


class LateNetwork(Network):
    """The mean over the words of the query of the largest cosine with a word of the text."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__(encoder)
        self.project = nn.Linear(encoder.config.hidden, width)
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, inputs: Inputs) -> Tensor:
        vectors = F.normalize(self.project(self.token_states(inputs)), dim=1)
        of_text = torch.from_numpy(inputs.segments == 1).to(vectors.device)
        scores = []
        for start, stop in zip(inputs.offsets[:-1].tolist(), inputs.offsets[1:].tolist(), strict=True):
            own, there = vectors[start:stop], of_text[start:stop]
            scores.append((own[~there] @ own[there].T).amax(dim=1).mean())
        return self.scale * torch.stack(scores)

    def freeze(self) -> None:
        assert self.encoder is not None
        self.encoder.head.requires_grad_(False)  # no score depends on it


class LateLearning(Learning):
    """The loss of the recipe, and a price for large scores."""

    def loss(self, network: Network, batch: RankingBatch) -> Tensor:
        scores: Tensor = network(batch.inputs)
        return self.ranking_loss(scores, batch) + self.kind.settings.calm * scores.square().mean()


class Late(Architecture):
    """Late interaction: `[CLS] q [SEP] text : d [SEP]`, every word of q with the most similar word of d."""

    name = "late"
    Settings = LateSettings
    query_limit = 12
    learning = LateLearning

    def parts(self, reading: Reading) -> Sequence[Part]:
        prompt = [*reading.words(self.settings.prompt)]
        cls, sep = [reading.special.cls], [reading.special.sep]
        return [(0, cls), (0, QUERY), (0, sep), (1, prompt), (1, TEXT), (1, sep)]

    def network(self, checkpoint: Any) -> Network:
        return LateNetwork.of(checkpoint, self.settings.width)

    def check_recipe(self, recipe: Any) -> None:
        if recipe.examples.random:
            raise InputError("late learns from candidates", remedy="leave out random")
