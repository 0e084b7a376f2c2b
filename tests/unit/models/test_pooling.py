"""The heads over passages by hand: PARADE's, Birch-Passage's and PCGM's."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models.config import EncoderConfig  # noqa: E402
from tamis.models.pooling import (  # noqa: E402
    Attentive,
    Convolutional,
    CumulativeGain,
    Pool,
    TopScores,
    Transformer,
    gain_loss,
)


@pytest.fixture(autouse=True)
def one_thread_and_seed(one_thread):
    torch.manual_seed(0)


def mask(*rows):
    return torch.tensor(rows).bool()


@pytest.mark.parametrize(
    ("pooling", "expected"), [("avg", 2 * 2 - 1), ("sum", 2 * 4 - 2), ("max", 2 * 3 - 4)]
)
def test_pools(pooling, expected):
    pool = Pool(2, pooling)
    with torch.no_grad():
        pool.score.weight.copy_(torch.tensor([[2.0, -1.0]]))
    passages = torch.tensor([[[1.0, -2.0], [3.0, 4.0], [99.0, 99.0]]])
    assert pool(passages, mask([1, 1, 0])).item() == pytest.approx(expected)


def test_the_average_divides_by_a_documents_own_count():
    """Not by the batch's: a trap of peers.md."""
    pool = Pool(1, "avg")
    with torch.no_grad():
        pool.score.weight.fill_(1.0)
    passages = torch.tensor([[[3.0], [0.0], [0.0]], [[3.0], [3.0], [3.0]]])
    assert pool(passages, mask([1, 0, 0], [1, 1, 1])).tolist() == pytest.approx([3.0, 3.0])


def test_a_padding_passage_never_wins():
    pool = Pool(1, "max")
    with torch.no_grad():
        pool.score.weight.fill_(1.0)
    assert pool(torch.tensor([[[-5.0], [0.0]]]), mask([1, 0])).item() == -5.0


def test_attention():
    attentive = Attentive(2)
    with torch.no_grad():
        attentive.weigh.weight.copy_(torch.tensor([[1.0, 0.0]]))
        attentive.score.weight.copy_(torch.tensor([[0.0, 1.0]]))
    passages = torch.tensor([[[0.0, 1.0], [math.log(3), 5.0], [9.0, 9.0]]])
    # weights 1/4 and 3/4
    assert attentive(passages, mask([1, 1, 0])).item() == pytest.approx(0.25 * 1 + 0.75 * 5, rel=1e-6)


def test_convolutions_halve_four_times():
    cnn = Convolutional(1)
    with torch.no_grad():
        for convolution in cnn.convolutions:
            convolution.weight.copy_(torch.tensor([[[1.0, 0.5]]]))  # x_left + x_right / 2
            convolution.bias.fill_(0.25)
        for parameter in cnn.score.parameters():
            parameter.fill_(1.0)
    # three passages: (1 + 2/2 + .25, 4 + .25) -> (2.25 + 4.25/2 + .25) -> 4.625 + .25 -> 4.875 + .25
    found = cnn(torch.tensor([[[1.0], [2.0], [4.0]]]), mask([1, 1, 1]))
    assert found.item() == pytest.approx(5.125 + 1 + 1)  # hidden 1 x + 1, output 1 h + 1
    # 17 passages leave two, whose scores are summed
    many = cnn(torch.zeros(1, 17, 1), mask([1] * 17))
    left = [0.0] * 16
    while len(left) > 1:
        left = [max(a + b / 2 + 0.25, 0) for a, b in zip(left[::2], left[1::2], strict=True)]
    alone = 0.25 * 4
    assert many.item() == pytest.approx((left[0] + 2) + (alone + 2))


def test_convolutions_and_their_network_pass_on_nothing_below_zero():
    cnn = Convolutional(1)
    with torch.no_grad():
        for convolution in cnn.convolutions:
            convolution.weight.fill_(1.0)
            convolution.bias.fill_(0.25)
        for parameter in cnn.score.parameters():
            parameter.fill_(1.0)
    passage = torch.tensor([[[-3.0]]])
    # -3 + .25 becomes 0, and the other three layers add .25 each
    assert cnn(passage, mask([1])).item() == pytest.approx(0.75 + 1 + 1)
    with torch.no_grad():
        cnn.score[0].weight.fill_(-2.0)
    assert cnn(passage, mask([1])).item() == pytest.approx(0.0 + 1)  # hidden -2 x + 1 is below 0


def test_what_is_left_of_no_passages_has_no_score():
    cnn = Convolutional(4)
    passages = torch.randn(1, 20, 4)  # of which 16 and 4 become one each
    few = mask([1] * 3 + [0] * 17)
    assert cnn(passages, few).item() == pytest.approx(cnn(passages[:, :3], few[:, :3]).item(), abs=1e-6)


def test_the_transformer_reads_cls_first_and_its_own_positions():
    config = EncoderConfig("bert", vocabulary=9, hidden=4, layers=1, heads=2, feed_forward=8, dropout=0.0)
    cls = torch.randn(4)
    model = Transformer(config, cls, passages=3).eval()
    assert torch.equal(model.cls.detach(), cls)
    assert len(model.layers) == 2  # of the paper, whatever the encoder has
    passages = torch.randn(1, 2, 4)
    x = torch.cat([cls[None, None], passages], 1) + model.positions[:3]
    for layer in model.layers:  # by torch's own attention, one head at a time
        qkv = layer.attention.qkv(x)
        q, k, v = qkv.split(4, dim=-1)
        heads = []
        for part in (slice(0, 2), slice(2, 4)):
            weights = (q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(2)).softmax(-1)
            heads.append(weights @ v[..., part])
        x = layer.attention.norm(x + layer.attention.output(torch.cat(heads, -1)))
        x = layer.feed_forward(x)
    expected = (x[0, 0] @ model.score.weight[0]).item()
    assert model(passages, mask([1, 1])).item() == pytest.approx(expected, rel=1e-5)


def test_birch_passage():
    top = TopScores()
    scores = torch.tensor([[5.0, -1.0, 2.0, 4.0, 99.0], [-3.0, 0.0, 0.0, 0.0, 0.0]])
    assert top(scores, mask([1, 1, 1, 1, 0], [1, 0, 0, 0, 0])).tolist() == [11.0, -3.0]
    with torch.no_grad():
        top.score.weight.copy_(torch.tensor([[1.0, 0.5, 0.1]]))
    assert top(scores[:1], mask([1, 1, 1, 1, 0])).item() == pytest.approx(5 + 2 + 0.2)


def test_pcgm_reads_gain_by_gain():
    model = CumulativeGain(2, gains=3)
    with torch.no_grad():
        model.gain.bias.copy_(
            torch.tensor([0.0, 5.0, 0.0])
        )  # so that the first gain is not the one of nothing
    passages = torch.randn(1, 3, 2)
    state, before = (torch.zeros(1, 2), torch.zeros(1, 2)), 0
    for step in range(2):  # the third is masked
        entry = torch.cat([passages[:, step], model.embedding.weight[before][None]], 1)
        state = model.cell(entry, state)
        chances = model.gain(state[0]).softmax(1)[0].tolist()
        before = int(np.argmax(chances))
        assert before == 1
    expected = chances[1] + 2 * chances[2]
    assert model(passages, mask([1, 1, 0])).item() == pytest.approx(expected, rel=1e-6)


def test_gain_loss_counts_known_gains_only():
    logits = torch.tensor([[[0.0, math.log(3)], [7.0, -7.0]]])
    assert gain_loss(logits, torch.tensor([[1, -1]])).item() == pytest.approx(math.log(4 / 3), rel=1e-5)
    assert gain_loss(logits, torch.tensor([[-1, -1]])).item() == 0.0
