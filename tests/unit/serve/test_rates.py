"""Token buckets, on a clock of the test's own."""

from __future__ import annotations

from hypothesis import given, strategies

from tamis.serve.rates import Buckets, Rate, address_key


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    buckets, rate = Buckets(clock=clock), Rate(2.0, 3.0)
    assert [buckets.wait("a", rate) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert buckets.wait("b", rate) == 0.0  # each has its own
    clock.now += 0.5
    assert [buckets.wait("a", rate) for _ in range(2)] == [0.0, 0.5]
    clock.now += 3600
    assert [bool(buckets.wait("a", rate)) for _ in range(4)] == [False, False, False, True]


@given(
    strategies.lists(strategies.floats(0.0, 3.0), max_size=60),
    strategies.floats(0.1, 20.0),
    strategies.integers(1, 20),
)
def test_no_more_than_the_burst_and_the_rate(gaps: list[float], per_second: float, burst: int) -> None:
    clock = Clock()
    buckets, rate = Buckets(clock=clock), Rate(per_second, float(burst))
    allowed = 0
    for gap in gaps:
        clock.now += gap
        allowed += not buckets.wait("a", rate)
    assert allowed <= burst + sum(gaps) * per_second + 1e-6
    assert allowed >= min(len(gaps), burst)


def test_whoever_waits_as_long_as_told_may_ask() -> None:
    clock = Clock()
    buckets, rate = Buckets(clock=clock), Rate(0.3, 1.0)
    assert not buckets.wait("a", rate)
    clock.now += buckets.wait("a", rate) + 1e-9
    assert not buckets.wait("a", rate)


def test_addresses_without_end_take_no_memory_without_end() -> None:
    buckets, rate = Buckets(100, clock=Clock()), Rate(1.0, 1.0)
    for number in range(10_000):
        buckets.wait("often", rate)  # and who asks meanwhile is not forgotten
        buckets.wait(str(number), rate)
    assert len(buckets) == 100
    assert buckets.wait("often", rate) and not buckets.wait("0", rate)


def test_an_address_is_one_however_it_is_written() -> None:
    same = {address_key(each) for each in ("2001:db8::1", "2001:0db8:0:0:1::", "2001:db8::ffff")}
    assert len(same) == 1
    assert address_key("2001:db8:0:1::1") not in same
    assert address_key("::ffff:192.0.2.1") == address_key("192.0.2.1")
    assert {address_key(each) for each in ("", "x" * 10_000, "192.0.2.1, 1")} == {"unknown"}
