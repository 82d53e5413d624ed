"""How coordinators come and go: what they wait for, and what is said meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import OFFSETS_TOPIC
from kbroker.coordinator import hash_partition
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import DescribeGroupsRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

from ..brokers import started
from ..handlers.test_groups_coordinators import find
from ..turns import TURN_SECONDS_MAX, longest_step
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    metadata,
    produce,
    request,
    until,
    values_of,
)
from ..wire import fetch as fetch_records

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
    answer = await wire.ask(ApiKey.OFFSET_COMMIT, 7, ask)
    return int(answer.topics[0].partitions[0].error_code)


def replica_of(broker: Broker) -> Replica:
    return broker.node.partitions.named_replica(OFFSETS_TOPIC, 0)


class Lagging:
    """The replica has another one to wait for, which has nothing yet of what comes from now on."""

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


async def test_a_coordinator_waits_until_its_log_is_committed(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await commit(wire, 5) == 0
    follower = Lagging(broker, monkeypatch)
    await wire.send(ApiKey.OFFSET_COMMIT, 7, commit_request(7))
    await until(lambda: replica_of(broker).log.log_end_offset == 2)
    async with connected(broker.endpoint) as other:
        broker.node.groups.stop()  # as if leadership had gone
        broker.node.groups.settle()  # and come back
        assert (await fetch(other)).error_code == LOADING
        listed = await other.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert listed.error_code == LOADING
        follower.catches_up()
        await until(lambda: not broker.node.groups.is_loading)
        assert (await fetch(other)).topics[0].partitions[0].committed_offset == 7


async def test_what_waits_is_not_told_what_was_lost(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as a commit, nor as an offset, nor as a group that is not there."""
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


async def test_a_commit_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_coordinator_of_before_writes_nothing(
    broker: Broker, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Its replica follows another one: what it appended would part the two logs."""
    groups = broker.node.groups
    shard = groups.shard("g")
    replica = broker.node.partitions.named_replica(OFFSETS_TOPIC, shard.replica.index)
    replica.become_follower(replica.partition)
    result = shard.coordinator.offsets.commit(commit_request(7), groups.now(), 7)
    answer: Any = groups.run(shard, result)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert shard.replica.log.log_end_offset == 0
    assert "not stored" in caplog.text


async def test_a_large_log_is_loaded_by_and_by(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served meanwhile, and so is the group when that is done."""
    for offset in range(20):
        assert await commit(wire, offset, partitions=200, metadata="x" * 50) == 0
    broker.node.groups.stop()
    assert (await fetch(wire)).error_code == LOADING
    await until(lambda: not broker.node.groups.is_loading)
    assert (await fetch(wire)).topics[0].partitions[0].committed_offset == 19


@pytest.fixture
def slow_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator is loaded when it is asked for, again and again, and hardly behind."""
    monkeypatch.setattr("kbroker.coordination.shards.TURNS_AT_START", 1)
    monkeypatch.setattr("kbroker.coordination.shards.RECORDS_AT_ONCE", 10)
    monkeypatch.setattr("kbroker.coordination.shards.REST", 1e9)


async def fill(folder: Path, commits: int = 20) -> None:
    """Some thousand records for one coordinator, 200 a commit."""
    async with (
        started(folder, offsets_topic_num_partitions=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        for name in ("t", "u"):
            await create_topic(wire, name, 200)
        await find(wire, 4, "g")
        for offset in range(commits):
            assert await commit(wire, offset, partitions=200) == 0


async def fetch_when_loaded(wire: Wire) -> Any:
    """As a client does: it asks again until it is answered."""
    while (answer := await fetch(wire)).error_code:
        assert answer.error_code == LOADING
    return answer


@pytest.mark.usefixtures("slow_loads")
async def test_a_node_serves_before_its_coordinators_are_loaded(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.is_loading
        topic = Topic("u")
        assert {each.name for each in (await metadata(wire)).topics} >= {"t", "u"}
        assert (await produce(wire, topic, batch([b"v"]))).error_code == 0
        assert values_of(await fetch_records(wire, topic)) == [b"v"]
        assert await commit(wire, 20) == LOADING
        listed = await wire.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert (listed.error_code, listed.groups) == (LOADING, [])
        answer = await fetch_when_loaded(wire)
        assert not broker.node.is_loading
        assert answer.topics[0].partitions[0].committed_offset == 19
        assert await commit(wire, 20) == 0


async def test_a_load_leaves_the_loop_to_others(tmp_path: Path) -> None:
    await fill(tmp_path, commits=100)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.is_loading
        with longest_step() as longest:
            await fetch_when_loaded(wire)
        assert longest.steps > 10
        assert longest.seconds < TURN_SECONDS_MAX, str(longest)


@pytest.mark.usefixtures("slow_loads")
async def test_offsets_of_topics_that_are_deleted_during_a_load_go(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await delete_topic(wire, "t")
        assert broker.node.is_loading
        await fetch_when_loaded(wire)
        everything = OffsetFetchRequest(group_id="g", topics=None)
        assert (await wire.ask(ApiKey.OFFSET_FETCH, 5, everything)).topics == []


async def test_small_coordinators_are_loaded_before_a_node_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [f"group-{number}" for number in range(30)]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 200)
        await find(wire, 4, "g")
        for group in groups:
            assert await commit(wire, 1, group=group) == 0
        for offset in range(20):
            assert await commit(wire, offset, partitions=200) == 0
    monkeypatch.setattr("kbroker.coordination.shards.TURNS_AT_START", 50)
    monkeypatch.setattr("kbroker.coordination.shards.RECORDS_AT_ONCE", 20)
    monkeypatch.setattr("kbroker.coordination.shards.REST", 1e9)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        service = broker.node.groups
        large = hash_partition("g", 50)
        assert [load.shard.replica.index for load in service._loads.values()] == [large]
        assert (await fetch(wire)).error_code == LOADING
        for group in groups:
            if hash_partition(group, 50) != large:
                assert await commit(wire, 2, group=group) == 0


async def test_internal_topics_wait_for_all_nodes_of_the_first_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would never have as many replicas as they should."""
    monkeypatch.setattr(broker.node.config, "nodes", 3)
    settings = {"offsets.topic.replication.factor": 3}
    monkeypatch.setitem(broker.node.config._parsed, *settings.popitem())
    async with connected(broker.endpoint) as wire:
        (row,) = await find(wire, 4, "g")
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "3 nodes" in row.error_message
    assert OFFSETS_TOPIC not in broker.node.cluster.topics


async def test_a_partition_without_a_leader(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.node.cluster.topics[OFFSETS_TOPIC]
    away = [replace(each, leader=-1) for each in topic.partitions]
    monkeypatch.setattr(topic, "partitions", away)
    (row,) = await find(wire, 4, "g")
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (row.node_id, row.host, row.port) == (-1, "", -1)
