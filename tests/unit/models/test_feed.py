"""How inputs reach an encoder: laid end to end, or padded in rectangles, each score in its input's place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models import feed  # noqa: E402
from tamis.models.architectures.listwise import Listwise  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.states import first_states, token_states  # noqa: E402
from tamis.models.templates import Inputs, Tokenised, listwise  # noqa: E402

CPU = torch.device("cpu")
lengths_of_inputs = st.lists(st.integers(1, 700), min_size=1, max_size=30)


def of_lengths(lengths: list[int]) -> Inputs:
    """Inputs whose tokens tell whose they are: input 3 has 3000, 3001, ..."""
    ids = [1000 * number + place for number, length in enumerate(lengths) for place in range(length)]
    segments = [number % 3 for number, length in enumerate(lengths) for _ in range(length)]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Inputs(np.array(ids, np.int32), np.array(segments, np.uint8), offsets)


@given(lengths_of_inputs)
def test_padded_inputs_have_their_tokens_and_zeros_behind_them(lengths: list[int]) -> None:
    inputs = of_lengths(lengths)
    ids, segments, counts = feed.padded(inputs)
    assert ids.shape == segments.shape == (len(lengths), max(lengths)) and counts.tolist() == lengths
    assert ids.dtype == segments.dtype == torch.int64
    for number, length in enumerate(lengths):
        start = inputs.offsets[number]
        assert ids[number, :length].tolist() == inputs.ids[start : start + length].tolist()
        assert (segments[number, :length] == number % 3).all()
        assert not ids[number, length:].any() and not segments[number, length:].any()


@given(lengths_of_inputs)
def test_packed_inputs_are_laid_end_to_end(lengths: list[int]) -> None:
    inputs = of_lengths(lengths)
    ids, segments, offsets, longest = feed.packed(inputs, CPU)
    assert ids.tolist() == inputs.ids.tolist() and segments.tolist() == inputs.segments.tolist()
    assert offsets.tolist() == inputs.offsets.tolist()
    assert ids.dtype == segments.dtype == offsets.dtype == torch.int32
    assert max(lengths) <= longest < max(lengths) + 64 and longest % 64 == 0


@given(lengths_of_inputs)
def test_every_input_is_in_one_rectangle_and_none_is_too_large(lengths: list[int]) -> None:
    inputs = of_lengths(lengths)
    together = feed.rectangles(inputs, CPU)
    assert sorted(np.concatenate(together).tolist()) == list(range(len(lengths)))
    for some in together:
        assert len(some) == 1 or len(some) * inputs.lengths[some].max() <= 1 << 12


@given(lengths_of_inputs)
def test_scores_by_rectangle_are_in_the_order_of_the_inputs(lengths: list[int]) -> None:
    inputs, asked = of_lengths(lengths), []

    def score(ids: torch.Tensor, segments: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        asked.append(ids.shape)
        last = ids[torch.arange(len(ids)), counts - 1]  # of input 3 with 5 tokens: 3004
        return torch.stack([last, counts, segments[:, 0]], dim=1)

    found = feed.by_rectangle(score, inputs, CPU).tolist()
    assert found == [[1000 * n + length - 1, length, n % 3] for n, length in enumerate(lengths)]
    assert len(asked) == len(feed.rectangles(inputs, CPU))


@given(st.lists(st.integers(0, 99), unique=True, min_size=1))
def test_what_is_out_of_order_is_put_in_order(numbers: list[int]) -> None:
    assert torch.tensor(numbers)[feed.in_order(np.array(numbers), CPU)].tolist() == sorted(numbers)


def test_equal_numbers_keep_their_order() -> None:
    """The tokens of a text have its number, and shall stay in their order."""
    assert feed.in_order(np.array([1, 0, 1, 0, 1]), CPU).tolist() == [1, 3, 0, 2, 4]


def test_no_input_at_all() -> None:
    none = of_lengths([])
    assert feed.rectangles(none, CPU) == [] and feed.longest(none) == 64
    assert [len(each) for each in feed.packed(none, CPU)[:3]] == [0, 0, 1]


# -- what an encoder makes of them, in one rectangle, in several or packed


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("model")
    return load_checkpoint(tiny_checkpoint(folder, layers=2, hidden=16, heads=2, positions=64))


def small_rectangles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(feed._RECTANGLES, "cpu", 70)


def some_inputs(checkpoint) -> Inputs:
    lengths = [9, 40, 3, 17, 63, 1, 9]
    ids = np.random.default_rng(0).integers(5, 300, sum(lengths)).astype(np.int32)
    return Inputs(ids, np.zeros(sum(lengths), np.uint8), np.concatenate([[0], np.cumsum(lengths)]))


def test_states_do_not_depend_on_the_rectangles(checkpoint, monkeypatch, one_thread) -> None:
    encoder, inputs = Encoder.from_checkpoint(checkpoint).eval(), some_inputs(checkpoint)
    with torch.inference_mode():
        whole, firsts = token_states(encoder, inputs, False), first_states(encoder, inputs, False)
        packed = token_states(encoder, inputs, True), first_states(encoder, inputs, True)
        assert len(feed.rectangles(inputs, CPU)) == 1
        small_rectangles(monkeypatch)
        assert len(feed.rectangles(inputs, CPU)) > 3
        parts = token_states(encoder, inputs, False), first_states(encoder, inputs, False)
    for states, first in (packed, parts):
        assert torch.allclose(first, firsts, atol=1e-5)
        for one, other in zip(states, whole, strict=True):
            assert torch.allclose(one, other, atol=1e-5) and one.std() > 0.1
    assert torch.allclose(whole[-1][inputs.offsets[:-1]], firsts, atol=1e-6)


def test_texts_of_a_list_keep_their_scores_whatever_the_rectangles(
    checkpoint, monkeypatch, one_thread
) -> None:
    made = Listwise().begin(checkpoint)
    network = made.architecture.network(made)
    rng = np.random.default_rng(1)
    texts = Tokenised.of([rng.integers(20, 300, length).tolist() for length in (3, 9, 1, 5, 7, 2)])
    rows = np.array([[0, 1, 2], [3, -1, -1], [5, 4, -1], [1, 0, 3]])
    inputs, _ = listwise([30, 31], texts, rows, network.special, total_limit=64)
    with torch.inference_mode():
        whole = network(inputs)
        network.packed = True
        assert torch.allclose(network(inputs), whole, atol=1e-5)
        network.packed = False
        small_rectangles(monkeypatch)
        assert len(feed.rectangles(inputs, CPU)) > 1
        assert torch.allclose(network(inputs), whole, atol=1e-5)
    assert whole.shape == (9,) and whole.std() > 0.001
