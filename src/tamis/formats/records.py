"""Documents from records: JSON objects, and rows of tables and data frames; the names of their columns."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.formats.json_lines import first_filled, first_present, to_id, to_text

#: The documents that an index accepts: documents, mappings with the keys of records, or a frame or a table of
#: them.
Documents = Iterable[Document] | Iterable[Mapping[str, Any]] | Any

ID_KEYS = ("_id", "id", "docid")
TEXT_KEYS = ("text", "contents", "content", "body")
_BATCH = 1024  # rows of a table that are converted to objects at a time


def document_of(record: dict[str, Any]) -> Document:
    """The document of a record. Removes the used keys from `record`; the rest is metadata.

    >>> document_of({"_id": 7, "title": "Tamis", "text": "A sieve.", "year": 1900})
    Document(id='7', text='A sieve.', title='Tamis', metadata={'year': 1900})
    """
    id_key, text_key = first_present(record, ID_KEYS), first_filled(record, TEXT_KEYS)
    document_id, text = to_id(record.pop(id_key)), to_text(record.pop(text_key), text_key)
    title = to_text(record.pop("title", None), "title")
    metadata = record.pop("metadata", None)
    if isinstance(metadata, dict):
        record = metadata | record
    elif metadata is not None:
        record["metadata"] = metadata
    return Document(document_id, text, title, record)


def plain(value: Any) -> Any:
    """Convert a value of a table to a JSON value: numpy's numbers and lists to Python's, times and decimals
    to text, and missing values (NaN, NaT) to None.

    >>> import datetime, decimal
    >>> plain(datetime.date(2020, 1, 2)), plain(float("nan")), plain((1, decimal.Decimal("2.50")))
    ('2020-01-02', None, [1, '2.50'])
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat() if value == value else None  # NaT is not equal to itself
    if isinstance(value, decimal.Decimal | uuid.UUID | datetime.timedelta):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if hasattr(value, "tolist"):  # of numpy, and Series
        return plain(value.tolist())
    return None if type(value).__name__ in ("NAType", "NaTType") else str(value)


def documents_of(source: Any) -> Iterator[Document]:
    """The documents of an iterable of documents or mappings, or of a frame or a table (pandas, polars,
    pyarrow), row by row.

    >>> list(documents_of([Document("d1", "a sieve"), {"id": 2, "text": "soup", "price": 5}]))
    [Document(id='d1', text='a sieve', ...), Document(id='2', text='soup', title='', metadata={'price': 5})]
    """
    rows = _rows(source)
    for number, each in enumerate(source if rows is None else rows, 1):
        if isinstance(each, Document) or not isinstance(each, Mapping):
            yield each  # the index rejects values that are not documents
            continue
        try:
            yield document_of({str(key): plain(value) for key, value in each.items()})
        except InputError as error:
            what = "document" if rows is None else "row"
            raise InputError(f"{what} {number:,}: {error.problem}", remedy=error.remedy) from None


def _rows(source: Any) -> Iterable[Mapping[str, Any]] | None:
    """The rows of a frame or a table, recognised by its methods, so that no library needs to be installed."""
    if hasattr(source, "to_batches"):  # pyarrow.Table
        return (row for batch in source.to_batches(max_chunksize=_BATCH) for row in batch.to_pylist())
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):  # polars
        rows: Iterable[Mapping[str, Any]] = source.iter_rows(named=True)
        return rows
    if hasattr(source, "itertuples") and hasattr(source, "columns"):  # pandas
        names = [str(name) for name in source.columns]
        return (dict(zip(names, row, strict=True)) for row in source.itertuples(index=False, name=None))
    if hasattr(source, "collect_schema"):  # polars' lazy frame
        return _rows(source.collect())
    return None
