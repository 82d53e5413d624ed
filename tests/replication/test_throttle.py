"""Rate limit of throttled replicas (KIP-73)."""

import math

import pytest

from kbroker.replication.throttle import Throttle, names_replica


def test_unlimited_rate_does_not_throttle() -> None:
    throttle = Throttle()
    throttle.count(10**12, 0)
    assert throttle.wait_seconds(0) == 0


def test_excess_is_paid_back_by_waiting() -> None:
    throttle = Throttle(100)
    assert throttle.wait_seconds(0) == 0
    throttle.count(300, 0)  # bursts of one second are allowed
    assert throttle.wait_seconds(0) == pytest.approx(2.01)
    assert throttle.wait_seconds(1) == pytest.approx(1.01)
    assert throttle.wait_seconds(2.5) == 0


def test_burst_is_limited_to_one_second() -> None:
    throttle = Throttle(100)
    throttle.count(0, 0)
    throttle.count(150, 1000)
    assert throttle.wait_seconds(1000) > 0


def test_rate_zero_blocks_until_it_changes() -> None:
    throttle = Throttle(0)
    assert throttle.wait_seconds(5) == math.inf
    throttle.set_rate(10)
    assert throttle.wait_seconds(6) == 0


def test_long_transfer_keeps_the_rate() -> None:
    throttle, now, total = Throttle(1000), 0.0, 0
    while now < 60:
        wait = throttle.wait_seconds(now)
        if wait:
            now += wait
        else:
            throttle.count(700, now)
            total += 700
    assert total == pytest.approx(61_000, rel=0.02)


@pytest.mark.parametrize(
    ("throttled", "named"),
    [((), False), (("*",), True), (("0:1", "1:2"), True), (("1:1", "0:2"), False)],
)
def test_throttled_replicas_are_found_in_the_topic_setting(
    throttled: tuple[str, ...], named: bool
) -> None:
    assert names_replica(throttled, 1, 2) is named
