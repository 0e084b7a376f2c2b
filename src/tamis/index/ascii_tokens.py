"""Tokens of ASCII texts as numbers, compiled with numba: what `wordbreak.split` and a dictionary would give,
four times as fast.

A short token is its own key: up to 15 bytes and the length fit two machine words, so looking it up costs one
visit to the hash table and no string is made. Longer tokens, under one in a hundred, are left to the caller.
Imports numba: see `invert`.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import njit

from tamis.base.arrays import Array
from tamis.text.wordbreak import MAX_LENGTH

_LETTER, _DIGIT, _UNDERSCORE, _JOINS_LETTERS, _JOINS_DIGITS = 1, 2, 4, 8, 16
_IN_WORDS = _LETTER | _DIGIT | _UNDERSCORE
_SHORT = 15
u64 = np.uint64


def _kinds() -> Array:
    """The kind of each ASCII character in the word rules (WB5 to WB13b)."""
    kinds = np.zeros(256, np.uint8)
    for characters, kind in (
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", _LETTER),
        ("0123456789", _DIGIT),
        ("_", _UNDERSCORE),
        (".':", _JOINS_LETTERS),
        (".',;", _JOINS_DIGITS),
    ):
        for character in characters:
            kinds[ord(character)] |= kind
    return kinds


_KIND = _kinds()


@njit(cache=True, nogil=True)
def _slot(low, high, mask):
    """Where the search for a key starts."""
    mixed = (low ^ (high * u64(0x9E3779B97F4A7C15))) * u64(0xFF51AFD7ED558CCD)
    mixed = (mixed ^ (mixed >> u64(32))) * u64(0xC4CEB9FE1A85EC53)
    return (mixed ^ (mixed >> u64(29))) & mask


@njit(cache=True, nogil=True)
def _number(slots, keys, known, low, high):
    """The key's number, a new one if it is new: (number, how many are known)."""
    mask = u64(len(slots) - 1)
    at = _slot(low, high, mask)
    while True:
        entry = slots[at]
        if entry[2] == u64(0):
            slots[at, 0], slots[at, 1], slots[at, 2] = low, high, u64(known + 1)
            keys[known, 0], keys[known, 1] = low, high
            return known, known + 1
        if entry[0] == low and entry[1] == high:
            return np.int64(entry[2]) - 1, known
        at = (at + u64(1)) & mask


@njit(cache=True, nogil=True)
def _fill(slots, keys, known):
    """Enter the known keys into an empty table."""
    mask = u64(len(slots) - 1)
    for number in range(known):
        at = _slot(keys[number, 0], keys[number, 1], mask)
        while slots[at, 2] != u64(0):
            at = (at + u64(1)) & mask
        slots[at, 0], slots[at, 1], slots[at, 2] = keys[number, 0], keys[number, 1], u64(number + 1)


@njit(cache=True, nogil=True)
def _tokenise(raw, ends, kinds, slots, keys, known, tokens, token_ends, long_tokens):
    """Number the tokens of texts that end at `ends`; returns (known keys, long tokens, whether one was too
    long to handle).

    A long token is a row of (place among the tokens, start, stop), its number left open.
    """
    count, n_long, start = 0, 0, 0
    for text in range(len(ends)):
        stop = ends[text]
        i = start
        while i < stop:
            kind = kinds[raw[u64(i)]]
            if not kind & _IN_WORDS:
                i += 1
                continue
            first = i
            low, high = u64(0), u64(0)
            content = 0
            while True:
                length = u64(i - first)
                if length < u64(8):
                    low |= u64(raw[u64(i)]) << (length << u64(3))
                elif length < u64(_SHORT):
                    high |= u64(raw[u64(i)]) << ((length - u64(8)) << u64(3))
                content |= kind
                before = kind
                i += 1
                if i == stop:
                    break
                kind = kinds[raw[u64(i)]]
                if kind & _IN_WORDS:
                    continue
                # a separator joins two letters, or two digits
                after = kinds[raw[u64(i + 1)]] if i + 1 < stop else 0
                if before == _LETTER and kind & _JOINS_LETTERS and after == _LETTER:
                    continue
                if before == _DIGIT and kind & _JOINS_DIGITS and after == _DIGIT:
                    continue
                break
            if not content & (_LETTER | _DIGIT):
                continue  # underscores alone are not a token
            if i - first > MAX_LENGTH:
                return known, n_long, True
            if i - first > _SHORT:
                long_tokens[n_long, 0], long_tokens[n_long, 1], long_tokens[n_long, 2] = count, first, i
                n_long += 1
            else:
                number, known = _number(slots, keys, known, low, high | u64(i - first) << u64(56))
                tokens[count] = number
            count += 1
        token_ends[text] = count
        start = stop
    return known, n_long, False


class AsciiTokens:
    """The table of short tokens seen so far."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._slots = np.zeros((capacity, 3), np.uint64)
        self._keys = np.zeros((capacity // 2, 2), np.uint64)
        self.known = 0

    def number(self, raw: bytes, ends: Array) -> tuple[Array, Array, Array] | None:
        """For texts that end at `ends` in `raw`: the tokens' numbers, where each text's tokens end, and the
        long tokens as (place, start, stop). None if a token is too long for this way.

        >>> table = AsciiTokens()
        >>> tokens, token_ends, long_tokens = table.number(b"to be or not to be", np.array([5, 18]))
        >>> tokens.tolist(), token_ends.tolist(), table.tokens(2, 4)
        ([0, 1, 2, 3, 0, 1], [2, 6], ['or', 'not'])
        """
        most = len(raw) // 2 + len(ends)  # a token and the character that ends it
        self._reserve(self.known + most)
        tokens = np.empty(most, np.int64)
        token_ends = np.empty(len(ends), np.int64)
        long_tokens = np.empty((len(raw) // (_SHORT + 1) + 1, 3), np.int64)
        self.known, n_long, too_long = _tokenise(
            np.frombuffer(raw, np.uint8),
            ends,
            _KIND,
            self._slots,
            self._keys,
            self.known,
            tokens,
            token_ends,
            long_tokens,
        )
        if too_long:
            return None
        return tokens[: token_ends[-1]], token_ends, long_tokens[:n_long]

    def _reserve(self, wanted: int) -> None:
        """Room for this many keys in a table at most half full."""
        capacity = len(self._slots)
        while capacity < 2 * wanted:
            capacity *= 2
        if capacity > len(self._slots):
            keys = np.zeros((capacity // 2, 2), np.uint64)
            keys[: self.known] = self._keys[: self.known]
            self._slots, self._keys = np.zeros((capacity, 3), np.uint64), keys
            _fill(self._slots, self._keys, self.known)

    def tokens(self, first: int, last: int) -> list[str]:
        """The tokens with the numbers first..last-1."""
        if first == last:
            return []
        keys = self._keys[first:last].astype("<u8").view(np.uint8).reshape(-1, _SHORT + 1)
        keys[:, _SHORT] = 0  # where the length was: no token has a zero of its own
        # a token has no line end of its own either
        return b"\n".join(keys.view(f"S{_SHORT + 1}").ravel().tolist()).decode("ascii").split("\n")
