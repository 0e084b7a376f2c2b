"""The document store: any document comes back as it was given, whatever is copied from where."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError
from tamis.storage import document_store as corpus
from tamis.storage.document_store import Store, StoreWriter, sort_ids

IDS = st.text(min_size=1, max_size=70).filter(lambda text: "\0" not in text)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.lists(
    st.builds(
        Document,
        id=IDS,
        text=st.text(max_size=200),
        title=st.text(max_size=30),
        metadata=st.dictionaries(st.text(max_size=8), JSON, max_size=3),
    ),
    unique_by=lambda document: document.id,
    max_size=30,
)


def write(folder: Path, documents: list[Document]) -> Store:
    folder.mkdir(exist_ok=True)
    writer = StoreWriter(folder)
    for document in documents:
        writer.add(document)
    return Store(folder, writer.close()[0])


def random_documents(count: int, *, size: int = 2000) -> list[Document]:
    rng = random.Random(count)
    return [
        Document(f"d{n}", "".join(rng.choices("abc é", k=rng.randint(0, size))), title=str(n))
        for n in range(count)
    ]


@settings(max_examples=40, deadline=None)
@given(documents=DOCUMENTS)
def test_round_trip_of_any_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document]
) -> None:
    store = write(tmp_path_factory.mktemp("store"), documents)
    assert len(store) == len(documents)
    assert list(store) == documents
    numbers = list(range(len(documents)))[::-1]
    assert store.ids(numbers) == [documents[number].id for number in numbers]
    assert [store.number(document.id) for document in documents] == list(range(len(documents)))
    in_order = [documents[number].id for number in store.at_rank(np.arange(len(documents)))]
    assert in_order == sorted(document.id for document in documents)
    assert store.number("not \0 there") == -1


@settings(max_examples=25, deadline=None)
@given(documents=DOCUMENTS, data=st.data())
def test_copies_of_any_subsets_of_any_stores(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    half = len(documents) // 2
    writer = StoreWriter(folder)
    wanted: list[Document] = []
    for number, part in enumerate((documents[:half], documents[half:])):
        store = write(folder / str(number), part)
        kept = sorted(data.draw(st.sets(st.sampled_from(range(len(part)))) if part else st.just(set())))
        writer.copy(store, np.array(kept, dtype=np.int64))
        wanted += [part[at] for at in kept]
    assert list(Store(folder, writer.close()[0])) == wanted


def test_whole_frames_are_copied_as_they_are_and_crumbs_are_gathered(tmp_path: Path) -> None:
    documents = random_documents(200)
    store = write(tmp_path / "one", documents)
    frames = len(store._frame_ends) - 1
    assert frames > 10
    all_but_one = np.delete(np.arange(200), 77)
    writer = StoreWriter(tmp_path)
    writer.copy(store, all_but_one)
    copy = Store(tmp_path, writer.close()[0])
    assert list(copy) == documents[:77] + documents[78:]
    damaged = int(np.searchsorted(store._frame_firsts, 77, side="right")) - 1
    whole = store._frames.slice(0, int(store._frame_ends[damaged])).tobytes()
    assert copy._frames.all().tobytes().startswith(whole)


def test_many_merges_of_one_document_leave_no_crumbs(tmp_path: Path) -> None:
    documents = random_documents(60, size=50)
    writer = StoreWriter(tmp_path)
    for number, document in enumerate(documents):
        writer.copy(write(tmp_path / str(number), [document]), np.array([0]))
    merged = Store(tmp_path, writer.close()[0])
    assert list(merged) == documents
    (tmp_path / "again").mkdir()
    again = StoreWriter(tmp_path / "again")
    again.copy(merged, np.arange(len(merged)))
    assert len(Store(tmp_path / "again", again.close()[0])._frame_ends) == 2  # one frame


def test_frames_hold_about_sixteen_kibibytes(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [Document(str(n), "x" * 1000) for n in range(100)])
    assert np.diff(store._frame_firsts)[:-1].tolist() == [17] * 5


def test_documents_larger_than_a_frame_among_empty_ones(tmp_path: Path) -> None:
    documents = [
        Document("large", "é" * 100_000),
        Document("empty", ""),
        Document("title only", "", title="title"),
        Document("larger", "\N{SAUROPOD}\0" * 300_000, metadata={"n": [1, {"a": None}]}),
        Document("last", ""),
    ]
    assert list(write(tmp_path / "store", documents)) == documents


def test_an_empty_store(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [])
    assert (len(store), list(store), store.ids([]), store.number("x")) == (0, [], [], -1)


@pytest.mark.parametrize("number", [-1, 2, 1 << 40])
def test_a_number_that_no_document_has(tmp_path: Path, number: int) -> None:
    store = write(tmp_path / "store", [Document("a", ""), Document("b", "")])
    with pytest.raises(UnknownDocumentError, match="no document has the number"):
        store.document(number)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (Document("", "text"), "the id of document '' is empty"),
        (Document("a\0b", "text"), "holds a NUL"),
        (Document("a\ud800", "text"), "the id of document 'a\\\\ud800' is not valid Unicode at character 2"),
        (Document("a", "bad \udc80"), "the text of document 'a' is not valid Unicode at character 5"),
        (Document("a", "", title="\udfff"), "the title of document 'a' is not valid Unicode"),
        (Document("a", "", metadata={"k": "\udfff"}), "the metadata of document 'a' is not valid Unicode"),
        (Document("a", "", metadata={"k": {1, 2}}), "the metadata of document 'a' is not JSON .*set"),
        (Document("a", "", metadata={(1, 2): 3}), "the metadata of document 'a' is not JSON"),
        (Document(7, "text"), "the id of document 7 is int, not str"),  # type: ignore[arg-type]
        (Document("a", None), "the text of document 'a' is NoneType, not str"),  # type: ignore[arg-type]
        (Document("a", b"bytes"), "the text of document 'a' is bytes, not str"),  # type: ignore[arg-type]
    ],
)
def test_a_refused_document_is_named_and_leaves_the_store_as_it_was(
    tmp_path: Path, document: Document, problem: str
) -> None:
    writer = StoreWriter(tmp_path)
    writer.add(Document("before", "kept"))
    with pytest.raises(InputError, match=problem):
        writer.add(document)
    writer.add(Document("after", "kept too"))
    store = Store(tmp_path, writer.close()[0])
    assert [d.id for d in store] == ["before", "after"]


def test_circular_metadata_is_refused(tmp_path: Path) -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    with pytest.raises(InputError, match="is not JSON"):
        StoreWriter(tmp_path).add(Document("a", "", metadata=circle))


def test_a_text_too_long_for_a_frame_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "LONGEST_PART", 10)
    writer = StoreWriter(tmp_path)
    writer.add(Document("a", "é" * 5))
    with pytest.raises(InputError, match="the text of document 'b' has 11 bytes"):
        writer.add(Document("b", "é" * 5 + "e"))


@pytest.mark.parametrize("width", [1, 8, 9, 64, 65, 300])
def test_sort_ids_of_every_width_agrees_with_python(width: int) -> None:
    rng = random.Random(width)
    ids = list({"".join(rng.choices("aé\U0001f995\x01", k=rng.randint(1, width))) for _ in range(300)})
    ids = [identity for identity in ids if len(identity.encode()) <= width] or ["a"]
    encoded = [identity.encode() for identity in ids]
    text = np.frombuffer(b"".join(encoded), "u1")
    order, dropped = sort_ids(text, np.cumsum([0, *map(len, encoded)]))
    assert [ids[number] for number in order] == sorted(ids)
    assert len(dropped) == 0


@pytest.mark.parametrize(
    "prefix", ["", "a prefix that is longer than sixty-four bytes, for the other way to sort "]
)
def test_shared_ids_keep_the_first_or_the_last(prefix: str) -> None:
    encoded = [(prefix + letter).encode() for letter in "bacabb"]
    text, ends = np.frombuffer(b"".join(encoded), "u1"), np.cumsum([0, *map(len, encoded)])
    first, left_out = sort_ids(text, ends, "first")
    assert (first.tolist(), left_out.tolist()) == ([1, 0, 2], [3, 4, 5])
    last, left_out = sort_ids(text, ends, "last")
    assert (last.tolist(), sorted(left_out.tolist())) == ([3, 5, 2], [0, 1, 4])
    with pytest.raises(InputError, match="a' occurs twice"):
        sort_ids(text, ends)


def test_ids_that_differ_in_trailing_bytes_only_are_different(tmp_path: Path) -> None:
    ids = ["a", "a\x01", "a ", "a\t", "aa"]
    store = write(tmp_path / "store", [Document(identity, identity) for identity in ids])
    assert [store.document(store.number(identity)).text for identity in ids] == ids


def test_a_store_is_let_go_of_without_the_garbage_collector(tmp_path: Path) -> None:
    """Each holds seven open files: a reader that refreshes often must not wait for a collection."""
    import weakref

    store = write(tmp_path / "store", random_documents(5))
    store.document(3)
    gone = weakref.ref(store)
    gc.disable()
    try:
        del store
        assert gone() is None
    finally:
        gc.enable()
