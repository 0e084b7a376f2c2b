"""Reads Parquet and Arrow files (also Feather) in batches of rows with pyarrow (the extra `arrow`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError
from tamis.storage.files import STDIN, PathLike

_BATCH = 1024
_REMEDY = "write it again, or check the format"


def read_table(path: PathLike, format: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and cells of each row, by the names of the columns.

    >>> import pyarrow.parquet
    >>> file = getfixture("tmp_path") / "tools.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2], "text": ["a sieve", "a pot"]}), file)
    >>> list(read_table(file, "parquet"))
    [(1, {'id': 1, 'text': 'a sieve'}), (2, {'id': 2, 'text': 'a pot'})]
    """
    import pyarrow as pa

    if os.fspath(path) == STDIN:
        raise InputError(f"{format} cannot be read from a pipe", remedy="give a file")
    number = 0
    try:
        for batch in _batches(Path(path), format):
            for start in range(0, batch.num_rows, _BATCH):
                for row in batch.slice(start, _BATCH).to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        told = " ".join(str(error).split())[:200]
        raise InputError(f"damaged, or not {format} ({told})", remedy=_REMEDY, path=os.fspath(path)) from None


def _batches(path: Path, format: str) -> Iterator[Any]:
    import pyarrow as pa

    if format == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH)
        return
    with pa.memory_map(os.fspath(path)) as source:
        if source.read(6) == b"ARROW1":
            with pa.ipc.open_file(source) as batches:
                for number in range(batches.num_record_batches):
                    yield batches.get_batch(number)
        else:  # a stream, which datasets also use
            source.seek(0)
            with pa.ipc.open_stream(source) as stream:
                yield from stream
