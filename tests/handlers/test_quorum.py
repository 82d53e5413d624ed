"""Tests of DescribeQuorum and of the emulated metadata quorum."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.cluster.registrations import NO_NODE
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quorum import DescribeQuorumRequest
from kbroker.protocol.schema import ZERO_UUID

from ..brokers import started
from ..wire import Wire, connected, create_topic, request


def quorum_request(*rows: tuple[str, list[int]]) -> DescribeQuorumRequest:
    cls = DescribeQuorumRequest
    return cls(
        topics=[
            cls.Topic(
                topic_name=name, partitions=[cls.Partition(partition_index=i) for i in indexes]
            )
            for name, indexes in rows
        ]
    )


METADATA = quorum_request(("__cluster_metadata", [0]))


async def describe(wire: Wire, version: int = 2) -> Any:
    response = await wire.ask(ApiKey.DESCRIBE_QUORUM, version, METADATA)
    assert response.error_code == 0
    ((row,),) = (topic.partitions for topic in response.topics)
    assert row.error_code == 0
    return row


@pytest.mark.parametrize("version", range(3))
async def test_single_node_is_only_voter(broker: Broker, wire: Wire, version: int) -> None:
    row = await describe(wire, version)
    assert (row.leader_id, row.leader_epoch, row.observers) == (1, 1, [])
    (voter,) = row.current_voters
    assert (voter.replica_id, voter.replica_directory_id) == (1, ZERO_UUID)
    assert voter.log_end_offset == row.high_watermark == broker.node.cluster.revision
    if version >= 1:
        for moment in (voter.last_fetch_timestamp, voter.last_caught_up_timestamp):
            assert abs(moment - time.time() * 1000) < 60_000


async def test_controller_is_leader_and_other_nodes_are_observers() -> None:
    async with started(nodes=3) as broker, connected(broker.nodes[1].endpoint) as wire:
        row = await describe(wire)
        controller = broker.node.cluster.controller_id
        assert (row.leader_id, [each.replica_id for each in row.current_voters]) == (
            controller,
            [controller],
        )
        assert {each.replica_id for each in row.observers} == {1, 2, 3} - {controller}


async def test_unknown_fetch_times_of_other_nodes_are_omitted() -> None:
    async with started(nodes=3) as broker, connected(broker.nodes[1].endpoint) as wire:
        row = await describe(wire)
        moments = {
            each.replica_id: (each.last_fetch_timestamp, each.last_caught_up_timestamp)
            for each in (*row.current_voters, *row.observers)
        }
        assert {node_id for node_id, seen in moments.items() if seen == (-1, -1)} == {1, 3}


async def test_each_metadata_change_advances_high_watermark(wire: Wire) -> None:
    before = (await describe(wire)).high_watermark
    await create_topic(wire, "a", 5)
    assert (await describe(wire)).high_watermark == before + 1


async def test_quorum_nodes_have_client_listeners(broker: Broker, wire: Wire) -> None:
    (node,) = (await wire.ask(ApiKey.DESCRIBE_QUORUM, 2, METADATA)).nodes
    (listener,) = node.listeners
    assert (node.node_id, listener.name) == (1, "PLAINTEXT")
    assert (listener.host, listener.port) == broker.endpoint


async def test_leader_epoch_increases_on_each_start(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        async with started(tmp_path / "data") as broker, connected(broker.endpoint) as wire:
            assert (await describe(wire)).leader_epoch == epoch


@pytest.mark.parametrize(
    "ask",
    [
        quorum_request(("a", [0])),
        quorum_request(("__cluster_metadata", [1])),
        quorum_request(("__cluster_metadata", [0, 1])),
        quorum_request(("__cluster_metadata", [0]), ("a", [0])),
        quorum_request(),
    ],
)
async def test_other_partitions_than_metadata_are_unknown(
    wire: Wire, ask: DescribeQuorumRequest
) -> None:
    response = await wire.ask(ApiKey.DESCRIBE_QUORUM, 2, ask)
    assert (response.error_code, response.nodes) == (0, [])
    requested = [(t.topic_name, p.partition_index) for t in ask.topics for p in t.partitions]
    rows = [(t.topic_name, p) for t in response.topics for p in t.partitions]
    assert [(name, row.partition_index) for name, row in rows] == requested
    assert all(row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for _, row in rows)
    assert all(row.error_message for _, row in rows)


@pytest.mark.parametrize(
    ("key", "version"),
    [(ApiKey.ADD_RAFT_VOTER, 0), (ApiKey.ADD_RAFT_VOTER, 1), (ApiKey.REMOVE_RAFT_VOTER, 0)],
)
async def test_changing_voters_is_rejected(
    broker: Broker, wire: Wire, key: ApiKey, version: int
) -> None:
    cluster_id = broker.node.cluster.id
    for named, code in ((None, 35), (cluster_id, 35), ("other", 104)):
        response = await wire.ask(key, version, request(key, cluster_id=named, voter_id=2))
        assert response.error_code == code
        assert response.error_message


async def unregister(wire: Wire, controller_id: int) -> int:
    """Send UnregisterController, and return its error code."""
    ask = request(ApiKey.UNREGISTER_CONTROLLER, controller_id=controller_id)
    response = await wire.ask(ApiKey.UNREGISTER_CONTROLLER, 0, ask)
    assert response.error_message
    return int(response.error_code)


async def test_active_controller_cannot_be_unregistered() -> None:
    """The active controller is the only registered controller."""
    async with started(nodes=3) as broker, connected(broker.nodes[1].endpoint) as wire:
        active = broker.node.cluster.controller_id
        codes = {controller_id: await unregister(wire, controller_id) for controller_id in range(4)}
        expected = dict.fromkeys(range(4), ErrorCode.CONTROLLER_ID_NOT_REGISTERED)
        assert codes == {**expected, active: ErrorCode.INVALID_REQUEST}


async def test_controller_is_not_unregistered_while_no_controller_exists(
    broker: Broker, wire: Wire
) -> None:
    broker.node.cluster.registrations.controller_id = NO_NODE
    assert await unregister(wire, NO_NODE) == ErrorCode.CONTROLLER_ID_NOT_REGISTERED


async def test_unregistration_of_controller_requires_metadata_version(
    broker: Broker, wire: Wire
) -> None:
    cluster = broker.node.cluster
    levels = {**cluster.features, "metadata.version": 32}
    revision = cluster.features_revision
    assert await cluster.finalize_features(levels, revision=revision, cause="test")
    assert await unregister(wire, 9) == ErrorCode.UNSUPPORTED_VERSION
    assert await unregister(wire, cluster.controller_id) == ErrorCode.INVALID_REQUEST
