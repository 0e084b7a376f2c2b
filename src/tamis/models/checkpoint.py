"""Checkpoints: Hugging Face folders of config.json, model.safetensors and tokenizer.json, read and written.

config.json also names the architecture of a model (`tamis.models.record`). Its tensors outside the encoder
are also in model.safetensors, under names that begin with the architecture's prefix. So other programs can
read every model as an encoder.

Weights come from safetensors only. A pickle (pytorch_model.bin, .pt, .pkl) can run any code when it is
loaded, so it is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models import legacy
from tamis.models.architecture import DEVIATION, Architecture
from tamis.models.architectures.mono import Mono
from tamis.models.config import (
    EncoderConfig,
    parse_config,
    read_raw_config,
    stored_labels,
    write_config,
)
from tamis.models.legacy import DUO_SEGMENTS
from tamis.models.names import Shape, canonical_name, hugging_face_names, is_unused, shapes
from tamis.models.quantise import int8_matrices
from tamis.models.record import read_record, record_of
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


@dataclass(frozen=True)
class Checkpoint:
    """A model: its folder, its encoder's shape, its weights under our names (see `tamis.models.names`), its
    architecture, and in `head` the architecture's tensors outside the encoder.

    `fingerprint` changes whenever the scores could: it covers the weights, the config and the tokenizer.
    `drawn` names the tensors that were missing and were drawn at random when it was loaded.
    """

    folder: Path
    config: EncoderConfig
    tensors: Mapping[str, Array]
    fingerprint: str
    raw_config: Mapping[str, Any]
    drawn: frozenset[str] = frozenset()
    architecture: Architecture = field(default_factory=Mono)
    head: Mapping[str, Array] = field(default_factory=dict)

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
    """Load a checkpoint from a folder, or from the hub (or its local cache) by name and revision.

    Names and shapes of all tensors are checked here; values are read, and checked to be finite, on access. To
    train from an encoder without a classification head, pass `require_head=False`: missing tensors of the
    head are drawn from `seed`, and `labels` is the number of its outputs.

    >>> load_checkpoint(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    folder = _folder(name_or_folder, revision)
    raw = legacy.raw_config(folder) or read_raw_config(folder / CONFIG)
    if require_head and labels is not None:
        raise InputError("labels can be chosen for a new head only", remedy="say require_head=False")
    config = parse_config(raw, folder / CONFIG, labels=labels)
    _require_tokenizer(folder)
    files = _weight_files(folder)
    own = replace(config, labels=stored_labels(raw))  # the tensors outside the encoder were made for this
    kind = read_record(raw, own, [name for tensors in files.values() for name in tensors], folder)
    head = _head(folder, kind, own, files)
    stored = _canonical(config, files, head)
    tensors = _checked(folder, config, stored, require_head and not config.static)
    for path in files:
        verify_tensors(path)
    fingerprint = _fingerprint(folder, files)
    missing = [name for name in shapes(config) if name not in tensors]
    if not missing:
        return Checkpoint(folder, config, tensors, fingerprint, raw, architecture=kind, head=head)
    new = _initial(config, missing, seed)
    whole, fingerprint = overlaid(tensors, new), _derived(fingerprint, new)
    return Checkpoint(folder, config, whole, fingerprint, raw, frozenset(missing), kind, head)


def save_checkpoint(
    checkpoint: Checkpoint,
    folder: str | Path,
    dtype: WeightType = "float32",
    *,
    ranks: bool = True,
) -> None:
    """Write a checkpoint as a Hugging Face folder, which transformers and sentence-transformers load.

    Every file gets its name only when it is complete; the weights are written last. A model that was not
    trained to rank (`ranks=False`) is written without the output layer of its ranking head, so that no stage
    accepts it as a ranker. With int8 the encoder's matrices are stored as 8 bits (see
    `tamis.models.weights`), which only tamis can read, and everything else as float16.
    """
    folder = Path(folder)
    with storage_errors(folder):
        make_folder(folder)
    config = checkpoint.config
    record = record_of(checkpoint.architecture, config, folder)
    _write_json(folder / CONFIG, write_config(checkpoint.raw_config, config, dtype) | record)
    copy_file(checkpoint.folder / TOKENIZER, folder / TOKENIZER)
    if (checkpoint.folder / TOKENIZER_CONFIG).exists():
        copy_file(checkpoint.folder / TOKENIZER_CONFIG, folder / TOKENIZER_CONFIG)
    elif not config.static:
        _write_json(folder / TOKENIZER_CONFIG, _tokenizer_config(checkpoint))
    read = checkpoint.tensors.__getitem__
    names = hugging_face_names(config)
    renamed = {names[ours]: partial(read, ours) for ours in names if ranks or not is_output(ours)}
    beside = {name: partial(checkpoint.head.__getitem__, name) for name in checkpoint.head}
    if dtype != "int8":
        write_tensors(folder / WEIGHTS, LazyTensors(renamed | beside), dtype)
        return
    small = {names[ours]: matrix() for ours, matrix in int8_matrices(config, checkpoint.tensors).items()}
    floats = {name: reader for name, reader in renamed.items() if name not in small} | beside
    write_tensors(folder / WEIGHTS, LazyTensors(floats), "float16", small)


def is_output(name: str) -> bool:
    """Whether a tensor belongs to the output layer of a ranking head, which pretraining does not train.

    >>> is_output("head.output.weight"), is_output("head.dense.weight")
    (True, False)
    """
    return name.startswith("head.output.")


def _head(
    folder: Path,
    kind: Architecture,
    config: EncoderConfig,
    files: Mapping[Path, Mapping[str, StoredTensor]],
) -> LazyTensors:
    """The tensors outside the encoder; raises an error for missing, misshaped or unexpected ones."""
    prefix = f"{kind.prefix}."
    stored = {name: each[name] for each in files.values() for name in each if name.startswith(prefix)}
    stored = stored or legacy.stored_head(folder, kind.prefix)
    wanted = kind.tensors(config)

    def damaged(problem: str) -> InputError:
        return InputError(
            f"its {kind.kind} tensors are damaged: {problem}",
            remedy="save or fetch the model again",
            path=folder,
        )

    if wanted is not None:
        for name in sorted(wanted.keys() ^ stored.keys()):
            raise damaged(f"the tensor {name} is {'missing' if name in wanted else 'not expected'}")
    for name, tensor in stored.items():
        shape = tensor.shape if wanted is None else wanted[name]
        if tensor.shape != shape or not tensor.readable:
            what = f"{tensor.dtype}{list(tensor.shape)} where {list(shape)} is expected"
            raise damaged(f"the tensor {name} is {what}")
    return LazyTensors({name: tensor.read for name, tensor in stored.items()})


def with_third_segment(checkpoint: Checkpoint, seed: int = 0) -> Checkpoint:
    """A start for duo from a mono checkpoint: the rows that the segment table lacks, up to the third, are
    drawn from `seed`, and learned from scratch (Nogueira et al. 2019, §3.3). A checkpoint that has three is
    returned unchanged."""
    config = checkpoint.config
    if not config.segments:
        problem = f"a {config.family} model has no segment embeddings"
        raise InputError(problem, remedy="start duo from a BERT, ELECTRA or ALBERT model")
    if config.segments >= DUO_SEGMENTS:
        return checkpoint
    table = checkpoint.tensors["embeddings.segment"]
    rows = (DUO_SEGMENTS - config.segments, config.embedding)
    new = {"embeddings.segment": np.concatenate([table, _normal(np.random.default_rng(seed), rows)])}
    return replace(
        checkpoint,
        config=replace(config, segments=DUO_SEGMENTS),
        tensors=overlaid(checkpoint.tensors, new),
        fingerprint=_derived(checkpoint.fingerprint, new),
    )


# Finding the folder of a model.


def _folder(name_or_folder: str | Path, revision: str | None) -> Path:
    path = Path(name_or_folder)
    there = is_there(path)
    if there and path.is_dir():
        if revision is not None:
            raise InputError(f"{path} is a folder, which has no revisions", remedy="leave the revision out")
        for trained in (path / "best", path / "last"):
            if not holds_checkpoint(path) and holds_checkpoint(trained):
                raise InputError("has a training run in it", remedy=f"give {trained}", path=path)
        return path
    if there:
        raise InputError("not a folder", remedy="give the folder that the model is in", path=path)
    if isinstance(name_or_folder, Path):
        raise InputError("no such folder", remedy="check the path", path=path)
    return _downloaded(name_or_folder, revision)


def holds_checkpoint(folder: Path) -> bool:
    """Whether a folder contains a model.

    >>> holds_checkpoint(getfixture("tmp_path"))
    False
    """
    return is_there(folder / CONFIG) or is_there(folder / legacy.PLAN)


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
    except Exception as error:  # requests, TLS and file system each raise errors of their own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        problem, remedy = f"cannot fetch {label} ({reason})", "try again, or give a folder"
    raise InputError(problem, remedy=remedy)


# Reading its files.


def _require_tokenizer(folder: Path) -> None:
    if not (folder / TOKENIZER).exists():
        remedy = "write it with AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers"
        raise InputError(f"no {TOKENIZER}", remedy=remedy, path=folder)


def _weight_files(folder: Path) -> dict[Path, dict[str, StoredTensor]]:
    """The tensors of each file of weights, under the names in the file."""
    if not is_there(folder / CONFIG):
        return legacy.stored_words(folder)
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
    config: EncoderConfig, files: Mapping[Path, Mapping[str, StoredTensor]], head: Collection[str]
) -> dict[str, StoredTensor]:
    """All tensors except those in `head`, under the current names of Hugging Face."""
    family = config.family
    names = [name for tensors in files.values() for name in tensors if name not in head]
    bare = not any(name.startswith(f"{family}.") for name in names)  # an encoder saved without its head
    return {
        canonical_name(name, family, bare=bare): tensor
        for tensors in files.values()
        for name, tensor in tensors.items()
        if name not in head
    }


def _checked(
    folder: Path, config: EncoderConfig, stored: Mapping[str, StoredTensor], require_head: bool
) -> LazyTensors:
    """The tensors under our names; raises an error for missing, misshaped or unexpected ones."""
    wanted, theirs = shapes(config), hugging_face_names(config)
    found = {ours: stored[name] for ours, name in theirs.items() if name in stored}
    if not require_head:  # a head for another number of labels counts as missing
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
    first = [folder / CONFIG] if is_there(folder / CONFIG) else []
    for path in (*first, folder / TOKENIZER, *legacy.files(folder), *files):
        try:
            with path.open("rb") as file:
                digest.update(file_digest(file, xxhash.xxh3_128).digest())
        except OSError as error:
            raise unreadable(path, error) from error
    return digest.hexdigest()


def _derived(fingerprint: str, changed: Mapping[str, Array]) -> str:
    """The fingerprint of a checkpoint in which some tensors were created or changed here."""
    digest = xxhash.xxh3_64(fingerprint.encode())
    for name, tensor in changed.items():
        digest.update(name.encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


# Creating tensors.


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
    return generator.normal(0.0, DEVIATION, shape).astype(np.float32)


def overlaid(tensors: Mapping[str, Array], new: Mapping[str, Array]) -> LazyTensors:
    """Tensors with others added or replaced, read on access."""
    readers = {name: partial(tensors.__getitem__, name) for name in tensors}
    return LazyTensors(readers | {name: partial(new.__getitem__, name) for name in new})


# The files beside the weights.


def _tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The minimum that AutoTokenizer needs in addition to a tokenizer.json."""
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
        inputs.remove("token_type_ids")  # the model would reject it
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
