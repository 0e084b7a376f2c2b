"""What a server counts, for Prometheus; each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """All that a server counts.

    >>> metrics = Metrics()
    >>> metrics.cached.labels("mono").inc(2)
    >>> print(metrics.text().partition("tamis_cache_hits_total{")[2].partition("\\n")[0])
    stage="mono"} 2.0
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter, histogram = self._counter, self._histogram
        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.by_key = counter("key_requests", "Requests answered, by the name of their key.", "key", "status")
        self.limited = counter("rate_limited", "Requests refused because they came too often.")
        self.latency = histogram(
            "request_seconds", "From the first byte of a request to its answer.", SECONDS, "route"
        )
        self.stages = histogram(
            "stage_seconds", "One call of a stage, for all the requests that share it.", SECONDS, "stage"
        )
        self.waits = histogram(
            "stage_wait_seconds", "How long a request waited for a stage.", SECONDS, "stage"
        )
        self.batches = histogram("batch_requests", "Requests that share a call of a stage.", SIZES, "stage")
        self.inferences = counter("inferences", "Inputs that models have read.", "stage")
        self.cached = counter("cache_hits", "Scores found in the cache.", "stage")
        self.truncated = counter("truncated_texts", "Texts cut to a model's length.", "stage")
        self.degraded = counter("degraded", "Answers without their last stages.")
        self.refused = counter("refused", "Requests refused because the queue was full.")
        self.admission = counter(
            "admission",
            "Requests that came to a lane, by how many of their stages were expected to be done in time.",
            "lane",
            "outcome",
        )
        self.dropped = counter("dropped", "Work given up because nobody waited for it any more.", "when")
        self.streams = counter("streams", "Streamed answers, by their end.", "outcome")
        self.first_stage = histogram(
            "first_stage_seconds", "From a streamed request to its first ranking.", SECONDS
        )
        self.reloads = counter("index_reloads", "New commits of the index taken up.", "outcome")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"tamis_{name}_total", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"tamis_{name}", about, labels, buckets=bounds, registry=self._registry)

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a number that goes up and down: it is asked for when `text` is."""
        Gauge(f"tamis_{name}", about, registry=self._registry).set_function(value)

    def text(self) -> str:
        """What `GET /metrics` answers."""
        return generate_latest(_WithoutTimes(self._registry)).decode()


class _WithoutTimes:
    """A registry without the times at which its counters and histograms were made, which prometheus_client
    would add to each: to switch them off is for the whole process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric
