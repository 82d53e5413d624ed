"""Loading and loss of coordinators, and the responses in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import OFFSETS_TOPIC
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import DescribeGroupsRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

from ..brokers import started
from ..handlers.test_groups_coordinators import find
from ..wire import (
    Wire,
    connected,
    create_topic,
    request,
    until,
)

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started() as broker:
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 200)
        await find(wire, 4, "g")
        yield wire


async def fetch(wire: Wire) -> Any:
    return await wire.ask(ApiKey.OFFSET_FETCH, 5, fetch_request())


def fetch_request() -> OffsetFetchRequest:
    rows = [OffsetFetchRequest.Topic(name="t", partition_indexes=[0])]
    return OffsetFetchRequest(group_id="g", topics=rows)


def commit_request(
    offset: int, partitions: int = 1, metadata: str = "", group: str = "g"
) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequest.Partition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )
        for index in range(partitions)
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequest.Topic(name="t", partitions=rows)],
    )


async def commit(wire: Wire, offset: int, **settings: Any) -> int:
    ask = commit_request(offset, **settings)
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, ask)
    return int(response.topics[0].partitions[0].error_code)


def replica_of(broker: Broker) -> Replica:
    return broker.node.partitions.named_replica(OFFSETS_TOPIC, 0)


class Lagging:
    """Patch that makes the replica wait for a follower that does not replicate new records."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._replica = lagging = replica_of(broker)
        self._commit = commit = Replica._commit
        for name in ("replicas", "isr"):
            monkeypatch.setattr(lagging.partition, name, [1, 2])

        def commit_others(replica: Replica, offset: int) -> None:
            if replica is not lagging:
                commit(replica, offset)

        monkeypatch.setattr(Replica, "_commit", commit_others)

    def catches_up(self) -> None:
        self._commit(self._replica, self._replica.log.log_end_offset)


async def test_coordinator_loads_after_its_log_is_committed(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await commit(wire, 5) == 0
    follower = Lagging(broker, monkeypatch)
    await wire.send(ApiKey.OFFSET_COMMIT, 7, commit_request(7))
    await until(lambda: replica_of(broker).log.log_end_offset == 2)
    async with connected(broker.endpoint) as other:
        broker.node.groups.stop()  # simulates a loss of leadership
        broker.node.groups.apply_leadership()  # and its return
        assert (await fetch(other)).error_code == LOADING
        listed = await other.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert listed.error_code == LOADING
        follower.catches_up()
        await until(lambda: not broker.node.groups.is_loading)
        assert (await fetch(other)).topics[0].partitions[0].committed_offset == 7


async def test_pending_requests_fail_if_their_state_was_lost(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are commits, fetches, heartbeats and descriptions of missing groups."""
    assert await commit(wire, 5) == 0
    Lagging(broker, monkeypatch)
    heartbeat = request(ApiKey.HEARTBEAT, group_id="g", member_id="m")
    lost = ErrorCode.NOT_COORDINATOR
    async with connected(broker.endpoint) as other, connected(broker.endpoint) as third:
        await wire.send(ApiKey.OFFSET_COMMIT, 7, commit_request(7))
        await until(lambda: replica_of(broker).log.log_end_offset == 2)
        await wire.send(ApiKey.OFFSET_FETCH, 5, fetch_request())
        await third.send(ApiKey.HEARTBEAT, 3, heartbeat)
        await other.send(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"]))
        await trio.sleep(0.1)
        replica_of(broker).commits.fail()
        (row,) = (await other.receive()).groups
        assert (row.group_id, row.error_code) == ("g", lost)
        assert (await third.receive()).error_code == lost
    assert (await wire.receive()).topics[0].partitions[0].error_code == lost
    assert (await wire.receive()).error_code == lost


async def test_commit_times_out_if_it_is_not_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        started(offsets_commit_timeout_ms=100) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t")
        await find(wire, 4, "g")
        assert await commit(wire, 5) == 0
        follower = Lagging(broker, monkeypatch)
        assert await commit(wire, 7) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        follower.catches_up()
        assert (await fetch(wire)).topics[0].partitions[0].committed_offset == 7


async def test_coordinator_of_follower_appends_nothing(
    broker: Broker, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica has become a follower: an append would make the logs diverge."""
    groups = broker.node.groups
    shard = groups.shard("g")
    replica = broker.node.partitions.named_replica(OFFSETS_TOPIC, shard.replica.index)
    replica.become_follower(replica.partition)
    result = shard.coordinator.offsets.commit(commit_request(7), groups.now(), 7)
    response: Any = groups.run(shard, result)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert shard.replica.log.log_end_offset == 0
    assert "could not append" in caplog.text


async def test_internal_topics_are_created_after_all_nodes_registered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Internal topics that are created earlier would have too few replicas forever."""
    monkeypatch.setattr(broker.node.config, "nodes", 3)
    settings = {"offsets.topic.replication.factor": 3}
    monkeypatch.setitem(broker.node.config._parsed, *settings.popitem())
    async with connected(broker.endpoint) as wire:
        (row,) = await find(wire, 4, "g")
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "3 nodes" in row.error_message
    assert OFFSETS_TOPIC not in broker.node.cluster.topics


async def test_find_coordinator_returns_error_if_partition_has_no_leader(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.node.cluster.topics[OFFSETS_TOPIC]
    away = [replace(each, leader=-1) for each in topic.partitions]
    monkeypatch.setattr(topic, "partitions", away)
    (row,) = await find(wire, 4, "g")
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (row.node_id, row.host, row.port) == (-1, "", -1)
