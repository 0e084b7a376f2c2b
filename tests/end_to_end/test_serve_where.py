"""Searches over HTTP for documents that satisfy a condition, and with phrases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tests.end_to_end.served import Served, serving

pytest.importorskip("fastapi")

LANGUAGES = ("en", "fr", "de")
DOCUMENTS = [
    Document(
        f"d{place:03}",
        f"a fine drum sieve number {place}" + " for flour" * (place % 4) + " and soup" * (place % 3),
        metadata={
            "year": 1990 + place % 30,
            "lang": LANGUAGES[place % 3],
            "author": {"name": f"A{place % 2}"},
        },
    )
    for place in range(120)
]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve-where")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    Index.build(DOCUMENTS, folder / "idx")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    options = ["-p", "bm25 % 100 >> mono(model=m) % 20", "--deadline", "60s"]  # on a machine however busy
    with serving(folder, *options) as served:
        yield served


def ids(answer: dict[str, Any]) -> list[str]:
    return [result["id"] for result in answer["results"]]


def test_what_is_found_satisfies_the_condition(server: Served, folder: Path) -> None:
    found = server.post("/search", query="sieve flour", k=20, where="year>=2010 and lang='en'", trace=True)
    answer = found.json()
    assert answer["where"] == "year >= 2010 and lang = en"
    assert answer["query"] == "sieve flour"
    assert answer["results"]
    for result in answer["results"]:
        assert result["metadata"]["year"] >= 2010
        assert result["metadata"]["lang"] == "en"
    first = answer["stages"][0]["ranking"]
    own = Index.open(folder / "idx").bm25()("sieve flour", where="year >= 2010 and lang = en")
    assert [(each["id"], each["score"]) for each in first] == [(hit.id, hit.score) for hit in own]
    assert server.post("/search", query="sieve").json()["where"] is None


def test_query_syntax(server: Served) -> None:
    query = '"drum sieve" +flour -soup'
    answer = server.post("/search", query=query, syntax="simple", pipeline="bm25", k=100).json()
    assert answer["query"] == "drum sieve flour"
    assert answer["where"] == 'contains "drum sieve" and contains flour and not contains soup'
    wanted = {f"d{place:03}" for place in range(120) if place % 4 and not place % 3}
    assert set(ids(answer)) == wanted
    again = server.post(
        "/search", query=answer["query"], where=answer["where"], pipeline="bm25", k=100
    ).json()
    assert ids(again) == ids(answer)
    assert server.post("/search", query=query, pipeline="bm25", k=100).json()["where"] is None


def test_explain(server: Served) -> None:
    asked = {"query": "sieve -soup", "syntax": "simple", "where": "author.name = A0"}
    found = server.post("/search", **asked).json()
    explained = server.post("/explain", **asked, id=found["results"][0]["id"]).json()
    assert explained["where"] == found["where"] == "author.name = A0 and not contains soup"
    assert explained["satisfied"] is True
    assert explained["stages"][-1]["rank"] == 1
    assert [term["term"] for term in explained["terms"]] == ["siev"]
    other = server.post("/explain", **asked, id="d001").json()
    assert other["satisfied"] is False
    assert [stage["rank"] for stage in other["stages"]] == [None, None]
    assert server.post("/explain", query="sieve", id="d001").json()["satisfied"] is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"where": "year >="}, "column 8 of the condition 'year >=': expected a value"),
        ({"where": "yaer = 3"}, "no document has a value in the field yaer: did you mean year?"),
        ({"where": 'year > "2000"'}, "the field year has only numbers, and is compared with '2000'"),
        ({"where": ""}, "where is empty: write something"),
        ({"where": " "}, "the condition is empty: leave it out"),
        ({"where": 3}, "where is not a text: send one, in quotes"),
        ({"where": "x" * 10_001}, "where is longer than 10,000 characters: shorten it"),
        ({"where": "(" * 9_000}, "too many parentheses or nots inside each other: use 30 at most"),
        ({"where": " or ".join(f"f{n} = 1" for n in range(17))}, "the condition has 17 fields"),
        ({"syntax": "lucene"}, "syntax is not 'plain' or 'simple': send one of them, in quotes"),
        ({"query": "-soup", "syntax": "simple"}, "the query '-soup' only says what must not"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(server: Served, fields: dict[str, Any], error: str, stream: bool) -> None:
    found = server.post("/search", **({"query": "sieve", "stream": stream} | fields))
    assert found.status_code == 422
    assert error in found.json()["error"]


def test_why_nothing_is_found(server: Served) -> None:
    found = server.post("/search", query="soup", where="id = d000").json()
    assert (found["results"], found["complete"]) == ([], True)
    assert found["note"] == "no document that satisfies the condition has a word of the query"
    assert "drops every word" in server.post("/search", query="the", where="id = d000").json()["note"]


def test_a_stream_has_the_condition_in_every_event(server: Served) -> None:
    lines = server.post("/search", query="sieve", where="lang = fr", stream=True).text.splitlines()
    events = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert len(events) == 2
    for event in events:
        assert event["where"] == "lang = fr"
        assert {result["metadata"]["lang"] for result in event["results"]} == {"fr"}


def test_requests_with_other_conditions_at_the_same_time(server: Served) -> None:
    conditions = [None, *(f"lang = {lang} and year >= {year}" for lang in LANGUAGES for year in (1990, 2005))]

    def ask(condition: str | None) -> list[str]:
        where = {} if condition is None else {"where": condition}
        found = server.post("/search", query="sieve flour soup", k=20, **where)
        assert found.status_code == 200, found.text
        return ids(found.json())

    alone = {condition: ask(condition) for condition in conditions}
    assert len({tuple(each) for each in alone.values()}) == len(conditions)
    with ThreadPoolExecutor(12) as pool:
        for condition, found in zip(conditions * 8, pool.map(ask, conditions * 8), strict=True):
            assert found == alone[condition]


def test_info_names_the_fields(server: Served) -> None:
    info = server.get("/info").json()
    assert info["fields"] == ["author.name", "lang", "year"]
    assert info["limits"]["where"] == 10_000


def test_a_new_commit_is_filtered_too(folder: Path, tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS[:30], tmp_path / "idx")
    with serving(tmp_path, "-p", "bm25", "--deadline", "60s") as served:
        asked = {"query": "sieve", "where": "year = 1993", "k": 50}
        assert ids(served.post("/search", **asked).json()) == ["d003"]
        index.delete(["d003"])
        index.add([Document("new", "a sieve", metadata={"year": 1993})])
        served.wait(lambda: ids(served.post("/search", **asked).json()) == ["new"])
