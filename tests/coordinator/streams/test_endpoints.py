"""Endpoints of streams group members for interactive queries."""

from __future__ import annotations

from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

from ..harness import Harness


def test_response_contains_partitions_by_endpoint(h: Harness) -> None:
    cls = StreamsGroupHeartbeatRequest.Endpoint
    h.streams_beat("a", 0, user_endpoint=cls(host="one", port=1))
    response = h.streams_beat("b", 0, user_endpoint=cls(host="two", port=2))
    assert response.endpoint_information_epoch == 1
    rows = response.partitions_by_user_endpoint or []
    assert [(row.user_endpoint.host, len(row.active_partitions)) for row in rows] == [
        ("one", 1),
        ("two", 0),
    ]
    assert rows[0].active_partitions[0].partitions == [0, 1, 2, 3]
    response = h.streams_beat("b", 3, endpoint_information_epoch=1)
    assert response.partitions_by_user_endpoint is None
    response = h.streams_beat("a", 2, endpoint_information_epoch=1)
    assert response.endpoint_information_epoch == 2, "the tasks of the member have changed"
    (row, _) = sorted(
        response.partitions_by_user_endpoint or (), key=lambda r: r.user_endpoint.port
    )
    assert row.active_partitions[0].partitions == [0, 1]


def test_new_group_has_endpoint_epoch_only_if_it_replaces_offsets_of_a_simple_group(
    h: Harness,
) -> None:
    """Kafka returns the epoch if any group of the ID exists, but a new group of its own has none."""
    endpoint = StreamsGroupHeartbeatRequest.Endpoint(host="one", port=1)
    assert h.streams_beat("a", 0, user_endpoint=endpoint).endpoint_information_epoch == 0
    h.commit({("orders", 0): 1}, group="simple")
    response = h.streams_beat("a", 0, group="simple", user_endpoint=endpoint)
    assert (response.error_code, response.endpoint_information_epoch) == (0, 1)
