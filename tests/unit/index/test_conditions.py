"""Conditions over an index: every search obeys them, and the columns they need are read once and bounded."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking
from tamis.base.conditions import Condition, OneOf
from tamis.base.errors import InputError
from tamis.base.interrupt import interruptible
from tamis.base.where import ConditionError, where
from tamis.core.stage import Stage
from tamis.index import fields
from tamis.index.conditions import allowed

LANGUAGES = ("en", "fr", "de")


def documents(count: int = 300) -> list[Document]:
    return [
        Document(
            f"d{place:03}",
            f"a fine sieve number {place} " + ("for flour " * (place % 5)) + "drum " * (place % 3),
            metadata={"year": 1990 + place % 30, "lang": LANGUAGES[place % 3], "url": f"http://x/{place}"},
        )
        for place in range(count)
    ]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    built = Index.build(documents()[:200], tmp_path / "idx", positions=True)
    built.add(documents()[200:])
    return built


def matching(index: Index, condition: str) -> set[str]:
    masks = allowed(index.segments, where(condition), index.analyzer)
    assert masks is not None
    return {
        segment.store.document(number).id
        for segment, mask in zip(index.segments, masks, strict=True)
        for number in np.flatnonzero(mask).tolist()
    }


@pytest.mark.parametrize(
    "pipeline",
    ["bm25", "ql", "tfidf", "sdm", "bm25 >> rm3", "fuse(bm25, ql)", "bm25 % 5 >> rm3 % 20 >> normalise"],
)
def test_every_search_obeys(index: Index, pipeline: str) -> None:
    stage = index.pipeline(pipeline)
    condition = "year >= 2010 and lang in (en, fr)"
    found = stage("fine sieve flour", where=condition)
    assert set(found.ids) <= matching(index, condition)
    every = stage("fine sieve flour")
    wanted = matching(index, condition).intersection(every.ids)
    assert len(found) == (20 if "20" in pipeline else len(wanted)) > 0
    assert not set(every.ids) <= matching(index, condition)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("pipeline", ["bm25", "ql", "tfidf"])
def test_scores_are_those_of_the_whole_index(index: Index, pipeline: str, backend: str) -> None:
    if backend == "numba":
        pytest.importorskip("numba")
    stage = getattr(index, pipeline)(backend=backend)
    every = stage("flour drum 7")
    found = stage("flour drum 7", where="lang = en")
    wanted = [(hit.id, hit.score) for hit in every if int(hit.id[1:]) % 3 == 0]
    assert [(hit.id, hit.score) for hit in found] == wanted


def test_conditions_join_what_the_retriever_and_the_query_say(index: Index) -> None:
    stage = index.bm25(only=["d000", "d001", "d002", "d003"], without=["d003"])
    query = Query("q", "sieve", where=where("lang != de"))
    assert sorted(stage(query).ids) == ["d000", "d001"]
    assert stage(query, where="year > 1990").ids == ("d001",)
    assert str(stage(query, where="year > 1990").query.where) == "lang != de and year > 1990"
    run = stage.run([query, Query("p", "sieve")], where=where("id != d001"))
    assert {name: ranking.ids for name, ranking in run.items()} == {"q": ("d000",), "p": ("d000", "d002")}


def test_a_condition_of_stop_words_is_none(index: Index) -> None:
    assert allowed(index.segments, where("contains the or not contains of"), index.analyzer) is None
    assert len(index.bm25()("sieve", where="contains the")) == 300


def test_a_condition_as_text_must_be_read(index: Index) -> None:
    with pytest.raises(InputError, match=r"a str is not a condition: .* tamis.where"):
        index.bm25()(Query("q", "sieve", where="year = 3"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "condition",
    [
        OneOf(("id",), tuple(f"d{number:06}" for number in range(2_000))),  # more values than a text may have
        where(" or ".join(f"year={year}" for year in range(760))),  # printed, it is longer than a text may be
    ],
)
def test_a_run_with_a_large_condition_is_resumed(index: Index, tmp_path: Path, condition: Condition) -> None:
    queries, journal = [Query("p", "sieve"), Query("q", "drum")], tmp_path / "a.journal"
    run = index.bm25().run(queries, where=condition, journal=journal)
    again = index.bm25().run(queries, where=condition, journal=journal)
    assert again.manifest["resumed"] == 2
    assert list(again.values()) == list(run.values())
    with pytest.raises(InputError, match="the journal belongs to 2 other queries"):
        index.bm25().run(queries, journal=journal)


class Everything(Stage):
    """Finds all documents, and does not know of conditions."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def apply(self, rankings: list[Ranking], depth: int | None = None) -> list[Ranking]:  # type: ignore[override]
        ids = list(self.index.ids())
        return [each.found(ids, [1.0] * len(ids), self.index, self) for each in rankings]


def test_what_a_search_of_another_package_has_found_is_checked(index: Index) -> None:
    found = Everything(index)("sieve", where="year = 1994 and contains drum")
    assert set(found.ids) == matching(index, "year = 1994 and contains drum") != set()


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("yaer = 3", "no document has a value in the field yaer: did you mean year?"),
        ("lang = en or nothing = 3", "the field nothing: the fields are lang, url, year"),
        (
            'year >= "2010"',
            "year has only numbers, and is compared with '2010': write a number, without quotes",
        ),
        ("year = MMX", "write a number, without quotes"),
        ("lang in (3, 4)", 'lang has only text, and is compared with 3: put quotes around the value: "3"'),
        ("lang = true", 'put quotes around the value: "true"'),
    ],
)
def test_what_cannot_be_meant_is_an_error(index: Index, condition: str, problem: str) -> None:
    with pytest.raises(ConditionError, match=problem.replace("?", "\\?")):
        index.bm25()("sieve", where=condition)


def test_fields_that_one_segment_has(index: Index) -> None:
    index.add([Document("x", "a sieve", metadata={"price": 3, "author": {"name": "Ada"}, "year": "2010"})])
    assert matching(index, "price = 3") == {"x"}
    assert matching(index, "price != 4 or author.name = Bo") == {"x"}
    assert matching(index, 'year = "2010"') == {"x"}
    assert "x" not in matching(index, "year = 2010")
    assert len(matching(index, "price = null")) == 300
    with pytest.raises(ConditionError, match=r"author has only objects.*name a field of them: author.NAME"):
        matching(index, "author = Ada")
    with pytest.raises(ConditionError, match=r"did you mean author.name\?"):
        matching(index, "author.nme = Ada")


def test_an_index_without_metadata_or_documents(tmp_path: Path) -> None:
    bare = Index.build([Document("a", "sieve")], tmp_path / "bare")
    with pytest.raises(ConditionError, match="the documents have no metadata; id and title can be used"):
        bare.bm25()("sieve", where="year = 3")
    assert bare.bm25()("sieve", where="id = a and title = null").ids == ("a",)
    empty = Index.build([], tmp_path / "empty")
    assert empty.bm25()("sieve", where="year = 3").ids == ()


def test_columns_are_read_once_and_serve_later_commits(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    described = fields.Store.described

    def counted(self: fields.Store, frame: int) -> object:
        read.append(frame)
        return described(self, frame)

    monkeypatch.setattr(fields.Store, "described", counted)
    assert len(matching(index, "year = 1993 and lang = en")) == 10
    first = len(read)
    assert first == sum(segment.store.frames for segment in index.segments)  # both fields in one pass
    assert len(matching(index, "year > 1993 or not lang = en or lang in (en, fr)")) == 300
    index.delete(["d003"])
    other = copy.copy(index)
    assert "d003" not in other.bm25()("sieve", where="year = 1993").ids
    assert len(other.bm25()("sieve", where="year = 1993")) == 9
    assert len(read) == first
    index.add([Document("n", "sieve", metadata={"year": 1993})])
    assert "n" in index.bm25()("sieve", where="year = 1993").ids
    assert len(read) == first + 1


@pytest.mark.parametrize("condition", ["url = http://x/7", "url > http://x/2 and year < 2000", "url != null"])
def test_a_field_that_does_not_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    index = Index.build(documents(), tmp_path / "idx")
    wanted = matching(index, condition)
    monkeypatch.setattr(fields, "BYTES_EACH", 9)
    monkeypatch.setattr(fields, "BYTES_MORE", 0)
    small = Index.open(index.path)
    assert matching(small, condition) == wanted != set()
    (segment,) = small.segments
    assert isinstance(segment.fields.columns([("url",)])["url",], fields.TooLarge)
    with pytest.raises(ConditionError, match="url has only text"):
        matching(small, "url = 3")


def test_little_is_kept_of_many_fields_and_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "BYTES_EACH", 30)
    monkeypatch.setattr(fields, "BYTES_MORE", 0)
    metadata = {f"f{number}": number for number in range(40)}
    index = Index.build([Document(f"d{n}", "sieve", metadata=metadata) for n in range(100)], tmp_path / "idx")
    for number in range(40):
        assert len(matching(index, f"f{number} = {number}")) == 100
        assert len(matching(index, f"f{number} < {number}")) == 0
    (segment,) = index.segments
    assert segment.fields._columns._used <= 3000
    assert len(segment.fields._masks._values) == fields._MASKS


def test_fields_that_do_not_fit_into_memory_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "abcd"
    made = [Document(f"d{n}", "sieve", metadata={f: f"{f}{n:06}" * 2 for f in names}) for n in range(300)]
    index = Index.build(made, tmp_path / "idx")
    monkeypatch.setattr(fields, "BYTES_EACH", 50)
    monkeypatch.setattr(fields, "BYTES_MORE", 0)
    small, read = Index.open(index.path), []
    (segment,) = small.segments
    described = fields.Store.described

    def counted(self: fields.Store, frame: int) -> object:
        read.append(frame)
        return described(self, frame)

    monkeypatch.setattr(fields.Store, "described", counted)
    condition = " or ".join(f"{name} = {name}000007{name}000007" for name in names)
    assert matching(small, condition) == {"d7"}
    assert 0 < segment.fields._columns._used <= 50 * 300
    assert isinstance(segment.fields.columns([("d",)])["d",], fields.FieldColumn)
    first = len(read)
    assert (
        first <= 3 * segment.store.frames
    )  # once for what they have, once for what was forgotten; one more here
    assert matching(small, condition) == {"d7"}
    assert len(read) == first


class GivenUp(Exception):
    """What a deadline raises."""


def test_what_is_given_up_is_gone_on_with(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a server whose deadline is shorter than a look at all documents."""
    monkeypatch.setattr("tamis.storage.document_store.FRAME", 1 << 10)
    many = Index.build(documents(), index.path.parent / "frames", positions=False)
    (segment,) = many.segments
    assert segment.store.frames > 10
    read: list[int] = []
    described = fields.Store.described

    def counted(self: fields.Store, frame: int) -> object:
        read.append(frame)
        return described(self, frame)

    monkeypatch.setattr(fields.Store, "described", counted)

    def give_up() -> None:
        if len(read) % 4 == 3:
            raise GivenUp

    attempts = 0
    while True:
        attempts += 1
        try:
            with interruptible(give_up, np.ones(1, dtype=bool)):
                found = many.bm25()("sieve", where="year >= 2010 and lang = en")
            break
        except GivenUp:
            read.append(-1)
    assert len(found) == 30
    assert attempts > 2
    assert [frame for frame in read if frame >= 0] == list(range(segment.store.frames))


@pytest.mark.parametrize("positions", [True, False])
def test_several_threads_read_the_columns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: bool
) -> None:
    index = Index.build(documents(), tmp_path / "idx", positions=positions)
    read: list[int] = []
    described = fields.Store.described

    def counted(self: fields.Store, frame: int) -> object:
        read.append(frame)
        return described(self, frame)

    monkeypatch.setattr(fields.Store, "described", counted)
    condition, start, counts = 'year >= 2010 and contains "sieve number"', threading.Barrier(8), []

    def search() -> None:
        start.wait()
        counts.append(len(index.bm25()("sieve", where=condition)))

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [100] * 8
    assert len(read) == index.segments[0].store.frames


def test_many_values(index: Index) -> None:
    condition = OneOf(("id",), tuple(f"d{number:03}" for number in range(0, 300, 2)))
    assert len(index.bm25()("sieve", where=condition)) == 150
    assert matching(index, "id > d290") == {f"d{number}" for number in range(291, 300)}


def test_explanations_are_those_of_the_whole_index(index: Index) -> None:
    weights = index.weights("flour")
    found = index.bm25()("flour", where="lang = en")
    (line,) = index.explain(weights, index.bm25().model, found.ids[0])
    assert line.contribution == found[0].score
