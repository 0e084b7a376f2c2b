"""Inputs written out by hand: every template, every cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.models.architectures.mono import ablated
from tamis.models.templates import (
    COUNTED,
    Form,
    Inputs,
    Special,
    Tokenised,
    Truncation,
    duo,
    listwise,
    mono,
    text_spans,
)

CLS, SEP = 101, 102
BERT = Special(cls=CLS, sep=SEP, query_marker=(91, 92), document_marker=(93, 92))
ROBERTA = Special(cls=0, sep=2, pad=1, double_separator=True)
QUERY = [7, 8]
TEXTS = Tokenised.of([[11, 12, 13], [21], []])


def rows(inputs: Inputs) -> list[tuple[list[int], list[int]]]:
    """Each input's tokens and segments; types and ends are checked in passing."""
    assert (inputs.ids.dtype, inputs.segments.dtype, inputs.offsets.dtype) == (np.int32, np.uint8, np.int64)
    assert inputs.offsets[0] == 0
    assert inputs.offsets[-1] == len(inputs.ids) == len(inputs.segments)
    return [
        (inputs.ids[a:b].tolist(), inputs.segments[a:b].tolist())
        for a, b in zip(inputs.offsets[:-1], inputs.offsets[1:], strict=True)
    ]


def of_length(*lengths: int) -> Tokenised:
    """Texts whose tokens count up from 1000, 2000, ..."""
    return Tokenised.of(
        [list(range(1000 * n, 1000 * n + length)) for n, length in enumerate(lengths, start=1)]
    )


# -- mono


@pytest.mark.parametrize("form", ["default", "no-positions", "no-segments"])
def test_mono(form: Form) -> None:
    inputs, truncation = mono(QUERY, TEXTS, BERT, form=form)
    assert rows(inputs) == [
        ([CLS, 7, 8, SEP, 11, 12, 13, SEP], [0, 0, 0, 0, 1, 1, 1, 1]),
        ([CLS, 7, 8, SEP, 21, SEP], [0, 0, 0, 0, 1, 1]),
        ([CLS, 7, 8, SEP, SEP], [0, 0, 0, 0, 1]),
    ]
    assert truncation == Truncation(texts=3, text_tokens=4, queries=1, query_tokens=2)


def test_swapped() -> None:
    inputs, _ = mono(QUERY, TEXTS, BERT, form="swapped")
    assert rows(inputs) == [
        ([CLS, 11, 12, 13, SEP, 7, 8, SEP], [0, 0, 0, 0, 0, 1, 1, 1]),
        ([CLS, 21, SEP, 7, 8, SEP], [0, 0, 0, 1, 1, 1]),
        ([CLS, SEP, 7, 8, SEP], [0, 0, 1, 1, 1]),
    ]


def test_markers() -> None:
    inputs, _ = mono(QUERY, TEXTS, BERT, form="markers")
    assert rows(inputs) == [
        ([CLS, 91, 92, 7, 8, 93, 92, 11, 12, 13], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        ([CLS, 91, 92, 7, 8, 93, 92, 21], [0, 0, 0, 0, 0, 1, 1, 1]),
        ([CLS, 91, 92, 7, 8, 93, 92], [0, 0, 0, 0, 0, 1, 1]),
    ]


def test_empty_query() -> None:
    inputs, truncation = mono([], TEXTS.take([1, 2]), BERT)
    assert rows(inputs) == [([CLS, SEP, 21, SEP], [0, 0, 1, 1]), ([CLS, SEP, SEP], [0, 0, 1])]
    assert str(truncation) == "no text cut; no query cut"


@pytest.mark.parametrize("segment_types", [0, 1])
def test_roberta_has_two_separators_and_one_segment(segment_types: int) -> None:
    inputs, _ = mono(QUERY, TEXTS.take([1]), ROBERTA, segment_types=segment_types)
    assert rows(inputs) == [([0, 7, 8, 2, 2, 21, 2], [0, 0, 0, 0, 0, 0, 0])]
    swapped, _ = mono(QUERY, TEXTS.take([1]), ROBERTA, segment_types=segment_types, form="swapped")
    assert rows(swapped) == [([0, 21, 2, 2, 7, 8, 2], [0, 0, 0, 0, 0, 0, 0])]


def test_no_texts() -> None:
    inputs, truncation = mono(QUERY, Tokenised.of([]), BERT)
    assert rows(inputs) == []
    assert truncation == Truncation(queries=1, query_tokens=2)


@pytest.mark.parametrize(
    ("form", "special", "others"),
    [
        ("default", BERT, 3),
        ("swapped", BERT, 3),
        ("markers", BERT, 1 + 4),
        ("default", ROBERTA, 4),
    ],
)
def test_text_takes_what_the_query_leaves_of_512(form: Form, special: Special, others: int) -> None:
    for query_tokens in (0, 5, 64):
        room = 512 - others - query_tokens
        inputs, truncation = mono([7] * query_tokens, of_length(room, room + 1), special, form=form)
        assert inputs.lengths.tolist() == [512, 512]
        assert (truncation.texts_cut, truncation.text_tokens_lost) == (1, 1)


def test_query_is_cut_to_64_and_texts_from_their_end() -> None:
    query = list(range(1, 71))
    inputs, truncation = mono(query, of_length(600, 10), BERT)
    (first, _), (second, _) = rows(inputs)
    assert first == [CLS, *range(1, 65), SEP, *range(1000, 1445), SEP]
    assert len(first) == 512
    assert second == [CLS, *range(1, 65), SEP, *range(2000, 2010), SEP]
    assert truncation == Truncation(
        texts=2,
        texts_cut=1,
        text_tokens=610,
        text_tokens_lost=155,
        queries=1,
        queries_cut=1,
        query_tokens=70,
        query_tokens_lost=6,
    )
    assert str(truncation) == (
        "1 of 2 texts cut, 155 of 610 tokens lost; 1 of 1 queries cut, 6 of 70 tokens lost"
    )


def test_smaller_limits() -> None:
    inputs, _ = mono([1, 2, 3, 4], of_length(9), BERT, query_limit=2, total_limit=10)
    assert rows(inputs)[0][0] == [CLS, 1, 2, SEP, *range(1000, 1005), SEP]


def test_query_gives_way_to_half_of_a_small_model() -> None:
    """13 positions leave room for 10 tokens: 5 of the query, 5 of the text."""
    inputs, _ = mono(range(64), of_length(100), BERT, total_limit=13)
    assert rows(inputs)[0][0] == [CLS, 0, 1, 2, 3, 4, SEP, 1000, 1001, 1002, 1003, 1004, SEP]


def test_no_room_at_all() -> None:
    with pytest.raises(InputError, match="no room for a text and a query: raise the limit"):
        mono(QUERY, TEXTS, BERT, total_limit=4)
    with pytest.raises(InputError, match="no room for 2 texts and a query"):
        duo(QUERY, TEXTS, np.array([[0, 1]]), BERT, total_limit=6)


def test_unknown_form() -> None:
    with pytest.raises(InputError, match="no input form 'reversed': use one of default, no-positions"):
        mono(QUERY, TEXTS, BERT, form="reversed")  # type: ignore[arg-type]


# -- duo and lists


def test_duo() -> None:
    inputs, truncation = duo(QUERY, TEXTS, np.array([[0, 1], [1, 0], [1, 2]]), BERT)
    assert rows(inputs) == [
        ([CLS, 7, 8, SEP, 11, 12, 13, SEP, 21, SEP], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]),
        ([CLS, 7, 8, SEP, 21, SEP, 11, 12, 13, SEP], [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]),
        ([CLS, 7, 8, SEP, 21, SEP, SEP], [0, 0, 0, 0, 1, 1, 2]),
    ]
    assert truncation == Truncation(texts=3, text_tokens=4, queries=1, query_tokens=2)


def test_duo_budgets_are_62_and_223_and_223() -> None:
    inputs, truncation = duo(range(1, 71), of_length(300, 224), np.array([[0, 1], [1, 0]]), BERT)
    (first, segments), _ = rows(inputs)
    assert first == [CLS, *range(1, 63), SEP, *range(1000, 1223), SEP, *range(2000, 2223), SEP]
    assert segments == [0] * 64 + [1] * 224 + [2] * 224
    assert inputs.lengths.tolist() == [512, 512]
    # each text counts once, though it is in both inputs
    assert (truncation.texts, truncation.texts_cut, truncation.text_tokens_lost) == (2, 2, 77 + 1)
    assert (truncation.queries_cut, truncation.query_tokens_lost) == (1, 8)


def test_duo_texts_are_cut_alike_whatever_the_query() -> None:
    inputs, _ = duo([7], of_length(300, 300), np.array([[0, 1]]), BERT)
    assert inputs.lengths.tolist() == [1 + 1 + 1 + 223 + 1 + 223 + 1]


def test_duo_of_a_smaller_model() -> None:
    """256 positions: the query keeps its 62, the texts share 256 - 4 - 62."""
    inputs, _ = duo(range(70), of_length(300, 300), np.array([[0, 1]]), BERT, total_limit=256)
    assert rows(inputs)[0][0] == [
        CLS,
        *range(62),
        SEP,
        *range(1000, 1095),
        SEP,
        *range(2000, 2095),
        SEP,
    ]
    # 64 positions: a third of the room each
    inputs, _ = duo(range(70), of_length(300, 300), np.array([[0, 1]]), BERT, total_limit=64)
    assert inputs.lengths.tolist() == [1 + 20 + 1 + 20 + 1 + 20 + 1]


def test_duo_with_two_separators() -> None:
    inputs, _ = duo(QUERY, TEXTS, np.array([[0, 1]]), ROBERTA)
    assert rows(inputs) == [([0, 7, 8, 2, 2, 11, 12, 13, 2, 2, 21, 2], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2])]
    full, _ = duo(range(70), of_length(300, 300), np.array([[0, 1]]), ROBERTA)
    assert full.lengths.tolist() == [512]  # 1 + 62 + 2 + 222 + 2 + 222 + 1


def test_duo_needs_three_segments() -> None:
    with pytest.raises(InputError, match="duo needs three segment types where the model has 2"):
        duo(QUERY, TEXTS, np.array([[0, 1]]), BERT, segment_types=2)


def test_duo_of_no_pairs() -> None:
    inputs, truncation = duo(QUERY, TEXTS, np.zeros((0, 2), np.int64), BERT)
    assert (len(inputs), truncation.texts) == (0, 0)


# -- several queries


def test_listwise() -> None:
    inputs, truncation = listwise(QUERY, TEXTS, np.array([[1, 0, 2], [2, 1, -1]]), BERT)
    assert rows(inputs) == [
        ([CLS, 7, 8, SEP, 21, SEP, 11, 12, 13, SEP, SEP], [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        ([CLS, 7, 8, SEP, SEP, 21, SEP], [0, 0, 0, 0, 1, 1, 1]),
    ]
    # each text counts once, though two are in both inputs
    assert truncation == Truncation(texts=3, text_tokens=4, queries=1, query_tokens=2)
    starts, counts, owners, numbers = text_spans(inputs, BERT)
    assert (starts.tolist(), counts.tolist()) == ([4, 6, 10, 15, 16], [2, 4, 1, 1, 2])
    assert (owners.tolist(), numbers.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])
    one_segment, _ = listwise(QUERY, TEXTS, np.array([[1, 0]]), BERT, segment_types=1)
    assert not one_segment.segments.any()


def test_listwise_with_two_separators() -> None:
    inputs, _ = listwise(QUERY, TEXTS, np.array([[0, 1], [2, -1]]), ROBERTA)
    assert rows(inputs) == [
        ([0, 7, 8, 2, 2, 11, 12, 13, 2, 2, 21, 2], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        ([0, 7, 8, 2, 2, 2], [0, 0, 0, 0, 0, 1]),
    ]
    found = [each.tolist() for each in text_spans(inputs, ROBERTA)]
    assert found == [[5, 10, 17], [4, 2, 1], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(("special", "each"), [(BERT, 55), (ROBERTA, 54)])
def test_listwise_budgets_are_62_and_equal_shares(special: Special, each: int) -> None:
    """Eight texts: (512 - 10 - 62) // 8 of BERT's, (512 - 18 - 62) // 8 of RoBERTa's."""
    texts = of_length(*[100] * 8)
    inputs, truncation = listwise(range(3, 73), texts, np.arange(8)[None], special)
    doubled = 8 * special.double_separator
    assert inputs.lengths.tolist() == [2 + 62 + 8 * (each + 1) + doubled] and inputs.lengths.max() <= 512
    assert (truncation.texts_cut, truncation.text_tokens_lost) == (8, 8 * (100 - each))
    assert (truncation.queries_cut, truncation.query_tokens_lost) == (1, 8)
    # neither a short query nor a group that is not full leaves more to a text
    fewer, _ = listwise([7], texts, np.array([[0, 1] + [-1] * 6]), special)
    assert fewer.lengths.tolist() == [3 + 2 * (each + 1) + 2 * special.double_separator]


def test_listwise_of_a_small_model() -> None:
    """34 positions: room for 34 - 2 - 4, a quarter of which is the query's."""
    inputs, _ = listwise(range(70), of_length(*[30] * 4), np.arange(4)[None], BERT, total_limit=34)
    assert inputs.lengths.tolist() == [1 + 7 + 1 + 4 * (5 + 1)]
    with pytest.raises(InputError, match="no room for 4 texts and a query: raise the limit"):
        listwise([7], TEXTS, np.array([[0, 1, 2, -1]]), BERT, total_limit=10)


def test_listwise_leaves_a_token_to_each_text() -> None:
    """Of 9 tokens the query would have 2, and 8 texts 7."""
    texts, group = of_length(*[30] * 8), np.arange(8)[None]
    with pytest.raises(InputError, match="no room for 8 texts and a query: raise the limit"):
        listwise(range(70), texts, group, BERT, total_limit=2 + 8 + 9)
    for query_limit, total_limit in ((62, 2 + 8 + 10), (1, 2 + 8 + 9)):
        inputs, _ = listwise(range(70), texts, group, BERT, query_limit=query_limit, total_limit=total_limit)
        assert text_spans(inputs, BERT).counts.tolist() == [2] * 8


def test_listwise_of_no_groups() -> None:
    inputs, truncation = listwise(QUERY, Tokenised.of([]), np.zeros((0, 3), np.int64), BERT)
    assert len(inputs) == 0 and truncation.texts == 0
    assert [len(each) for each in text_spans(inputs, BERT)] == [0, 0, 0, 0]


def test_each_input_has_its_own_query() -> None:
    """The long query leaves its text 512 - 3 - 64 = 445 tokens, the short one all of 508."""
    queries = Tokenised.of([[7], list(range(70))])
    inputs, truncation = mono(queries, of_length(600, 600, 2), BERT, query_of=np.array([1, 0, 1]))
    assert inputs.lengths.tolist() == [512, 512, 3 + 64 + 2]
    assert inputs.ids[512:516].tolist() == [CLS, 7, SEP, 2000]
    assert inputs.ids[1024:1028].tolist() == [CLS, 0, 1, 2]
    assert (truncation.texts, truncation.texts_cut, truncation.text_tokens_lost) == (3, 2, 155 + 92)
    assert (truncation.queries, truncation.queries_cut, truncation.query_tokens_lost) == (2, 1, 6)
    pairs, _ = duo(queries, TEXTS, np.array([[0, 1], [1, 2]]), BERT, query_of=np.array([0, 0]))
    assert rows(pairs) == rows(duo([7], TEXTS, np.array([[0, 1], [1, 2]]), BERT)[0])


@pytest.mark.parametrize("own", [None, np.array([0])])
def test_an_input_without_a_query(own: np.ndarray | None) -> None:
    with pytest.raises(InputError, match=r"3 inputs with [01] queries: give the number of the query of each"):
        mono(Tokenised.of([[7], [8]]), TEXTS, BERT, query_of=own)


# -- what is cut


def test_truncation_adds_up() -> None:
    one = mono(QUERY, of_length(600), BERT)[1]
    other = mono(range(65), of_length(3), BERT)[1]
    both = sum([one, other], Truncation())
    assert (both.texts, both.texts_cut, both.text_tokens, both.text_tokens_lost) == (2, 1, 603, 93)
    assert (both.queries, both.queries_cut, both.query_tokens, both.query_tokens_lost) == (2, 1, 67, 1)


def test_a_text_too_long_to_count_is_said_to_have_lost_at_least_so_much() -> None:
    texts = Tokenised.of([[5] * (COUNTED + 3)], limit=512)
    assert (len(texts.ids), texts.lengths.tolist()) == (512, [COUNTED])
    truncation = mono(QUERY, texts, BERT)[1]
    assert str(truncation) == "1 of 1 texts cut, at least 7,685 of 8,192 tokens lost; no query cut"
    assert (Truncation() + truncation).at_least


def test_a_query_too_long_to_count_is_said_to_have_lost_at_least_so_much() -> None:
    query = Tokenised.of([[5] * (COUNTED + 3)], limit=64)
    truncation = mono(query, Tokenised.of([[7]]), BERT, query_of=np.zeros(1, np.int64))[1]
    said = "no text cut; 1 of 1 queries cut, at least 8,128 of 8,192 tokens lost"
    assert str(truncation) == str(Truncation() + truncation) == said
    assert not truncation.at_least, "which is about texts"
    other = mono(range(65), Tokenised.of([[7]]), BERT)[1]
    assert str(other) == "no text cut; 1 of 1 queries cut, 1 of 65 tokens lost"


def test_tokens_not_kept_count_as_lost() -> None:
    texts = Tokenised.of([[5] * 100], limit=40)
    inputs, truncation = mono(QUERY, texts, BERT)
    assert inputs.lengths.tolist() == [45]
    assert (truncation.texts_cut, truncation.text_tokens_lost) == (1, 60)


# -- the arrays


def test_join() -> None:
    parts = [Tokenised.of([[1], [2, 3]]), Tokenised.of([]), Tokenised.of([[], [4]])]
    whole = Tokenised.of([[1], [2, 3], [], [4]])
    for joined, expected in ((Tokenised.join(parts), whole), (Tokenised.join([]), Tokenised.of([]))):
        assert np.array_equal(joined.ids, expected.ids)
        assert np.array_equal(joined.offsets, expected.offsets)
        assert np.array_equal(joined.lengths, expected.lengths)
    made = [mono(QUERY, part, BERT)[0] for part in parts]
    assert rows(Inputs.join(made)) == rows(mono(QUERY, whole, BERT)[0])
    assert rows(Inputs.join([])) == []


@pytest.mark.parametrize("numbers", [[], [2], [1, 1, 0]])
def test_take_of_texts(numbers: Sequence[int]) -> None:
    texts = Tokenised.of([[1], [2, 3], [4, 5, 6]], limit=2)
    taken = texts.take(numbers)
    kept, lengths = [[1], [2, 3], [4, 5]], [1, 2, 3]
    assert [taken.ids[a:b].tolist() for a, b in zip(taken.offsets[:-1], taken.offsets[1:], strict=True)] == [
        kept[n] for n in numbers
    ]
    assert taken.lengths.tolist() == [lengths[n] for n in numbers]


def test_ablated() -> None:
    tensors = {f"embeddings.{name}": np.ones((2, 3), np.float32) for name in ("word", "position", "segment")}
    for form, zero in (("no-positions", "position"), ("no-segments", "segment")):
        changed = ablated(tensors, form)  # type: ignore[arg-type]
        assert {name: values.any() for name, values in changed.items()} == {
            name: name != f"embeddings.{zero}" for name in tensors
        }
    assert ablated(tensors, "swapped") == tensors
    assert all(values.all() for values in tensors.values())  # the caller's are as they were
    assert list(ablated({"embeddings.word": np.ones(1)}, "no-segments")) == ["embeddings.word"]
