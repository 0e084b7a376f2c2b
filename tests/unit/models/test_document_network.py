"""Whole networks for long documents: what each reads of its encoder, by hand."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models import templates  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.templates import Tokenised  # noqa: E402
from tamis.models.tokenizer import open_tokenizer  # noqa: E402
from tests.unit.models.builders import DOCUMENTS, document_model, read_documents  # noqa: E402

SMALL = {"window": 6, "stride": 4, "passages": 4, "sequence": 16, "query": 5, "tokens": 60}


@pytest.fixture(autouse=True)
def one_thread_and_seed(one_thread):
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def start(tiny_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "model"
    return load_checkpoint(tiny_checkpoint(folder, layers=2, hidden=16, heads=2, positions=64))


def network(kind, start, **settings):
    """The network of a new model; `of` is its checkpoint."""
    checkpoint = document_model(kind, **settings).begin(start)
    made = checkpoint.architecture.network(checkpoint)
    made.of = checkpoint
    return made


def documents(model, lengths=(13, 1, 0, 40), texts=None, query=(7, 8, 9)):
    """One query with documents of these lengths, or with these texts."""
    rng = np.random.default_rng(0)
    texts = texts or [rng.integers(5, 300, length).tolist() for length in lengths]
    return read_documents(model.of.architecture, texts, model.special, model.of.config, query).inputs


def test_parades_cls_is_the_encoders_own(start, tiny_checkpoint, tmp_path):
    """Whatever number [CLS] has, and where embeddings are narrower, behind the projection."""
    for folder in (
        tiny_checkpoint(tmp_path / "r", family="roberta", hidden=16, heads=2),
        tiny_checkpoint(tmp_path / "e", family="electra", hidden=16, heads=2, embedding=8),
    ):
        checkpoint = load_checkpoint(folder)
        model = network("parade-transformer", checkpoint)
        word = torch.tensor(checkpoint.tensors["embeddings.word"][model.special.cls])
        if checkpoint.config.projected:
            word = torch.tensor(checkpoint.tensors["embeddings.project.weight"]) @ word
            word = word + torch.tensor(checkpoint.tensors["embeddings.project.bias"])
        assert torch.allclose(model.head.cls, word, atol=1e-6)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_kind_scores_and_learns(kind, start):
    model = network(kind, start, **SMALL)
    scores = model(documents(model))
    assert scores.shape == (4,) and torch.isfinite(scores).all()
    assert scores.detach().std() > 0
    scores.pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        unused = name.startswith("encoder.head.") and kind not in ("maxp", "birch")
        reached = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert reached != unused or kind == "cedr-drmm", name


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_packed_passages_score_as_padded_ones(kind, start):
    model = network(kind, start, **SMALL)
    with torch.inference_mode():
        padded = model(documents(model))
        model.packed = True
        assert torch.allclose(model(documents(model)), padded, atol=1e-4)


@pytest.mark.parametrize("labels", [1, 2])
def test_one_passage_is_mono(labels, tiny_checkpoint, tmp_path):
    """MaxP and Birch-Passage of a document of one passage."""
    start = load_checkpoint(tiny_checkpoint(tmp_path / "start", labels=labels, hidden=16, heads=2))
    texts = Tokenised.of([[11, 12, 13], [14]])
    special = open_tokenizer(start).special
    inputs, _ = templates.mono([7, 8, 9], texts, special)
    mono = TorchBackend(start, "cpu").margins(inputs)
    for kind in ("maxp", "birch"):
        model = network(kind, start)
        made = read_documents(document_model(kind), [[11, 12, 13], [14]], special, start.config, [7, 8, 9])
        with torch.inference_mode():
            assert model(made.inputs).numpy() == pytest.approx(mono, abs=1e-6)


def test_vanilla_averages_cls_over_even_chunks(start):
    model = network("vanilla", start, sequence=10)  # 3 of the query, 4 of a chunk
    encoder = Encoder.from_checkpoint(start)
    cls, sep = model.special.cls, model.special.sep
    inputs = documents(model, lengths=(7,))
    text = [token for token in inputs.ids.tolist() if token not in (cls, sep, 7, 8, 9)]
    vectors = []
    for chunk in (text[:4], text[4:]):  # as even as possible, the longer first
        ids = [cls, 7, 8, 9, sep, *chunk, sep]
        segments = torch.tensor([[0] * 5 + [1] * (len(ids) - 5)])
        vectors.append(
            encoder.hidden_states(torch.tensor([ids]), segments, torch.tensor([len(ids)]))[-1][0, 0]
        )
    expected = (torch.stack(vectors).mean(0) @ model.head.score.weight[0]).item()
    assert model(inputs).item() == pytest.approx(expected, abs=1e-5)


def test_cedr_by_hand(start):
    """Every layer's cosines between the first chunk's query terms and all chunks' text terms, and [CLS]."""
    model = network("cedr-knrm", start, sequence=10)
    seen = {}
    model.head.register_forward_hook(lambda _, args, output: seen.update(args=args))
    model(documents(model, lengths=(7,)))
    similarity, query_mask, text_mask, cls = seen["args"]
    assert similarity.shape == (1, 3, 3, 7) and query_mask.all() and text_mask.all()
    encoder, special = Encoder.from_checkpoint(start), model.special
    inputs = documents(model, lengths=(7,))
    starts = np.flatnonzero(inputs.ids == special.cls).tolist()
    layers, vectors, query = [[], [], []], [], [None] * 3
    for begin_, stop in zip(starts, [*starts[1:], len(inputs.ids)], strict=True):
        ids, segments = inputs.ids[begin_:stop].tolist(), inputs.segments[begin_:stop].astype(int).tolist()
        states = encoder.hidden_states(
            torch.tensor([ids]), torch.tensor([segments]), torch.tensor([len(ids)])
        )
        vectors.append(states[-1][0, 0])
        for number, x in enumerate(states):
            query[number] = x[0, 1:4] if query[number] is None else query[number]
            layers[number].append(x[0, 5:-1])
    for number in range(3):
        text = torch.cat(layers[number])
        expected = torch.nn.functional.cosine_similarity(query[number][:, None], text[None], dim=2)
        assert torch.allclose(similarity[0, number], expected, atol=1e-5)
    assert torch.allclose(cls[0], torch.stack(vectors).mean(0), atol=1e-5)


def test_cedr_without_cls_is_narrower(start):
    whole, bare = (network("cedr-knrm", start, cls=cls) for cls in (True, False))
    assert whole.head.score.in_features - bare.head.score.in_features == start.config.hidden


def test_static_embeddings_know_no_context(start):
    model = network("knrm", start, **SMALL)
    seen = {}
    model.head.register_forward_hook(lambda _, args, output: seen.update(args=args))
    model(documents(model, texts=[[7, 20, 0]], query=[7, 0]))
    similarity = seen["args"][0][0, 0]
    table = torch.tensor(start.tensors["embeddings.word"])
    cosine = torch.nn.functional.cosine_similarity(table[7], table[20], dim=0).item()
    assert similarity[0].tolist()[:2] == pytest.approx([1.0, cosine], abs=1e-6)
    assert similarity[1, 2].item() == 0.0  # what is no word is not even like itself
