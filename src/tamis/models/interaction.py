"""Interaction models: they score matrices of similarities between a query's and a document's terms.

    KNRM    Xiong et al. 2017: kernels count the document's terms softly at each degree of similarity
    PACRR   Hui et al. 2017: convolutions find n-grams; each query term keeps its best k
    DRMM    Guo et al. 2016: histograms of each query term's similarities

Each takes similarities [B, C, Q, D] with masks [B, Q] and [B, D], True where there is a term. There are C
matrices per document: one with static embeddings, one per layer in CEDR (MacAvaney et al. 2019). CEDR also
appends the document's [CLS] vector [B, H] to the signals; `cls` is its width. The scoring networks are those
of CEDR. Padding does not influence the scores, whatever its values and its size.

Names in comments: B documents, C matrices (channels), Q query terms, D document terms.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: From the paper: one kernel for exact matches, ten that cover the range from -1 to 1.
KERNEL_MEANS = (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
KERNEL_WIDTHS = (0.1,) * 10 + (0.001,)
_SMALL = 1e-6  # avoids the logarithm of 0, for a kernel without any match


def cosines(queries: Tensor, documents: Tensor) -> Tensor:
    """Similarities [B, Q, D] of vectors [B, Q, H] and [B, D, H]; those of a zero vector are 0.

    >>> cosines(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[6.0, 8.0], [4.0, -3.0], [0.0, 0.0]]])).tolist()
    [[[1.0, 0.0, 0.0]]]
    """
    return F.normalize(queries, dim=-1) @ F.normalize(documents, dim=-1).transpose(1, 2)


def soft_counts(
    similarity: Tensor, query_mask: Tensor, document_mask: Tensor, means: Tensor, widths: Tensor
) -> Tensor:
    """KNRM's features [B, C, kernels], a logarithm of soft term frequencies for each kernel k:

        phi_k = sum over i of log sum over j of exp(-(M_ij - mu_k)^2 / 2 sigma_k^2)

    >>> similarity, masks = torch.tensor([[[[1.0, 0.9]]]]), (torch.ones(1, 1).bool(), torch.ones(1, 2).bool())
    >>> soft_counts(similarity, *masks, torch.tensor([0.9]), torch.tensor([0.1])).item()  # log(e^-0.5 + 1)
    0.474...
    """
    here = document_mask[:, None, None]
    counts = []
    for mean, width in zip(
        means, widths, strict=True
    ):  # one kernel at a time: all at once need 11 times the memory
        close = torch.exp(-((similarity - mean) ** 2) / (2 * width**2))
        counts.append(torch.log((close * here).sum(3) + _SMALL))  # [B, C, Q]
    return (torch.stack(counts, -1) * query_mask[:, None, :, None]).sum(2)


class KNRM(nn.Module):
    """One layer over the kernels of all matrices; the kernels are trained too. (The paper's tanh of the score
    does not change the ranking, and CEDR omits it.)

    >>> masks = torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    >>> KNRM(channels=4)(torch.rand(2, 4, 3, 5), *masks).shape
    torch.Size([2])
    """

    def __init__(self, channels: int, cls: int = 0) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.tensor(KERNEL_MEANS))
        self.widths = nn.Parameter(torch.tensor(KERNEL_WIDTHS))
        self.score = nn.Linear(channels * len(KERNEL_MEANS) + cls, 1)

    def forward(
        self, similarity: Tensor, query_mask: Tensor, document_mask: Tensor, cls: Tensor | None = None
    ) -> Tensor:
        features = soft_counts(similarity, query_mask, document_mask, self.means, self.widths)
        return cast(Tensor, self.score(_joined(features.flatten(1), cls))).squeeze(1)


class PACRR(nn.Module):
    """Convolutions of 1, 2 and 3 terms, with 32 filters each. At every position the strongest filter counts;
    each query term keeps its k best positions. Three layers compute the score from these, with the terms in
    the order of the query, so that queries have a maximum length.

    >>> masks = torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    >>> PACRR(channels=4, query=8)(torch.rand(2, 4, 3, 5), *masks).shape
    torch.Size([2])
    """

    def __init__(
        self, channels: int, query: int, cls: int = 0, *, ngrams: int = 3, filters: int = 32, k: int = 2
    ) -> None:
        super().__init__()
        self.query, self.k = query, k
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, filters, n) for n in range(1, ngrams + 1))
        self.score = nn.Sequential(
            nn.Linear(query * ngrams * k + cls, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(
        self, similarity: Tensor, query_mask: Tensor, document_mask: Tensor, cls: Tensor | None = None
    ) -> Tensor:
        features = self.features(similarity, query_mask, document_mask)
        whole = F.pad(features, (0, 0, 0, self.query - features.shape[1]))
        return cast(Tensor, self.score(_joined(whole.flatten(1), cls))).squeeze(1)

    def features(self, similarity: Tensor, query_mask: Tensor, document_mask: Tensor) -> Tensor:
        """The k strongest n-grams of each query term, [B, Q, n k]; 0 if there are fewer."""
        # a convolution needs at least one term, and `topk` at least k positions
        terms, places = max(1 - similarity.shape[2], 0), max(self.k - similarity.shape[3], 0)
        similarity = F.pad(similarity, (0, places, 0, terms))
        query_mask, document_mask = F.pad(query_mask, (0, terms)), F.pad(document_mask, (0, places))
        there = query_mask[:, None, :, None] & document_mask[:, None, None]
        cleared = similarity * there
        found = []
        for n, convolution in enumerate(self.convolutions):
            # zeros after the last term: an n-gram may extend n - 1 terms beyond it
            strength = F.relu(convolution(F.pad(cleared, (0, n, 0, n)))).amax(1)  # [B, Q, D]
            # in padding a convolution still returns its bias, which must not be among the best
            found.append((strength * there[:, 0]).topk(self.k, dim=2).values)
        return torch.cat(found, 2)


class DRMM(nn.Module):
    """Scores each query term from the histograms of its similarities, one per matrix; the document's score is
    the sum. Counting has no gradient, so the encoder behind the similarities does not learn.

    >>> masks = torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    >>> DRMM(channels=4)(torch.rand(2, 4, 3, 5), *masks).shape
    torch.Size([2])
    """

    def __init__(self, channels: int, cls: int = 0, *, bins: int = 11, hidden: int = 5) -> None:
        super().__init__()
        self.bins = bins
        self.score = nn.Sequential(nn.Linear(channels * bins + cls, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(
        self, similarity: Tensor, query_mask: Tensor, document_mask: Tensor, cls: Tensor | None = None
    ) -> Tensor:
        terms = similarity.shape[2]
        features = log_counts(similarity, document_mask, self.bins).transpose(1, 2).flatten(2)
        each = None if cls is None else cls[:, None].expand(-1, terms, -1)
        scores = self.score(_joined(features, each)).squeeze(2)  # [B, Q]
        return cast(Tensor, (scores * query_mask).sum(1))


def log_counts(similarity: Tensor, document_mask: Tensor, bins: int) -> Tensor:
    """Histograms [B, C, Q, bins] over similarities from -1 to 1, log(1 + count); the last bin holds only
    exact matches.

    >>> log_counts(torch.tensor([[[[1.0, 0.9, -1.0]]]]), torch.tensor([[True, True, False]]), 3).tolist()
    [[[[0.0, 0.693..., 0.693...]]]]
    """
    # 1e-6, because rounding can make the cosine of a vector with itself less than 1
    bin = ((similarity.detach() + 1 + 1e-6) / 2 * (bins - 1)).long().clamp(0, bins - 1)
    ones = document_mask[:, None, None].expand_as(bin).to(similarity.dtype)
    counts = torch.zeros(*bin.shape[:3], bins, dtype=similarity.dtype, device=similarity.device)
    return torch.log1p(counts.scatter_add_(3, bin, ones))


def _joined(features: Tensor, cls: Tensor | None) -> Tensor:
    return features if cls is None else torch.cat([features, cls], -1)


def interaction(kind: str, channels: int, query: int, cls: int) -> nn.Module:
    """The model with this name over `channels` matrices; `cls` is the width of the [CLS] appended to the
    signals.

    >>> interaction("knrm", channels=3, query=8, cls=8).score  # 3 x 11 kernels, [CLS]
    Linear(in_features=41, out_features=1, bias=True)
    """
    if kind == "pacrr":
        return PACRR(channels, query, cls)
    return KNRM(channels, cls) if kind == "knrm" else DRMM(channels, cls)
