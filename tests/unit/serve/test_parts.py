"""Metrics as Prometheus reads them, places of words, and scores in the shape of others."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Query
from tamis.cli.snippet import highlight
from tamis.core.ranking import Ranking, ScoreKind
from tamis.serve.highlight import Marker
from tamis.serve.metrics import Counter, Histogram, Metrics
from tamis.text.analyze import get_analyzer

pytest.importorskip("pydantic")


def test_a_bug_is_answered_on_a_connection_that_says_it_ends() -> None:
    """uvicorn closes it: who does not know would send the next request into nothing."""
    fastapi, testclient = pytest.importorskip("fastapi"), pytest.importorskip("fastapi.testclient")
    from tamis.serve.problems import install

    app = fastapi.FastAPI()
    install(app)

    @app.get("/")
    async def broken() -> None:
        raise ZeroDivisionError

    answer = testclient.TestClient(app, raise_server_exceptions=False).get("/")
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")


def test_labels_are_escaped() -> None:
    counter = Counter("c_total", "About.", ["path"])
    counter.add(1, 'a"b\\c\nd')
    assert list(counter.lines())[-1] == 'c_total{path="a\\"b\\\\c\\nd"} 1'


def test_buckets_add_up() -> None:
    histogram = Histogram("h", "About.", (1, 2), ["s"])
    for value in (0.5, 1, 1.5, 9):
        histogram.add(value, "x")
    assert list(histogram.lines())[2:] == [
        'h_bucket{s="x",le="1"} 2',
        'h_bucket{s="x",le="2"} 3',
        'h_bucket{s="x",le="+Inf"} 4',
        'h_sum{s="x"} 12',
        'h_count{s="x"} 4',
    ]


def test_every_line_is_of_the_format() -> None:
    metrics = Metrics()
    metrics.requests.add(1, "/search", "200")
    metrics.latency.add(0.1, "/search")
    sample = re.compile(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+')
    for line in metrics.text().splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line


TEXTS = st.text(st.sampled_from("sieves Sieve’s\n .,-éß中文🙂"), max_size=60) | st.text(max_size=60)


@given(TEXTS)
def test_places_are_those_of_the_command_line(text: str) -> None:
    analyzer, terms = get_analyzer("english"), {"siev", "中", "é"}
    expected = [piece.text for piece in highlight(text, analyzer, terms) if piece.found]
    marker = Marker(analyzer, terms)
    for _ in range(2):  # what it has seen before it finds again
        assert [text[start:end] for start, end in marker.places(text)] == expected


@pytest.mark.parametrize(
    ("kind", "scores", "expected"),
    [
        (ScoreKind.PROBABILITY, [0.75, 0.25], [0.75, 0.25]),
        (ScoreKind.LOGIT, [0.0, -1e4], [0.5, 0.0]),
        (ScoreKind.LOG_PROBABILITY, [0.0, -1e4], [1.0, 0.0]),
        (ScoreKind.COMBINED, [5.0, 3.0, 1.0], [1.0, 0.5, 0.0]),
        (ScoreKind.COMBINED, [2.0, 2.0], [1.0, 1.0]),
        (ScoreKind.COMBINED, [], []),
    ],
)
def test_relevance(kind: ScoreKind, scores: list[float], expected: list[float]) -> None:
    from tamis.serve.rerank_api import relevance

    ids = tuple(f"d{number}" for number in range(len(scores)))
    ranking = Ranking(Query("q", "x"), ids, np.array(scores), kind)
    assert relevance(ranking).tolist() == pytest.approx(expected)
