"""Pipelines and queries that ask a real server for as much as they can: each is answered, nobody else waits
for it, and what it started ends with it.

`TAMIS_ATTACK=long` has more documents, and several rounds.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tamis import Document, Index
from tamis.rank.groupwise import GroupwiseModel
from tests.end_to_end.served import Served, serving

pytest.importorskip("fastapi")

LONG = os.environ.get("TAMIS_ATTACK") == "long"
DOCUMENTS, LENGTH, ROUNDS = (21_000, 100, 5) if LONG else (3_000, 60, 1)
DEADLINE_MS = 1000
GRACE = 30.0  # seconds beyond the deadline: on a machine however busy
MEMORY = 300_000  # kB
WORDS = ["ka", "ke", "ki", "ko", "ku", "ra", "re", "ri", "ro", "ru"]  # short: more fit into a query


def words(count: int, vocabulary: list[str] = WORDS) -> str:
    return " ".join(random.Random(count).choices(vocabulary, k=count))


class Hostile(NamedTuple):
    name: str
    pipeline: str
    query: str = "ka ke"
    refused: str = ""  # what the 422 says, where nothing depends on the machine


_FEEDBACK = "bm25 >> rm3(docs=100, terms=100)"
HOSTILE = [
    Hostile("sdm of many words", "sdm % 10", words(600), "sdm takes 100 at most"),
    Hostile("sdm of as many as it may", "sdm % 10", words(100)),
    Hostile("sdm in a wide window", "sdm(window=999999999999999999) % 10", words(100)),
    Hostile("five of sdm", f"fuse({', '.join(['sdm'] * 5)})", words(100)),
    Hostile(
        "ten features of sdm",
        f'bm25 % 1000 >> ltr({", ".join(["sdm"] * 8)}, weights="{"1 " * 8}")',
        words(100),
    ),
    Hostile(
        "thirteen searches again and again",
        f"fuse({', '.join(['bm25 >> rm3(docs=1000, terms=99) >> rm3(docs=1000, terms=99)'] * 13)})",
        refused="this server takes 100 at most",
    ),
    Hostile(
        "eleven searches", " >> ".join(["bm25"] * 11), refused="11 stages that search: this server takes 10"
    ),
    Hostile(
        "feedback from many", "bm25 >> rm3(docs=999999999999)", refused="docs=999999999999: this server takes"
    ),
    Hostile(
        "feedback of many terms", "bm25 >> rm3(terms=100000)", refused="terms=100000: this server takes 100"
    ),
    Hostile("feedback as large as it may be", f"fuse({', '.join([_FEEDBACK] * 5)})", words(300)),
    Hostile("feedback upon feedback", "bm25" + " >> rm3(docs=100, terms=100)" * 9, words(300)),
    Hostile("single letters", "ql(variant=exact)", "x " * 1000, "the query has 1,000 terms"),
    Hostile("as many terms as may be", "bm25 % 1000", "ka " + " ".join(f"w{n}" for n in range(390))),
    Hostile("every word many times", "ql(variant=exact) % 1000", words(512)),
    Hostile("a form that needs compiling", 'bm25(variant="bm25+") % 1000', words(300)),
    Hostile("jelinek and mercer", "ql(smoothing=jelinek-mercer, variant=exact, lam=0.000000001)", words(300)),
    Hostile("k1 beyond all bounds", "bm25(k1=1e308)", refused="use 0 <= k1 <= 1000"),
    Hostile("k1 that is no number", "bm25(k1=nan)", refused="give a number"),
    Hostile("b next to 1", "bm25(k1=1000, b=0.9999999999)", words(50)),
    Hostile("weights beyond all bounds", "sdm(terms=1e308)", refused="weights between 0 and 1e+30"),
    Hostile("scores beyond all bounds", "bm25 >> ltr(score=1e308, idf=1e308, normalise=raw)", words(50)),
    Hostile("many lookups", "bm25 % 1000" + " >> ltr(idf=1)" * 9, words(512)),
    Hostile("lookups without end", "bm25" + " >> ltr(idf=1)" * 40, refused="41 stages that search"),
    Hostile(
        "rounds without end",
        "bm25 >> groupwise(model=gsf.json, rounds=999999999999)",
        refused="takes 100 at most",
    ),
    Hostile("rounds as many as may be", "bm25 % 1000 >> groupwise(model=gsf.json, rounds=100)"),
    Hostile("too deep", "bm25 % 1000000000", refused="this server keeps 1,000 at most"),
    Hostile("parentheses", "(" * 400 + "bm25" + ")" * 400, refused="too many parentheses"),
    Hostile("fuse in fuse", "fuse(bm25, " * 9 + "bm25" + ")" * 9, words(300)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("hostile-pipelines")
    texts = random.Random(1)
    documents = [Document(f"d{n}", " ".join(texts.choices(WORDS, k=LENGTH))) for n in range(DOCUMENTS)]
    Index.build(documents, folder / "idx", positions=True)
    GroupwiseModel(("score",), [(np.eye(2), np.zeros(2))], texts=2).save(folder / "gsf.json")
    with serving(folder, "-p", "bm25 % 5", "--deadline", "60s", "--model", "gsf.json") as served:
        yield served


def resident(served: Served) -> int:
    """The most memory that the server has held so far, in kB; 0 where the system does not say."""
    status = Path(f"/proc/{served.process.pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def ask(served: Served, hostile: Hostile) -> tuple[Any, float]:
    started = time.monotonic()
    body = {"query": hostile.query, "pipeline": hostile.pipeline, "deadline_ms": DEADLINE_MS}
    return served.post("/search", **body), time.monotonic() - started


def check_answer(hostile: Hostile, answer: Any, seconds: float) -> None:
    assert seconds < DEADLINE_MS / 1000 + GRACE
    if hostile.refused:
        assert (answer.status_code, hostile.refused in answer.json()["error"]) == (422, True), answer.text
    elif answer.status_code == 200:
        assert answer.json()["results"]
    else:
        assert answer.status_code in (422, 503), answer.text
        assert ": " in answer.json()["error"]  # what is wrong, and what to do


def check_free(served: Served) -> None:
    """Nothing is left under way, and an ordinary search is answered."""
    served.wait(lambda: served.metric("tamis_searching") == 0)
    assert served.metric("tamis_in_work") == served.metric("tamis_waiting") == 0
    assert served.post("/search", query="ki ko").json()["complete"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda each: each.name)
def test_each_is_answered_and_leaves_nothing_behind(server: Served, hostile: Hostile) -> None:
    before = resident(server)
    check_answer(hostile, *ask(server, hostile))
    check_free(server)
    assert resident(server) - before < MEMORY


def test_others_are_answered_meanwhile(server: Served) -> None:
    before = resident(server)
    with ThreadPoolExecutor(8) as clients:
        asked = [(each, clients.submit(ask, server, each)) for each in HOSTILE * ROUNDS]
        others = 0
        while others < 20 or not all(answer.done() for _, answer in asked):
            assert server.get("/healthz").status_code == 200
            answer = server.post("/search", query="ki ko")
            assert answer.status_code == 200, answer.text
            assert answer.json()["complete"]
            others += 1
        for hostile, answer in asked:
            check_answer(hostile, *answer.result())
    check_free(server)
    assert resident(server) - before < MEMORY


def test_explaining_is_bounded_too(server: Served) -> None:
    for hostile in HOSTILE:
        if hostile.refused:
            body = {"query": hostile.query, "pipeline": hostile.pipeline, "id": "d1"}
            answer = server.post("/explain", **body, deadline_ms=DEADLINE_MS)
            assert (answer.status_code, hostile.refused in answer.json()["error"]) == (422, True), answer.text
    check_free(server)
