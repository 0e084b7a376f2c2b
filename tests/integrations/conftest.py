"""Adapters are tested with the frameworks' own packages, of which one that is not installed is skipped."""

from __future__ import annotations

import os

import pytest

from tamis import Document, Index

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when haystack is imported

SMALL = "mono(model=mono-nano)"
QUERY = "what is a tamis sieve"
TEXTS = [
    "Soup of the day: onions and butter.",
    "Flour goes through a sieve before baking.",
    "A tamis is a fine sieve of horsehair or steel.",
]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [
        Document(f"d{place}", text, title=f"T{place}", metadata={"year": 2000 + place})
        for place, text in enumerate(TEXTS)
    ]
    return Index.build(documents, tmp_path_factory.mktemp("integrations") / "idx")
