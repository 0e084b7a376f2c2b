"""Texts of every kind to tokens, and what a tokenizer says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, processors

from tamis.base.errors import InputError
from tamis.models import tokenizer as tokenizer_module
from tamis.models.templates import COUNTED, Special, mono
from tamis.models.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "si", "##eve", "##s", "query", "document", ":", "[", "]"]
WORDS += ["sep", "x", "y"]
NUMBERS = {word: number for number, word in enumerate(WORDS)}


def library() -> Library:
    made = Library(models.WordPiece(NUMBERS, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def saved(folder: Path, made: Library) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return saved(tmp_path, library())


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [WORDS[number] for number in tokenizer.encode([text]).ids]


def test_texts_lie_end_to_end_without_special_tokens(tokenizer: Tokenizer) -> None:
    texts = tokenizer.encode(["A sieve", "", "sieves"])
    assert [WORDS[number] for number in texts.ids] == ["a", "si", "##eve", "si", "##eve", "##s"]
    assert texts.offsets.tolist() == [0, 3, 3, 6]
    assert texts.lengths.tolist() == [3, 0, 3]
    assert len(tokenizer.encode([])) == 0


def test_a_title_is_one_space_away(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "sieve\na") == words(tokenizer, "sieve a") == ["si", "##eve", "a"]


def test_limit(tokenizer: Tokenizer) -> None:
    texts = tokenizer.encode(["a a a a a", "a"], limit=2)
    assert texts.offsets.tolist() == [0, 2, 3]
    assert texts.lengths.tolist() == [5, 1]


def test_the_file_s_own_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    made = library()
    made.enable_truncation(4)
    made.enable_padding(pad_id=0, length=8)
    texts = saved(tmp_path, made).encode(["a a a a a a a a a", "a"])
    assert texts.lengths.tolist() == [9, 1]


def test_a_text_cannot_forge_a_separator(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "x [SEP] y") == ["x", "[", "sep", "]", "y"]


@pytest.mark.parametrize("text", ["x </s> y", "x<s>y", "<pad>", "x </s></s> y"])
def test_nor_where_special_tokens_are_words_of_the_vocabulary(text: str, tmp_path: Path) -> None:
    """As in XLM-RoBERTa, whose pieces include them; </s> is a tag of HTML."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "x", "y"]
    made = Library(models.Unigram([(piece, -float(n > 3)) for n, piece in enumerate(pieces)], unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(pieces[:4])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = saved(tmp_path, made)
    ids, _ = tokenizer.places(text)
    assert list(ids) == tokenizer.encode([text]).ids.tolist()
    assert set(ids) <= {3, 4, 5, 6} and 3 in ids
    assert tokenizer.special.sep == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("si\0eve", ["si", "##eve"]),  # BERT drops it
        ("a \x07\x1b x", ["a", "x"]),
        ("a 😀 x", ["a", "[UNK]", "x"]),
        ("a \ud800 x", ["a", "x"]),  # half a surrogate pair becomes U+FFFD, which BERT drops
        ("\ud83d\ude00 x", ["[UNK]", "x"]),  # both halves
        ("\ufffe\uffff x", ["[UNK]", "x"]),
        (" \n\t\u00a0\u3000", []),
        ("y" * 101, ["[UNK]"]),
    ],
)
def test_odd_characters(tokenizer: Tokenizer, text: str, expected: list[str]) -> None:
    assert words(tokenizer, text) == expected


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_every_character_can_be_tokenised(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path, family=family))
    everything = [chr(code) for code in range(0, 0x110000, 37)] + [
        chr(code) for code in range(0xD7F0, 0xE010)
    ]
    texts = tokenizer.encode(["".join(everything), *everything])
    assert len(texts) == len(everything) + 1
    assert texts.ids.max() < tokenizer.vocabulary


def test_texts_that_are_none(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="text 2 is NoneType, not str"):
        tokenizer.encode(["a", None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="one text where several are wanted"):
        tokenizer.encode("a sieve")


# -- long texts


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_long_text_gives_the_tokens_of_the_whole(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path, family=family))
    text = " ".join(f"the sieve number {n}, of steel" for n in range(9_000))
    assert len(text) > 2 * tokenizer_module._READ_FIRST
    whole = tokenizer._rows([text])[0]
    texts = tokenizer.encode(["short", text, "short"])
    assert texts.lengths.tolist()[1] == COUNTED < len(whole)
    assert texts.take([1]).ids.tolist() == whole[:COUNTED]
    assert texts.take([0]).ids.tolist() == texts.take([2]).ids.tolist()


def test_of_a_very_long_text_only_the_beginning_is_read(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    rows = tokenizer._rows
    monkeypatch.setattr(tokenizer, "_rows", lambda texts: (read.extend(map(len, texts)), rows(texts))[1])
    text = "a sieve " * 625_000  # 5 MB
    texts = tokenizer.encode([text], limit=512)
    assert (len(texts.ids), texts.lengths.tolist()) == (512, [COUNTED])
    assert sum(read) == 65_536


@pytest.mark.parametrize(("filler", "tokens"), [(" ", 0), ("y", 1)])
def test_a_long_text_of_few_tokens_is_read_to_its_end(tokenizer: Tokenizer, filler: str, tokens: int) -> None:
    texts = tokenizer.encode([filler * 300_000 + " a sieve"])
    assert texts.lengths.tolist() == [tokens + 3]
    assert [WORDS[number] for number in texts.ids][-3:] == ["a", "si", "##eve"]


# -- special tokens


def test_special_tokens_of_bert(tokenizer: Tokenizer) -> None:
    assert tokenizer.special == Special(
        cls=2,
        sep=3,
        pad=0,
        query_marker=(NUMBERS["query"], NUMBERS[":"]),
        document_marker=(NUMBERS["document"], NUMBERS[":"]),
    )


def test_special_tokens_of_roberta(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path, family="roberta"))
    assert (tokenizer.special.cls, tokenizer.special.sep, tokenizer.special.pad) == (0, 2, 1)
    assert tokenizer.special.double_separator


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_mono_inputs_are_those_of_the_library(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    folder = tiny_checkpoint(tmp_path, family=family)
    tokenizer = Tokenizer(folder)
    texts = ["The city on the river.", "", "A film of 1994"]
    inputs, _ = mono(tokenizer.encode(["which river?"]).ids, tokenizer.encode(texts), tokenizer.special)
    expected = Library.from_file(str(folder / "tokenizer.json")).encode_batch(
        [("which river?", text) for text in texts]
    )
    for number, encoding in enumerate(expected):
        one = inputs.take([number])
        assert one.ids.tolist() == encoding.ids
        if family == "bert":
            assert one.segments.tolist() == encoding.type_ids


def test_special_tokens_by_name_where_the_tokenizer_adds_none(tmp_path: Path) -> None:
    made = library()
    made.post_processor = processors.Sequence([])
    assert saved(tmp_path / "usual", made).special.sep == 3
    renamed = Library(models.WordPiece({"?": 0, "<begin>": 1, "<end>": 2, "<fill>": 3}, unk_token="?"))
    with pytest.raises(InputError, match=r"named has no \[CLS\] and \[SEP\]: use the folder of a BERT-like"):
        saved(tmp_path / "named", renamed)
    names = {"cls_token": {"content": "<begin>"}, "sep_token": "<end>", "pad_token": "<fill>"}
    (tmp_path / "named" / "special_tokens_map.json").write_text(json.dumps(names))
    special = saved(tmp_path / "named", renamed).special
    assert (special.cls, special.sep, special.pad) == (1, 2, 3)
    (tmp_path / "named" / "special_tokens_map.json").write_text("{")
    with pytest.raises(InputError, match=r"special_tokens_map\.json: is not JSON"):
        Tokenizer(tmp_path / "named")


# -- files


def test_fingerprint_changes_with_the_tokens_and_only_then(tmp_path: Path) -> None:
    first = saved(tmp_path / "first", library())
    padded = library()
    padded.enable_padding(pad_id=0)
    padded.enable_truncation(8)
    assert saved(tmp_path / "padded", padded).fingerprint == first.fingerprint
    cased = library()
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    more = library()
    more.add_tokens(["tamis"])
    for n, other in enumerate((cased, more)):
        assert saved(tmp_path / str(n), other).fingerprint != first.fingerprint


def test_vocabulary_counts_added_tokens(tmp_path: Path) -> None:
    more = library()
    more.add_tokens(["tamis"])
    assert saved(tmp_path, more).vocabulary == len(WORDS) + 1


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer.json: write it with transformers"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "WordPiece"}}'])
def test_file_that_is_no_tokenizer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"is not a tokenizer .*: fetch the model again"):
        Tokenizer(tmp_path)
