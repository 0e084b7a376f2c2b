"""Counters and histograms, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)

Labels = tuple[str, ...]


class Counter:
    """A number that grows, by the values of its labels.

    >>> cups = Counter("cups_total", "Cups of tea.", ["kind"])
    >>> cups.add(2, "green")
    >>> print("\\n".join(cups.lines()))
    # HELP cups_total Cups of tea.
    # TYPE cups_total counter
    cups_total{kind="green"} 2
    """

    kind = "counter"

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, tuple(labels)
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *values: str) -> None:
        with self._lock:
            self._values[values] = self._values.get(values, 0.0) + amount

    def lines(self) -> Iterable[str]:
        yield from _heading(self.name, self.about, self.kind)
        with self._lock:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_labelled(self.labels, labels)} {_number(value)}"


class Gauge:
    """A number that goes up and down: it is asked for when it is read."""

    def __init__(self, name: str, about: str, value: Callable[[], float]) -> None:
        self.name, self.about, self.value = name, about, value

    def lines(self) -> Iterable[str]:
        yield from _heading(self.name, self.about, "gauge")
        yield f"{self.name} {_number(self.value())}"


class Histogram:
    """How often a value fell under each bound, by the values of its labels.

    >>> waits = Histogram("wait_seconds", "Waiting.", (0.1, 1.0))
    >>> waits.add(0.5)
    >>> [line for line in waits.lines() if "bucket" in line][1]
    'wait_seconds_bucket{le="1"} 1'
    """

    def __init__(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.bounds, self.labels = name, about, tuple(bounds), tuple(labels)
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def add(self, value: float, *values: str) -> None:
        with self._lock:
            counts = self._counts.setdefault(values, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self._sums[values] = self._sums.get(values, 0.0) + value

    def lines(self) -> Iterable[str]:
        yield from _heading(self.name, self.about, "histogram")
        with self._lock:
            found = [(labels, list(self._counts[labels]), self._sums[labels]) for labels in self._counts]
        for labels, counts, total in sorted(found):
            so_far = 0
            for bound, count in zip((*map(_number, self.bounds), "+Inf"), counts, strict=True):
                so_far += count
                names, values = (*self.labels, "le"), (*labels, bound)
                yield f"{self.name}_bucket{_labelled(names, values)} {so_far}"
            yield f"{self.name}_sum{_labelled(self.labels, labels)} {_number(total)}"
            yield f"{self.name}_count{_labelled(self.labels, labels)} {so_far}"


class Metrics:
    """All that a server counts."""

    def __init__(self) -> None:
        self.requests = Counter("tamis_requests_total", "Requests answered.", ["route", "status"])
        self.by_key = Counter(
            "tamis_key_requests_total", "Requests answered, by the name of their key.", ["key", "status"]
        )
        self.limited = Counter("tamis_rate_limited_total", "Requests refused because they came too often.")
        self.latency = Histogram(
            "tamis_request_seconds", "From the first byte of a request to its answer.", SECONDS, ["route"]
        )
        self.stages = Histogram(
            "tamis_stage_seconds",
            "One call of a stage, for all the requests that share it.",
            SECONDS,
            ["stage"],
        )
        self.waits = Histogram(
            "tamis_stage_wait_seconds", "How long a request waited for a stage.", SECONDS, ["stage"]
        )
        self.batches = Histogram(
            "tamis_batch_requests", "Requests that share a call of a stage.", SIZES, ["stage"]
        )
        self.inferences = Counter("tamis_inferences_total", "Inputs that models have read.", ["stage"])
        self.cached = Counter("tamis_cache_hits_total", "Scores found in the cache.", ["stage"])
        self.truncated = Counter("tamis_truncated_texts_total", "Texts cut to a model's length.", ["stage"])
        self.degraded = Counter("tamis_degraded_total", "Answers without their last stages.")
        self.refused = Counter("tamis_refused_total", "Requests refused because the queue was full.")
        self.admission = Counter(
            "tamis_admission_total",
            "Requests that came to a lane, by how many of their stages were expected to be done in time.",
            ["lane", "outcome"],
        )
        self.dropped = Counter(
            "tamis_dropped_total", "Work given up because nobody waited for it any more.", ["when"]
        )
        self.streams = Counter("tamis_streams_total", "Streamed answers, by their end.", ["outcome"])
        self.first_stage = Histogram(
            "tamis_first_stage_seconds", "From a streamed request to its first ranking.", SECONDS
        )
        self.reloads = Counter("tamis_index_reloads_total", "New commits of the index taken up.", ["outcome"])
        self.gauges: list[Gauge] = []

    def text(self) -> str:
        """What `GET /metrics` answers."""
        each = [value for value in vars(self).values() if isinstance(value, Counter | Histogram)]
        return "".join(f"{line}\n" for one in (*each, *self.gauges) for line in one.lines())


def _heading(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


_ESCAPES: Mapping[str, str] = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


def _labelled(names: Sequence[str], values: Sequence[str]) -> str:
    escaped = ("".join(_ESCAPES.get(c, c) for c in value) for value in values)
    inside = ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True))
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    return f"{value:.15g}"
