"""Pretraining: the heads beside transformers', each loss by hand, and losses that fall."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
torch.set_num_threads(1)

import tamis  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.formats import read_corpus  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.feed import padded  # noqa: E402
from tamis.models.templates import Special, Tokenised  # noqa: E402
from tamis.models.tokenizer import Tokenizer  # noqa: E402
from tamis.train.distill import CorpusDistillation, Distiller, Weights, student_from  # noqa: E402
from tamis.train.masked import (  # noqa: E402
    MaskedBatch,
    Sentences,
    Vocabulary,
    masked_batch,
    read_sentences,
    read_vocabulary,
)
from tamis.train.objective import Together, final_states, packed_states  # noqa: E402
from tamis.train.pretrain import (  # noqa: E402
    MaskedLanguageModelling,
    PretrainingModel,
    RepresentativeWords,
    load_pretraining,
    next_sentence_loss,
    save_pretraining,
    token_loss,
    with_new_heads,
)
from tamis.train.rop import Bags, read_bags  # noqa: E402
from tamis.train.scratch import from_scratch  # noqa: E402

DEMO = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
CLS, SEP, MASK = 2, 3, 4
VOCABULARY = Vocabulary(size=400, cls=CLS, sep=SEP, mask=MASK, special=(0, 1, 2, 3, 4))
CORPUS = Sentences(
    Tokenised.of([list(range(10 * i, 10 * i + 3 + i % 5)) for i in range(1, 13)]), np.arange(0, 13, 3)
)


def bags() -> Bags:
    """Two documents: words 0 0 0 1 2, and words 2 3 3."""
    return Bags(
        texts=Tokenised.of([[20, 20, 20, 21, 22], [22, 23, 23]]),
        vocabulary=Tokenised.of([[20], [21, 31], [22], [23]]),
        frequencies=np.array([3, 1, 2, 2]),
        tokens=8,
        offsets=np.array([0, 3, 5]),
        words=np.array([0, 1, 2, 2, 3]),
        counts=np.array([3, 1, 1, 1, 2]),
    )


# -- heads


def theirs(folder: Path, base: Path):
    """A BertForPreTraining with random weights, saved beside our tokenizer."""
    transformers = pytest.importorskip("transformers", reason="needs transformers, which tests only install")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=400,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=64,
    )
    model = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text((base / "tokenizer.json").read_text())
    return model


def logits_of(model: PretrainingModel, batch: MaskedBatch):
    states = final_states(model.encoder, batch.inputs, torch.device("cpu"))
    first = states[torch.from_numpy(batch.inputs.offsets[:-1])]
    return model.token_logits(states), model.next_logits(first)


def padded_logits(model, batch: MaskedBatch):
    ids, segments, lengths = padded(batch.inputs)
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    labels = torch.full(ids.shape, -100)
    flat = torch.full((len(batch.inputs.ids),), -100)
    flat[torch.from_numpy(batch.positions)] = torch.from_numpy(batch.tokens)
    labels[mask] = flat
    found = model(
        input_ids=ids,
        token_type_ids=segments,
        attention_mask=mask.long(),
        labels=labels,
        next_sentence_label=torch.from_numpy(batch.is_random),
    )
    return found.prediction_logits[mask], found.seq_relationship_logits, found.loss


def test_heads_and_losses_are_those_of_transformers(tmp_path, tiny_checkpoint):
    base = tiny_checkpoint(tmp_path / "base")
    model = theirs(tmp_path / "theirs", base)
    checkpoint, ours = load_pretraining(tmp_path / "theirs")
    ours.eval()
    batch = masked_batch(CORPUS, VOCABULARY, size=6, length=40, seed=0, number=0)
    with torch.no_grad():
        tokens, following = logits_of(ours, batch)
        their_tokens, their_following, their_loss = padded_logits(model, batch)
        objective = MaskedLanguageModelling(ours, CORPUS, VOCABULARY, size=6, length=40, seed=0)
        loss = objective.loss(objective.batch(0))
    assert tokens.std() > 0.5
    assert (tokens - their_tokens).abs().max() < 1e-5
    assert (following - their_following).abs().max() < 1e-5
    assert loss.total.item() == pytest.approx(their_loss.item(), abs=1e-5)
    assert loss.total.item() == pytest.approx(sum(part.item() for part in loss.parts.values()))
    # and back: what we save, transformers reads, with nothing missing
    save_pretraining(ours, checkpoint, tmp_path / "ours")
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        their_tokens, their_following, _ = padded_logits(again.eval(), batch)
    assert (tokens - their_tokens).abs().max() < 1e-5
    assert (following - their_following).abs().max() < 1e-5


def test_what_is_saved_starts_a_ranker_but_is_none(tmp_path, tiny_checkpoint):
    folder = tiny_checkpoint(tmp_path / "start")
    checkpoint = load_checkpoint(folder)
    model = with_new_heads(checkpoint, seed=3)
    assert model.training
    save_pretraining(model, checkpoint, tmp_path / "out")
    with pytest.raises(InputError, match="no classification head"):
        load_checkpoint(tmp_path / "out")
    start = load_checkpoint(tmp_path / "out", require_head=False)
    np.testing.assert_array_equal(start.tensors["embeddings.word"], checkpoint.tensors["embeddings.word"])
    _, again = load_pretraining(tmp_path / "out", seed=9)
    for name, tensor in model.heads.state_dict().items():
        torch.testing.assert_close(again.heads.state_dict()[name], tensor, rtol=0, atol=0)
    save_pretraining(model, checkpoint, tmp_path / "ranker", ranks=True)
    np.testing.assert_array_equal(
        load_checkpoint(tmp_path / "ranker").tensors["head.output.weight"],
        checkpoint.tensors["head.output.weight"],
    )


@pytest.mark.parametrize("family", ["roberta", "electra", "distilbert"])
def test_pretraining_is_for_bert(family, tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / "model", family))
    with pytest.raises(InputError, match=f"not for this {family}: start from a BERT"):
        with_new_heads(checkpoint)


def test_losses_by_hand(tmp_path, tiny_checkpoint):
    """Heads whose logits are known: token 7 has log 3 more than the 399 others, B is random with odds 4."""
    model = with_new_heads(load_checkpoint(tiny_checkpoint(tmp_path / "model"))).eval()
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.zero_()
        model.heads.bias[7] = np.log(3.0)
        model.heads.next.bias[1] = np.log(4.0)
    batch = masked_batch(CORPUS, VOCABULARY, size=2, length=12, seed=0, number=0)
    chosen = MaskedBatch(batch.inputs, np.array([1, 2]), np.array([7, 9]), np.array([1, 0]))
    states = torch.zeros(len(batch.inputs.ids), 32)
    whole = 399 + 3
    expected = -(np.log(3 / whole) + np.log(1 / whole)) / 2
    assert token_loss(model, states, chosen).item() == pytest.approx(expected, rel=1e-5)
    expected = -(np.log(4 / 5) + np.log(1 / 5)) / 2
    assert next_sentence_loss(model, states, chosen).item() == pytest.approx(expected, rel=1e-5)


def test_packed_and_padded_states_are_the_same(tmp_path, tiny_checkpoint):
    encoder = Encoder.from_checkpoint(load_checkpoint(tiny_checkpoint(tmp_path / "model")))
    inputs = masked_batch(CORPUS, VOCABULARY, size=5, length=30, seed=0, number=0)
    with torch.no_grad():
        filled = final_states(encoder, inputs.inputs, torch.device("cpu"))
        packed = packed_states(encoder, inputs.inputs, torch.device("cpu"))
    assert filled.shape == (len(inputs.inputs.ids), 32)
    torch.testing.assert_close(packed, filled, rtol=1e-4, atol=1e-5)


# -- learning


def train(objective, steps: int, rate: float) -> list[dict[str, float]]:
    torch.manual_seed(0)
    objective.train()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=rate)
    found = []
    for step in range(steps):
        total, parts = objective.loss(objective.batch(step))
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        found.append({name: part.item() for name, part in parts.items()})
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory, tiny_checkpoint):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("demo") / "model", positions=64)
    return folder, Tokenizer(folder), list(islice(read_corpus(DEMO), 300))


def test_a_few_steps_on_the_demo_collection_lower_the_loss(demo):
    folder, tokenizer, documents = demo
    corpus = read_sentences(documents, tokenizer)
    model = with_new_heads(from_scratch(folder, seed=1), seed=1)
    objective = MaskedLanguageModelling(model, corpus, read_vocabulary(tokenizer), size=16, length=64, seed=0)
    found = train(objective, steps=60, rate=3e-3)
    mlm = [parts["mlm"] for parts in found]
    assert mlm[0] == pytest.approx(np.log(400), abs=0.3)  # random weights: any token is as likely
    assert np.mean(mlm[-10:]) < np.mean(mlm[:10]) - 0.3  # most of what the tokens' frequencies tell
    assert set(found[0]) == {"mlm", "nsp"}
    with_new = MaskedLanguageModelling(
        model, corpus, read_vocabulary(tokenizer), size=2, length=64, next_sentence=False
    )
    assert set(with_new.loss(with_new.batch(0)).parts) == {"mlm"}
    assert torch.equal(with_new.eval()(with_new.batch(1)), with_new.loss(with_new.batch(1)).total)


def test_mlm_and_rop_together(demo):
    folder, tokenizer, documents = demo
    model = with_new_heads(from_scratch(folder, seed=1), seed=1)
    corpus, words = read_sentences(documents, tokenizer), read_bags(documents, tokenizer)
    objective = Together(
        [
            MaskedLanguageModelling(model, corpus, read_vocabulary(tokenizer), size=4, length=48),
            RepresentativeWords(model.encoder, words, tokenizer.special, size=8, length=48),
        ]
    )
    found = train(objective, steps=3, rate=1e-3)
    assert set(found[0]) == {"mlm", "nsp", "rop"}
    assert found[0]["rop"] == pytest.approx(1.0, abs=0.2)  # equal scores miss the margin of 1
    loss = objective.eval().loss(objective.batch(9))
    assert loss.total.item() == pytest.approx(sum(part.item() for part in loss.parts.values()))


def test_rop_is_a_hinge_of_the_ranking_heads_margins(tmp_path, tiny_checkpoint):
    encoder = Encoder.from_checkpoint(load_checkpoint(tiny_checkpoint(tmp_path / "model", labels=2)))
    objective = RepresentativeWords(encoder, bags(), Special(cls=CLS, sep=SEP), size=5, mu=1.0)
    batch = objective.batch(2)
    loss = objective.loss(batch).total
    scores = []
    for start, stop in pairwise(batch.offsets.tolist()):
        ids = torch.from_numpy(batch.ids[None, start:stop])
        segments = torch.from_numpy(batch.segments[None, start:stop].astype(np.int64))
        logits = encoder.padded(ids, segments, torch.tensor([stop - start]))[0].tolist()
        scores.append(logits[1] - logits[0])
    hinges = [max(0.0, 1 - better + worse) for better, worse in zip(scores[0::2], scores[1::2], strict=True)]
    assert loss.item() == pytest.approx(np.mean(hinges), rel=1e-4)


def test_a_language_models_student_learns_from_the_corpus(demo):
    folder, tokenizer, documents = demo
    teacher = load_checkpoint(folder)
    student = Encoder.from_checkpoint(from_scratch(folder, layers=1, seed=2))
    distiller = Distiller(student, Encoder.from_checkpoint(teacher), weights=Weights(prediction=0.0))
    corpus, vocabulary = read_sentences(documents, tokenizer), read_vocabulary(tokenizer)
    objective = CorpusDistillation(distiller, corpus, vocabulary, size=8, length=48)
    found = train(objective, steps=20, rate=1e-2)
    assert set(found[0]) == {"embedding", "hidden", "attention"}
    for name in found[0]:
        assert np.mean([parts[name] for parts in found[-4:]]) < found[0][name]
    same = Distiller(Encoder.from_checkpoint(student_from(teacher, 2)), Encoder.from_checkpoint(teacher))
    whole = CorpusDistillation(same.eval(), corpus, vocabulary, size=2, length=32)
    assert whole.loss(whole.batch(0)).total.item() == 0.0


def test_a_model_too_small_for_the_batches_is_refused(demo):
    folder, tokenizer, documents = demo
    corpus, model = read_sentences(documents, tokenizer), with_new_heads(from_scratch(folder))
    with pytest.raises(InputError, match="inputs of 65 for a model of 400 tokens and 64 positions"):
        MaskedLanguageModelling(model, corpus, read_vocabulary(tokenizer), length=65)
