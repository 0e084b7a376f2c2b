"""A smaller word embedding table: a BERT's embeddings as the product of a narrow table and a projection.

Half the weights of a small BERT are its word embeddings, V x H. ELECTRA (Clark et al. 2020) has a table V x E
with E < H and a linear layer from E to H after the norm; so a BERT becomes an ELECTRA that any library loads.
The narrow tables are the wide ones projected on the E directions along which words differ most. The linear
layer approximates the output of the wide embeddings best, by least squares over all words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.checkpoint import Checkpoint

_POSITIONS = 128  # positions of the words from which the projection is computed


def factorised(checkpoint: Checkpoint, width: int, seed: int = 0) -> Checkpoint:
    """The model with word, position and segment vectors of `width` numbers. Its layers are kept, and its head
    too, except that the activation is ELECTRA's, so that the head must be trained."""
    config = checkpoint.config
    if config.family != "bert" or not 1 <= width < config.hidden:
        raise InputError(
            f"embeddings of {width} for a {config.family} model with hidden states of {config.hidden}",
            remedy="start from a BERT or MiniLM model, with embeddings narrower than its hidden states",
        )
    narrow = replace(config, family="electra", embedding=width)
    tensors = {
        **checkpoint.tensors,
        **narrow_embeddings(checkpoint.tensors, width, config.norm_epsilon, seed),
    }
    raw = {
        **checkpoint.raw_config,
        "model_type": "electra",
        "architectures": ["ElectraForSequenceClassification"],
        "embedding_size": width,
    }
    name = xxhash.xxh3_64(f"{checkpoint.fingerprint} factorised {width} {seed}".encode()).hexdigest()
    return replace(checkpoint, config=narrow, tensors=tensors, fingerprint=name, raw_config=raw)


def narrow_embeddings(
    tensors: Mapping[str, Array], width: int, epsilon: float, seed: int
) -> dict[str, Array]:
    """The tensors of the factorised embeddings."""
    tables = {
        part: tensors[f"embeddings.{part}"].astype(np.float64) for part in ("word", "position", "segment")
    }
    words = tables["word"]
    chosen = principal_axes(words, width)
    narrow = {part: table @ chosen for part, table in tables.items()}
    rng = np.random.default_rng(seed)
    positions = rng.integers(min(_POSITIONS, len(tables["position"])), size=len(words))
    segments = rng.integers(len(tables["segment"]), size=len(words))

    def summed(parts: Mapping[str, Array]) -> Array:
        total = parts["word"] + parts["position"][positions] + parts["segment"][segments]
        return _normalised(total, epsilon)

    wanted = summed(tables) * tensors["embeddings.norm.weight"] + tensors["embeddings.norm.bias"]
    seen = np.column_stack([summed(narrow), np.ones(len(words))])
    fitted, *_ = np.linalg.lstsq(seen, wanted, rcond=None)
    found = {f"embeddings.{part}": table for part, table in narrow.items()}
    found |= {
        "embeddings.norm.weight": np.ones(width),
        "embeddings.norm.bias": np.zeros(width),
        "embeddings.project.weight": fitted[:-1].T,
        "embeddings.project.bias": fitted[-1],
    }
    return {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in found.items()}


def principal_axes(words: Array, width: int) -> Array:
    """The `width` directions along which the rows of a table differ most, one per column, the strongest last.

    >>> np.abs(principal_axes(np.array([[3.0, 0.0], [0.0, 1.0]]), 1)).ravel().tolist()
    [1.0, 0.0]
    """
    rows = words.astype(np.float64)
    _, directions = np.linalg.eigh(rows.T @ rows)  # the largest last
    axes: Array = directions[:, -width:]
    return axes


def _normalised(rows: Array, epsilon: float) -> Array:
    """
    >>> _normalised(np.array([[1.0, 3.0]]), 0.0).tolist()
    [[-1.0, 1.0]]
    """
    centred = rows - rows.mean(axis=1, keepdims=True)
    normalised: Array = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
    return normalised
