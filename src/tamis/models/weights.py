"""safetensors files, read tensor by tensor and written as a stream.

The format is 8 bytes of header length, a JSON header and the raw values. It is read here rather than by its
package because numpy has no bfloat16, because a mapped tensor costs no memory until it is used, and because a
file that is written must take its name only when it is whole.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tamis.columns import Array
from tamis.errors import CorruptError, InputError
from tamis.files import atomic_write, unreadable
from tamis.models.names import Shape

FloatType = Literal["float32", "float16"]

_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_CODES = {"float32": "F32", "float16": "F16"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a mapped file."""

    path: Path
    name: str
    dtype: str  # as safetensors writes it: F32, F16, BF16, ...
    shape: Shape
    data: memoryview

    @property
    def readable(self) -> bool:
        """Whether it holds numbers that can be weights."""
        return self.dtype in ("F32", "F16", "BF16")

    def read(self) -> Array:
        """The values as float32; values that are not finite are an error."""
        if self.dtype == "BF16":  # the upper half of a float32
            values = (np.frombuffer(self.data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(self.data, "<f4" if self.dtype == "F32" else "<f2").astype(
                np.float32, copy=False
            )
        if not np.isfinite(values).all():
            problem = f"the tensor {self.name} holds values that are not finite"
            raise InputError(problem, remedy="fetch or train the model again", path=self.path)
        return values.reshape(self.shape)


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name; the file is mapped, not read.

    >>> file = getfixture("tmp_path") / "model.safetensors"
    >>> write_tensors(file, {"a": np.array([[1.0, 2.5]], np.float32)})
    >>> stored_tensors(file)["a"].read().tolist()
    [[1.0, 2.5]]
    """
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
        header = json.loads(bytes(mapped[8 : 8 + length]))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _stored(path, name, entry, mapped[8 + length :]) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header is wrong: {error}") from None


def _stored(path: Path, name: str, entry: Mapping[str, Any], data: memoryview) -> StoredTensor:
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} has a size below 0")
    if stop > len(data):
        raise ValueError(f"{name} ends after the end of the file")
    if dtype in _SIZES and stop - start != math.prod(shape) * _SIZES[dtype]:
        raise ValueError(f"{name} has {stop - start} bytes for {dtype}{list(shape)}")
    return StoredTensor(path, name, dtype, shape, data[start:stop])


def _damaged(path: Path, problem: str) -> CorruptError:
    return CorruptError(
        f"{path} is damaged or no safetensors file ({problem})", remedy="fetch the model again"
    )


class LazyTensors(Mapping[str, Array]):
    """Tensors by name, each made by its function every time it is asked for: nothing is held in memory.

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


def write_tensors(path: Path, tensors: Mapping[str, Array], dtype: FloatType = "float32") -> None:
    """Write a safetensors file, entirely or not at all.

    >>> file = getfixture("tmp_path") / "model.safetensors"
    >>> write_tensors(file, {"a": np.array([1e6], np.float32)}, "float16")
    Traceback (most recent call last):
    tamis.errors.InputError: .../model.safetensors: the tensor a does not fit into float16: use float32
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    item, start = np.dtype(dtype).itemsize, 0
    names = sorted(tensors)
    for name in names:
        shape = tensors[name].shape
        stop = start + math.prod(shape) * item
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the values begin at a multiple of 8
    with atomic_write(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            with np.errstate(over="ignore"):
                values = np.ascontiguousarray(tensors[name], dtype=np.dtype(dtype).newbyteorder("<"))
            if not np.isfinite(values).all():
                problem = f"the tensor {name} does not fit into {dtype}"
                raise InputError(problem, remedy="use float32", path=path)
            file.write(values.data)
