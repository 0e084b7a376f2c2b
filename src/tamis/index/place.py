"""Where an index is: a folder, or an address in a cluster."""

from __future__ import annotations

from pathlib import Path

Place = str | Path
SCHEMES = ("opensearch://", "opensearchs://")  # without and with TLS


def is_address(place: Place | None) -> bool:
    """Whether it is an index in a cluster that is named, and not a folder.

    >>> is_address("opensearch://localhost:9200/books"), is_address("books"), is_address(Path("books"))
    (True, False, False)
    """
    return isinstance(place, str) and place.startswith(SCHEMES)
