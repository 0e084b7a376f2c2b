"""Models of long documents as folders.

    config.json, tokenizer.json, model.safetensors    the encoder, as any checkpoint has it
    tamis.json                                        the kind, and how much of a document is read
    tamis.safetensors                                 the head

so that the encoder of one is a checkpoint like any other: to train the next model from, or to load elsewhere.
A model on static embeddings has no encoder; its table lies beside the head. A folder is written under another
name and renamed when it is whole.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import file_digest
from pathlib import Path

import torch
import xxhash

from tamis.base.errors import CorruptError, InputError
from tamis.models.checkpoint import FILES_OF_A_MODEL, TOKENIZER, Checkpoint, load_checkpoint, save_checkpoint
from tamis.models.encoder import Encoder
from tamis.models.long_plan import FORMAT, PLAN, LongDoc, is_long, read_plan
from tamis.models.passages import Encoded, LongModel, Static, new_head, new_model, on_encoder
from tamis.models.tokenizer import Tokenizer
from tamis.models.weights import stored_tensors, verify_tensors, write_tensors
from tamis.storage.files import (
    TEMPORARY,
    TEMPORARY_FILE,
    atomic_write,
    make_folder,
    storage_errors,
    sync_folder,
    unreadable,
)
from tamis.storage.markers import MARKER, is_marked, mark, remove_marked, unmark

HEAD = "tamis.safetensors"
_TABLE = "embeddings"  # the static ones, among the head's tensors
_RANDOM = re.compile("-[0-9a-f]{16}(-old)?$")  # how the names of folders end that are written or replaced
_OLD = "-old"  # how the name ends of a folder that another takes the place of


@dataclass(frozen=True)
class LongCheckpoint:
    """A model of long documents, and where it comes from. `start` is the encoder's checkpoint, None for
    static embeddings; `fingerprint` changes whenever the scores could."""

    folder: Path
    model: LongModel
    tokenizer: Tokenizer
    start: Checkpoint | None
    fingerprint: str

    @property
    def plan(self) -> LongDoc:
        return self.model.plan


def begin(start: Checkpoint, plan: LongDoc, seed: int = 0) -> LongCheckpoint:
    """A model to be trained, from an encoder: its head is drawn from `seed`, or is the folder's own where
    that holds a model of this kind."""
    if is_long(start.folder) and read_plan(start.folder).kind == plan.kind:
        return load_long(start.folder, plan, start)
    tokenizer = _tokenizer(start)
    model = new_model(plan, tokenizer.special, Encoder.from_checkpoint(start), seed).eval()
    fingerprint = xxhash.xxh3_64_hexdigest(f"{start.fingerprint} {plan} {seed}".encode())
    return LongCheckpoint(start.folder, model, tokenizer, None if plan.static else start, fingerprint)


def load_long(
    folder: str | Path, plan: LongDoc | None = None, start: Checkpoint | None = None
) -> LongCheckpoint:
    """The model in a folder, in evaluation mode. To go on with one, `plan` says how it shall read from now
    on, and `start` is its encoder, changed in what does not change its weights.

    >>> load_long(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: ... holds no model of long documents: train one: ...
    """
    folder = Path(folder)
    plan = plan or read_plan(folder)
    verify_tensors(folder / HEAD)
    tensors = {name: torch.tensor(stored.read()) for name, stored in stored_tensors(folder / HEAD).items()}
    table = tensors.pop(_TABLE, torch.zeros(0, 0))
    if plan.static:
        head, tokenizer = new_head(plan), Tokenizer(folder)
        _check_vocabulary(tokenizer, len(table))
        model: LongModel = Static(plan, tokenizer.special, table, head)
    else:
        start = start or load_checkpoint(folder)
        head, tokenizer = new_head(plan, start.config), _tokenizer(start)
        model = on_encoder(plan, tokenizer.special, Encoder.from_checkpoint(start), head)
    try:
        head.load_state_dict(tensors)
    except RuntimeError as error:
        problem = " ".join(str(error).split()).partition(": ")[2]
        raise CorruptError(
            f"{folder / HEAD} is not of a {plan.kind} model that reads so ({problem})",
            remedy=f"use the sizes of its {PLAN}, or train it again",
        ) from None
    return LongCheckpoint(folder, model.eval(), tokenizer, start, _fingerprint(folder, start))


def save_long(checkpoint: LongCheckpoint, folder: str | Path) -> None:
    """Write a model, its weights as they are now, in place of what the folder holds."""
    model = checkpoint.model
    tensors = {name: value.detach().float().cpu().numpy() for name, value in model.head.state_dict().items()}
    with _replaced(Path(folder)) as new:
        if checkpoint.start is not None:
            assert isinstance(model, Encoded)
            save_checkpoint(replace(checkpoint.start, tensors=model.encoder.tensors()), new)
        else:
            assert isinstance(model, Static)
            tensors[_TABLE] = model.embeddings.cpu().numpy()
            with atomic_write(new / TOKENIZER) as file:
                file.write((checkpoint.folder / TOKENIZER).read_bytes())
        write_tensors(new / HEAD, tensors)
        with atomic_write(new / PLAN, "w") as file:
            file.write(json.dumps({"format": FORMAT, **model.plan.model_dump()}, indent=2) + "\n")


def put_back(folder: Path) -> None:
    """Give a model its name back that a kill has left without it, between the two renames by which another
    takes its place. That other one is whole by then, and has the name if it is still there.

    >>> put_back(getfixture("tmp_path") / "best")  # of which there is nothing
    """
    if folder.exists():
        return
    for old in folder.parent.glob(f"{TEMPORARY}*{_OLD}"):
        new = old.with_name(old.name.removesuffix(_OLD))
        whole = new if new.exists() else old
        # of an older one, that was being removed, a power cut may have left a part
        if old.name.startswith(_temporary(folder)) and (whole / PLAN).is_file():
            with storage_errors(folder):
                whole.rename(folder)
            return


def _tokenizer(start: Checkpoint) -> Tokenizer:
    tokenizer = Tokenizer(start.folder)
    _check_vocabulary(tokenizer, start.config.vocabulary)
    return tokenizer


def _check_vocabulary(tokenizer: Tokenizer, rows: int) -> None:
    if tokenizer.vocabulary > rows:
        raise InputError(
            f"the tokenizer in {tokenizer.folder} has {tokenizer.vocabulary:,} tokens, the model {rows:,}",
            remedy="use the tokenizer.json that the model was trained with",
        )


def _fingerprint(folder: Path, start: Checkpoint | None) -> str:
    digest = xxhash.xxh3_64(b"" if start is None else start.fingerprint.encode())
    for name in (PLAN, HEAD, TOKENIZER):
        try:
            with (folder / name).open("rb") as file:
                digest.update(file_digest(file, xxhash.xxh3_128).digest())
        except OSError as error:
            raise unreadable(folder / name, error) from error
    return str(digest.hexdigest())


def is_model_file(name: str) -> bool:
    """Whether a file of a model is called so, finished or not.

    >>> is_model_file("model.safetensors"), is_model_file("notes.txt")
    (True, False)
    """
    return any(fnmatchcase(name, each) for each in (*FILES_OF_A_MODEL, PLAN, HEAD)) or bool(
        TEMPORARY_FILE.fullmatch(name)
    )


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A new folder that takes the name of an old one when it is whole; see `put_back`. What else lay in the
    old one is moved into it."""
    new = folder.with_name(f"{_temporary(folder)}{secrets.token_hex(8)}")
    old = new.with_name(f"{new.name}{_OLD}")
    with storage_errors(folder):
        make_folder(new.parent)
        new.mkdir()
        mark(new, new.name, folder.name)
        try:
            yield new
            sync_folder(new)
            if folder.exists():
                sync_folder(folder.parent)  # what was removed there before must not come back beside this
                mark(folder, folder.name, old.name)
                folder.rename(old)
            new.rename(folder)
        except BaseException:
            if old.exists() and not folder.exists():
                with suppress(OSError):
                    old.rename(folder)
            unmark(folder)
            remove_marked(new, is_model_file)
            raise
        sync_folder(folder.parent)
        remove_old(old, folder)


def remove_old(old: Path, folder: Path) -> None:
    """Remove a model that another one has taken the place of; files that are no part of it are kept there."""
    if is_marked(old):
        for path in list(old.iterdir()):
            if path.name != MARKER and not is_model_file(path.name) and not (folder / path.name).exists():
                with suppress(OSError):
                    path.rename(folder / path.name)
    remove_marked(old, is_model_file, empty_too=bool(_RANDOM.search(old.name)))
    unmark(folder)


def _temporary(folder: Path) -> str:
    """How the name of a folder begins that shall take the place of this one."""
    return f"{TEMPORARY}{folder.name}-"
