"""Percentiles of response times."""

from __future__ import annotations

import pytest

from kbroker.node.request_metrics import RequestMetrics
from kbroker.protocol.api_keys import ApiKey
from kbroker.web.console.latencies import OTHERS, PRODUCE, Latencies, percentile


def answered(metrics: RequestMetrics, key: ApiKey, seconds: float, times: int) -> None:
    metrics.requests[key] += times
    metrics.times[key].record(seconds, times)


def test_percentiles_count_only_responses_since_last_sample() -> None:
    metrics, produce, others = RequestMetrics(), Latencies(PRODUCE), Latencies(OTHERS)
    answered(metrics, ApiKey.PRODUCE, 1.0, 1000)
    answered(metrics, ApiKey.FETCH, 1.0, 1000)
    for each in (produce, others):
        each.sample([metrics], 1)
        assert each.values()["p99"][-1] is None
    answered(metrics, ApiKey.PRODUCE, 0.001, 98)
    answered(metrics, ApiKey.PRODUCE, 0.05, 2)
    answered(metrics, ApiKey.METADATA, 0.01, 1)
    for each in (produce, others):
        each.sample([metrics], 2)
    assert 512 < (produce.values()["p50"][-1] or 0) < 1024
    assert 32_768 < (produce.values()["p99"][-1] or 0) < 65_536
    assert 8_192 < (others.values()["p50"][-1] or 0) < 16_384
    for each in (produce, others):
        each.sample([metrics], 3)
        assert each.values()["p50"][-1] is None


@pytest.mark.parametrize(
    ("counts", "percent", "expected"),
    [
        ([0, 0], 50, None),
        ([4, 0], 50, 0),
        ([0, 0, 0, 10], 50, 6),
        ([0, 0, 0, 10], 99, 8),
        ([0, 0, 5, 5], 99, 8),
    ],
)
def test_percentile_is_interpolated_in_its_bucket(
    counts: list[int], percent: int, expected: int | None
) -> None:
    assert percentile(counts, percent) == expected
