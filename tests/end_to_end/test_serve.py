"""`tamis serve` as a real process, asked over real sockets."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tamis as package
from tamis import Document, Index
from tamis.cli import main
from tamis.formats import read_corpus, read_queries
from tamis.text.analyze import get_analyzer
from tests.end_to_end.served import Served, serving

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

DEMO = Path(package.__file__).parent / "demo_data"
QUERIES = [query.text for query in read_queries(DEMO / "queries.jsonl")[:20]]
PIPELINE = "bm25 % 20 >> mono(model=m) % 5"
ODD = [
    Document("a/b c?d=1#é", "A sieve with slashes in its name.", metadata={"n": 1}),
    Document("../x%2Fy", "Dots and percent signs."),
    Document("日本 🙂", "<script>alert(1)</script> a sieve 🙂 of sieves", title="Sieves’ title"),
]


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index and two models that read few tokens."""
    folder = tmp_path_factory.mktemp("serve")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    tiny_checkpoint(folder / "slow", layers=4, hidden=128, positions=128, seed=1)
    documents = [*islice(read_corpus(DEMO / "corpus.jsonl.gz"), 400), *ODD]
    Index.build(documents, folder / "idx")
    return folder


@pytest.fixture(scope="module")
def server(made: Path) -> Iterator[Served]:
    options = ["--model", "slow", "--max-body", "200000", "--deadline", "60s"]  # on a machine however busy
    with serving(made, "-p", PIPELINE, *options) as served:
        yield served


# -- answers
# ------------------------------------------------------------------------------------------------------------


def test_search_answers_what_the_pipeline_ranks(
    server: Served, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    own = Index.open("idx").pipeline(PIPELINE)
    for query in QUERIES[:5]:
        found = server.post("/search", query=query, k=3).json()
        expected = own(query).head(3)
        assert [each["id"] for each in found["results"]] == list(expected.ids)
        assert [each["score"] for each in found["results"]] == expected.scores.tolist()
        assert (found["complete"], found["finished"], found["pipeline"]) == (True, "mono", PIPELINE)
        assert [each["inferences"] for each in found["stages"]] == [0, 20]
        assert "ranking" not in found["stages"][0]


def test_a_trace_has_every_stage_whole(server: Served) -> None:
    found = server.post("/search", query=QUERIES[0], k=2, trace=True).json()
    assert len(found["results"]) == 2
    assert [(len(each["ranking"]), each["kept"]) for each in found["stages"]] == [(20, 20), (20, 5)]
    bm25, mono = ([place["id"] for place in each["ranking"]] for each in found["stages"])
    assert sorted(bm25) == sorted(mono) and bm25 != mono
    assert [place["rank"] for place in found["stages"][1]["ranking"]] == list(range(1, 21))


def test_highlights_are_the_words_of_the_query(server: Served) -> None:
    found = server.post("/search", query="sieve", pipeline="bm25", texts=True).json()["results"]
    odd = next(each for each in found if each["id"] == ODD[2].id)
    assert [odd["text"][a:b] for a, b in odd["highlights"]] == ["sieve", "sieves"]
    assert [odd["title"][a:b] for a, b in odd["title_highlights"]] == ["Sieves"]
    stem = get_analyzer("english").term
    assert all(stem(e["text"][a:b]) == "siev" for e in found for a, b in e["highlights"])


def test_passages_that_earned_a_score_are_shown(server: Served) -> None:
    pipeline = "bm25 % 5 >> maxp(mono(model=m))"
    found = server.post("/search", query=QUERIES[1], pipeline=pipeline, texts=True).json()
    for result in found["results"]:
        best = result["evidence"][0]
        assert 0 <= best["start"] < best["end"] <= len(result["text"])
        assert best["score"] == pytest.approx(result["score"])


@pytest.mark.parametrize("document", ODD, ids=["slashes", "dots", "unicode"])
def test_any_id_can_be_asked_for(server: Served, document: Document) -> None:
    found = server.get(f"/documents/{quote(document.id, safe='')}").json()
    assert (found["id"], found["text"]) == (document.id, document.text)
    assert found["metadata"] == dict(document.metadata)
    explained = server.post("/explain", query="sieve", id=document.id, pipeline="bm25").json()
    assert explained["id"] == document.id


def test_an_explanation_adds_up(server: Served) -> None:
    query = QUERIES[0]
    first = server.post("/search", query=query, trace=True).json()
    identity = first["results"][0]["id"]
    found = server.post("/explain", query=query, id=identity).json()
    assert [each["stage"] for each in found["stages"]] == ["bm25", "mono"]
    assert found["stages"][1]["rank"] == 1
    total = sum(term["contribution"] for term in found["terms"])
    assert total == pytest.approx(found["stages"][0]["score"], rel=1e-5)
    best = first["stages"][0]["ranking"][0]["id"]
    plain = server.post("/explain", query=query, id=best, pipeline="bm25").json()
    expanded = server.post("/explain", query=query, id=best, pipeline="bm25 % 10 >> rm3").json()
    assert len(expanded["terms"]) > len(plain["terms"])
    left_out = server.post("/explain", query=query, id=ODD[0].id).json()
    assert left_out["stages"][1]["rank"] is None


def test_rerank_keeps_ids_and_the_order_of_ties(server: Served) -> None:
    documents = ["soup", {"id": 7, "text": "a sieve"}, {"id": "7", "text": "a sieve", "title": None}]
    found = server.post("/rerank", query="sieve", documents=documents).json()
    assert sorted(each["id"] for each in found["results"]) == ["0", "7", "7"]
    ties = server.post("/rerank", query="sieve", documents=["soup"] * 12, k=11).json()
    assert [each["id"] for each in ties["results"]] == [str(place) for place in range(11)]


def test_a_client_of_the_rerank_api(server: Served) -> None:
    cohere = pytest.importorskip("cohere")
    documents = ["soup", "a sieve of sieves", "flour goes through the sieve"]
    ours = server.post("/rerank", query="sieve", documents=documents).json()["results"]
    for client in (
        cohere.Client("key", base_url=server.url.rstrip("/")),
        cohere.ClientV2("key", base_url=server.url.rstrip("/")),
    ):
        answer = client.rerank(model="rerank-v3.5", query="sieve", documents=documents, top_n=2)
        found = [(str(each.index), each.relevance_score) for each in answer.results]
        assert found == [(each["id"], each["score"]) for each in ours[:2]]


def test_the_rerank_api_of_others(server: Served) -> None:
    body = {
        "model": "m",
        "query": "sieve",
        "documents": [{"text": "a sieve", "image": None}, {"text": "soup"}],
        "return_documents": True,
        "max_chunks_per_doc": 10,
    }
    found = server.post("/v1/rerank", **body).json()
    assert {each["document"]["text"] for each in found["results"]} == {"a sieve", "soup"}
    assert all(0 <= each["relevance_score"] <= 1 for each in found["results"])
    assert found["model"] == "mono(model=m)"
    assert found["usage"] == {"inferences": 2}


def test_the_state_of_the_server(server: Served) -> None:
    info = server.get("/info").json()
    assert (info["documents"], info["pipeline"]) == (403, PIPELINE)
    assert (info["models"]["m"], info["models"]["slow"]) == ("mono", "mono")
    assert server.get("/healthz").json() == {"status": "alive"}
    page = server.get("/?q=sieve")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert server.get("/docs").status_code == 404
    server.post("/search", query="sieve", deadline_ms=10_000)
    assert server.metric('tamis_requests_total{route="/search",status="200"}') >= 1
    assert server.metric('tamis_stage_seconds_count{stage="mono"}') >= 1
    assert server.metric("tamis_documents") == 403
    schema = server.get("/openapi.json").json()
    assert schema["components"]["schemas"]["SearchRequest"]["examples"]


# -- what is refused
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"query": ""}, "query is empty: "),
        ({"query": " \n"}, "query is blank: "),
        ({"query": "x" * 2001}, "query is longer than 2,000 characters: "),
        ({"query": "x", "k": 0}, "k is less than 1: "),
        ({"query": "x", "k": "10"}, "k is not a whole number: "),
        ({"query": "x", "pipelin": "bm25"}, "pipelin is not a known field"),
        ({"query": "x", "pipeline": "bm25 >"}, "column 6 of the pipeline"),
        ({"query": "x", "pipeline": "mono(model=m)"}, "finds no candidates: begin with"),
        ({"query": "x", "pipeline": "bm25 % 5000"}, "this server keeps 1,000 at most"),
        ({"query": "x", "pipeline": 'bm25 >> mono(model="/etc")'}, "has no model '/etc': use duo, m, mono"),
        ({"query": "x", "pipeline": 'bm25 >> mono(model=m, revision="x")'}, "this server has no model"),
        ({"query": "x", "pipeline": "bm25 >> duo(model=m, k=1000)"}, "may take 162,006 inferences"),
        ({"query": "x", "pipeline": "sdm"}, "positions"),
        ({"query": "x", "deadline_ms": 0}, "deadline_ms is less than 1: "),
    ],
)
def test_a_search_that_cannot_be_carried_out(server: Served, body: dict[str, Any], reason: str) -> None:
    answer = server.client.post("/search", json=body)
    assert answer.status_code == 422
    assert reason in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/rerank", {"query": "x", "documents": []}, "documents has 0 items: "),
        ("/rerank", {"query": "x", "documents": ["y"], "pipeline": "bm25"}, "bm25 searches"),
        ("/rerank", {"query": "x", "documents": ["y"] * 1001}, "send at most 1,000"),
        ("/rerank", {"query": "x", "documents": [{"txt": "y"}]}, "documents.0.text is missing: "),
        ("/v1/rerank", {"query": "x", "documents": [1]}, "documents.0: give a text, or an object"),
        ("/v2/rerank", {"documents": ["y"]}, "query is missing: "),
    ],
)
def test_candidates_that_cannot_be_ranked(
    server: Served, path: str, body: dict[str, Any], reason: str
) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 422
    assert reason in answer.json()["error"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"query": "x", "k": NaN}',
        b'{"query": "x", "k": Infinity}',
        b'{"query": "x"',
        b'{"query": "\\ud800"}',
        b'{"query": "\xff"}',
        b"[" * 100_000,
        b'{"query": "x", "k": ' + b"9" * 10_000 + b"}",
        b"null",
        b"",
    ],
)
def test_bodies_that_are_not_what_they_should_be(server: Served, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = server.client.post("/search", content=content, headers=headers)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]


def test_json_without_its_header_is_refused_with_the_header(server: Served) -> None:
    """As curl sends it. It is not read all the same: any page could send that from a visitor's browser."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = server.client.post("/search", content=b'{"query": "x"}', headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"].endswith("send one, with the header content-type: application/json")


def test_a_body_is_counted_as_it_comes(server: Served) -> None:
    """With a length that is told, and in pieces without one: the server stops reading."""
    large = json.dumps({"query": "x", "documents": ["y" * 150_000] * 2}).encode()
    assert server.client.post("/rerank", content=large).status_code == 413
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 100_000
            yield b" " * 100_000

    try:
        answer = server.client.post("/rerank", content=pieces())
    except (httpx.WriteError, httpx.ReadError):  # it closed the connection while we were still writing
        pass
    else:
        assert answer.status_code == 413
        assert "larger than 200,000 bytes" in answer.json()["error"]
    assert sent < 500_000_000


def test_what_is_not_there(server: Served) -> None:
    for answer, status in (
        (server.get("/documents/none"), 404),
        (server.post("/explain", query="x", id="none"), 404),
        (server.get("/search"), 405),
        (server.get("/nothing"), 404),
        (server.get("/static/../app.py"), 404),
        (server.get("/static/%2e%2e/app.py"), 404),
    ):
        assert answer.status_code == status
        assert answer.json()["error"]


def test_the_key(made: Path) -> None:
    (made / "key").write_text("s3cret\n")
    with serving(made, "-p", "bm25", "--api-key-file", "key", key="s3cret") as served:
        assert served.post("/search", query="sieve").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer s3cre"},
            {"x-api-key": "é"},
            {"authorization": "s3cret"},
        ):
            answer = httpx.post(f"{served.url}search", json={"query": "x"}, headers=_encoded(headers))
            assert answer.status_code == 401
            assert "API key" in answer.json()["error"]
        assert httpx.get(f"{served.url}info", headers={"x-api-key": "s3cret"}).status_code == 200
        assert httpx.get(f"{served.url}healthz").status_code == 200
        assert httpx.get(f"{served.url}metrics").status_code == 401


def _encoded(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


def test_a_server_that_cannot_start(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "idx", "-p", "bm25", "--port", port]) == 2
    assert "choose another with --port" in capsys.readouterr().err
    assert main(["serve", "idx", "-p", "mono(model=m)"]) == 2
    assert "finds no candidates" in capsys.readouterr().err
    for options in (["-p", "bm25 >> mono(model=gone)"], ["-p", "bm25", "--model", "gone"]):
        assert main(["serve", "idx", *options]) == 2
        assert capsys.readouterr().err.startswith("error: gone is not in the local cache")
    for host in ("a..b", "none.invalid"):
        assert main(["serve", "idx", "-p", "bm25", "--host", host]) == 2
        assert f"'{host}' is not an address to listen on" in capsys.readouterr().err
    monkeypatch.setenv("TAMIS_API_KEY", " ")
    assert main(["serve", "idx"]) == 2
    assert "TAMIS_API_KEY contains no key" in capsys.readouterr().err


# -- many requests
# ------------------------------------------------------------------------------------------------------------

SLOW = "bm25 % 200 >> mono(model=slow)"
LONG = {"query": "x", "documents": ["a," * 60] * 1000, "pipeline": "mono(model=slow)"}  # seconds of work


def test_a_deadline_gives_the_last_finished_stage(server: Served) -> None:
    """Where the time that the stage takes is known, and where it is not."""
    times = [server.post("/search", query=QUERIES[0], pipeline=SLOW, k=5).json() for _ in range(3)]
    whole = min(times, key=lambda each: each["stages"][1]["ms"])  # the others had company on this machine
    plain = server.post("/search", query=QUERIES[0], pipeline="bm25", k=5).json()
    assert whole["complete"]
    for pipeline in (SLOW, "bm25 % 200 >> mono(model=slow, limit=120)"):
        deadline = round(whole["stages"][1]["ms"] / 3)
        short = server.post("/search", query=QUERIES[0], pipeline=pipeline, deadline_ms=deadline, k=5).json()
        assert (short["complete"], short["finished"], len(short["stages"])) == (False, "bm25", 1)
        assert short["results"] == plain["results"]
        assert short["ms"] < whole["ms"]
    assert server.metric("tamis_degraded_total") >= 2
    late = server.post(
        "/rerank", query="x", documents=["y z" * 9] * 900, pipeline="mono(model=slow)", deadline_ms=5
    )
    assert late.status_code == 503
    assert "would not finish within" in late.json()["error"]
    assert late.headers["retry-after"]


def test_requests_share_a_call_and_get_what_they_would_alone(server: Served) -> None:
    # a stage that no test has run yet: its time is not known, so whoever waits for it shares a call
    body = {"pipeline": "bm25 % 20 >> mono(model=m, limit=47)"}
    with ThreadPoolExecutor(11) as pool:
        long = pool.submit(server.post, "/rerank", **LONG)
        server.wait(lambda: server.metric("tamis_in_work") >= 1)
        together = list(pool.map(lambda q: server.post("/search", query=q, **body).json(), QUERIES * 3))
    assert long.result().json()["complete"]
    alone = [server.post("/search", query=query, **body).json() for query in QUERIES]
    assert [each["results"] for each in together] == [each["results"] for each in alone] * 3
    for count in ("inferences", "truncated"):
        own = [each["stages"][1][count] for each in alone]
        assert [each["stages"][1][count] for each in together] == own * 3
    calls = server.metric('tamis_batch_requests_count{stage="mono"}')
    assert server.metric('tamis_batch_requests_sum{stage="mono"}') > calls


def test_searches_do_not_wait_behind_a_long_rerank(server: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(lambda: server.post("/rerank", **LONG).json())
        server.wait(lambda: server.metric("tamis_in_work") >= 1)
        short = server.post("/search", query=QUERIES[1], pipeline="bm25").json()
        assert not long.done() and short["complete"]
        assert long.result()["ms"] > short["ms"]


def test_a_full_queue_says_when_to_come_back(made: Path) -> None:
    with serving(made, "-p", SLOW, "--queue", "2", "--deadline", "60s") as served:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda q: served.post("/search", query=q), QUERIES[:6]))
        assert {answer.status_code for answer in answers} == {200, 503}
        for answer in answers:
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1
                assert "try again later" in answer.json()["error"]
        assert served.post("/search", query=QUERIES[0]).status_code == 200
        assert served.metric("tamis_refused_total") == sum(a.status_code == 503 for a in answers)


def test_sigterm_finishes_what_was_accepted(made: Path) -> None:
    clients = 4
    with serving(made, "-p", SLOW, "--deadline", "60s") as served:
        with ThreadPoolExecutor(clients) as pool:
            answers = [pool.submit(served.post, "/rerank", **LONG)]  # so that the others have time to come
            answers += [pool.submit(served.post, "/search", query=query) for query in QUERIES[1:clients]]
            served.wait(lambda: served.metric("tamis_in_work") == clients)
            served.process.send_signal(signal.SIGTERM)
            assert [answer.result().status_code for answer in answers] == [200] * clients
            assert all(answer.result().json()["complete"] for answer in answers)
        assert served.process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            served.get("/healthz")


def test_the_index_is_replaced_under_load(made: Path, tmp_path: Path) -> None:
    documents = list(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 300))
    index = Index.build(documents, tmp_path / "idx")
    with serving(tmp_path, "-p", f'bm25 % 50 >> mono(model="{made / "m"}") % 5') as served:
        stop, answers = threading.Event(), []

        def ask() -> None:
            with httpx.Client(base_url=served.url, timeout=60) as client:
                while not stop.is_set():
                    for query in QUERIES:
                        answers.append(client.post("/search", json={"query": query, "deadline_ms": 60_000}))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(2):
            index.delete([document.id for document in documents[number * 50 : number * 50 + 50]])
            index.add([Document(f"new-{number}", f"a zyzzyva {number}")])
            if number % 2:
                index.merge()
            served.wait(lambda: served.get("/info").json()["documents"] == len(index))
        Index.build([Document("only", "one zyzzyva")], tmp_path / "idx", overwrite=True)
        served.wait(lambda: served.get("/info").json()["documents"] == 1)
        stop.set()
        for thread in threads:
            thread.join()
        assert {answer.status_code for answer in answers} == {200}
        assert all(answer.json()["complete"] for answer in answers)
        found = served.post("/search", query="zyzzyva").json()["results"]
        assert [each["id"] for each in found] == ["only"]
        assert served.metric('tamis_index_reloads_total{outcome="new"}') >= 2
        assert served.metric('tamis_index_reloads_total{outcome="failed"}') == 0
