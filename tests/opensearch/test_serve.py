"""A server over an index in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tests.end_to_end.served import serving
from tests.opensearch.conftest import Cluster

pytestmark = pytest.mark.opensearch

DOCUMENTS = [
    Document("d1", "A tamis is a fine sieve of horsehair or steel.", title="Tamis", metadata={"year": 1900}),
    Document("d2", "Flour goes through a sieve before it becomes a cake."),
    Document("d3", "Soup of the day: onions, butter and patience.", title="Menu"),
]


def test_every_route_and_changes_of_the_index(
    cluster: Cluster, new_index: Callable[[], str], tmp_path: Path
) -> None:
    index = Index.build(DOCUMENTS, cluster.address(new_index()))
    place = str(index.place)
    with serving(tmp_path, "-p", "bm25 % 100 >> mono % 10", "--deadline", "20s", index=place) as served:
        found = served.post("/search", query="fine sieve").json()
        assert [hit["id"] for hit in found["results"]] == ["d1", "d2"]
        assert (found["complete"], found["results"][0]["metadata"]) == (True, {"year": 1900})
        found = served.post("/search", query="sieve", pipeline="bm25 >> rm3 % 5", texts=True).json()
        assert {hit["id"]: hit["text"] for hit in found["results"]}["d2"] == DOCUMENTS[1].text
        explained = served.post("/explain", query="fine sieve", id="d2").json()
        assert [line["term"] for line in explained["terms"]] == ["siev"]
        assert served.get("/documents/d3").json()["title"] == "Menu"
        assert served.get("/documents/d9").status_code == 404
        assert served.get("/info").json()["documents"] == 3
        assert "<html" in served.get("/").text
        refused = served.post("/search", query="sieve", pipeline="sdm")
        assert (refused.status_code, place in refused.text) == (422, False)
        refused = served.post("/search", query="sieve", pipeline="bm25(k1=2.0)")
        assert (refused.status_code, place in refused.text) == (422, False)

        index.add([Document("d4", "sieve sieve sieve")])
        assert served.post("/search", query="sieve", pipeline="bm25").json()["results"][0]["id"] == "d4"

        def noticed() -> bool:
            return (
                bool(served.get("/documents/d4").status_code == 200) and served.metric("tamis_documents") == 4
            )

        served.wait(noticed)
        assert served.metric('tamis_index_reloads_total{outcome="new"}') == 1


def test_a_cluster_that_is_gone_is_a_503_that_does_not_say_where_it_was(
    cluster: Cluster, new_index: Callable[[], str], tmp_path: Path
) -> None:
    name = new_index()
    place = str(Index.build(DOCUMENTS, cluster.address(name)).place)
    with serving(tmp_path, "-p", "bm25 % 10", index=place, quiet=False) as served:
        assert served.post("/search", query="sieve").status_code == 200
        cluster.delete(name)
        gone = served.post("/search", query="sieve")
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "5")
        assert "the cluster that has the index does not answer as it should" in gone.json()["error"]
        assert name not in gone.text
        assert served.get("/documents/d1").status_code == 503
