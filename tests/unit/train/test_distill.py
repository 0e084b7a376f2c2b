"""Distillation: each term by hand, padding, students of a teacher's layers, any stage as a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
torch.set_num_threads(1)

from tamis.base.documents import Query  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.core.language import Call  # noqa: E402
from tamis.core.ranking import Ranking, ScoreKind  # noqa: E402
from tamis.core.stage import Stage  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.rank.mono import Mono  # noqa: E402
from tamis.train import losses  # noqa: E402
from tamis.train.distill import (  # noqa: E402
    Distiller,
    Projections,
    Weights,
    attention_loss,
    embedding_loss,
    hidden_loss,
    student_from,
    teacher_scores,
    uniform_map,
)
from tamis.train.scratch import from_scratch  # noqa: E402

IDS = torch.tensor([[2, 7, 3, 9, 11, 3], [2, 30, 3, 41, 3, 0], [2, 3, 3, 0, 0, 0]])
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0]])
LENGTHS = torch.tensor([6, 5, 3])
LABELS = torch.tensor([1.0, 0.0, 0.0])
BATCH = (IDS, SEGMENTS, LENGTHS)


def teacher_folder(tmp_path: Path, tiny_checkpoint, **sizes) -> Path:
    return tiny_checkpoint(tmp_path / "teacher", **({"layers": 4, "labels": 2} | sizes))


# -- the terms


def test_embedding_and_hidden_loss_are_means_over_the_values_of_tokens():
    student = torch.tensor([[[1.0, 2.0], [3.0, 0.0]], [[5.0, 5.0], [float("nan"), float("inf")]]])
    teacher = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[5.0, 2.0], [7.0, 7.0]]])
    # (1 + 4) + (4 + 0) + (0 + 9) over 3 tokens of 2 values
    for loss in (embedding_loss, hidden_loss):
        assert loss(student, teacher, torch.tensor([2, 1])).item() == pytest.approx(18 / 6)
        assert loss(student[:1], teacher[:1], torch.tensor([2])).item() == pytest.approx(9 / 4)


def test_attention_loss_is_a_mean_over_heads_and_pairs_of_tokens():
    student = torch.zeros(2, 2, 2, 2)
    teacher = torch.zeros(2, 2, 2, 2)
    teacher[0, 0] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    teacher[0, 1] = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    teacher[1, :, 0, 0] = 2.0
    teacher[1, :, 1, :] = 1000.0  # the second input has one token
    teacher[1, :, :, 1] = 1000.0
    # 1 + 4 + 9 + 16 + 1 over 2 heads of 4 pairs, and 4 + 4 over 2 heads of one
    assert attention_loss(student, teacher, torch.tensor([2, 1])).item() == pytest.approx(39 / 10)


def test_gradients_of_the_terms_by_hand():
    student = torch.tensor([[[1.0, 2.0], [8.0, 8.0]]], requires_grad=True)
    hidden_loss(student, torch.zeros(1, 2, 2), torch.tensor([1])).backward()
    assert student.grad.tolist() == [[[1.0, 2.0], [0.0, 0.0]]]  # 2 (s - t) / 2 values, nothing for padding


def test_the_sums_over_layers_and_the_prediction_loss(tmp_path, tiny_checkpoint):
    """The whole objective once more, from hidden states and attention scores, layer by layer."""
    checkpoint = load_checkpoint(teacher_folder(tmp_path, tiny_checkpoint))
    teacher = Encoder.from_checkpoint(checkpoint)
    student = Encoder.from_checkpoint(student_from(checkpoint, [0, 2]))
    weights = Weights(embedding=0.5, hidden=2.0, attention=3.0, prediction=4.0, alpha=0.25)
    distiller = Distiller(student, teacher, mapping=[1, 3], weights=weights)
    terms = distiller.loss(*BATCH, LABELS)
    with torch.no_grad():
        own, theirs = student.hidden_states(*BATCH), teacher.hidden_states(*BATCH)
        real = torch.arange(6) < LENGTHS[:, None]

        def squares(one, two):
            return ((one - two)[real] ** 2).mean()

        assert terms["embedding"] == pytest.approx(0.0)
        hidden = squares(own[1], theirs[1]) + squares(own[2], theirs[3])
        assert terms["hidden"].item() == pytest.approx(hidden.item(), rel=1e-5)
        attention = 0.0
        for own_layer, teacher_layer in ((0, 0), (1, 2)):
            one = student.attention_scores(own_layer, own[own_layer])
            two = teacher.attention_scores(teacher_layer, theirs[teacher_layer])
            values = [((one - two)[i, :, :n, :n] ** 2).flatten() for i, n in enumerate(LENGTHS.tolist())]
            attention += torch.cat(values).mean().item()
        assert terms["attention"].item() == pytest.approx(attention, rel=1e-5)
        s, t = student.padded(*BATCH).diff()[:, 0], teacher.padded(*BATCH).diff()[:, 0]
    assert terms["logits"].item() == pytest.approx(((s - t) ** 2).mean().item(), rel=1e-4)
    entropy = torch.log1p(torch.exp(torch.where(LABELS > 0, -s, s))).mean()
    assert terms["labels"].item() == pytest.approx(entropy.item(), rel=1e-4)
    prediction = losses.logit_mse_ce(s, t, LABELS, alpha=0.25)  # Eq. 39
    total = 2.0 * hidden.item() + 3.0 * attention + 4.0 * prediction.item()
    assert distiller.total(terms).item() == pytest.approx(total, rel=1e-4)


def test_the_attention_scores_are_what_the_softmax_sees(tmp_path, tiny_checkpoint):
    """With them, the values and the rest of the layer the layer's output comes out."""
    encoder = Encoder.from_checkpoint(load_checkpoint(teacher_folder(tmp_path, tiny_checkpoint)))
    with torch.no_grad():
        states = encoder.hidden_states(*BATCH)
        for number, layer in enumerate(encoder.layers):
            scores = encoder.attention_scores(number, states[number])
            assert scores.shape == (3, 4, 6, 6)
            hidden = (torch.arange(6) >= LENGTHS[:, None])[:, None, None]
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            values = layer.attention.qkv(states[number])[..., -32:].view(3, 6, 4, 8).transpose(1, 2)
            mixed = (weights @ values).transpose(1, 2).flatten(-2)
            attended = layer.attention.norm(states[number] + layer.attention.output(mixed))
            torch.testing.assert_close(layer.feed_forward(attended), states[number + 1])


# -- students


def test_a_student_of_all_layers_is_its_teacher(tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(teacher_folder(tmp_path, tiny_checkpoint))
    student = student_from(checkpoint, range(4))
    distiller = Distiller(Encoder.from_checkpoint(student), Encoder.from_checkpoint(checkpoint)).eval()
    terms = distiller.loss(*BATCH)
    assert sorted(terms) == ["attention", "embedding", "hidden", "logits"]
    assert distiller.total(terms).item() == 0.0


def test_a_student_is_a_checkpoint_of_the_chosen_layers(tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(teacher_folder(tmp_path, tiny_checkpoint))
    student = student_from(checkpoint, [1, 3])
    save_checkpoint(student, tmp_path / "student")
    again = load_checkpoint(tmp_path / "student")
    assert (again.config.layers, again.config.labels) == (2, 2)
    assert student.fingerprint not in (checkpoint.fingerprint, student_from(checkpoint, [0, 3]).fingerprint)
    for name, source in {
        "layers.0.attention.query.weight": "layers.1.attention.query.weight",
        "layers.1.feed_forward.norm.bias": "layers.3.feed_forward.norm.bias",
        "embeddings.word": "embeddings.word",
        "head.output.weight": "head.output.weight",
    }.items():
        np.testing.assert_array_equal(again.tensors[name], checkpoint.tensors[source])
    three = student_from(checkpoint, 3).tensors["layers.0.attention.output.bias"]
    assert uniform_map(3, 4) == (1, 3, 4)
    np.testing.assert_array_equal(three, checkpoint.tensors["layers.0.attention.output.bias"])


@pytest.mark.parametrize("layers", [[], [4], [-1, 2], 5, 0])
def test_layers_that_are_not_there(layers, tmp_path, tiny_checkpoint):
    with pytest.raises(InputError, match="layers"):
        student_from(load_checkpoint(teacher_folder(tmp_path, tiny_checkpoint)), layers)


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_map_rises_to_the_last_layer(one, other):
    student, teacher = sorted((one, other))
    mapping = uniform_map(student, teacher)
    assert len(mapping) == student and mapping[-1] == teacher and mapping[0] >= 1
    assert all(first < second for first, second in pairwise(mapping))
    if teacher % student == 0:
        assert mapping == tuple(m * teacher // student for m in range(1, student + 1))


def test_a_student_of_another_width_learns_through_projections(tmp_path, tiny_checkpoint):
    folder = teacher_folder(tmp_path, tiny_checkpoint)
    teacher = Encoder.from_checkpoint(load_checkpoint(folder))
    narrow = from_scratch(folder, layers=2, hidden=12, feed_forward=20, labels=1, seed=5)
    student = Encoder.from_checkpoint(narrow)
    torch.manual_seed(0)
    distiller = Distiller(student, teacher, weights=Weights(alpha=0.0)).train()
    assert distiller.projections.hidden.weight.shape == (32, 12)
    before = teacher.padded(*BATCH)
    optimiser = torch.optim.AdamW(distiller.parameters(), lr=3e-3)
    found = []
    for _ in range(30):
        loss = distiller.total(distiller.loss(*BATCH))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    assert np.mean(found[-5:]) < 0.7 * np.mean(found[:5])
    torch.testing.assert_close(teacher.padded(*BATCH), before)
    assert not teacher.training and student.training


def test_only_what_is_trained_is_a_parameter_and_part_of_the_state(tmp_path, tiny_checkpoint):
    checkpoint = load_checkpoint(teacher_folder(tmp_path, tiny_checkpoint))
    student = Encoder.from_checkpoint(student_from(checkpoint, 2))
    distiller = Distiller(student, Encoder.from_checkpoint(checkpoint))
    assert {name.split(".")[0] for name in distiller.state_dict()} == {"student"}
    assert all(parameter.requires_grad for parameter in distiller.parameters())
    assert Projections(32, 32).state_dict() == {}


def test_what_cannot_be_compared_is_refused(tmp_path, tiny_checkpoint):
    folder = teacher_folder(tmp_path, tiny_checkpoint)
    teacher = Encoder.from_checkpoint(load_checkpoint(folder))
    two_heads = Encoder.from_checkpoint(from_scratch(folder, layers=2, heads=2))
    with pytest.raises(InputError, match="2 heads cannot learn attention from 4: use as many heads"):
        Distiller(two_heads, teacher)
    Distiller(two_heads, teacher, weights=Weights(attention=0.0))
    for mapping in ([1], [0, 4], [1, 5]):
        with pytest.raises(InputError, match="2 layers cannot learn from layers"):
            Distiller(two_heads, teacher, mapping=mapping, weights=Weights(attention=0.0))
    with pytest.raises(InputError, match="alpha from 0 to 1"):
        Weights(alpha=1.5)
    labels_only = Weights(embedding=0.0, hidden=0.0, attention=0.0, alpha=1.0)
    with pytest.raises(InputError, match="nothing to learn"):
        Distiller(two_heads, teacher, weights=labels_only).loss(*BATCH)


# -- from scratch


def test_from_scratch_is_seeded_and_a_model(tmp_path, tiny_checkpoint):
    folder = tiny_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    checkpoint = from_scratch(folder, layers=3, seed=4)
    again, other = from_scratch(folder, layers=3, seed=4), from_scratch(folder, layers=3, seed=5)
    name = "layers.2.feed_forward.up.weight"
    np.testing.assert_array_equal(checkpoint.tensors[name], again.tensors[name])
    assert np.abs(checkpoint.tensors[name] - other.tensors[name]).max() > 0.01
    assert checkpoint.fingerprint == again.fingerprint != other.fingerprint
    assert checkpoint.tensors[name].std() == pytest.approx(0.02, rel=0.1)
    assert checkpoint.tensors["embeddings.norm.weight"].tolist() == [1.0] * 32
    save_checkpoint(checkpoint, tmp_path / "saved")
    assert load_checkpoint(tmp_path / "saved").config.layers == 3


# -- any stage as a teacher


class Fixed(Stage):
    """A stage that gives the scores it is told, best first."""

    def __init__(self, scores: dict[str, float], kind: ScoreKind) -> None:
        self.scores, self.kind = scores, kind

    @property
    def expression(self) -> Call:
        return Call("fixed")

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        found = []
        for ranking in rankings:
            ids = [identity for identity in ranking.ids if identity in self.scores]
            ids.sort(key=lambda identity: -self.scores[identity])
            scores = np.array([self.scores[identity] for identity in ids])
            found.append(Ranking(ranking.query, tuple(ids), scores, self.kind))
        return found


def ranking(number: int, ids: Sequence[str]) -> Ranking:
    return Ranking(Query(f"q{number}", "sieve"), tuple(ids), -np.arange(len(ids), dtype=float))


def test_teacher_scores_stand_in_the_order_of_the_candidates():
    stage = Fixed({"a": 3.0, "b": -1.0, "c": 2.5}, ScoreKind.LOGIT)
    found = teacher_scores(stage, [ranking(1, "bca"), ranking(2, ""), ranking(3, "ab")])
    assert [scores.tolist() for scores in found] == [[-1.0, 2.5, 3.0], [], [3.0, -1.0]]
    assert all(scores.dtype == np.float32 for scores in found)


def test_probabilities_come_as_margins():
    margins = np.array([-30.0, -2.0, 0.0, 4.0, 20.0])
    probabilities = 1 / (1 + np.exp(-margins))
    names = "abcde"
    for kind, values in (
        (ScoreKind.PROBABILITY, probabilities),
        (ScoreKind.LOG_PROBABILITY, -np.log1p(np.exp(-margins))),
    ):
        stage = Fixed(dict(zip(names, values.tolist(), strict=True)), kind)
        (found,) = teacher_scores(stage, [ranking(1, names)])
        np.testing.assert_allclose(found, margins, rtol=1e-6, atol=1e-9)
    (offsets,) = teacher_scores(Fixed({"a": 1.0, "b": 0.0}, ScoreKind.PROBABILITY), [ranking(1, "ab")])
    assert np.isfinite(offsets).all() and offsets[0] > 30 and offsets[1] < -30
    (same,) = teacher_scores(Fixed({"a": 0.5, "b": 0.25}, ScoreKind.COMBINED), [ranking(1, "ab")])
    assert same.tolist() == [0.5, 0.25]


def test_a_teacher_that_drops_candidates_is_refused():
    with pytest.raises(InputError, match="gave 'z', a candidate of query 'q1', no score"):
        teacher_scores(Fixed({"a": 1.0}, ScoreKind.LOGIT), [ranking(1, "az")])


def test_mono_teaches_its_margins(tmp_path, tiny_checkpoint):
    folder = str(teacher_folder(tmp_path, tiny_checkpoint))
    texts = ["a drum sieve", "soup of the day", "sieves and soup"]

    class Texts:
        def document(self, identity: str):
            from tamis.base.documents import Document

            return Document(identity, texts[int(identity)])

    given_ = Ranking(Query("q", "which sieve"), ("2", "0", "1"), np.zeros(3), texts=Texts())
    options = {"device": "cpu", "precision": "fp32", "workers": 1}
    (logits,) = teacher_scores(Mono(folder, score="logit", **options), [given_])
    (margins,) = teacher_scores(Mono(folder, **options), [given_])
    np.testing.assert_allclose(logits, margins, rtol=1e-5, atol=1e-6)
    hits = {hit.id: hit.score for hit in Mono(folder, score="logit", **options)(given_)}
    assert logits.tolist() == pytest.approx([hits["2"], hits["0"], hits["1"]])
