"""Tests of the request counters of a node."""

from __future__ import annotations

import pytest

from kbroker.node import request_metrics
from kbroker.node.request_metrics import NO_TOPIC, ROWS_COUNTED_MAX, RequestMetrics
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.groups import HeartbeatResponse
from kbroker.protocol.messages.metadata import MetadataResponse

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_errors_are_counted_in_response_and_its_rows() -> None:
    counted = RequestMetrics()
    counted.count_errors(ApiKey.HEARTBEAT, HeartbeatResponse())
    counted.count_errors(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=UNKNOWN))
    partitions = [MetadataResponse.Partition(error_code=code) for code in (0, 5, 5)]
    topics = [
        MetadataResponse.Topic(error_code=UNKNOWN),
        MetadataResponse.Topic(partitions=partitions),
    ]
    counted.count_errors(ApiKey.METADATA, MetadataResponse(topics=topics))
    assert counted.errors == {
        (ApiKey.HEARTBEAT, UNKNOWN): 1,
        (ApiKey.METADATA, UNKNOWN): 1,
        (ApiKey.METADATA, 5): 2,
    }


def test_counted_rows_of_long_responses_are_bounded() -> None:
    counted = RequestMetrics()
    topics = [MetadataResponse.Topic(error_code=UNKNOWN) for _ in range(2 * ROWS_COUNTED_MAX)]
    counted.count_errors(ApiKey.METADATA, MetadataResponse(topics=topics))
    assert counted.errors == {(ApiKey.METADATA, UNKNOWN): ROWS_COUNTED_MAX}


def test_rows_counted_by_handler_are_not_counted_twice() -> None:
    counted = RequestMetrics()
    row = FetchResponse.Partition(error_code=UNKNOWN)
    topic = FetchResponse.Topic(partitions=[row])
    counted.count_errors(ApiKey.FETCH, FetchResponse(error_code=70, responses=[topic]))
    assert counted.errors == {(ApiKey.FETCH, 70): 1}


def test_topics_with_rejected_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_metrics, "TOPICS_MAX", 2)
    counted = RequestMetrics()
    for topic in ("a", "b", "c", "a", "d"):
        counted.count_rejected(ApiKey.PRODUCE, topic, UNKNOWN)
    produce = int(ApiKey.PRODUCE)
    assert counted.rejected == {(produce, "a"): 2, (produce, "b"): 1, (produce, NO_TOPIC): 2}
    assert counted.errors == {(produce, UNKNOWN): 5}
