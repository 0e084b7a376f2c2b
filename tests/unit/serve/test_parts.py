"""Metrics as Prometheus reads them, places of words, and scores in the shape of others."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Query
from tamis.cli.snippet import highlight
from tamis.core.ranking import Ranking, ScoreKind
from tamis.serve.highlight import Marker
from tamis.serve.metrics import Metrics
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


def lines(metrics: Metrics, name: str) -> list[str]:
    return [line for line in metrics.text().splitlines() if line.startswith(name)]


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.cached.labels('a"b\\c\nd').inc()
    assert lines(metrics, "tamis_cache_hits") == ['tamis_cache_hits_total{stage="a\\"b\\\\c\\nd"} 1.0']


def test_buckets_add_up() -> None:
    metrics = Metrics()
    for value in (0.5, 1, 1.5, 9):
        metrics.batches.labels("x").observe(value)
    assert lines(metrics, "tamis_batch_requests") == [
        'tamis_batch_requests_bucket{le="1.0",stage="x"} 2.0',
        'tamis_batch_requests_bucket{le="2.0",stage="x"} 3.0',
        'tamis_batch_requests_bucket{le="4.0",stage="x"} 3.0',
        'tamis_batch_requests_bucket{le="8.0",stage="x"} 3.0',
        'tamis_batch_requests_bucket{le="16.0",stage="x"} 4.0',
        'tamis_batch_requests_bucket{le="32.0",stage="x"} 4.0',
        'tamis_batch_requests_bucket{le="64.0",stage="x"} 4.0',
        'tamis_batch_requests_bucket{le="+Inf",stage="x"} 4.0',
        'tamis_batch_requests_count{stage="x"} 4.0',
        'tamis_batch_requests_sum{stage="x"} 12.0',
    ]


def test_each_server_has_metrics_of_its_own() -> None:
    one, other = Metrics(), Metrics()
    for metrics in (one, other):
        metrics.gauge("ready", "1 when ready.", lambda: True)
    one.refused.inc()
    assert lines(one, "tamis_refused") == ["tamis_refused_total 1.0"]
    assert lines(other, "tamis_refused") == ["tamis_refused_total 0.0"]


def test_counts_of_many_threads_add_up() -> None:
    metrics = Metrics()

    def count(_: int) -> None:
        for _ in range(1000):
            metrics.inferences.labels("mono").inc(2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert lines(metrics, "tamis_inferences") == ['tamis_inferences_total{stage="mono"} 16000.0']


def test_every_line_is_of_the_format() -> None:
    metrics = Metrics()
    metrics.requests.labels("/search", "200").inc()
    metrics.latency.labels("/search").observe(0.1)
    sample = re.compile(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+')
    for line in metrics.text().splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    assert "_created" not in metrics.text()


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
