"""Indexes named by a folder or an address, where no cluster is needed to say so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking
from tamis.base.errors import InputError
from tamis.base.interrupt import interruptible, remaining
from tamis.cli import main
from tamis.cli.arguments import place_of_index
from tamis.index.embedded import EmbeddedIndex
from tamis.index.opensearch import queries

ADDRESS = "opensearch://localhost:1/books"


@pytest.mark.parametrize(
    "command",
    [
        ("merge", ADDRESS),
        ("delete", ADDRESS, "d1"),
        ("tokens", ADDRESS),
        ("backup", ADDRESS, "copy"),
        ("doctor", ADDRESS, "--repair"),
    ],
)
def test_what_only_an_index_on_disk_can_do(
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(command)) == 2
    said = (
        f"error: {ADDRESS} is not an index on disk: give the folder of one, or use the cluster's own tools\n"
    )
    assert capsys.readouterr().err == said
    assert list(tmp_path.iterdir()) == []


def test_an_address_keeps_its_slashes() -> None:
    assert place_of_index(ADDRESS) == ADDRESS
    assert place_of_index("opensearchs://host/books") == "opensearchs://host/books"
    assert place_of_index("a//b") == Path("a/b")


def test_what_a_cluster_does_not_take() -> None:
    for option in ({"positions": True}, {"commit_every": 10}):
        with pytest.raises(InputError, match="is for an index on disk: leave it out, or give a folder"):
            Index.build([Document("d1", "")], ADDRESS, **option)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is in a cluster"):
        EmbeddedIndex.open(ADDRESS)


def test_texts_that_come_together_are_asked_for_together() -> None:
    class Shelf:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def document(self, doc_id: str) -> Document:
            raise AssertionError("one by one")

        def documents(self, ids: Sequence[str]) -> list[Document]:
            self.asked.append(len(ids))
            return [Document(doc_id, f"text of {doc_id}") for doc_id in ids]

    shelf, ids = Shelf(), tuple(f"d{number}" for number in range(250))
    ranking = Ranking(Query("q", ""), ids, -np.arange(250.0), texts=shelf)
    assert [document.id for document in ranking.documents()] == list(ids)
    assert shelf.asked == [100, 100, 50]


def test_what_remains_until_a_deadline() -> None:
    assert remaining() is None
    with interruptible(lambda: None, np.ones(1, dtype=bool), time.monotonic() + 60):
        assert 0 < (remaining() or 0) <= 60
        with interruptible(lambda: None, np.ones(1, dtype=bool), time.monotonic() - 1):
            assert remaining() == 0
        assert remaining() != 0
    assert remaining() is None


def test_a_filter_of_very_many_ids_is_divided() -> None:
    asked = queries.query([], [f"d{number}" for number in range(120_000)], ["d1"])["bool"]
    parts = [len(each["terms"]["id"]) for each in asked["filter"][0]["bool"]["should"]]
    assert (parts, asked["must_not"]) == ([50_000, 50_000, 20_000], [{"terms": {"id": ["d1"]}}])


def test_terms_are_found_in_an_explanation_whatever_they_are_made_of() -> None:
    def weight(term: str, value: float) -> dict[str, object]:
        description = f"weight(contents.ql_2:{term} in 7) [PerFieldSimilarity], result of:"
        freq = {"value": 2.0, "description": "freq, occurrences of term within document", "details": []}
        return {"value": value, "description": description, "details": [freq]}

    whole = {
        "value": 3.0,
        "description": "sum of:",
        "details": [weight("a:b in 3)", 1.0), weight("ﬁ\n", 2.0)],
    }
    found = queries.terms_explained(whole)
    assert {term: node["value"] for term, node in found.items()} == {"a:b in 3)": 1.0, "ﬁ\n": 2.0}
    assert queries.value_of(found["ﬁ\n"], "freq") == 2.0
    assert queries.value_of({}, "freq") is None
