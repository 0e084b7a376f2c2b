"""Converts texts to tokens with a checkpoint's `tokenizer.json`, read by the `tokenizers` library.

Texts are tokenised without special tokens, which the templates add. A special token in a text ("[SEP]") is
read as plain characters, or as an unknown word if it is one piece of the vocabulary (XLM-RoBERTa): no
document can forge the end of an input. A document is tokenised as its `contents`, that is title, line break
and text, as in the index; WordPiece treats the line break as a space, byte-level BPE has a token for it.

The library uses its own threads, one per core, or none with `TOKENIZERS_PARALLELISM=false`. If a process
forks after they have run, the library warns on stderr that it disables them in the child; this is harmless,
and setting the variable silences it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import QUOTED, InputError, TamisError, quoted
from tamis.base.nested import parse_json
from tamis.models.templates import COUNTED, Special, Tokenised

if TYPE_CHECKING:
    import tokenizers

    from tamis.models.checkpoint import Checkpoint

_READ_FIRST = 8 * COUNTED  # characters of a long text to read first: in English more than `COUNTED` tokens
_SPOILED = 128  # tokens at the end of the characters read that can be wrong if a word is cut in two
_NAMES = {
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}
_PANIC = "PanicException"  # raised by the library's Rust code; not an Exception, and cannot be imported
_RARE = "\ue000 \U000f0000"  # characters in no vocabulary
_NAMES_IN = ("tokenizer_config.json", "special_tokens_map.json")
#: All that a tokenizer is read from.
FILES = ("tokenizer.json", *_NAMES_IN)


class Tokenizer:
    """The tokenizer of a checkpoint folder.

    >>> from tokenizers import Tokenizer as Library, models, pre_tokenizers
    >>> words = models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "sie": 4, "##ve": 5})
    >>> library = Library(words)
    >>> library.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> library.save(str(getfixture("tmp_path") / "tokenizer.json"))
    >>> tokenizer = Tokenizer(getfixture("tmp_path"))
    >>> tokenizer.encode(["a sieve", ""]).ids.tolist(), tokenizer.special.sep
    ([3, 4, 5], 2)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._library, content = _load(self.folder / "tokenizer.json")
        with self._errors():
            pad = self._library.padding
            self._library.no_truncation()
            self._library.no_padding()
            self._library.encode_special_tokens = True
            named = _named(self._library, self.folder)
            self.special = _special(self._library, self.folder, named, pad)
            self._unknown = named.get("unk", self.special.pad)
            self._forged = _spelled(self._library, self.special) - {self._unknown}
            self._library.encode(_RARE)  # fails if there is no token for unknown words
        self.fingerprint = _fingerprint(content, self._forged)

    @cached_property
    def vocabulary(self) -> int:
        """The number of rows of a table with one row per token."""
        return max(self._library.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def sentence_ends(self) -> Array:
        """The tokens of full stops, question marks and exclamation marks, as far as they are single
        tokens."""
        marked = self._rows([f"a{mark}" for mark in ".!?。！？"])
        return np.unique([row[-1] for row in marked if len(row) == 2 and row[-1] != self._unknown])

    def encode(self, texts: Sequence[str], *, limit: int = COUNTED) -> Tokenised:
        """The first `limit` tokens of each text, and how many it has. A very long text is read only until
        `COUNTED` tokens are counted, of which at most `limit` are kept. NUL and other control characters are
        left to the tokenizer; half a surrogate pair, which is not a character, becomes U+FFFD."""
        rows = self._rows([text[:_READ_FIRST] for text in texts] if _any_long(texts) else texts)
        for number, text in enumerate(texts):
            read = _READ_FIRST
            while len(text) > read and len(rows[number]) < COUNTED + _SPOILED:
                read *= 8
                rows[number] = self._rows([text[:read]])[0]
        return Tokenised.of(rows, limit=min(limit, COUNTED))

    def places(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """All tokens of a text without half surrogate pairs, and the start and end of each in characters."""
        with self._errors():
            found = self._library.encode(text, add_special_tokens=False)
        return self._plain(found.ids), found.offsets

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        with self._errors():
            try:
                encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
            except TypeError:  # a surrogate, or not a string
                whole = [_without_surrogates(text) for text in texts]
                encodings = self._library.encode_batch_fast(whole, add_special_tokens=False)
        return [self._plain(encoding.ids) for encoding in encodings]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert exceptions of the library to an error about its file."""
        try:
            yield
        except (TamisError, MemoryError):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
                raise  # an interrupt
            raise _unusable(self.folder / "tokenizer.json", error) from error

    def _plain(self, ids: list[int]) -> list[int]:
        """The tokens of a text, with each special token replaced by the unknown word."""
        if not self._forged or self._forged.isdisjoint(ids):
            return ids
        return [self._unknown if number in self._forged else number for number in ids]


_OPEN: WeakValueDictionary[bytes, Tokenizer] = WeakValueDictionary()


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Open a model's tokenizer; raises an error if it has more tokens than the model. Models of a pipeline
    often share a tokenizer, which is then read only once."""
    key = _files_digest(checkpoint.folder)
    tokenizer, rows = _OPEN.get(key) or Tokenizer(checkpoint.folder), checkpoint.config.vocabulary
    _OPEN[key] = tokenizer
    if tokenizer.vocabulary > rows:
        raise InputError(
            f"the tokenizer in {checkpoint.folder} has {tokenizer.vocabulary:,} tokens, the model {rows:,}",
            remedy="use the tokenizer.json that the model was trained with",
        )
    return tokenizer


def _files_digest(folder: Path) -> bytes:
    """A digest of all files that a tokenizer is read from."""
    digest = hashlib.sha256()
    for name in FILES:
        path = folder / name
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return digest.digest()


def _any_long(texts: Sequence[str]) -> bool:
    if isinstance(texts, str):  # a string is also a sequence of strings
        raise InputError("one text where several are wanted", remedy="give a list")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(f"text {number:,} is {type(text).__name__}, not str", remedy="give a str")
    return max(map(len, texts), default=0) > _READ_FIRST


def _without_surrogates(text: str) -> str:
    """Join adjacent halves of surrogate pairs, and replace the others."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _load(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    from tokenizers import Tokenizer as Library

    try:
        text = path.read_text(encoding="utf-8")
        content = parse_json(text)
        _check_template(content)
        return Library.from_str(text), content
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{path.parent} has no tokenizer.json",
            remedy="write it with transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)",
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", remedy="check the permissions", path=path
        ) from error
    except BaseException as error:  # the library raises nothing more specific
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise  # an interrupt
        raise _unusable(path, error) from error


def _unusable(path: Path, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:QUOTED]
    return InputError(f"is not a tokenizer ({reason})", remedy="fetch the model again", path=path)


def _check_template(content: Any) -> None:
    """Reject a template with an undefined special token: the library would panic, which prints a
    backtrace."""
    template = content.get("post_processor") if isinstance(content, dict) else None
    if not isinstance(template, dict) or template.get("type") != "TemplateProcessing":
        return
    tokens = template.get("special_tokens")
    entries = tokens.values() if isinstance(tokens, dict) else ()  # by their ids; the keys do not matter
    defined = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    for part in ("single", "pair"):
        pieces = template.get(part)
        for piece in pieces if isinstance(pieces, list) else ():
            token = piece.get("SpecialToken") if isinstance(piece, dict) else None
            if isinstance(token, dict) and token.get("id") not in defined:
                raise ValueError(f"its template names {quoted(token.get('id'))}, which it does not define")


def _fingerprint(content: dict[str, Any], forged: frozenset[int]) -> str:
    """A fingerprint of everything that determines a text's tokens, and of nothing else: models that differ
    only in padding or truncation share the tokens stored with an index."""
    parts = [content.get(name) for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")]
    parts += [sorted(forged)] if forged else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _spelled(library: tokenizers.Tokenizer, special: Special) -> frozenset[int]:
    """The special tokens that a text can still contain: XLM-RoBERTa's are pieces of its model."""
    added = library.get_added_tokens_decoder().items()
    numbers = {special.cls, special.sep, *(number for number, token in added if token.special)}
    spelled = ((number, library.id_to_token(number)) for number in numbers)
    return frozenset(
        number
        for number, token in spelled
        if token is not None and number in library.encode(token, add_special_tokens=False).ids
    )


def _special(
    library: tokenizers.Tokenizer, folder: Path, named: dict[str, int], padding: dict[str, Any] | None
) -> Special:
    """The special tokens, from the way the tokenizer joins two texts; if it adds none, by name."""
    pad = padding["pad_id"] if padding else named.get("pad", 0)
    pair = library.encode("a", "a")
    shape = "".join("." if sequence is None else str(sequence) for sequence in pair.sequence_ids)
    joined = re.fullmatch(r"\.0*(\.{1,2})1*\.", shape)
    if joined:
        cls, sep, double = pair.ids[0], pair.ids[-1], len(joined[1]) == 2
    elif "cls" in named and "sep" in named:
        cls, sep, double = named["cls"], named["sep"], False
    else:
        raise InputError(
            f"the tokenizer in {folder} has no [CLS] and [SEP]", remedy="use the folder of a BERT-like model"
        )

    def marker(text: str) -> tuple[int, ...]:
        return tuple(library.encode(text, add_special_tokens=False).ids)

    return Special(cls, sep, pad, double, marker("Query:"), marker("Document:"))


def _named(library: tokenizers.Tokenizer, folder: Path) -> dict[str, int]:
    """The special tokens by their names in the folder's files, or by their usual names."""
    files: dict[str, Any] = {}
    for name in _NAMES_IN:
        path = folder / name
        if path.is_file():
            try:
                files |= parse_json(path.read_text(encoding="utf-8"))
            except (ValueError, TypeError) as error:  # TypeError: JSON, but not an object
                raise InputError("is not JSON", remedy="fetch the model again", path=path) from error
    found = {}
    for name, usual in _NAMES.items():
        entry = files.get(f"{name}_token")
        given = entry.get("content") if isinstance(entry, dict) else entry
        for token in (given, *usual):
            number = library.token_to_id(token) if isinstance(token, str) else None
            if number is not None:
                found[name] = number
                break
    return found
