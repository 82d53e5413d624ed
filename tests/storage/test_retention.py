from __future__ import annotations

import pytest

from kbroker.storage.retention import expired_segments

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("times", "now", "expected"),
    [
        ([0, 10, 20], HOUR + 11, 2),
        ([0, 10, 20], HOUR + 10, 1),
        ([0, 10, 20], HOUR + 21, 3),
        ([0, 10, 20], -HOUR, 0),
        ([0, HOUR * 99, 20], HOUR * 2, 1),
        ([-1, 10], HOUR * 9, 0),
        ([], HOUR, 0),
    ],
)
def test_segments_expire_by_time(times: list[int], now: int, expected: int) -> None:
    segments = [(100, time) for time in times]
    count = expired_segments(segments, now_ms=now, retention_ms=HOUR, retention_bytes=-1)
    assert count == expected


def test_empty_newest_segment_is_kept() -> None:
    segments = [(100, 0), (0, -1)]
    assert expired_segments(segments, now_ms=HOUR, retention_ms=0, retention_bytes=-1) == 1


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, 4), (1, 3), (99, 3), (100, 3), (101, 2), (250, 1), (300, 1), (400, 0), (-1, 0)],
)
def test_segments_expire_by_size(limit: int, expected: int) -> None:
    segments = [(100, 0)] * 4
    count = expired_segments(segments, now_ms=0, retention_ms=-1, retention_bytes=limit)
    assert count == expected


def test_empty_newest_segment_is_kept_with_retention_bytes_of_zero() -> None:
    segments = [(100, 0), (0, -1)]
    assert expired_segments(segments, now_ms=0, retention_ms=-1, retention_bytes=0) == 1


def test_stricter_limit_decides() -> None:
    segments = [(100, 0), (100, 5), (100, 9)]
    assert expired_segments(segments, now_ms=7, retention_ms=1, retention_bytes=250) == 2
    assert expired_segments(segments, now_ms=2, retention_ms=1, retention_bytes=100) == 2
