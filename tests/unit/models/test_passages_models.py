"""Models of long documents: the aggregators by hand, whole models, and their folders."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import CorruptError, InputError  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models import templates  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.config import EncoderConfig  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.long_checkpoint import HEAD, begin, load_long, save_long  # noqa: E402
from tamis.models.long_plan import PLAN, Kind, LongDoc  # noqa: E402
from tamis.models.longdoc import read  # noqa: E402
from tamis.models.parade import (  # noqa: E402
    Attentive,
    Convolutional,
    CumulativeGain,
    Pool,
    TopScores,
    Transformer,
    gain_loss,
)
from tamis.models.static import read_vectors, static_model  # noqa: E402
from tamis.models.templates import Special, Tokenised  # noqa: E402

KINDS = get_args(Kind)
SMALL = {"window": 6, "stride": 4, "passages": 4, "sequence": 16, "query": 5, "tokens": 60}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def start(tiny_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "model"
    return load_checkpoint(tiny_checkpoint(folder, layers=2, hidden=16, heads=2, positions=64))


def documents(model, lengths=(13, 1, 0, 40), seed=0):
    """One query with documents of these lengths."""
    rng = np.random.default_rng(seed)
    texts = Tokenised.of([rng.integers(5, 300, length).tolist() for length in lengths])
    own = np.zeros(len(lengths), np.int64)
    return read(Tokenised.of([[7, 8, 9]]), own, texts, model.special, model.plan, model.config).inputs


def mask(*rows):
    return torch.tensor(rows).bool()


# -- PARADE's aggregators by hand


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


def test_parades_cls_is_the_encoders_own(start, tiny_checkpoint, tmp_path):
    """Whatever number [CLS] has, and where embeddings are narrower, behind the projection."""
    for folder in (
        tiny_checkpoint(tmp_path / "r", family="roberta", hidden=16, heads=2),
        tiny_checkpoint(tmp_path / "e", family="electra", hidden=16, heads=2, embedding=8),
    ):
        checkpoint = load_checkpoint(folder)
        model = begin(checkpoint, LongDoc("parade-transformer")).model
        word = torch.tensor(checkpoint.tensors["embeddings.word"][model.special.cls])
        if checkpoint.config.projected:
            word = torch.tensor(checkpoint.tensors["embeddings.project.weight"]) @ word
            word = word + torch.tensor(checkpoint.tensors["embeddings.project.bias"])
        assert torch.allclose(model.head.cls, word, atol=1e-6)


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


# -- whole models


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_scores_and_learns(kind, start):
    model = begin(start, LongDoc(kind, **SMALL)).model
    scores = model(documents(model))
    assert scores.shape == (4,) and torch.isfinite(scores).all()
    assert scores.detach().std() > 0
    scores.pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        unused = name.startswith("encoder.head.") and kind not in ("maxp", "birch")
        reached = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert reached != unused or kind == "cedr-drmm", name


@pytest.mark.parametrize("kind", KINDS)
def test_packed_passages_score_as_padded_ones(kind, start):
    model = begin(start, LongDoc(kind, **SMALL)).model
    with torch.inference_mode():
        padded = model(documents(model))
        model.packed = True
        assert torch.allclose(model(documents(model)), padded, atol=1e-4)


@pytest.mark.parametrize("labels", [1, 2])
def test_one_passage_is_mono(labels, tiny_checkpoint, tmp_path):
    """MaxP and Birch-Passage of a document of one passage."""
    start = load_checkpoint(tiny_checkpoint(tmp_path / "start", labels=labels, hidden=16, heads=2))
    texts = Tokenised.of([[11, 12, 13], [14]])
    special = begin(start, LongDoc("maxp")).tokenizer.special
    inputs, _ = templates.mono([7, 8, 9], texts, special)
    mono = TorchBackend(start, "cpu").margins(inputs)
    for kind in ("maxp", "birch"):
        plan = LongDoc(kind)
        model = begin(start, plan).model
        asked = Tokenised.of([[7, 8, 9]])
        made = read(asked, np.zeros(2, np.int64), texts, special, plan, start.config)
        with torch.inference_mode():
            assert model(made.inputs).numpy() == pytest.approx(mono, abs=1e-6)


def test_vanilla_averages_cls_over_even_chunks(start):
    model = begin(start, LongDoc("vanilla", sequence=10)).model  # 3 of the query, 4 of a chunk
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
    model = begin(start, LongDoc("cedr-knrm", sequence=10)).model
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
    whole, bare = (begin(start, LongDoc("cedr-knrm", cls=cls)).model for cls in (True, False))
    assert whole.head.score.in_features - bare.head.score.in_features == start.config.hidden


def test_static_embeddings_know_no_context(start):
    model = begin(start, LongDoc("knrm", **SMALL)).model
    seen = {}
    model.head.register_forward_hook(lambda _, args, output: seen.update(args=args))
    texts = Tokenised.of([[7, 20, 0]])
    own = np.zeros(1, np.int64)
    model(read(Tokenised.of([[7, 0]]), own, texts, model.special, model.plan, None).inputs)
    similarity = seen["args"][0][0, 0]
    table = torch.tensor(start.tensors["embeddings.word"])
    cosine = torch.nn.functional.cosine_similarity(table[7], table[20], dim=0).item()
    assert similarity[0].tolist()[:2] == pytest.approx([1.0, cosine], abs=1e-6)
    assert similarity[1, 2].item() == 0.0  # what is no word is not even like itself


# -- folders


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_they_score_the_same(kind, start, tmp_path):
    made = begin(start, LongDoc(kind, **SMALL), seed=3)
    save_long(made, tmp_path / "model")
    loaded = load_long(tmp_path / "model")
    assert loaded.plan == made.plan
    with torch.inference_mode():
        assert torch.equal(loaded.model(documents(loaded.model)), made.model(documents(made.model)))
    save_long(loaded, tmp_path / "model")  # over itself
    again = load_long(tmp_path / "model")
    assert again.fingerprint == loaded.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_folder_is_an_encoder_to_start_the_next_model_from(start, tmp_path):
    """Vanilla first, then the interaction model."""
    vanilla = begin(start, LongDoc("vanilla", **SMALL))
    with torch.no_grad():
        vanilla.model.encoder.embeddings.word[9] += 1.0
    save_long(vanilla, tmp_path / "vanilla")
    second = begin(load_checkpoint(tmp_path / "vanilla"), LongDoc("cedr-knrm", **SMALL))
    assert torch.equal(second.model.encoder.embeddings.word, vanilla.model.encoder.embeddings.word)
    # and one of the same kind goes on with its head
    onward = begin(load_checkpoint(tmp_path / "vanilla"), LongDoc("vanilla", tokens=30), seed=9)
    assert torch.equal(onward.model.head.score.weight, vanilla.model.head.score.weight)
    assert onward.plan.tokens == 30


def test_the_fingerprint_changes_with_the_head_and_the_plan(start, tmp_path):
    prints = set()
    for number, (plan, seed) in enumerate(
        [(LongDoc("parade-max"), 0), (LongDoc("parade-max"), 1), (LongDoc("parade-max", tokens=99), 0)]
    ):
        save_long(begin(start, plan, seed), tmp_path / str(number))
        prints.add(load_long(tmp_path / str(number)).fingerprint)
    assert len(prints) == 3


def test_damaged_folders_say_so(start, tmp_path):
    save_long(begin(start, LongDoc("parade-attn", **SMALL)), tmp_path / "m")
    plan = tmp_path / "m" / PLAN
    content = json.loads(plan.read_text())
    for change, problem in (
        ({"kind": "parade-median"}, "kind of .longdoc. is 'parade-median'"),
        ({"format": 2}, "format 2, this tamis reads 1"),
        ({"window": 0}, "window of .longdoc. is 0"),
        ({"shadow": 1}, "has no field 'shadow'"),
    ):
        plan.write_text(json.dumps(content | change))
        with pytest.raises(InputError, match=problem):
            load_long(tmp_path / "m")
    plan.write_text("[]")
    with pytest.raises(CorruptError, match="is damaged"):
        load_long(tmp_path / "m")
    plan.write_text(json.dumps(content | {"kind": "parade-cnn"}))
    with pytest.raises(CorruptError, match="is not of a parade-cnn model"):
        load_long(tmp_path / "m")
    plan.write_text(json.dumps(content))
    (tmp_path / "m" / HEAD).write_bytes(b"")
    with pytest.raises(CorruptError, match="the file is empty"):
        load_long(tmp_path / "m")


def test_plans_that_make_no_sense():
    for options, problem in (
        ({"window": 3, "stride": 4}, "leave out text"),
        ({"tokens": 10**6}, "cannot read 1,000,000 tokens"),
        ({"gains": 1}, "1 grade of gain"),
        ({"keep": 1.5}, "keep of .longdoc. is 1.5"),
    ):
        with pytest.raises(InputError, match=problem):
            LongDoc("parade-max", **options)


# -- vectors from a text file


def test_vectors_of_a_file(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("3 2\nsieve 1 0\nnew york 0 2\nsoup 3 4\n")
    words, matrix = read_vectors(file)
    assert words == ["sieve", "new york", "soup"] and matrix.tolist() == [[1, 0], [0, 2], [3, 4]]
    file.write_text("sieve 1 0\nsoup 1 x\n")
    with pytest.raises(InputError, match=r"vectors.txt, line 2: not a word and its values"):
        read_vectors(file)
    file.write_text("")
    with pytest.raises(InputError, match="no vectors"):
        read_vectors(file)


def test_a_model_of_vectors(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("sieve 1 0\nsoup 3 4\n")
    made = static_model(file, LongDoc("knrm"), tmp_path / "m", words=["sieve", "soup", "tamis"])
    loaded = load_long(tmp_path / "m")
    seen = {}
    loaded.model.head.register_forward_hook(lambda _, args, output: seen.update(args=args))
    asked = loaded.tokenizer.encode(["Tamis, sieve"])
    texts = loaded.tokenizer.encode(["soup tamis whisk"])
    made_inputs = read(asked, np.zeros(1, np.int64), texts, loaded.model.special, loaded.plan, None)
    score = loaded.model(made_inputs.inputs)
    # tamis has no vector, but is like itself; the comma and whisk are no words
    rows = [[0, 1, 0], [0, 0, 0], [0.6, 0, 0]]
    assert [row.tolist() for row in seen["args"][0][0, 0]] == [pytest.approx(row) for row in rows]
    assert torch.equal(score, made.model(made_inputs.inputs))
    with pytest.raises(InputError, match="a parade-max model needs an encoder"):
        static_model(file, LongDoc("parade-max"), tmp_path / "x")


def test_special_tokens_say_where_passages_begin(start):
    """RoBERTa's kind has two separators, and other numbers."""
    special = Special(cls=0, sep=2, double_separator=True)
    plan = LongDoc("maxp", window=2, stride=2)
    config = replace(start.config, segments=1)
    asked, texts = Tokenised.of([[7]]), Tokenised.of([[8, 9, 10]])
    made = read(asked, np.zeros(1, np.int64), texts, special, plan, config)
    assert made.inputs.ids.tolist() == [0, 7, 2, 2, 8, 9, 2, 0, 7, 2, 2, 10, 2]
