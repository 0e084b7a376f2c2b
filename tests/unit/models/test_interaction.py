"""KNRM, PACRR and DRMM against values computed by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models.interaction import (  # noqa: E402
    DRMM,
    KERNEL_MEANS,
    KERNEL_WIDTHS,
    KNRM,
    PACRR,
    cosines,
    log_counts,
    soft_counts,
)

MODELS = {
    "knrm": lambda cls=0: KNRM(2, cls),
    "pacrr": lambda cls=0: PACRR(2, 6, cls),
    "drmm": lambda cls=0: DRMM(2, cls),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def masks(queries, documents):
    return torch.tensor([queries]).bool(), torch.tensor([documents]).bool()


# -- KNRM


def test_the_papers_kernels():
    assert KERNEL_MEANS == (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    assert KERNEL_WIDTHS[-1] == 0.001 and set(KERNEL_WIDTHS[:-1]) == {0.1}


def test_soft_counts_by_hand():
    similarity = torch.tensor([[[[1.0, 0.5, 0.3], [0.1, -0.9, 0.7]]]])
    found = soft_counts(
        similarity, *masks([1, 1], [1, 1, 0]), torch.tensor([0.5, 1.0]), torch.tensor([0.1, 0.001])
    )

    def kernel(s, mu, sigma):
        return math.exp(-((s - mu) ** 2) / (2 * sigma**2))

    expected = []
    for mu, sigma in ((0.5, 0.1), (1.0, 0.001)):
        rows = [
            kernel(1.0, mu, sigma) + kernel(0.5, mu, sigma),
            kernel(0.1, mu, sigma) + kernel(-0.9, mu, sigma),
        ]
        expected.append(sum(math.log(row + 1e-6) for row in rows))
    assert found.tolist()[0][0] == pytest.approx(expected, rel=1e-5)


def test_a_masked_query_term_counts_for_nothing():
    similarity = torch.rand(1, 3, 2, 4)
    means, widths = torch.tensor(KERNEL_MEANS), torch.tensor(KERNEL_WIDTHS)
    one = soft_counts(similarity[:, :, :1], *masks([1], [1] * 4), means, widths)
    assert torch.equal(soft_counts(similarity, *masks([1, 0], [1] * 4), means, widths), one)


def test_knrm_is_one_layer_over_kernels_and_cls():
    model = KNRM(channels=1, cls=2)
    with torch.no_grad():
        model.score.weight.zero_()
        model.score.bias.fill_(0.25)
        model.score.weight[0, 10] = 2.0  # exact matches
        model.score.weight[0, 11:] = torch.tensor([1.0, -1.0])
    similarity = torch.tensor([[[[1.0, 1.0, 0.2]]]])
    score = model(similarity, *masks([1], [1, 1, 1]), torch.tensor([[3.0, 5.0]]))
    assert score.item() == pytest.approx(2 * math.log(2 + 1e-6) + 3 - 5 + 0.25, rel=1e-5)


def test_its_kernels_are_trained():
    model = KNRM(channels=1)
    model(torch.rand(1, 1, 2, 3), *masks([1, 1], [1, 1, 1])).sum().backward()
    assert model.means.grad.abs().sum() > 0 and model.widths.grad.abs().sum() > 0


# -- PACRR


def pacrr_of_ones(ngrams, bias=0.0):
    model = PACRR(channels=1, query=3, ngrams=ngrams, filters=2, k=2)
    with torch.no_grad():
        for convolution in model.convolutions:
            convolution.weight[0] = 1.0  # the sum of an n by n window
            convolution.weight[1] = -1.0
            convolution.bias.fill_(bias)
    return model


def test_ngrams_and_the_best_k_by_hand():
    similarity = torch.tensor([[[[0.9, 0.1, -0.6], [0.2, 0.8, 0.4]]]])
    found = pacrr_of_ones(2).features(similarity, *masks([1, 1], [1, 1, 1]))
    # one term: the larger of s and -s; the two best of each row
    assert found[0, :, :2].tolist() == [pytest.approx([0.9, 0.6]), pytest.approx([0.8, 0.4])]
    # two by two windows, zeros beyond the edge: row 0 has 0.9+0.1+0.2+0.8, 0.1-0.6+0.8+0.4, -0.6+0.4
    assert found[0, 0, 2:].tolist() == pytest.approx([2.0, 0.7])
    # row 1 has nothing below it: 0.2+0.8, 0.8+0.4, 0.4
    assert found[0, 1, 2:].tolist() == pytest.approx([1.2, 1.0])


def test_a_bias_does_not_make_masked_places_the_best():
    similarity = torch.tensor([[[[0.5, 0.25, 0.0, 0.0]]]])
    found = pacrr_of_ones(1, bias=9.0).features(similarity, *masks([1], [1, 0, 0, 0]))
    assert found[0, 0].tolist() == pytest.approx([9.5, 0.0])


def test_a_document_shorter_than_k_and_an_empty_one():
    model = pacrr_of_ones(3)
    assert model.features(torch.full((1, 1, 1, 1), 0.5), *masks([1], [1])).tolist() == [
        [pytest.approx([0.5, 0, 0.5, 0, 0.5, 0])]
    ]
    nothing = torch.zeros(1, 1, 1, 0), torch.ones(1, 1).bool(), torch.zeros(1, 0).bool()
    assert model.features(*nothing).abs().sum() == 0
    assert math.isfinite(model(*nothing).item())


def test_pacrrs_figures():
    """32 filters of 1, 2 and 3 terms, the best two of each, and CEDR's layers of 32, 32 and 1."""
    model = PACRR(channels=13, query=4, cls=8)
    assert [(each.in_channels, each.out_channels) for each in model.convolutions] == [(13, 32)] * 3
    assert [each.kernel_size for each in model.convolutions] == [(1, 1), (2, 2), (3, 3)]
    assert model.features(torch.rand(1, 13, 4, 9), *masks([1] * 4, [1] * 9)).shape == (1, 4, 3 * 2)
    layers = [each for each in model.score if isinstance(each, torch.nn.Linear)]
    assert [each.in_features for each in layers] == [4 * 3 * 2 + 8, 32, 32]
    assert layers[-1].out_features == 1


def test_pacrr_scores_terms_in_their_order():
    model = PACRR(channels=1, query=2)
    similarity = torch.rand(1, 1, 2, 5)
    whole = masks([1, 1], [1] * 5)
    assert model(similarity, *whole).item() != pytest.approx(model(similarity.flip(2), *whole).item())


# -- DRMM


def test_histograms_by_hand():
    similarity = torch.tensor([[[[1.0, 0.999, 0.0, -1.0, 0.05]]]])
    counts = log_counts(similarity, torch.tensor([[True, True, True, True, False]]), 11)[0, 0, 0]
    # bins of 0.2: -1 is in the first, 0 in the sixth, 0.999 in the tenth, 1 alone in the last
    expected = [0.0] * 11
    for bin in (0, 5, 9, 10):
        expected[bin] = math.log(2)
    assert counts.tolist() == pytest.approx(expected)
    seven = log_counts(torch.full((1, 1, 1, 7), 0.5), torch.ones(1, 7).bool(), 11)
    assert seven.max().item() == pytest.approx(math.log(8))


def test_the_cosine_of_a_vector_with_itself_is_an_exact_match():
    vectors = torch.randn(1, 200, 48)
    exact = torch.diagonal(cosines(vectors, vectors), dim1=1, dim2=2)[:, None, None]
    counts = log_counts(exact, torch.ones(1, 200).bool(), 11)[0, 0, 0]
    assert counts[10].item() == pytest.approx(math.log(201))


def test_drmms_figures():
    """11 bins a matrix, and CEDR's layers of 5 and 1."""
    first, _, last = DRMM(channels=13, cls=8).score
    assert (first.in_features, first.out_features) == (13 * 11 + 8, 5)
    assert (last.in_features, last.out_features) == (5, 1)


def test_drmm_sums_the_scores_of_its_terms():
    model = DRMM(channels=1, cls=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.score[0].weight[0, 10] = 1.0  # exact matches
        model.score[0].weight[1, 11] = 1.0  # [CLS]
        model.score[2].weight[0, :2] = torch.tensor([1.0, 10.0])
    similarity = torch.tensor([[[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]]])
    score = model(similarity, *masks([1, 1, 0], [1, 1]), torch.tensor([[0.5]]))
    assert score.item() == pytest.approx(math.log(2) + math.log(3) + 2 * 10 * 0.5, rel=1e-6)


# -- all three


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cls", [0, 3])
def test_gradients_reach_every_parameter(name, cls):
    model = MODELS[name](cls)
    vectors = torch.randn(4, cls) if cls else None
    similarity = torch.rand(4, 2, 6, 9) * 2 - 1
    model(similarity, torch.ones(4, 6).bool(), torch.ones(4, 9).bool(), vectors).pow(2).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_query_and_an_empty_document_have_a_score(name):
    model = MODELS[name]()
    empty = model(torch.zeros(1, 2, 0, 0), torch.ones(1, 0).bool(), torch.ones(1, 0).bool())
    assert torch.isfinite(empty).all() and empty.shape == (1,)
