"""A made-up collection for timing the first stage, the same on every machine.

    python bench/synthetic.py --passages 1000000 --out DIR

Passages have about 60 words that follow a Zipf-Mandelbrot law, and some repeat an earlier word of the
passage: words come in bursts (Church and Gale, 1995), so not only the commonest have frequencies above one.
No word is an English stop word and no English Porter stemmer changes any, so that engines with different
analysis still index the same tokens and are timed on the same work.

Everything is drawn from the raw output of PCG64 with additions, divisions and comparisons: numpy promises to
keep the raw stream (not what `Generator` makes of it), and IEEE arithmetic is exact where `pow` is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 500_000
BLOCK = 10_000  # passages drawn at a time, each block from its own stream: memory stays small

# rank r has weight 1 / (r + OFFSET); Mandelbrot's exponent is 1, which needs no pow
OFFSET = 6
REPEAT = 1 / 14  # share of the words that repeat an earlier word of the passage

# A query takes its words from one passage, among those of the middle ranks: at a million passages, from about
# 220,000 passages that hold the word down to about 180.
QUERY_RANKS = (12, 24_000)
QUERY_WORDS = (3, 6)

_WORDS_SEED = 1_000_003  # the vocabulary is one and the same for every seed
_ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "k", "l", "m", "n", "p", "r", "s", "t", "v")
_VOWELS = ("a", "a", "e", "e", "i", "i", "o", "u")
# Every suffix that the Porter stemmers remove or rewrite ends in another letter than these.
_ENDINGS = ("a", "o", "ak", "ob", "up", "ez", "if", "ok")


def passages(n: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """The first `n` passages of the collection `seed`, as (id, text).

    >>> [(id, len(text.split())) for id, text in passages(3)]
    [('p0000001', 78), ('p0000002', 62), ('p0000003', 68)]
    """
    words = vocabulary()
    for start in range(0, n, BLOCK):
        ranks, offsets = _block(seed, start // BLOCK)
        tokens = words[ranks].tolist()
        begin = 0
        for number, end in enumerate(offsets.tolist()[: n - start], start + 1):
            yield f"p{number:07d}", " ".join(tokens[begin:end])
            begin = end


def queries(n: int = 500, seed: int = 1, *, collection: int = 0) -> Iterator[tuple[str, str]]:
    """`n` queries of 3 to 6 different words, each taken from one passage of the first block of `collection`.

    >>> next(queries())
    ('q0001', 'bruvak nigrabif dregrakez solada vimob miga')
    """
    words = vocabulary()
    ranks, offsets = _block(collection, 0)
    stream = np.random.PCG64(np.random.SeedSequence(seed))
    low, high = QUERY_RANKS
    for number in range(1, n + 1):
        passage = int(_below(stream, BLOCK, 1)[0])
        begin = int(offsets[passage - 1]) if passage else 0
        in_passage = np.unique(ranks[begin : offsets[passage]])
        middle = in_passage[(in_passage >= low) & (in_passage < high)]
        length = QUERY_WORDS[0] + int(_below(stream, QUERY_WORDS[1] - QUERY_WORDS[0] + 1, 1)[0])
        chosen = np.argsort(stream.random_raw(len(middle)), kind="stable")[:length]
        yield f"q{number:04d}", " ".join(words[middle[chosen]].tolist())


@cache
def vocabulary() -> NDArray[np.object_]:
    """The words, commonest first; the commoner, the fewer syllables.

    >>> len(vocabulary()), len(set(vocabulary())), min(map(len, vocabulary()))
    (500000, 500000, 4)
    """
    stream = np.random.PCG64(np.random.SeedSequence(_WORDS_SEED))
    found: dict[str, None] = {}
    for syllables, until in ((2, 2_000), (3, 60_000), (4, VOCABULARY)):
        while len(found) < until:
            found.update(dict.fromkeys(_words(stream, syllables, until - len(found))))
    return np.array(list(found), dtype=object)


def _words(stream: np.random.PCG64, syllables: int, n: int) -> list[str]:
    onsets, vowels, endings = np.array(_ONSETS), np.array(_VOWELS), np.array(_ENDINGS)
    made = np.full(n, "", dtype=f"U{3 * syllables + 2}")
    for last in [False] * (syllables - 1) + [True]:
        bits = stream.random_raw(n)
        rhymes = endings if last else vowels
        made = np.char.add(np.char.add(made, onsets[bits & 15]), rhymes[(bits >> 4) & 7])
    return made.tolist()


@cache
def _thresholds() -> NDArray[np.float64]:
    """Cumulative probabilities of the ranks."""
    cumulative: NDArray[np.float64] = np.cumsum(1.0 / (np.arange(1, VOCABULARY + 1) + OFFSET))
    cumulative /= cumulative[-1]
    return cumulative


def _block(seed: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranks of the words of `BLOCK` passages, one after another, and where each passage ends."""
    stream = np.random.PCG64(np.random.SeedSequence((seed, block)))
    # 25 to 115 words, 60 on average, with the longer tail that real passages have
    shortest = 25 + _below(stream, 31, BLOCK)
    lengths = shortest + np.minimum(_below(stream, 61, BLOCK), _below(stream, 61, BLOCK))
    offsets = np.cumsum(lengths)
    total = int(offsets[-1])
    ranks = np.searchsorted(_thresholds(), _uniform(stream, total), side="right")
    position = np.arange(total) - np.repeat(offsets - lengths, lengths)
    earlier = (_uniform(stream, total) * position).astype(np.int64)
    repeats = np.flatnonzero((_uniform(stream, total) < REPEAT) & (position > 0))
    ranks[repeats] = ranks[repeats - position[repeats] + earlier[repeats]]
    return ranks, offsets


def _uniform(stream: np.random.PCG64, n: int) -> NDArray[np.float64]:
    return (stream.random_raw(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(stream: np.random.PCG64, bound: int, n: int) -> NDArray[np.int64]:
    return (_uniform(stream, n) * bound).astype(np.int64)


def _write(rows: Iterable[tuple[str, str]], path: Path) -> None:
    with path.open("w", encoding="ascii", newline="\n") as out:
        out.writelines(f"{id}\t{text}\n" for id, text in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passages", type=int, default=1_000_000, help="how many (1000000)")
    parser.add_argument("--queries", type=int, default=500, help="how many (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the passages (0)")
    parser.add_argument(
        "--out", type=Path, required=True, help="a folder for corpus.tsv and queries.tsv (id, tab, text)"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    _write(passages(options.passages, options.seed), options.out / "corpus.tsv")
    _write(queries(options.queries, collection=options.seed), options.out / "queries.tsv")


if __name__ == "__main__":
    main()
