"""The benchmark's collection is the same everywhere, and is not changed by analysis."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import Stemmer


@pytest.fixture(scope="module")
def synthetic() -> ModuleType:
    path = Path(__file__).parents[3] / "bench" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("synthetic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["synthetic"] = module
    spec.loader.exec_module(module)
    return module


def digest(rows: list[tuple[str, str]]) -> str:
    return hashlib.sha256("".join(f"{id}\t{text}\n" for id, text in rows).encode()).hexdigest()[:16]


def test_timings_of_different_machines_are_of_the_same_texts(synthetic: ModuleType) -> None:
    assert digest(list(synthetic.passages(10_001))) == "bd064d0543af4feb"
    assert digest(list(synthetic.queries(500))) == "40719a8a81cfcaaf"


def test_a_smaller_collection_is_the_start_of_a_larger_one(synthetic: ModuleType) -> None:
    larger = list(synthetic.passages(10_003))
    assert list(synthetic.passages(7)) == larger[:7]
    assert larger[-1][0] == "p0010003"
    assert list(synthetic.passages(7, seed=5)) != larger[:7]


def test_stemmers_leave_every_word_alone(synthetic: ModuleType) -> None:
    words = synthetic.vocabulary().tolist()
    for algorithm in ("porter", "english"):
        assert Stemmer.Stemmer(algorithm).stemWords(words) == words


def test_passages_have_the_shape_that_is_promised(synthetic: ModuleType) -> None:
    texts = [text.split() for _, text in synthetic.passages(10_000)]
    lengths = [len(text) for text in texts]
    pairs = sum(len(set(text)) for text in texts)
    df = Counter(word for text in texts for word in set(text))
    assert 25 <= min(lengths) < 30 and 100 < max(lengths) <= 115
    assert 59 < sum(lengths) / 10_000 < 61
    assert 53.5 < pairs / 10_000 < 54.5
    assert 4_900 < df.most_common(1)[0][1] < 5_100


def test_each_query_can_be_answered(synthetic: ModuleType) -> None:
    texts = [set(text.split()) for _, text in synthetic.passages(10_000)]
    for _, query in list(synthetic.queries(500))[::25]:
        words = query.split()
        assert 3 <= len(set(words)) == len(words) <= 6
        assert any(text.issuperset(words) for text in texts)
