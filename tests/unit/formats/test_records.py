"""Tables, frames and iterators of mappings as documents."""

import datetime
from importlib import import_module
from pathlib import Path

import pytest

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.formats import SkipReport, read_corpus
from tamis.formats.records import documents_of
from tamis.index.index import Index

ROWS = [
    {"id": 1, "title": "Sieve", "text": "for flour", "price": 2.5, "bought": datetime.date(2020, 1, 2)},
    {"id": 2, "title": None, "text": "for soup", "price": None, "bought": None},
]
WANTED = [
    Document("1", "for flour", "Sieve", {"price": 2.5, "bought": "2020-01-02"}),
    Document("2", "for soup", "", {"price": None, "bought": None}),
]


def test_mappings_and_documents_in_one_iterator() -> None:
    assert list(documents_of(iter([ROWS[0], WANTED[1]]))) == WANTED


def test_a_pandas_frame() -> None:
    pandas = pytest.importorskip("pandas")
    assert list(documents_of(pandas.DataFrame(ROWS))) == WANTED
    frame = pandas.DataFrame(
        {"id": ["a"], "text": ["x"], "when": pandas.to_datetime(["2020-01-02"]), "n": [1]}
    )
    assert next(documents_of(frame)).metadata == {"when": "2020-01-02T00:00:00", "n": 1}
    missing = pandas.DataFrame({"id": ["a"], "text": ["x"], "when": [pandas.NaT], "n": [pandas.NA]})
    assert next(documents_of(missing)).metadata == {"when": None, "n": None}


def test_a_polars_frame() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ROWS)
    assert list(documents_of(frame)) == WANTED
    assert list(documents_of(frame.lazy())) == WANTED


def test_an_arrow_table() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    assert list(documents_of(pyarrow.Table.from_pylist(ROWS))) == WANTED


def test_an_index_is_built_from_frames_and_mappings(tmp_path: Path) -> None:
    index = Index.build(ROWS, tmp_path / "idx")
    assert [*index] == WANTED
    pandas = pytest.importorskip("pandas")
    index.add(pandas.DataFrame({"id": ["3"], "text": ["for tea"]}))
    assert index.document("3").text == "for tea"
    with pytest.raises(InputError, match=r"row 1: none of the keys '_id', 'id', 'docid' among 'name'"):
        index.add(pandas.DataFrame({"name": ["x", "y"], "text": ["a", "b"]}))
    with pytest.raises(InputError, match=r"document 2: none of the keys 'text', .* among 'id'"):
        Index.build([{"id": 1, "text": "a"}, {"id": 2}], tmp_path / "bad")
    with pytest.raises(InputError, match="a str is not a document"):
        Index.build(["text"], tmp_path / "worse")  # type: ignore[list-item]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather"])
def test_parquet_and_arrow_files(tmp_path: Path, suffix: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    feather, parquet = import_module("pyarrow.feather"), import_module("pyarrow.parquet")
    table = pyarrow.Table.from_pylist(ROWS)
    file = tmp_path / f"tools.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, file)
    elif suffix == "feather":
        feather.write_feather(table, file)
    else:  # a stream, as datasets are kept
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    assert list(read_corpus(file)) == WANTED
    assert list(read_corpus(tmp_path)) == WANTED, "a folder of them too"
    file.write_bytes(file.read_bytes()[:-30] if suffix != "arrow" else b"\xff" * 100)
    with pytest.raises(InputError, match="damaged, or not"):
        list(read_corpus(file))


def test_a_bad_row_of_a_table_is_named_or_skipped(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / "tools.parquet"
    import_module("pyarrow.parquet").write_table(pyarrow.table({"id": ["1", None], "text": ["a", "b"]}), file)
    with pytest.raises(InputError, match=r"tools.parquet, line 2: null is not an id"):
        list(read_corpus(file))
    report = SkipReport()
    assert [each.id for each in read_corpus(file, skipped=report)] == ["1"]
    assert report.lines == 1
