"""Which document an id is, and which number a token: where ids and vocabularies are unusual."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from tamis import Document, Index
from tamis.base.errors import InputError
from tamis.infer.tokens import build_tokens
from tamis.models.tokenizer import Tokenizer


@pytest.mark.parametrize("in_order", [True, False])
def test_numbers_of_ids_that_are_alike(tmp_path: Path, in_order: bool) -> None:
    kernel = pytest.importorskip("tamis.index.kernel")
    ids = sorted(["a", "aa", "ab", "ab\nc", "abc", "b", "é", "éa", "日本", "😀", "\n", "z" * 300])
    held = ids[::2] if in_order else ids[::-2]
    store = Index.build([Document(identity, "") for identity in held], tmp_path / "idx").segments[0].store
    for wanted in (ids, ["ab", "nobody", "", "\ud800", "zz", "z" * 301, *ids]):
        expected = [held.index(identity) if identity in held else -1 for identity in wanted]
        lines = [identity for identity in wanted if "\n" not in identity]
        assert store.numbers(wanted).tolist() == expected
        assert store.numbers(wanted * 10).tolist() == expected * 10
        assert store.numbers(lines * 10).tolist() == [store.number(identity) for identity in lines] * 10
    assert kernel.find_ids.signatures  # it was the compiled search
    for count in (1, 100):
        with pytest.raises(InputError, match="the id 7 is int, not str"):
            store.numbers([7] * count)  # type: ignore[list-item]


def test_large_vocabulary(tmp_path: Path) -> None:
    """Token numbers beyond 16 bits."""
    words = {"[CLS]": 0, "[SEP]": 1, "?": 2} | {f"tamis{n}": n for n in range(3, 70_000)}
    library = Library(models.WordLevel(words, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    index = Index.build([Document("d1", "tamis69999 tamis3")], tmp_path / "idx")
    store = build_tokens(index, Tokenizer(tmp_path))
    assert store.texts(["d1"]).ids.tolist() == [69_999, 3]
