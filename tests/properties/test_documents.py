"""Invariants of models of long documents: a score is a document's own."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models.config import EncoderConfig  # noqa: E402
from tamis.models.documents import Layout  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.interaction import DRMM, KNRM, PACRR  # noqa: E402
from tamis.models.pooling import (  # noqa: E402
    Attentive,
    Convolutional,
    CumulativeGain,
    Pool,
    TopScores,
    Transformer,
)
from tamis.models.templates import Special  # noqa: E402
from tests.unit.models.builders import (  # noqa: E402
    DOCUMENTS,
    STATIC,
    config_of,
    document_model,
    read_documents,
)

SPECIAL = Special(cls=1, sep=2)
CONFIG = EncoderConfig("bert", 40, hidden=8, layers=2, heads=2, feed_forward=16, positions=32)
H = 8

tokens = st.integers(3, 39)
queries = st.lists(tokens, max_size=6)
texts = st.lists(st.lists(tokens, max_size=40), min_size=1, max_size=5)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model(kind):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        encoder = Encoder(CONFIG)
        for parameter in encoder.parameters():  # so that different texts have clearly different scores
            torch.nn.init.normal_(parameter, std=0.3)
        torch.manual_seed(5)
        made = document_model(kind, window=6, stride=4, passages=4, sequence=14, query=4, tokens=36)
        config = config_of(kind, CONFIG)
        first = encoder.embeddings.word[SPECIAL.cls].detach()
        head, network = made.head(config, first), made.over()
        body = encoder.embeddings.word.detach() if kind in STATIC else encoder
        return made, network(body, head, SPECIAL).eval(), config


@cache
def heads():
    with torch.random.fork_rng():
        torch.manual_seed(6)
        config = EncoderConfig("bert", 9, hidden=H, layers=1, heads=2, feed_forward=8)
        made = {
            "avg": Pool(H, "avg"),
            "sum": Pool(H, "sum"),
            "max": Pool(H, "max"),
            "attn": Attentive(H),
            "cnn": Convolutional(H),
            "transformer": Transformer(config, torch.randn(H), passages=12).eval(),
            "pcgm": CumulativeGain(H, 3),
        }
        for head in made.values():  # so that different passages have clearly different scores
            for parameter in head.parameters():
                torch.nn.init.normal_(parameter, std=0.7)
        return made


def scores(kind, query, documents):
    made, ranker, config = model(kind)
    inputs = read_documents(made, documents, SPECIAL, config, query).inputs
    with torch.inference_mode():
        return ranker(inputs).numpy()


def close(one, other):
    return np.allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", DOCUMENTS)
@settings(max_examples=12, deadline=None)
@given(query=queries, documents=texts)
def test_a_score_does_not_depend_on_other_documents_or_padding(kind, query, documents):
    together = scores(kind, query, documents)
    alone = [scores(kind, query, [document])[0] for document in documents]
    assert close(together, alone)
    assert close(scores(kind, query, documents[::-1])[::-1], together)


@settings(max_examples=60, deadline=None)
@given(query=queries, documents=texts, even=st.booleans(), seed=st.integers(0, 9))
def test_passages_are_pieces_of_their_document(query, documents, even, seed):
    name = "vanilla" if even else "parade-max"
    kind = document_model(name, window=6, stride=4, passages=3, sequence=14, query=4)
    made = read_documents(kind, documents, SPECIAL, CONFIG, query, seed)
    there = Layout.of(made.inputs, SPECIAL)
    assert there.offsets.tolist() == made.offsets.tolist()
    assert (np.diff(there.passages.offsets) <= 14).all()
    for number, document in enumerate(documents):
        places = range(made.offsets[number], made.offsets[number + 1])
        pieces = [
            made.inputs.ids[there.text_starts[place] :][: there.text_counts[place]].tolist()
            for place in places
        ]
        whole = "".join(map(chr, document))
        assert all("".join(map(chr, piece)) in whole for piece in pieces)
        assert (
            pieces[0] == document[: len(pieces[0])]
            and pieces[-1] == document[len(document) - len(pieces[-1]) :]
        )
        if even:
            assert [token for piece in pieces for token in piece] == document
            assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
        else:
            assert len(pieces) <= 3


@pytest.mark.parametrize("name", ["avg", "sum", "max", "attn", "cnn", "transformer", "pcgm"])
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 6), padding=st.integers(0, 6), seed=st.integers(0, 99))
def test_masked_passages_have_no_influence(name, count, padding, seed):
    head = heads()[name]
    generator = torch.Generator().manual_seed(seed)
    passages = torch.randn(2, count, H, generator=generator)
    filled = torch.cat([passages, 50 * torch.randn(2, padding, H, generator=generator)], 1)
    mask = (torch.arange(count + padding) < count).expand(2, -1)
    with torch.inference_mode():
        assert close(head(filled, mask), head(passages, mask[:, :count]))


@settings(max_examples=15, deadline=None)
@given(values=st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=6), padding=st.integers(0, 4))
def test_masked_scores_have_no_influence(values, padding):
    mask = (torch.arange(len(values) + padding) < len(values))[None]
    found = TopScores()(torch.tensor([[*values, *[99.0] * padding]]), mask).item()
    assert found == pytest.approx(sum(sorted(values)[-3:]), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(count=st.integers(2, 6), seed=st.integers(0, 99), data=st.data())
def test_pools_do_not_see_the_order_of_passages(count, seed, data):
    order = data.draw(st.permutations(range(count)))
    passages = torch.randn(1, count, H, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(1, count).bool()
    with torch.inference_mode():
        for name in ("avg", "sum", "max", "attn"):
            assert close(heads()[name](passages[:, order], mask), heads()[name](passages, mask)), name


@pytest.mark.parametrize("name", ["cnn", "transformer", "pcgm"])
def test_others_do(name):
    passages = torch.randn(1, 4, H, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(1, 4).bool()
    with torch.inference_mode():
        difference = heads()[name](passages.flip(1), mask) - heads()[name](passages, mask)
    assert abs(difference.item()) > 0.01


@pytest.mark.parametrize("make", [lambda: KNRM(2), lambda: PACRR(2, 12), lambda: DRMM(2)])
@settings(max_examples=20, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 8)),
    padding=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    seed=st.integers(0, 99),
)
def test_masked_terms_have_no_influence(make, sizes, padding, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = make()
        (q, d), (more_q, more_d) = sizes, padding
        filled = torch.rand(1, 2, q + more_q, d + more_d) * 2 - 1
    query_mask, document_mask = (torch.arange(q + more_q) < q)[None], (torch.arange(d + more_d) < d)[None]
    with torch.inference_mode():
        whole = head(filled, query_mask, document_mask)
        bare = head(filled[:, :, :q, :d], query_mask[:, :q], document_mask[:, :d])
    assert close(whole, bare)
