"""For any texts and limits: budgets hold, texts are cut from their end, and every cut is reported."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.models.templates import Form, Inputs, Special, Tokenised, duo, listwise, mono, text_spans

TOKENS = st.lists(st.integers(10, 60_000), max_size=40)
TEXTS = st.lists(TOKENS, max_size=8)
SPECIALS = st.builds(
    Special,
    cls=st.just(1),
    sep=st.just(2),
    double_separator=st.booleans(),
    query_marker=st.just((3, 5)),
    document_marker=st.just((4, 5)),
)
FORMS = st.sampled_from(["default", "swapped", "markers"])
LIMITS = {"query_limit": st.integers(0, 20), "total_limit": st.integers(9, 60)}


def rows(inputs: Inputs) -> list[tuple[list[int], list[int]]]:
    offsets = inputs.offsets.tolist()
    return [(inputs.ids[a:b].tolist(), inputs.segments[a:b].tolist()) for a, b in pairwise(offsets)]


@settings(deadline=None, max_examples=60)
@given(query=TOKENS, texts=TEXTS, special=SPECIALS, form=FORMS, **LIMITS)
def test_mono_is_the_plain_concatenation_of_beginnings(
    query: list[int], texts: list[list[int]], special: Special, form: Form, query_limit: int, total_limit: int
) -> None:
    between, end = [2] * (1 + special.double_separator), [2]
    others = 5 if form == "markers" else 1 + len(between) + len(end)
    q = query[: min(query_limit, (total_limit - others) // 2)]
    budget = total_limit - others - len(q)
    expected = []
    for text in texts:
        d = text[:budget]
        if form == "swapped":
            first, second = [1, *d, *between], [*q, *end]
        elif form == "markers":
            first, second = [1, 3, 5, *q], [4, 5, *d]
        else:
            first, second = [1, *q, *between], [*d, *end]
        expected.append((first + second, [0] * len(first) + [1] * len(second)))
    inputs, truncation = mono(
        query, Tokenised.of(texts), special, query_limit=query_limit, total_limit=total_limit, form=form
    )
    assert rows(inputs) == expected
    assert inputs.lengths.max(initial=0) <= total_limit
    kept = int(inputs.lengths.sum()) - len(texts) * (others + len(q))
    assert kept == truncation.text_tokens - truncation.text_tokens_lost
    assert truncation.texts_cut == sum(len(text) > budget for text in texts)


@settings(deadline=None, max_examples=60)
@given(query=TOKENS, texts=st.lists(TOKENS, min_size=1, max_size=6), special=SPECIALS, data=st.data())
def test_inputs_of_two_texts(
    query: list[int], texts: list[list[int]], special: Special, data: st.DataObject
) -> None:
    number = st.integers(0, len(texts) - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), max_size=10))
    total_limit = data.draw(st.integers(16, 80))
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    inputs, truncation = duo(query, Tokenised.of(texts), array, special, total_limit=total_limit)

    between = [2] * (1 + special.double_separator)
    room = total_limit - 2 - 2 * len(between)
    query_budget = min(62, room // 3)
    budget = (room - query_budget) // 2
    expected = []
    for first, second in pairs:
        asked = [1, *query[:query_budget], *between]
        one, two = texts[first][:budget] + between, [*texts[second][:budget], 2]
        expected.append(([*asked, *one, *two], [0] * len(asked) + [1] * len(one) + [2] * len(two)))
    assert rows(inputs) == expected
    assert inputs.lengths.max(initial=0) <= total_limit
    used = {text for pair in pairs for text in pair}
    assert truncation.texts == len(used)
    assert truncation.text_tokens_lost == sum(max(0, len(texts[text]) - budget) for text in used)


@settings(deadline=None, max_examples=60)
@given(query=TOKENS, texts=st.lists(TOKENS, min_size=1, max_size=6), special=SPECIALS, data=st.data())
def test_inputs_of_several_texts(
    query: list[int], texts: list[list[int]], special: Special, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 4))
    number = st.integers(0, len(texts) - 1)
    groups = data.draw(st.lists(st.lists(number, min_size=1, max_size=count), max_size=10))
    total_limit = data.draw(st.integers(20, 80))
    array = np.array([group + [-1] * (count - len(group)) for group in groups], np.int64).reshape(-1, count)
    inputs, truncation = listwise(query, Tokenised.of(texts), array, special, total_limit=total_limit)

    between = [2] * (1 + special.double_separator)
    room = total_limit - 2 - count * len(between)
    query_budget = min(62, room // min(count + 1, 4))
    budget = (room - query_budget) // count
    expected, spans, before = [], [], 0
    for place, group in enumerate(groups):
        ids = [1, *query[:query_budget], *between]
        segments = [0] * len(ids)
        for turn, text in enumerate(group):
            last = turn == len(group) - 1
            own = texts[text][:budget]
            spans.append((before + len(ids), len(own) + 1, place, turn))
            ids += own + ([2] if last else between)
            segments += [1] * (len(ids) - len(segments))
        before += len(ids)
        expected.append((ids, segments))
    assert rows(inputs) == expected
    assert list(zip(*(each.tolist() for each in text_spans(inputs, special)), strict=True)) == spans
    assert inputs.lengths.max(initial=0) <= total_limit
    used = {text for group in groups for text in group}
    assert truncation.texts == len(used)
    assert truncation.text_tokens_lost == sum(max(0, len(texts[text]) - budget) for text in used)


@settings(deadline=None, max_examples=60)
@given(
    queries=st.lists(TOKENS, min_size=1, max_size=4),
    texts=st.lists(TOKENS, min_size=2, max_size=6),
    special=SPECIALS,
    form=FORMS,
    data=st.data(),
    **LIMITS,
)
def test_several_queries_at_once_are_one_after_the_other(
    queries: list[list[int]],
    texts: list[list[int]],
    special: Special,
    form: Form,
    query_limit: int,
    total_limit: int,
    data: st.DataObject,
) -> None:
    own = data.draw(st.lists(st.integers(0, len(queries) - 1), min_size=len(texts), max_size=len(texts)))
    together, cut = mono(
        Tokenised.of(queries),
        Tokenised.of(texts),
        special,
        query_of=np.array(own),
        query_limit=query_limit,
        total_limit=total_limit,
        form=form,
    )
    alone = [
        mono(
            queries[number],
            Tokenised.of([text]),
            special,
            query_limit=query_limit,
            total_limit=total_limit,
            form=form,
        )
        for number, text in zip(own, texts, strict=True)
    ]
    assert rows(together) == rows(Inputs.join([inputs for inputs, _ in alone]))
    assert cut.text_tokens_lost == sum(each.text_tokens_lost for _, each in alone)
    pair, total_limit = np.array([[0, 1], [1, 0]]), total_limit + 20
    both = duo(
        Tokenised.of(queries),
        Tokenised.of(texts),
        pair,
        special,
        query_of=np.array(own[:2]),
        total_limit=total_limit,
    )
    assert rows(both[0]) == [
        rows(duo(queries[number], Tokenised.of(texts), pair, special, total_limit=total_limit)[0])[place]
        for place, number in enumerate(own[:2])
    ]


@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TOKENS, min_size=1, max_size=8), data=st.data())
def test_take_is_slicing(texts: list[list[int]], data: st.DataObject) -> None:
    inputs, _ = mono([7], Tokenised.of(texts), Special(cls=1, sep=2))
    numbers = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12))
    whole = rows(inputs)
    assert rows(inputs.take(numbers)) == [whole[number] for number in numbers]
    parts = [inputs.take([number]) for number in range(len(texts))]
    assert rows(Inputs.join(parts)) == whole
