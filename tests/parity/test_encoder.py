"""Our encoder beside transformers, layer by layer, on tiny random models that transformers itself saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
transformers = pytest.importorskip("transformers", reason="needs transformers, which tests only install")

from tamis.models.checkpoint import load_checkpoint, save_checkpoint, with_third_segment  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.templates import mono  # noqa: E402
from tamis.models.tokenizer import Tokenizer  # noqa: E402

TOLERANCE = 1e-5
VOCABULARY, PAD = 50, 1
LENGTHS = [9, 4, 1, 12]

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "pad_token_id": PAD,
}
MODELS = {
    "bert": (transformers.BertConfig, SIZES),
    "bert, three segments, relu": (
        transformers.BertConfig,
        SIZES | {"type_vocab_size": 3, "hidden_act": "relu"},
    ),
    "minilm": (transformers.BertConfig, SIZES | {"hidden_size": 36, "num_attention_heads": 12}),
    "roberta": (transformers.RobertaConfig, SIZES | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta": (transformers.XLMRobertaConfig, SIZES | {"type_vocab_size": 1}),
    "electra": (transformers.ElectraConfig, SIZES | {"embedding_size": 24}),
    "electra, projected": (transformers.ElectraConfig, SIZES | {"embedding_size": 10}),
    "albert": (transformers.AlbertConfig, SIZES | {"embedding_size": 10}),
    "albert, two groups": (
        transformers.AlbertConfig,
        SIZES | {"embedding_size": 24, "num_hidden_layers": 4, "num_hidden_groups": 2},
    ),
    "distilbert": (
        transformers.DistilBertConfig,
        {
            "vocab_size": VOCABULARY,
            "dim": 24,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 40,
            "max_position_embeddings": 20,
            "pad_token_id": PAD,
        },
    ),
}


def theirs(name: str, labels: int, folder: Path):
    """A model of transformers with random weights and biases everywhere, saved into `folder`."""
    torch.manual_seed(len(name) + labels)
    kind, sizes = MODELS[name]
    model = transformers.AutoModelForSequenceClassification.from_config(kind(**sizes, num_labels=labels))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model.eval()


def batch(segments: int):
    """Inputs of several lengths, as a rectangle."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(PAD + 1, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    kinds = torch.randint(0, max(segments, 1), ids.shape, generator=generator)
    lengths = torch.tensor(LENGTHS)
    seen = torch.arange(max(LENGTHS)) < lengths[:, None]
    return ids.where(seen, PAD), kinds, lengths, seen


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_and_the_logits_equal_those_of_transformers(name, labels, tmp_path):
    model = theirs(name, labels, tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    encoder = Encoder.from_checkpoint(checkpoint)
    segments = checkpoint.config.segments
    ids, kinds, lengths, seen = batch(segments)
    arguments = {"input_ids": ids, "attention_mask": seen.long(), "output_hidden_states": True}
    if segments:
        arguments["token_type_ids"] = kinds

    offsets = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
    end_to_end = (ids[seen].int(), kinds[seen].int(), offsets, max(LENGTHS))
    with torch.inference_mode():
        expected = model(**arguments)
        states = encoder.hidden_states(ids, kinds, lengths)
        packed_states = encoder.packed_hidden_states(*end_to_end)
        padded = encoder.padded(ids, kinds, lengths)
        packed = encoder.packed(*end_to_end)
        from_states = encoder.head(states[-1][:, 0])

    assert len(states) == len(expected.hidden_states) == checkpoint.config.layers + 1
    for ours, packed_ours, wanted in zip(states, packed_states, expected.hidden_states, strict=True):
        assert (ours - wanted)[seen].abs().max() < TOLERANCE
        assert (packed_ours - wanted[seen]).abs().max() < TOLERANCE
    assert expected.logits.shape == padded.shape == (len(LENGTHS), labels)
    assert expected.logits.std(dim=0).min() > 0.05  # the inputs do get different scores
    for ours in (padded, packed, from_states):
        assert (ours - expected.logits).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_loads_in_transformers_with_equal_logits(name, tmp_path):
    model = theirs(name, 2, tmp_path / "theirs")
    encoder = Encoder.from_checkpoint(load_checkpoint(tmp_path / "theirs"))
    checkpoint = replace(load_checkpoint(tmp_path / "theirs"), tensors=encoder.tensors())
    save_checkpoint(checkpoint, tmp_path / "ours")
    again, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values())  # nothing missing, unexpected or misshaped
    ids, _, _, seen = batch(checkpoint.config.segments)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=seen.long()).logits
        assert torch.equal(again(input_ids=ids, attention_mask=seen.long()).logits, expected)
    reloaded = load_checkpoint(tmp_path / "ours")
    assert reloaded.config == checkpoint.config
    assert all(
        np.array_equal(reloaded.tensors[name], checkpoint.tensors[name]) for name in checkpoint.tensors
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "distilbert"])
@pytest.mark.parametrize("labels", [1, 2])
def test_what_is_saved_gives_equal_scores_in_sentence_transformers(family, labels, tmp_path, tiny_checkpoint):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    source = load_checkpoint(tiny_checkpoint(tmp_path / "tiny", family, labels=labels))
    save_checkpoint(source, tmp_path / "saved")
    query, texts = (
        "boundary layer flow",
        ["a wing in supersonic flow", "", "heat transfer to a blunt body " * 9],
    )
    theirs = sentence_transformers.CrossEncoder(str(tmp_path / "saved"), device="cpu")
    expected = theirs.predict(
        [(query, text) for text in texts], activation_fn=torch.nn.Identity(), show_progress_bar=False
    )
    tokenizer = Tokenizer(tmp_path / "saved")
    inputs, _ = mono(
        tokenizer.encode([query]).ids,
        tokenizer.encode(texts),
        tokenizer.special,
        segment_types=source.config.segments,
    )
    with torch.inference_mode():
        ours = Encoder.from_checkpoint(source).packed(
            torch.tensor(inputs.ids),
            torch.tensor(inputs.segments).int(),
            torch.tensor(inputs.offsets).int(),
            int(inputs.lengths.max()),
        )
    assert np.ptp(expected, axis=0).min() > 0.05
    assert np.abs(ours.numpy().squeeze() - expected).max() < TOLERANCE


def test_half_precision_halves_the_file_and_moves_the_logits_little(tmp_path):
    theirs("bert", 1, tmp_path / "a")
    checkpoint = load_checkpoint(tmp_path / "a")
    save_checkpoint(checkpoint, tmp_path / "b", dtype="float16")
    sizes = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in "ab"]
    assert sizes[1] < 0.7 * sizes[0]
    ids, kinds, lengths, _ = batch(2)
    with torch.inference_mode():
        a, b = (
            Encoder.from_checkpoint(load_checkpoint(tmp_path / f)).padded(ids, kinds, lengths) for f in "ab"
        )
    assert 0 < (a - b).abs().max() < 0.02
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "b", dtype="float32")
    with torch.inference_mode():
        seen = torch.arange(ids.shape[1]) < lengths[:, None]
        again = model(input_ids=ids, token_type_ids=kinds, attention_mask=seen.long()).logits
    assert (again - b).abs().max() < TOLERANCE


def test_a_start_for_duo_loads_in_transformers_and_scores_mono_inputs_as_before(tmp_path):
    theirs("bert", 1, tmp_path / "mono")
    mono_checkpoint = load_checkpoint(tmp_path / "mono")
    save_checkpoint(with_third_segment(mono_checkpoint, seed=4), tmp_path / "duo")
    duo_checkpoint = load_checkpoint(tmp_path / "duo")
    assert duo_checkpoint.config.segments == 3
    ids, kinds, lengths, _ = batch(2)
    with torch.inference_mode():
        before, after, third = (
            Encoder.from_checkpoint(checkpoint).padded(ids, segments, lengths)
            for checkpoint, segments in (
                (mono_checkpoint, kinds),
                (duo_checkpoint, kinds),
                (duo_checkpoint, kinds + 1),
            )
        )
    assert torch.equal(before, after)
    assert not torch.equal(before, third)
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "duo")


def test_dropout_acts_in_training_only_and_gradients_reach_every_parameter(tmp_path):
    theirs("electra, projected", 1, tmp_path)
    encoder = Encoder.from_checkpoint(load_checkpoint(tmp_path))
    ids, kinds, lengths, _ = batch(2)
    assert torch.equal(encoder.padded(ids, kinds, lengths), encoder.padded(ids, kinds, lengths))
    encoder.train()
    assert not torch.equal(encoder.padded(ids, kinds, lengths), encoder.padded(ids, kinds, lengths))
    encoder.padded(ids, kinds, lengths).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_the_score_of_an_input_does_not_depend_on_its_neighbours(tmp_path):
    theirs("bert", 1, tmp_path)
    encoder = Encoder.from_checkpoint(load_checkpoint(tmp_path))
    ids, kinds, lengths, _ = batch(2)
    with torch.inference_mode():
        together = encoder.padded(ids, kinds, lengths)
        for row, length in enumerate(LENGTHS):
            alone = encoder.padded(
                ids[row : row + 1, :length], kinds[row : row + 1, :length], lengths[row : row + 1]
            )
            assert (alone - together[row]).abs().max() < TOLERANCE
