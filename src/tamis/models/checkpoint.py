"""Checkpoints: Hugging Face folders of config.json, model.safetensors and tokenizer.json, read and written.

Weights come from safetensors only. A pickle (pytorch_model.bin, .pt, .pkl) can run any code when it is
loaded, so it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.config import EncoderConfig, parse_config, read_raw_config, write_config
from tamis.models.names import Shape, canonical_name, hugging_face_names, is_unused, shapes
from tamis.models.quantise import int8_matrices
from tamis.models.weights import (
    LazyTensors,
    StoredTensor,
    WeightType,
    stored_tensors,
    verify_tensors,
    write_tensors,
)
from tamis.storage.files import atomic_write, is_there, make_folder, storage_errors, unreadable

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

FILES_OF_A_MODEL = (CONFIG, "model*.safetensors", SHARDS, TOKENIZER, TOKENIZER_CONFIG, "model.*.onnx")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
_NAMED = 3  # how many tensors an error names
_INITIAL_DEVIATION = 0.02  # BERT's initializer_range
_DUO_SEGMENTS = 3


@dataclass(frozen=True)
class Checkpoint:
    """A model: its shape, its weights under our names (see `tamis.models.names`), and where it lies.

    `fingerprint` changes whenever the scores could: it covers the weights, the config and the tokenizer.
    `drawn` are the tensors that it lacked and that were drawn when it was loaded.
    """

    folder: Path
    config: EncoderConfig
    tensors: Mapping[str, Array]
    fingerprint: str
    raw_config: Mapping[str, Any]
    drawn: frozenset[str] = frozenset()

    @property
    def new_head(self) -> bool:
        """Whether its ranking head has not been trained."""
        return any(map(is_output, self.drawn))


def load_checkpoint(
    name_or_folder: str | Path,
    revision: str | None = None,
    *,
    require_head: bool = True,
    labels: int | None = None,
    seed: int = 0,
) -> Checkpoint:
    """A checkpoint from a folder, or from the hub (or its local cache) by name and revision.

    Names and shapes of all tensors are checked here; values are read, and checked to be finite, when they
    are asked for. To train from an encoder without a classification head, say `require_head=False`: what is
    missing of the head is drawn from `seed`, and `labels` says how many outputs it shall have.

    >>> load_checkpoint(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    folder = _folder(name_or_folder, revision)
    raw = read_raw_config(folder / CONFIG)
    if require_head and labels is not None:
        raise InputError("labels can be chosen for a new head only", remedy="say require_head=False")
    config = parse_config(raw, folder / CONFIG, labels=labels)
    _require_tokenizer(folder)
    files = _weight_files(folder)
    stored = _canonical(config, files)
    tensors = _checked(folder, config, stored, require_head)
    for path in files:
        verify_tensors(path)
    fingerprint = _fingerprint(folder, files)
    missing = [name for name in shapes(config) if name not in tensors]
    if not missing:
        return Checkpoint(folder, config, tensors, fingerprint, raw)
    head = _initial(config, missing, seed)
    whole, fingerprint = overlaid(tensors, head), _derived(fingerprint, head)
    return Checkpoint(folder, config, whole, fingerprint, raw, drawn=frozenset(missing))


def save_checkpoint(
    checkpoint: Checkpoint,
    folder: str | Path,
    dtype: WeightType = "float32",
    others: Mapping[str, Array] | None = None,
    *,
    ranks: bool = True,
) -> None:
    """Write a checkpoint as a Hugging Face folder, which transformers and sentence-transformers load.

    Every file takes its name only when it is whole; the weights come last. `others` are tensors that lie
    beside the encoder's, under their own names. One that was not trained to rank (`ranks`) is written without
    the output of its ranking head, so that no stage takes it for a ranker. With int8 the encoder's matrices
    are kept as 8 bits (see `tamis.models.weights`), which only tamis reads, and all else as float16.
    """
    folder = Path(folder)
    with storage_errors(folder):
        make_folder(folder)
    config = checkpoint.config
    _write_json(folder / CONFIG, write_config(checkpoint.raw_config, config, dtype))
    copy_file(checkpoint.folder / TOKENIZER, folder / TOKENIZER)
    if (checkpoint.folder / TOKENIZER_CONFIG).exists():
        copy_file(checkpoint.folder / TOKENIZER_CONFIG, folder / TOKENIZER_CONFIG)
    else:
        _write_json(folder / TOKENIZER_CONFIG, _tokenizer_config(checkpoint))
    read = checkpoint.tensors.__getitem__
    names = hugging_face_names(config)
    renamed = {names[ours]: partial(read, ours) for ours in names if ranks or not is_output(ours)}
    beside = {name: partial(others.__getitem__, name) for name in others} if others else {}
    if dtype != "int8":
        write_tensors(folder / WEIGHTS, LazyTensors(renamed | beside), dtype)
        return
    small = {names[ours]: matrix() for ours, matrix in int8_matrices(config, checkpoint.tensors).items()}
    floats = {name: reader for name, reader in renamed.items() if name not in small} | beside
    write_tensors(folder / WEIGHTS, LazyTensors(floats), "float16", small)


def is_output(name: str) -> bool:
    """Whether a tensor is of the output of a ranking head, which pretraining does not train.

    >>> is_output("head.output.weight"), is_output("head.dense.weight")
    (True, False)
    """
    return name.startswith("head.output.")


def stored_beside(folder: Path, prefix: str) -> dict[str, StoredTensor]:
    """The tensors in a checkpoint's folder that lie beside the encoder's, under names that begin so.

    >>> stored_beside(getfixture("tmp_path"), "exits.")
    {}
    """
    if not any((folder / name).is_file() for name in (WEIGHTS, SHARDS)):
        return {}
    every = _weight_files(folder).values()
    return {name: tensors[name] for tensors in every for name in tensors if name.startswith(prefix)}


def checked_beside(
    stored: Mapping[str, StoredTensor], wanted: Mapping[str, Shape], damaged: Callable[[str], InputError]
) -> LazyTensors:
    """Such tensors, of which every one that is wanted is there in its shape, and no other."""
    for name in sorted(wanted.keys() ^ stored.keys()):
        raise damaged(f"the tensor {name} is {'missing' if name in wanted else 'of no head'}")
    for name, tensor in stored.items():
        if tensor.shape != wanted[name] or not tensor.readable:
            what = f"{tensor.dtype}{list(tensor.shape)} where {list(wanted[name])} is expected"
            raise damaged(f"the tensor {name} is {what}")
    return LazyTensors({name: tensor.read for name, tensor in stored.items()})


def with_third_segment(checkpoint: Checkpoint, seed: int = 0) -> Checkpoint:
    """A start for duo from a mono checkpoint: the segment table gets the rows it lacks up to a third, drawn
    from `seed`, to be learned from scratch (Nogueira et al. 2019, §3.3). One with three is returned as it
    is."""
    config = checkpoint.config
    if not config.segments:
        problem = f"a {config.family} model has no segment embeddings"
        raise InputError(problem, remedy="start duo from a BERT, ELECTRA or ALBERT model")
    if config.segments >= _DUO_SEGMENTS:
        return checkpoint
    table = checkpoint.tensors["embeddings.segment"]
    rows = (_DUO_SEGMENTS - config.segments, config.embedding)
    new = {"embeddings.segment": np.concatenate([table, _normal(np.random.default_rng(seed), rows)])}
    return replace(
        checkpoint,
        config=replace(config, segments=_DUO_SEGMENTS),
        tensors=overlaid(checkpoint.tensors, new),
        fingerprint=_derived(checkpoint.fingerprint, new),
    )


# Where a model is.


def _folder(name_or_folder: str | Path, revision: str | None) -> Path:
    path = Path(name_or_folder)
    there = is_there(path)
    if there and path.is_dir():
        if revision is not None:
            raise InputError(f"{path} is a folder, which has no revisions", remedy="leave the revision out")
        for trained in (path / "best", path / "last"):
            if not (path / CONFIG).exists() and (trained / CONFIG).exists():
                raise InputError("has a training run in it", remedy=f"give {trained}", path=path)
        return path
    if there:
        raise InputError("not a folder", remedy="give the folder that the model is in", path=path)
    if isinstance(name_or_folder, Path):
        raise InputError("no such folder", remedy="check the path", path=path)
    return _downloaded(name_or_folder, revision)


def _downloaded(name: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub

    label = f"{name} (revision {revision})" if revision else name
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES_OF_A_MODEL)))
    except hub.HFValidationError:
        problem, remedy = f"no folder {name}, and no hub name either", "check the path"
    except hub.GatedRepoError:
        problem, remedy = f"the hub guards {label}", "accept its terms there and log in with `hf auth login`"
    except hub.RepositoryNotFoundError:
        problem, remedy = f"neither a folder nor a model of the hub: {name}", "check the name"
    except hub.RevisionNotFoundError:
        problem, remedy = f"the hub has no {label}", "check the revision"
    except hub.LocalEntryNotFoundError:
        offline = constants.HF_HUB_OFFLINE
        problem = f"{label} is not in the local cache and the hub {'may' if offline else 'can'} not be asked"
        otherwise = "unset HF_HUB_OFFLINE" if offline else "the connection"
        remedy = f"check the path if it is a folder, else {otherwise}"
    except Exception as error:  # requests, TLS and file system each raise their own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        problem, remedy = f"cannot fetch {label} ({reason})", "try again, or give a folder"
    raise InputError(problem, remedy=remedy)


# What is in its files.


def _require_tokenizer(folder: Path) -> None:
    if not (folder / TOKENIZER).exists():
        remedy = "write it with AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers"
        raise InputError(f"no {TOKENIZER}", remedy=remedy, path=folder)


def _weight_files(folder: Path) -> dict[Path, dict[str, StoredTensor]]:
    """The tensors of every file of weights, under the names the files use."""
    if (folder / WEIGHTS).exists():
        return {folder / WEIGHTS: stored_tensors(folder / WEIGHTS)}
    if (folder / SHARDS).exists():
        return _shards(folder / SHARDS)
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    remedy = f"choose a model that has {WEIGHTS}, or write one with save_pretrained of transformers"
    if pickles:
        problem = f"the weights are a pickle ({pickles[0]}), which can run any code when it is loaded"
        raise InputError(problem, remedy=remedy, path=folder)
    raise InputError(f"no {WEIGHTS}", remedy=remedy, path=folder)


def _shards(index: Path) -> dict[Path, dict[str, StoredTensor]]:
    weight_map = read_raw_config(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError("no weight_map", remedy="fetch the model again", path=index)
    files = {}
    for name in sorted(set(weight_map.values())):
        path = index.parent / name
        if path.parent != index.parent or not path.exists():
            raise InputError(f"no file {name} beside it", remedy="fetch the model again", path=index)
        files[path] = stored_tensors(path)
    return files


def _canonical(
    config: EncoderConfig, files: Mapping[Path, Mapping[str, StoredTensor]]
) -> dict[str, StoredTensor]:
    """All tensors under the names that Hugging Face gives them today."""
    family = config.family
    names = [name for tensors in files.values() for name in tensors]
    bare = not any(name.startswith(f"{family}.") for name in names)  # an encoder saved without its head
    return {
        canonical_name(name, family, bare=bare): tensor
        for tensors in files.values()
        for name, tensor in tensors.items()
    }


def _checked(
    folder: Path, config: EncoderConfig, stored: Mapping[str, StoredTensor], require_head: bool
) -> LazyTensors:
    """The tensors under our names: every one that must be there is, in its shape, and nothing else."""
    wanted, theirs = shapes(config), hugging_face_names(config)
    found = {ours: stored[name] for ours, name in theirs.items() if name in stored}
    if not require_head:  # a head for other labels is as good as none
        found = {n: t for n, t in found.items() if not n.startswith("head.") or t.shape == wanted[n]}
    missing = [theirs[name] for name in wanted if name not in found]
    head = {theirs[name] for name in wanted if name.startswith("head.")}
    if missing and head.issuperset(missing):
        if require_head:
            problem = f"no classification head ({_some(missing)} missing)"
            remedy = "choose a model trained to rank (a cross-encoder), or train one from this"
            raise InputError(problem, remedy=remedy, path=folder)
        missing = []
    names = set(theirs.values())
    unexpected = [name for name in stored if name not in names and not is_unused(name, config.family)]
    misshaped = [
        f"{theirs[name]} is {tensor.dtype}{list(tensor.shape)} where {list(wanted[name])} is expected"
        for name, tensor in found.items()
        if tensor.shape != wanted[name] or not tensor.readable
    ]
    problems = [
        f"{len(tensors)} {what}: {_some(tensors)}"
        for what, tensors in (("missing", missing), ("unexpected", unexpected), ("misshaped", misshaped))
        if tensors
    ]
    if problems:
        problem = f"the tensors are not those that {CONFIG} describes ({'; '.join(problems)})"
        raise InputError(problem, remedy="fetch or save the model again", path=folder)
    return LazyTensors({name: tensor.read for name, tensor in found.items()})


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _fingerprint(folder: Path, files: Iterable[Path]) -> str:
    digest = xxhash.xxh3_64()
    for path in (folder / CONFIG, folder / TOKENIZER, *files):
        try:
            with path.open("rb") as file:
                digest.update(file_digest(file, xxhash.xxh3_128).digest())
        except OSError as error:
            raise unreadable(path, error) from error
    return digest.hexdigest()


def _derived(fingerprint: str, changed: Mapping[str, Array]) -> str:
    """The fingerprint of a checkpoint some of whose tensors were made here."""
    digest = xxhash.xxh3_64(fingerprint.encode())
    for name, tensor in changed.items():
        digest.update(name.encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


# Tensors made here.


def _initial(config: EncoderConfig, names: Iterable[str], seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    wanted = shapes(config)
    return {
        name: np.zeros(wanted[name], np.float32)
        if name.endswith(".bias")
        else _normal(generator, wanted[name])
        for name in names
    }


def _normal(generator: np.random.Generator, shape: Shape) -> Array:
    return generator.normal(0.0, _INITIAL_DEVIATION, shape).astype(np.float32)


def overlaid(tensors: Mapping[str, Array], new: Mapping[str, Array]) -> LazyTensors:
    """Tensors with others beside them or in their place, read when they are asked for."""
    readers = {name: partial(tensors.__getitem__, name) for name in tensors}
    return LazyTensors(readers | {name: partial(new.__getitem__, name) for name in new})


# The files beside the weights.


def _tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The least that AutoTokenizer needs beside a tokenizer.json."""
    tokenizer = read_raw_config(checkpoint.folder / TOKENIZER)
    known = {token.get("content") for token in tokenizer.get("added_tokens") or []}
    roles = {
        "pad_token": ("[PAD]", "<pad>"),
        "unk_token": ("[UNK]", "<unk>"),
        "cls_token": ("[CLS]", "<s>"),
        "sep_token": ("[SEP]", "</s>"),
        "mask_token": ("[MASK]", "<mask>"),
    }
    config = checkpoint.config
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if not config.segments:
        inputs.remove("token_type_ids")  # the model would refuse it
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "model_input_names": inputs,
        **{role: token for role, tokens in roles.items() for token in tokens if token in known},
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path, "w") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def copy_file(source: Path, target: Path) -> None:
    try:
        content = source.read_bytes()
    except OSError as error:
        raise unreadable(source, error) from error
    with atomic_write(target) as file:
        file.write(content)
