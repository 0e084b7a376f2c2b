"""The gains of passages, which PCGM learns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.formats.json_lines import parse_object, to_id
from tamis.formats.lines import located
from tamis.storage.files import read_text

Gains = Mapping[tuple[str, str], Array]  # by query and document: the gain after each passage


def read_gains(path: str | Path, grades: int) -> Gains:
    """Read cumulative gains from JSON lines: a grade of at least 0 after each window of a document.

    >>> file = getfixture("tmp_path") / "gains.jsonl"
    >>> _ = file.write_text('{"query": "q1", "document": "d7", "gains": [0, 1, 1, 3]}')
    >>> read_gains(file, grades=4)["q1", "d7"].tolist()
    [0, 1, 1, 3]
    """
    found: dict[tuple[str, str], Array] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parse_object(line)
            gains = record.get("gains")
            if not isinstance(gains, list) or not all(type(g) is int and 0 <= g < grades for g in gains):
                raise InputError("no gains", remedy=f"give a list of whole numbers from 0 to {grades - 1}")
            key = to_id(record.get("query")), to_id(record.get("document"))
            if key in found:
                raise InputError(
                    f"gains of {key[1]!r} for {key[0]!r} again", remedy="keep one of the two lines"
                )
            found[key] = np.array(gains, np.int64)
        except InputError as error:
            raise located(error, path, number) from None
    if not found:
        raise InputError("there are no gains", remedy="give a line a document, or no file", path=path)
    return found


def gains_fingerprint(gains: Gains, queries: Collection[str] | None = None) -> str:
    """A fingerprint of the gains of these queries, by default of all.

    >>> gains = {("q1", "d7"): np.array([0, 1]), ("q2", "d7"): np.array([3])}
    >>> other = {**gains, ("q2", "d7"): np.array([2])}
    >>> gains_fingerprint(gains) == gains_fingerprint(other)
    False
    >>> gains_fingerprint(gains, ["q1"]) == gains_fingerprint(other, ["q1"])
    True
    """
    seen = sorted(
        (key, found.tolist()) for key, found in gains.items() if queries is None or key[0] in queries
    )
    return str(xxhash.xxh3_128_hexdigest(repr(seen).encode()))
