"""Answers stage by stage, from a real server process over real sockets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tamis as package
from tamis import Index
from tamis.formats import read_corpus

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

DEMO = Path(package.__file__).parent / "demo_data"
QUERY = "film director born in America"
PIPELINE = "bm25 % 20 >> mono(model=m) % 5"
SLOW = "bm25 % 300 >> mono(model=slow)"  # most of a second of work, or more
EVENTS = {"accept": "text/event-stream"}
#: What only an event has.
OF_EVENTS = {"after", "expected", "planned", "final", "retry_after"}
#: What is never the same twice.
TIMES = {"ms", "waited_ms"}


class Served:
    """A server process, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.client = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def events(self, **body: Any) -> list[tuple[str, Any]]:
        with self.client.stream("POST", "/search", json=body, headers=EVENTS) as answer:
            assert answer.status_code == 200, answer.read()
            return list(events(answer))

    def metric(self, name: str) -> float:
        found = re.search(rf"(?m)^{re.escape(name)} (.+)$", self.client.get("/metrics").text)
        return float(found[1]) if found else 0.0

    def wait(self, condition: Callable[[], object], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.01)

    def held(self) -> dict[str, float]:
        """All that a request could leave behind."""
        names = ("tamis_in_work", "tamis_waiting", "tamis_backlog_seconds", "tamis_tasks")
        held = {name: self.metric(name) for name in names}
        folder = Path(f"/proc/{self.process.pid}")
        if folder.exists():
            held |= {each: len(list((folder / each).iterdir())) for each in ("task", "fd")}
        return held


def events(answer: Any) -> Iterator[tuple[str, Any]]:
    """Names and data, as they come."""
    name = ""
    for line in answer.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
        else:
            assert line == ""


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "tamis", "serve", "idx", "--port", "0", "--workers", "1", *options]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        served = Served(process, process.stderr.readline().rpartition(" ")[2].strip())
        served.wait(lambda: served.client.get("/readyz").status_code == 200)
        yield served
        served.client.close()
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""  # no traceback in the log
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve-stream")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    tiny_checkpoint(folder / "slow", layers=4, hidden=128, positions=128, seed=1)
    Index.build(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 400), folder / "idx")
    return folder


@pytest.fixture(scope="module")
def server(made: Path) -> Iterator[Served]:
    # on a machine however busy
    with serving(made, "-p", PIPELINE, "--model", "slow", "--deadline", "60s") as served:
        yield served


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(each) for name, each in value.items() if name not in TIMES}
    return [untimed(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("trace", [False, True])
def test_every_stage_is_an_event_and_the_last_is_the_plain_answer(server: Served, trace: bool) -> None:
    body = {"query": QUERY, "k": 4, "trace": trace}
    plain = server.post("/search", **body).json()
    assert not OF_EVENTS & set(plain)
    found = server.events(**body)
    assert [name for name, _ in found] == ["ranking", "ranking"]
    first, last = (data for _, data in found)
    assert untimed({name: last[name] for name in plain}) == untimed(plain)
    assert set(last) == set(plain) | OF_EVENTS
    assert {name: first[name] for name in OF_EVENTS} == {
        "after": 1,
        "expected": 2,
        "planned": ["bm25", "mono"],
        "final": False,
        "retry_after": None,
    }
    assert (last["after"], last["final"], last["complete"]) == (2, True, True)
    assert (first["finished"], first["complete"]) == ("bm25", False)
    alone = server.post("/search", **body, pipeline="bm25 % 20").json()
    assert first["results"] == alone["results"]


def test_it_is_asked_for_by_the_body_or_by_the_header(server: Served) -> None:
    for body, headers, wanted in (
        ({"query": QUERY}, {}, "application/json"),
        ({"query": QUERY}, {"accept": "application/json, text/event-stream"}, "application/json"),
        ({"query": QUERY}, EVENTS, "text/event-stream; charset=utf-8"),
        (
            {"query": QUERY, "stream": True},
            {"accept": "application/json"},
            "text/event-stream; charset=utf-8",
        ),
    ):
        answer = server.client.post("/search", json=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, wanted)
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"query": ""}, 422, "query is empty: "),
        ({"query": "x", "deadline_ms": 0}, 422, "deadline_ms is less than 1: use 1 or more"),
        ({"query": "x", "pipeline": "bm25 >"}, 422, "column 6 of the pipeline"),
        ({"query": "x", "pipeline": "bm25 >> mono(model=gone)"}, 422, "this server has no model 'gone'"),
        ({"query": "x", "stream": 1}, 422, "stream is not true or false: "),
    ],
)
def test_what_is_wrong_from_the_start_is_no_stream(
    server: Served, body: dict[str, Any], status: int, reason: str
) -> None:
    answer = server.client.post("/search", json=body, headers=EVENTS)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert reason in answer.json()["error"]


def test_a_deadline_keeps_what_has_arrived(server: Served) -> None:
    # duo's 22,350 pairs, which take minutes on any machine; and nothing is known of them yet
    pipeline = "bm25 % 150 >> duo(model=duo, k=150)"
    found = server.events(query=QUERY, pipeline=pipeline, deadline_ms=3000)
    first, last = found[0][1], found[-1][1]
    assert [name for name, _ in found] == ["ranking"] * len(found)
    assert (last["final"], last["complete"], last["finished"], last["after"]) == (True, False, "bm25", 1)
    assert last["results"] == first["results"]
    server.wait(lambda: server.metric("tamis_backlog_seconds") == 0)


def test_what_fails_later_is_an_event(made: Path) -> None:
    """A model whose files are gone when it is first used."""
    with serving(made, "-p", "bm25 % 5", "--model", "slow") as served:
        moved = (made / "slow").rename(made / "moved")
        try:
            found = served.events(query=QUERY, pipeline="bm25 % 5 >> mono(model=slow)", deadline_ms=60_000)
        finally:
            moved.rename(made / "slow")
        assert [name for name, _ in found] == ["ranking", "error"]
        assert found[0][1]["final"] is False
        assert list(found[1][1]) == ["error", "request_id"]
        served.wait(lambda: served.metric('tamis_streams_total{outcome="error"}') == 1)
        assert served.metric("tamis_in_work") == 0


def test_a_dropped_stream_leaves_nothing_behind(server: Served) -> None:
    """Of clients that leave after the first stage: places, tasks, threads, files, work that waits. What they
    asked for takes minutes on any machine, so whatever ends sooner was given up because they left."""
    # threads that are started once, and what a model holds when it is loaded, are there by now
    assert server.events(query=QUERY, pipeline="bm25 % 2 >> duo(model=duo)")[-1][1]["complete"]
    server.wait(lambda: server.held()["tamis_in_work"] == server.held()["tamis_backlog_seconds"] == 0)
    before = server.held()
    ends = ('tamis_streams_total{outcome="left"}', 'tamis_dropped_total{when="running"}')
    counts = [server.metric(name) for name in ends]
    for place, k in enumerate((147, 148, 149), start=1):  # nothing is known of each: it is tried
        body = {"query": QUERY, "pipeline": f"bm25 % 150 >> duo(model=duo, k={k})"}
        with server.client.stream("POST", "/search", json=body, headers=EVENTS) as answer:
            coming = events(answer)  # kept: a generator that nobody holds closes the connection
            name, data = next(coming)
            assert (name, data["after"], data["final"]) == ("ranking", 1, False)
            assert server.metric("tamis_in_work") == before["tamis_in_work"] + 1
            assert server.held() != before
        # its own deadline is further away
        server.wait(
            lambda wanted=place: [server.metric(name) for name in ends] == [n + wanted for n in counts], 30
        )
        server.wait(lambda: server.held() == before)
    assert server.events(query=QUERY, pipeline=SLOW)[-1][1]["complete"]  # the model is free too


def test_many_dropped_streams_leave_nothing_behind(server: Served) -> None:
    """Clients that leave together, some while they wait for the model."""
    body = {"query": QUERY, "pipeline": SLOW}
    assert server.events(**body)[-1][1]["complete"]
    server.wait(lambda: server.held()["tamis_in_work"] == server.held()["tamis_backlog_seconds"] == 0)
    before = server.held()
    with ExitStack() as stack:
        coming = []
        for _ in range(4):
            client = stack.enter_context(httpx.Client(base_url=server.client.base_url, timeout=60))
            answer = stack.enter_context(client.stream("POST", "/search", json=body, headers=EVENTS))
            coming.append(events(answer))
            name, data = next(coming[-1])
            assert (name, data["after"]) == ("ranking", 1)
    server.wait(lambda: server.held() == before)
    assert server.events(**body)[-1][1]["complete"]


def test_who_wants_all_or_nothing_is_told_at_once(server: Served) -> None:
    """While the model is busy with what takes longer than is allowed."""
    pipeline = "bm25 % 200 >> mono(model=slow)"
    whole = server.post("/search", query=QUERY, pipeline=pipeline).json()
    assert whole["complete"]
    deadline = max(1, round(whole["ms"] / 4))
    refused = server.client.post(
        "/search",
        json={"query": QUERY, "pipeline": pipeline, "deadline_ms": deadline, "partial": False},
        headers=EVENTS,
    )
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "would not finish within" in refused.json()["error"]


def test_nobody_waits_to_hear_whether_the_server_is_alive(server: Served) -> None:
    body = {"query": QUERY, "pipeline": "bm25 % 300 >> mono(model=slow, limit=99)", "deadline_ms": 60_000}
    with server.client.stream("POST", "/search", json=body, headers=EVENTS) as answer:
        coming = events(answer)
        next(coming)
        with httpx.Client(base_url=server.client.base_url, timeout=60) as other:
            assert other.get("/healthz").status_code == 200
            assert other.get("/readyz").status_code == 200
            assert 'tamis_stage_seconds_count{stage="mono"}' in other.get("/metrics").text
        assert next(coming)[1]["complete"]


def test_the_events_are_as_the_schema_has_them(server: Served) -> None:
    schema = server.client.get("/openapi.json").json()
    content = schema["paths"]["/search"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/SearchAnswer"}
    event = content["text/event-stream"]["schema"]
    _, data = server.events(query=QUERY)[-1]
    assert set(event["properties"]) == set(event["required"]) == set(data)
    for reference in re.findall(r"#/components/schemas/(\w+)", json.dumps(event)):
        assert reference in schema["components"]["schemas"]
