"""Embeddings without context, for the interaction models in their original form, before BERT: from a text
file of vectors (GloVe, word2vec, fastText). Training can also use the table of words of any other
checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.formats.lines import numbered_lines
from tamis.models.architectures.interaction import Interaction, InteractionSettings
from tamis.models.checkpoint import TOKENIZER, Checkpoint, load_checkpoint, save_checkpoint
from tamis.models.config import static_config
from tamis.storage.files import atomic_write, open_bytes

_SPECIAL = ("[UNK]", "[CLS]", "[SEP]")  # [UNK] has number 0: see `OfWords`


def read_vectors(path: str | Path, words: Iterable[str] | None = None) -> tuple[list[str], Array]:
    """The words of a file of vectors and their matrix, float32. A line is a word and its values; a first line
    of two numbers, as word2vec writes it, is skipped. With `words`, only those are read, and a word that is
    not in the file gets a zero vector: it is similar only to itself.

    >>> file = getfixture("tmp_path") / "vectors.txt"
    >>> _ = file.write_text("sieve 0.5 1\\nsoup 2 0\\n")
    >>> found, vectors = read_vectors(file, words=["soup", "tamis"])
    >>> found, vectors.tolist()
    (['soup', 'tamis'], [[2.0, 0.0], [0.0, 0.0]])
    """
    wanted = None if words is None else dict.fromkeys(words)
    found: dict[str, Array] = {}
    width = 0
    with open_bytes(path) as lines:
        for number, line in numbered_lines(lines, path):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            values = text.split(" ")
            if number == 1 and len(values) == 2 and all(part.isdigit() for part in values):
                continue
            width = width or len(values) - 1
            word = " ".join(values[:-width]) if width else text  # a few words of GloVe contain spaces
            if (wanted is not None and word not in wanted) or word in found:
                continue
            found[word] = _vector(values[-width:] if width else [], path, number)
    if not found:
        raise InputError("no vectors", remedy="give lines of a word and its values", path=path)
    names = list(found) if wanted is None else list(wanted)
    matrix = np.zeros((len(names), width), np.float32)
    for row, name in enumerate(names):
        if name in found:
            matrix[row] = found[name]
    return names, matrix


def _vector(values: list[str], path: str | Path, line: int) -> Array:
    try:
        vector = np.array(values, np.float32)
    except ValueError:
        vector = np.zeros(0, np.float32)
    if not len(vector) or not np.isfinite(vector).all():
        raise InputError("not a word and its values", remedy="correct or remove it", path=path, line=line)
    return vector


def static_model(
    vectors: str | Path,
    settings: InteractionSettings,
    folder: str | Path,
    words: Iterable[str] | None = None,
    seed: int = 0,
) -> Checkpoint:
    """Write an untrained model with a file's vectors to `folder`, and load it. Its texts are split into
    words, in lower case, with punctuation as separate tokens.

    >>> file = getfixture("tmp_path") / "vectors.txt"
    >>> _ = file.write_text("sieve 0.5 1\\nsoup 2 0\\n")
    >>> from tamis.models.tokenizer import open_tokenizer
    >>> made = static_model(file, InteractionSettings(kind="knrm"), getfixture("tmp_path") / "model")
    >>> open_tokenizer(made).encode(["Soup, sieve!"]).ids.tolist()
    [4, 0, 3, 0]
    """
    names, matrix = read_vectors(vectors, words)
    # skip vectors that a file has for the names of the special tokens
    kept = [row for row, name in enumerate(names) if name not in _SPECIAL]
    rows = np.concatenate([np.zeros((len(_SPECIAL), matrix.shape[1]), np.float32), matrix[kept]])
    folder = Path(folder)
    _write_tokenizer(folder, [names[row] for row in kept])
    table = {"embeddings.word": rows}
    made = Interaction(settings).begin(Checkpoint(folder, static_config(*rows.shape), table, "", {}), seed)
    save_checkpoint(made, folder)
    return load_checkpoint(folder)


def _write_tokenizer(folder: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    numbers = {word: number for number, word in enumerate((*_SPECIAL, *words))}
    library = Library(models.WordLevel(numbers, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(list(_SPECIAL))
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / TOKENIZER, "w") as file:
        file.write(library.to_str())
