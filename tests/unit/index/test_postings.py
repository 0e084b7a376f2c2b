"""Posting lists: what is encoded is decoded, and the competitive pairs bound every posting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index
from tamis.base.arrays import ranges
from tamis.index.postings import BLOCK, Postings, competitive_pairs, from_variable_bytes, join, variable_bytes
from tamis.index.segment import Segment

# -- the pure functions
# ------------------------------------------------------------------------------------------------------------


def test_ranges() -> None:
    assert ranges(np.array([5, 0, 9]), np.array([2, 3, 1])).tolist() == [5, 6, 0, 1, 2, 9]
    assert ranges(np.array([5, 7, 9]), np.array([1, 0, 2])).tolist() == [5, 9, 10]
    assert ranges(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def test_join_appends_each_terms_lists_with_their_positions() -> None:
    # term 0: document 3 at 4 and 6, then document 8 at 1; term 1: document 9 at 0, 2 and 5
    first = Postings(np.array([1, 0]), np.array([3]), np.array([2]), np.array([4, 6]))
    second = Postings(np.array([1, 1]), np.array([8, 9]), np.array([1, 3]), np.array([1, 0, 2, 5]))
    joined = join([first, second])
    assert joined.positions is not None
    assert joined.counts.tolist() == [2, 1]
    assert joined.documents.tolist() == [3, 8, 9]
    assert joined.tfs.tolist() == [2, 1, 3]
    assert joined.positions.tolist() == [4, 6, 1, 0, 2, 5]


def test_competitive_pairs_worked_out() -> None:
    # (tf, norm): (1, 5) is shorter than all; (2, 8) has more; (2, 9) and (1, 8) are dominated by (2, 8); (4,
    # 30) has most
    tfs, norms = np.array([2, 1, 2, 1, 4]), np.array([9, 5, 8, 8, 30], dtype=np.uint8)
    pairs, starts = competitive_pairs(tfs, norms, np.array([0]))
    assert [(pair >> 8, pair & 255) for pair in pairs.tolist()] == [(1, 5), (2, 8), (4, 30)]
    assert starts.tolist() == [0, 3]


@pytest.mark.parametrize("seed", range(20))
def test_competitive_pairs_are_all_that_is_needed_and_no_more(seed: int) -> None:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 12, 30)
    tfs = np.minimum(generator.geometric(0.05 + 0.04 * seed, sizes.sum()), 255)
    norms = generator.integers(0, generator.integers(1, 256), sizes.sum()).astype(np.uint8)
    block_starts = np.cumsum(sizes) - sizes
    pairs, starts = competitive_pairs(tfs, norms, block_starts)
    assert starts[0] == 0
    assert starts[-1] == len(pairs)
    for block, (start, size) in enumerate(zip(block_starts.tolist(), sizes.tolist(), strict=True)):
        postings = set(
            zip(tfs[start : start + size].tolist(), norms[start : start + size].tolist(), strict=True)
        )
        undominated = {
            (tf, norm)
            for tf, norm in postings
            if not any((t, n) != (tf, norm) and t >= tf and n <= norm for t, n in postings)
        }
        found = pairs[starts[block] : starts[block + 1]].tolist()
        assert {(pair >> 8, pair & 255) for pair in found} == undominated
        assert len(found) == len(undominated)


def test_variable_bytes_worked_out() -> None:
    # 300 = 2 * 128 + 44: 44 with the high bit, then 2
    assert variable_bytes(np.array([0, 127, 128, 300])).tolist() == [0, 127, 128, 1, 172, 2]


def test_variable_bytes_give_back_what_they_were_given() -> None:
    edges = [0, 1, *(1 << bits for bits in range(7, 32)), *((1 << bits) - 1 for bits in range(7, 33))]
    values = np.array([*edges, *reversed(edges)], dtype=np.uint32)
    assert from_variable_bytes(variable_bytes(values)).tolist() == values.tolist()
    assert len(variable_bytes(np.array([2**32 - 1]))) == 5
    assert from_variable_bytes(variable_bytes(np.zeros(0, np.uint32))).tolist() == []


# -- through a segment
# ------------------------------------------------------------------------------------------------------------


def segment_of(texts: dict[int, str], count: int, folder: Path, *, positions: bool = False) -> Segment:
    """A segment with these documents among `count`, all others empty."""
    documents = (Document(f"d{number}", texts.get(number, "")) for number in range(count))
    return Index.build(documents, folder / "idx", analyzer="whitespace", positions=positions).segments[0]


def decoded(segment: Segment, term: str) -> list[tuple[int, int]]:
    entry = segment.term(term)
    assert entry is not None
    documents, tfs = segment.decode(entry)
    return list(zip(documents.tolist(), tfs.tolist(), strict=True))


def test_lists_around_the_length_of_a_block(tmp_path: Path) -> None:
    counts = {f"t{n}": n for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 1000)}
    texts = {n: " ".join(t for t, count in counts.items() if n < count) for n in range(1000)}
    segment = segment_of(texts, 1000, tmp_path)
    for term, count in counts.items():
        assert decoded(segment, term) == [(n, 1) for n in range(count)]
        entry = segment.term(term)
        assert entry is not None
        assert (entry.df, entry.cf, entry.max_tf) == (count, count, 1)
        assert entry.last_block - entry.first_block == -(-count // BLOCK)
    assert segment.term("nowhere") is None


def test_blocks_that_span_more_than_sixteen_bits(tmp_path: Path) -> None:
    # far apart; exactly at the limit; and a wide block between two narrow ones
    thin = [0, 1, 65_535, 65_536, 69_999]
    limit, beyond = [5, 5 + 65_535], [5, 5 + 65_536]
    mixed = [*range(BLOCK), *range(200, 200 + BLOCK - 1), 69_000, *range(69_100, 69_110)]
    terms = {"thin": thin, "limit": limit, "beyond": beyond, "mixed": mixed}
    texts: dict[int, str] = {}
    for term, numbers in terms.items():
        for number in numbers:
            texts[number] = f"{texts.get(number, '')} {term}"
    segment = segment_of(texts, 70_000, tmp_path)
    wide = (segment.column("postings.block_place") & 1).astype(bool)
    for term, numbers in terms.items():
        assert decoded(segment, term) == [(number, 1) for number in numbers]
    by_term = {}
    for term in terms:
        entry = segment.term(term)
        assert entry is not None
        by_term[term] = wide[entry.first_block : entry.last_block].tolist()
    assert by_term == {"thin": [True], "limit": [False], "beyond": [True], "mixed": [False, True, False]}


def test_tfs_that_do_not_fit_a_byte(tmp_path: Path) -> None:
    tfs = [1, 254, 255, 256, 257, 1000, 70_000, 3]
    segment = segment_of({n: "loud " * tf for n, tf in enumerate(tfs)}, len(tfs), tmp_path)
    assert decoded(segment, "loud") == list(enumerate(tfs))
    entry = segment.term("loud")
    assert entry is not None
    assert entry.max_tf == 255
    assert entry.cf == sum(tfs)
    assert entry.overflow_tf.tolist() == [255, 256, 257, 1000, 70_000]
    assert (entry.overflow_place - entry.first_posting).tolist() == [2, 3, 4, 5, 6]


def test_positions(tmp_path: Path) -> None:
    far = " ".join(["x"] * 20_000)  # gaps of more than two bytes
    texts = {0: "a b a", 2: f"b {far} a {far} a", 3: "c"}
    segment = segment_of(texts, 4, tmp_path, positions=True)

    def positions(term: str) -> list[int]:
        entry = segment.term(term)
        assert entry is not None
        return segment.positions(entry).tolist()

    assert positions("a") == [0, 2, 20_001, 40_002]
    assert positions("b") == [1, 0]
    assert positions("c") == [0]
    assert positions("x") == [*range(1, 20_001), *range(20_002, 40_002)]
