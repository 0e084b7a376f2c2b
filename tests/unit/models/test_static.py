"""Models on vectors from a text file: each word has its own."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.models.long_checkpoint import load_long  # noqa: E402
from tamis.models.long_plan import LongDoc  # noqa: E402
from tamis.models.static import static_model  # noqa: E402


@pytest.mark.parametrize("words", [None, ["sieve", "[UNK]", "tamis", "soup"]])
def test_a_file_may_have_vectors_for_special_tokens(words: list[str] | None, tmp_path: Path) -> None:
    """They are left out, and nobody after them gets a neighbour's vector."""
    (tmp_path / "vectors.txt").write_text("[CLS] 8 8\nsieve 1 0\n[UNK] 9 9\nsoup 0 1\n[SEP] 7 7\n")
    static_model(tmp_path / "vectors.txt", LongDoc("knrm"), tmp_path / "m", words=words)
    made = load_long(tmp_path / "m")
    special, (sieve, *_, soup) = made.model.embeddings[:3], made.tokenizer.encode(["sieve soup"]).ids.tolist()
    assert made.model.embeddings[sieve].tolist() == [1, 0]
    assert made.model.embeddings[soup].tolist() == [0, 1]
    assert not special.any() and len(made.model.embeddings) == 3 + (2 if words is None else 3)
