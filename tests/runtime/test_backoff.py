"""Exponential backoff between attempts."""

from kbroker.runtime.backoff import Backoff


def test_pauses_double_up_to_maximum_until_reset() -> None:
    backoff = Backoff(0.1)
    assert [backoff.next() for _ in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    backoff.reset()
    assert backoff.next() == 0.02


def test_first_pause_is_at_most_the_maximum() -> None:
    assert Backoff(0.0).next() == 0
    assert Backoff(0.5, 2.0).next() == 0.5
