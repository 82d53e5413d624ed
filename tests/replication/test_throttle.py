"""How fast replicas that are behind may be copied (KIP-73)."""

import math

import pytest

from kbroker.replication.throttle import Throttle, names_replica


def test_no_rate_holds_nothing_back() -> None:
    throttle = Throttle()
    throttle.took(10**12, 0)
    assert throttle.wait_seconds(0) == 0


def test_what_was_too_much_is_made_good() -> None:
    throttle = Throttle(100)
    assert throttle.wait_seconds(0) == 0
    throttle.took(300, 0)  # one second's worth may go at once
    assert throttle.wait_seconds(0) == pytest.approx(2.01)
    assert throttle.wait_seconds(1) == pytest.approx(1.01)
    assert throttle.wait_seconds(2.5) == 0


def test_a_long_pause_saves_up_one_second() -> None:
    throttle = Throttle(100)
    throttle.took(0, 0)
    throttle.took(150, 1000)
    assert throttle.wait_seconds(1000) > 0


def test_nothing_goes_at_rate_zero_until_it_changes() -> None:
    throttle = Throttle(0)
    assert throttle.wait_seconds(5) == math.inf
    throttle.set_rate(10)
    assert throttle.wait_seconds(6) == 0


def test_long_runs_keep_the_rate() -> None:
    throttle, now, total = Throttle(1000), 0.0, 0
    while now < 60:
        wait = throttle.wait_seconds(now)
        if wait:
            now += wait
        else:
            throttle.took(700, now)
            total += 700
    assert total == pytest.approx(61_000, rel=0.02)


@pytest.mark.parametrize(
    ("throttled", "named"),
    [((), False), (("*",), True), (("0:1", "1:2"), True), (("1:1", "0:2"), False)],
)
def test_a_topics_list_names_replicas(throttled: tuple[str, ...], named: bool) -> None:
    assert names_replica(throttled, 1, 2) is named
