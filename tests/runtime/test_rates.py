"""Rates and throttle times, with numbers calculated by hand from Kafka's formulas."""

from __future__ import annotations

import pytest

from kbroker.runtime import rates
from kbroker.runtime.rates import METERS_MAX, Meters, Rate, TokenBucket, Windows

ELEVEN = Windows(11, 1000)


def counted(*events: tuple[int, float], windows: Windows = ELEVEN) -> Rate:
    rate = Rate(windows)
    for now_ms, value in events:
        rate.count(value, now_ms)
    return rate


@pytest.mark.parametrize(
    ("events", "now_ms", "per_second"),
    [
        ([], 0, 0.0),
        # A new rate is treated as if ten windows were idle.
        ([(0, 100)], 0, 100 / 10),
        ([(0, 100)], 500, 100 / 10.5),
        # One window has elapsed; nine are added to it.
        ([(0, 100)], 1000, 100 / 10),
        ([(0, 100)], 1500, 100 / 10.5),
        ([(0, 100), (999, 100)], 999, 200 / 10.999),
        ([(0, 100), (1000, 100)], 1000, 200 / 10),
        ([(0, 100), (9999, 100)], 9999, 200 / 10.999),
        ([(0, 100), (10_000, 100)], 10_000, 200 / 10),
        ([(0, 100), (10_000, 100)], 10_999, 200 / 10.999),
        # After 11 s the first value has expired, and its window is reset.
        ([(0, 100), (10_000, 100)], 11_000, 100 / 10),
        # An older window still counts if its last value has not expired.
        ([(0, 100), (900, 50), (10_000, 100)], 11_500, 250 / 11.5),
        ([(0, 100), (900, 50), (10_000, 100)], 11_900, 100 / 10.9),
        ([(0, 100)], 11_000, 0.0),
        ([(0, 100)], 10_999, 100 / 10.999),
        # A negative value takes back an earlier one.
        ([(0, 100), (0, -100)], 0, 0.0),
        # A window begins with its first value, not at a full second.
        ([(300, 7), (1200, 7), (1300, 7)], 1300, 21 / 10),
        ([(300, 7), (1200, 7), (1300, 7)], 1299 + 1, 21 / 10.0),
    ],
)
def test_rate_over_eleven_windows_of_one_second_matches_kafka(
    events: list[tuple[int, float]], now_ms: int, per_second: float
) -> None:
    assert counted(*events).per_second(now_ms) == pytest.approx(per_second)


def test_rate_over_other_windows_matches_kafka() -> None:
    windows = Windows(2, 500)
    rate = counted((0, 10), (500, 20), (1000, 30), windows=windows)
    assert rate.per_second(1000) == pytest.approx((20 + 30) / 0.5)
    assert rate.per_second(1400) == pytest.approx((20 + 30) / 0.9)
    assert rate.per_second(1500) == pytest.approx(30 / 0.5)


def test_rate_keeps_limited_number_of_windows() -> None:
    rate = Rate(ELEVEN)
    for second in range(100):
        rate.count(1, second * 1000)
    assert len(rate._kept) == 12
    assert rate.per_second(99_000) == pytest.approx(11 / 10)


@pytest.mark.parametrize(
    ("events", "limit", "now_ms", "wait_ms"),
    [
        ([(0, 100)], 10, 0, 0),
        ([(0, 100)], 9, 0, 1111),  # (10 - 9) / 9 * 10 s
        ([(0, 100)], 5, 0, 10_000),
        ([(0, 100)], 5, 500, 9500),  # the time that has passed counts
        ([(0, 100), (10_000, 100)], 10, 10_500, 9500),
        ([(0, 1)], 0.01, 0, 90_000),
    ],
)
def test_wait_reduces_rate_to_its_limit(
    events: list[tuple[int, float]], limit: float, now_ms: int, wait_ms: int
) -> None:
    assert counted(*events).wait_ms(limit, now_ms) == wait_ms


@pytest.mark.slow
@pytest.mark.parametrize("size", [1000, 16_384, 65_536, 262_144])
@pytest.mark.parametrize("bytes_per_second", [2_000_000, 10_000_000, 200_000_000])
def test_client_that_obeys_throttle_time_stays_within_quota(
    size: int, bytes_per_second: int
) -> None:
    """Over three times all windows, so that the initial burst is paid back."""
    limit, rate = 1_000_000, Rate(ELEVEN)
    now_ms, taken = 0.0, 0
    while now_ms < 33_000:
        taken += size
        rate.count(size, int(now_ms))
        now_ms += max(rate.wait_ms(limit, int(now_ms)), size * 1000 / bytes_per_second)
    assert 0.9 * limit < taken / 33 < 1.1 * limit


def test_bucket_is_full_at_first_and_owes_missing_tokens() -> None:
    bucket = TokenBucket(ELEVEN)
    bucket.take(110, 10, now_ms=5000)
    assert bucket.wait_ms(10, 5000) == 0
    bucket.take(20, 10, now_ms=5000)
    assert bucket.wait_ms(10, 5000) == 2000
    assert bucket.wait_ms(10, 6500) == 500
    assert bucket.wait_ms(10, 7000) == 0
    assert bucket.wait_ms(10, 900_000) == 0
    bucket.take(115, 10, now_ms=900_000)  # the bucket holds no more than its size
    assert bucket.wait_ms(10, 900_000) == 500
    assert bucket.wait_ms(5, 900_000) == 1000, "a new rate applies at once"


def test_expired_meters_are_removed() -> None:
    meters = Meters(lambda: Rate(ELEVEN))
    for number in range(1000):
        meters.of(number, 0).count(1, 0)
    assert len(meters) == 1000
    kept = meters.of(3, 5000)
    kept.count(1, 5000)
    for number in range(1000, 1600):
        meters.of(number, 11_000).count(1, 11_000)
    assert len(meters) == 601, "the new meters, and the one that was used since"
    assert meters.of(3, 11_000) is kept


def test_number_of_meters_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert METERS_MAX == 10_000
    monkeypatch.setattr(rates, "METERS_MAX", 10)
    meters = Meters(lambda: TokenBucket(ELEVEN))
    for number in range(100):
        meters.of(number, 0).take(1000, 1, 0)
    assert len(meters) == 10
    assert meters.of(99, 0).wait_ms(1, 0) > 0
    assert meters.of(1, 0).wait_ms(1, 0) == 0, "the least recently used meter was removed"


def test_bucket_is_over_when_full_again() -> None:
    bucket = TokenBucket(ELEVEN)
    bucket.take(30, 10, 0)
    assert not bucket.is_expired(2999)
    assert bucket.is_expired(3000)
