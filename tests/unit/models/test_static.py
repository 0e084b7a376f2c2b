"""Vectors from a text file, and models on them: each word has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError  # noqa: E402
from tamis.models.architectures.interaction import InteractionSettings  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.static import read_vectors, static_model  # noqa: E402
from tamis.models.tokenizer import open_tokenizer  # noqa: E402
from tests.unit.models.builders import read_documents  # noqa: E402


def test_vectors_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("3 2\nsieve 1 0\nnew york 0 2\nsoup 3 4\n")
    words, matrix = read_vectors(file)
    assert words == ["sieve", "new york", "soup"] and matrix.tolist() == [[1, 0], [0, 2], [3, 4]]
    file.write_text("sieve 1 0\nsoup 1 x\n")
    with pytest.raises(InputError, match=r"vectors.txt, line 2: not a word and its values"):
        read_vectors(file)
    file.write_text("")
    with pytest.raises(InputError, match="no vectors"):
        read_vectors(file)


@pytest.mark.parametrize("words", [None, ["sieve", "[UNK]", "tamis", "soup"]])
def test_a_file_may_have_vectors_for_special_tokens(words: list[str] | None, tmp_path: Path) -> None:
    """They are left out, and nobody after them gets a neighbour's vector."""
    (tmp_path / "vectors.txt").write_text("[CLS] 8 8\nsieve 1 0\n[UNK] 9 9\nsoup 0 1\n[SEP] 7 7\n")
    static_model(tmp_path / "vectors.txt", InteractionSettings(), tmp_path / "m", words=words)
    made = load_checkpoint(tmp_path / "m")
    table = made.tensors["embeddings.word"]
    sieve, *_, soup = open_tokenizer(made).encode(["sieve soup"]).ids.tolist()
    assert table[sieve].tolist() == [1, 0] and table[soup].tolist() == [0, 1]
    assert not table[:3].any() and len(table) == 3 + (2 if words is None else 3)


def test_a_model_of_vectors(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("sieve 1 0\nsoup 3 4\n")
    words = ["sieve", "soup", "tamis"]
    made = static_model(file, InteractionSettings(kind="knrm"), tmp_path / "m", words=words)
    loaded = load_checkpoint(tmp_path / "m")
    network, tokenizer = loaded.architecture.network(loaded), open_tokenizer(loaded)
    seen: dict[str, Any] = {}
    network.head.register_forward_hook(lambda _, args, output: seen.update(args=args))
    asked, text = (tokenizer.encode([each]).ids.tolist() for each in ("Tamis, sieve", "soup tamis whisk"))
    inputs = read_documents(loaded.architecture, [text], tokenizer.special, loaded.config, asked).inputs
    score = network(inputs)
    # tamis has no vector, but is like itself; the comma and whisk are no words
    rows = [[0, 1, 0], [0, 0, 0], [0.6, 0, 0]]
    assert [row.tolist() for row in seen["args"][0][0, 0]] == [pytest.approx(row) for row in rows]
    assert torch.equal(score, made.architecture.network(made)(inputs))
