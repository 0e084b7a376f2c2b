"""Reads safetensors files tensor by tensor, and writes them as a stream.

The format is 8 bytes of header length, a JSON header and the raw values. This module does not use the
safetensors package because numpy has no bfloat16, because a mapped tensor uses no memory until it is read,
and because a written file must get its name only when it is complete.

Matrices can be stored as 8 bits, in the layout "int8-rows", version 1, which is named in the metadata of the
file: a tensor NAME, I8 [m, n], comes with NAME.scale, F32 [m], and optionally NAME.columns, F32 [n]. Its
value in row i and column j is NAME[i, j] * NAME.scale[i] * NAME.columns[j]. This module reads it as one
float32 tensor.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import QUOTED, CorruptError, InputError, quoted
from tamis.base.nested import parse_json
from tamis.models.names import Shape
from tamis.models.quantise import Int8Matrix
from tamis.storage.files import atomic_write, unreadable

FloatType = Literal["float32", "float16"]
WeightType = Literal["float32", "float16", "int8"]  # int8: only the matrices, everything else is float16
#: The key of the checksum of the tensors in the metadata of a file.
CHECKSUM = "tamis.checksum"
#: The layout of int8 weights, as named in the metadata of a file.
LAYOUT = {"tamis.layout": "int8-rows", "tamis.version": "1"}

_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_MOST_DIMENSIONS = 8
_CODES = {"float32": "F32", "float16": "F16", "int8": "I8"}
_SCALE, _COLUMNS = "{}.scale", "{}.columns"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a mapped file."""

    path: Path
    name: str
    dtype: str  # as safetensors writes it: F32, F16, BF16, ...
    shape: Shape
    data: memoryview
    scale: StoredTensor | None = None  # the scales of the rows of an I8
    columns: StoredTensor | None = None  # the factors of its columns

    @property
    def readable(self) -> bool:
        """Whether its type is valid for weights."""
        return self.dtype in ("F32", "F16", "BF16") or self.scale is not None

    def read(self) -> Array:
        """The values as float32; raises an error for values that are not finite."""
        if self.scale is not None:
            numbers = np.frombuffer(self.data, np.int8).reshape(self.shape)
            columns = self.columns._factors() if self.columns else None
            values = Int8Matrix(numbers, self.scale._factors(), columns).floats()
        elif self.dtype == "BF16":  # the upper half of a float32
            values = (np.frombuffer(self.data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(self.data, "<f4" if self.dtype == "F32" else "<f2").astype(
                np.float32, copy=False
            )
        if not np.isfinite(values).all():
            problem = f"the tensor {self.name} holds values that are not finite"
            raise InputError(problem, remedy="fetch or train the model again", path=self.path)
        return values.reshape(self.shape)

    def _factors(self) -> Array:
        factors = self.read()
        if not (factors > 0).all():
            raise _wrong_int8(self.path, f"the tensor {self.name} holds values that are not above 0")
        return factors


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name; the file is mapped, not read.

    >>> file = getfixture("tmp_path") / "model.safetensors"
    >>> write_tensors(file, {"a": np.array([[1.0, 2.5]], np.float32)})
    >>> stored_tensors(file)["a"].read().tolist()
    [[1.0, 2.5]]
    """
    header, metadata, values = _parts_of(path)
    try:
        found = {name: _stored(path, name, entry, values) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"its header is wrong: {error}") from None
    return _with_scales(path, found, metadata)


def verify_tensors(path: Path) -> None:
    """Verify the checksum of a file, if it has one; all files written here have one.

    >>> file = getfixture("tmp_path") / "model.safetensors"
    >>> write_tensors(file, {"a": np.array([[1.0, 2.5]], np.float32)})
    >>> verify_tensors(file)
    >>> _ = file.write_bytes(file.read_bytes()[:-1] + b"?")
    >>> verify_tensors(file)
    Traceback (most recent call last):
    tamis.base.errors.CorruptError: .../model.safetensors is damaged ... (its checksum is wrong): fetch ...
    """
    header, metadata, values = _parts_of(path)
    if CHECKSUM in metadata:
        digest = _digest_of_header(header)
        digest.update(values)
        if metadata[CHECKSUM] != digest.hexdigest():
            raise _damaged(path, "its checksum is wrong")


def _parts_of(path: Path) -> tuple[dict[str, Any], dict[str, Any], memoryview]:
    """The entries of the tensors in the header of a file, its metadata, and the values."""
    try:
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:  # an empty file cannot be mapped
        raise _damaged(path, "the file is empty") from None
    except OSError as error:
        raise unreadable(path, error) from error
    length = int.from_bytes(mapped[:8], "little")
    if length > len(mapped) - 8:
        raise _damaged(path, "its header is longer than the file")
    try:
        header = parse_json(bytes(mapped[8 : 8 + length]))
        metadata = dict(header.pop("__metadata__", None) or {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"its header is wrong: {error}") from None
    return header, metadata, mapped[8 + length :]


def _digest_of_header(header: Mapping[str, Any]) -> xxhash.xxh3_128:
    return xxhash.xxh3_128(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())


def _stored(path: Path, name: str, entry: Mapping[str, Any], data: memoryview) -> StoredTensor:
    called = name[:QUOTED]
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{called} has {len(shape)} dimensions")
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, stop)):
        raise ValueError(f"{called} has a size below 0")
    if stop > len(data):
        raise ValueError(f"{called} ends after the end of the file")
    if dtype in _SIZES and stop - start != math.prod(shape) * _SIZES[dtype]:
        raise ValueError(f"{called} has {stop - start} bytes for {dtype}{quoted(list(shape))}")
    return StoredTensor(path, name, dtype, shape, data[start:stop])


def _with_scales(
    path: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """The tensors of a file, with its scales added to each int8 matrix."""
    small = [name for name, tensor in tensors.items() if tensor.dtype == "I8"]
    said = {key: metadata[key] for key in LAYOUT if key in metadata}
    if said and said != LAYOUT:
        problem = f"its weights are in a layout that is not known ({', '.join(map(str, said.values()))})"
        raise InputError(problem, remedy="use a newer tamis, or fetch the model again", path=path)
    if small and not said:
        problem = f"the tensor {small[0]} is int8, and the file names no layout"
        remedy = "use weights in float16 or float32, or int8 from `tamis export --weights int8`"
        raise InputError(problem, remedy=remedy, path=path)
    found = dict(tensors)
    for name in small:
        scale, columns = (found.pop(of.format(name), None) for of in (_SCALE, _COLUMNS))
        if scale is None:
            raise _wrong_int8(path, f"no {_SCALE.format(name)} beside the int8 tensor {name}")
        tensor = replace(tensors[name], scale=scale, columns=columns)
        for part, size in ((scale, tensor.shape[:1]), (columns, tensor.shape[1:])):
            if part is not None and (part.dtype, part.shape, len(tensor.shape)) != ("F32", size, 2):
                what = f"{part.name} is {part.dtype}{list(part.shape)}"
                raise _wrong_int8(path, f"{what} beside the int8 tensor {name} {list(tensor.shape)}")
        found[name] = tensor
    return found


def _wrong_int8(path: Path, problem: str) -> InputError:
    return InputError(problem, remedy="fetch or save the model again", path=path)


def _damaged(path: Path, problem: str) -> CorruptError:
    return CorruptError(
        f"{path} is damaged or no safetensors file ({problem})", remedy="fetch the model again"
    )


class LazyTensors(Mapping[str, Array]):
    """Tensors by name. Each access calls the tensor's function again: nothing is kept in memory.

    >>> LazyTensors({"zeros": lambda: np.zeros(2)})["zeros"].tolist()
    [0.0, 0.0]
    """

    def __init__(self, readers: Mapping[str, Callable[[], Array]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> Array:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers  # the inherited test would read the tensor


def write_tensors(
    path: Path,
    tensors: Mapping[str, Array],
    dtype: FloatType = "float32",
    int8: Mapping[str, Int8Matrix] | None = None,
) -> None:
    """Write a safetensors file atomically. Matrices in `int8` are stored as int8, everything else as `dtype`.

    >>> file = getfixture("tmp_path") / "model.safetensors"
    >>> write_tensors(file, {"a": np.array([1e6], np.float32)}, "float16")
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../model.safetensors: the tensor a does not fit into float16: use float32
    """
    # transformers rejects a file without a format
    metadata = {"format": "pt", CHECKSUM: "0" * 32} | (LAYOUT if int8 else {})
    header: dict[str, Any] = {}
    whole = {part: values for name, matrix in (int8 or {}).items() for part, values in _parts(name, matrix)}
    types = {name: np.dtype(dtype) for name in tensors} | {name: each.dtype for name, each in whole.items()}
    # the widest first, so that every tensor begins at a multiple of its width
    names, start = sorted(types, key=lambda name: (-types[name].itemsize, name)), 0
    for name in names:
        shape = (whole if name in whole else tensors)[name].shape
        stop = start + math.prod(shape) * types[name].itemsize
        code = _CODES[types[name].name]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    digest = _digest_of_header(header)
    with atomic_write(path) as file:
        file.write(_encoded(metadata, header))
        for name in names:
            with np.errstate(over="ignore"):
                values = np.ascontiguousarray(
                    (whole if name in whole else tensors)[name], dtype=types[name].newbyteorder("<")
                )
            if not np.isfinite(values).all():
                problem = f"the tensor {name} does not fit into {types[name].name}"
                raise InputError(problem, remedy="use float32", path=path)
            file.write(values.data)
            digest.update(values.data)
        file.seek(0)
        file.write(_encoded(metadata | {CHECKSUM: digest.hexdigest()}, header))


def _encoded(metadata: Mapping[str, str], header: Mapping[str, Any]) -> bytes:
    """The bytes before the values: the length of the header, and the header."""
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # align the values to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _parts(name: str, matrix: Int8Matrix) -> Iterator[tuple[str, Array]]:
    yield name, matrix.values
    yield _SCALE.format(name), matrix.scale
    if matrix.columns is not None:
        yield _COLUMNS.format(name), matrix.columns
