"""What holds for the passages of any text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.text.segment import Passage, cut_at_tokens, even_chunks, kept, sentences, windows, word_windows

texts = st.text(st.sampled_from("aA.!?,\n \"'()1é。🙂\t") | st.characters(), max_size=200)


@given(texts)
def test_sentences_are_in_order_and_leave_out_space_alone(text: str) -> None:
    found = sentences(text)
    assert all(start < stop for start, stop in found)
    assert all(one.stop <= other.start for one, other in pairwise(found))
    assert all(text[start:stop] == text[start:stop].strip() for start, stop in found)
    assert "".join("".join(text[start:stop].split()) for start, stop in found) == "".join(text.split())


@given(texts, st.integers(1, 6), st.data())
def test_word_windows_hold_every_word_and_no_window_is_inside_another(
    text: str, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window))
    found = word_windows(text, window, stride)
    seen = [text[start:stop].split() for start, stop in found]
    assert [
        word for n, each in enumerate(seen) for word in (each if n == 0 else each[window - stride :])
    ] == (text.split())
    assert all(len(each) == window for each in seen[:-1])
    assert all(one.start < other.start and one.stop < other.stop for one, other in pairwise(found))
    most = data.draw(st.integers(1, 5))
    assert word_windows(text, window, stride, most) == found[:most]


@given(st.integers(0, 500), st.integers(1, 50), st.data())
def test_windows_overlap_by_what_the_stride_leaves(count: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    found = windows(count, window, stride)
    assert {unit for start, stop in found for unit in range(start, stop)} == set(range(count))
    assert all(later - earlier == stride for (earlier, _), (later, _) in pairwise(found))


@given(st.integers(0, 2000), st.integers(1, 60))
def test_even_chunks_are_few_and_even(count: int, longest: int) -> None:
    found = even_chunks(count, longest)
    sizes = [stop - start for start, stop in found]
    assert sum(sizes) == count
    assert all(one[1] == other[0] for one, other in pairwise(found))
    assert len(sizes) == -(-count // longest)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes, default=0) <= min(longest, min(sizes, default=0) + 1)


@given(st.integers(0, 300), st.integers(1, 40), st.sampled_from(["first", "sampled"]), st.integers(0, 9))
def test_kept_are_different_passages_in_order(count: int, most: int, keep: str, seed: int) -> None:
    found = kept(count, most, keep, seed=seed, document="d")  # type: ignore[arg-type]
    assert len(found) == min(count, most)
    assert (np.diff(found) > 0).all()
    assert not len(found) or (found[0] == 0 and found[-1] < count)
    if keep == "sampled" and most > 1 and count:
        assert found[-1] == count - 1


@given(st.lists(st.integers(0, 50), max_size=30).map(sorted), st.integers(1, 7), st.integers(0, 20))
def test_pieces_of_a_passage_hold_all_of_it(starts: list[int], size: int, first: int) -> None:
    passage = Passage(first, 51)
    pieces = cut_at_tokens(passage, starts, size)
    assert pieces[0].start == first and pieces[-1].stop == 51
    assert all(one.stop == other.start for one, other in pairwise(pieces))
    distinct = [place for place in starts if place > first]
    if len(set(distinct)) == len(distinct):
        inside = [[p for p in distinct if start < p < stop] for start, stop in pieces]
        assert all(len(each) < size for each in inside)
