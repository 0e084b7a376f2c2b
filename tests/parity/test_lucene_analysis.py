"""The English analysis against Lucene's own output (tests/assets/lucene_analysis/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tamis.text import porter, wordbreak
from tamis.text.analyze import get_analyzer

ASSETS = Path(__file__).parents[1] / "assets" / "lucene_analysis"


@pytest.fixture(scope="module")
def texts() -> list[dict[str, Any]]:
    with gzip.open(ASSETS / "texts.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_tokens_are_those_of_standard_tokenizer(texts: list[dict[str, Any]]) -> None:
    assert len(texts) > 450
    for record in texts:
        assert wordbreak.split(record["text"]) == record["surfaces"]


def test_the_rules_alone_give_the_same_tokens(texts: list[dict[str, Any]]) -> None:
    """Without the short cuts for plain text; the general pattern does not chop, so without long words."""
    for record in texts:
        if max(map(len, record["surfaces"]), default=0) < 120:
            assert wordbreak._split_general(record["text"]) == record["surfaces"]


def test_terms_are_those_of_the_english_analyzer(texts: list[dict[str, Any]]) -> None:
    analyzer = get_analyzer("english")
    for record in texts:
        assert analyzer.tokens(record["text"]) == record["terms"]


def test_stems_are_those_of_porter_stemmer() -> None:
    with gzip.open(ASSETS / "stems.tsv.gz", "rt", encoding="utf-8") as lines:
        pairs = [line.rstrip("\n").split("\t") for line in lines]
    assert len(pairs) > 6000
    assert [(word, porter.stem(word)) for word, _ in pairs] == [(word, stem) for word, stem in pairs]
