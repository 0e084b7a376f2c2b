"""The two orders of terms: by hash, which processes agree on without a word, and by bytes, for looking up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import xxhash

from tamis.base.arrays import Array

_PREFIX = 24  # bytes that are compared at first; few terms are longer


def encoded(terms: Iterable[str]) -> list[bytes]:
    """Terms as they are stored and hashed.

    >>> encoded(["café"])
    [b'caf\\xc3\\xa9']
    """
    return [term.encode("utf-8", "surrogatepass") for term in terms]


def hashes(terms: Sequence[bytes]) -> Array:
    """What the first order goes by."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, terms), dtype=np.uint64, count=len(terms))


def by_hash(hashes: Array, term: Callable[[int], bytes]) -> Array:
    """The places of terms in the order of their hashes; where these are equal `term` decides by its bytes.

    >>> by_hash(np.array([7, 3, 7], np.uint64), [b"sieve", b"pot", b"drum"].__getitem__).tolist()
    [1, 2, 0]
    """
    order = np.argsort(hashes, kind="stable")
    in_row = hashes[order]
    return _settled(order, in_row[1:] == in_row[:-1], term)


def by_bytes(terms: Sequence[bytes]) -> Array:
    """The places of terms in the order of their bytes.

    >>> by_bytes([b"sieve", b"a" * 30, b"drum", b"a" * 29]).tolist()
    [3, 1, 2, 0]
    """
    words = np.array(terms, dtype=f"S{_PREFIX}").view(">u8").astype(np.uint64).reshape(-1, _PREFIX // 8)
    order = np.lexsort(words.T[::-1])
    in_row = words[order]
    return _settled(order, (in_row[1:] == in_row[:-1]).all(axis=1), terms.__getitem__)


def _settled(order: Array, same: Array, term: Callable[[int], bytes]) -> Array:
    """Sort by their terms those places that the order leaves open: each that is the `same` as the next."""
    edges = np.diff(same.astype(np.int8), prepend=0, append=0)
    for start, stop in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) + 1, strict=True):
        order[start:stop] = sorted(order[start:stop].tolist(), key=term)
    return order
