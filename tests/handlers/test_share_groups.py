"""Tests of share groups (KIP-932) on the wire: settings, restarts, offsets and limits.

tests/coordinator tests the decisions of the coordinator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import request_class
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest
from kbroker.testing.clock import MovableClock

from ..brokers import started
from ..sharing import ShareMember, row_of
from ..wire import (
    ANSWER_SECONDS,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    produce,
    request,
)
from .test_consumer_groups import assigned_partitions, find, set_config

OFFSETS = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS


async def beat(
    wire: Wire, member: str, epoch: int, *, group: str = "g", topics: list[str] | None = None
) -> Any:
    """Send a heartbeat; a join (epoch 0) subscribes to "t" by default."""
    if epoch == 0 and topics is None:
        topics = ["t"]
    ask = request(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=topics,
    )
    return await wire.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, ask)


async def join_and_wait(wire: Wire, member: str = "a", *, partitions: int, group: str = "g") -> Any:
    """Send heartbeats until the member has `partitions` partitions; return the last response."""
    response = await beat(wire, member, 0, group=group)
    with trio.fail_after(ANSWER_SECONDS):
        while len(assigned_partitions(response) or ()) != partitions:
            await trio.sleep(0.01)
            response = await beat(wire, member, response.member_epoch, group=group, topics=["t"])
    return response


async def describe(wire: Wire, group: str = "g") -> Any:
    ask = request(ApiKey.SHARE_GROUP_DESCRIBE, group_ids=[group])
    return (await wire.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ask)).groups[0]


async def start_offsets(wire: Wire, group: str = "g") -> dict[tuple[str, int], tuple[int, int]]:
    """Return start offset and lag of all partitions with a state."""
    cls: Any = request_class(OFFSETS)
    ask = cls(groups=[cls.Group(group_id=group, topics=None)])
    (row,) = (await wire.ask(OFFSETS, 1, ask)).groups
    assert not row.error_code, row
    return {
        (topic.topic_name, each.partition_index): (each.start_offset, each.lag)
        for topic in row.topics
        for each in topic.partitions
    }


async def alter(wire: Wire, offsets: dict[int, int], *, group: str = "g", topic: str = "t") -> Any:
    cls: Any = request_class(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    rows = [
        cls.Partition(partition_index=index, start_offset=offset)
        for index, offset in offsets.items()
    ]
    ask = cls(group_id=group, topics=[cls.Topic(topic_name=topic, partitions=rows)])
    return await wire.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, ask)


async def forget(wire: Wire, *topics: str, group: str = "g") -> Any:
    cls: Any = request_class(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
    ask = cls(group_id=group, topics=[cls.Topic(topic_name=name) for name in topics])
    return await wire.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, ask)


async def delete(wire: Wire, group: str = "g") -> int:
    ask = request(ApiKey.DELETE_GROUPS, groups_names=[group])
    return int((await wire.ask(ApiKey.DELETE_GROUPS, 2, ask)).results[0].error_code)


async def test_share_group_is_joined_described_left_and_deleted(wire: Wire, broker: Broker) -> None:
    topic = await create_topic(wire, "t", 4)
    await set_config(wire, ResourceType.GROUP, "g", "share.assignment.interval.ms", "0")
    await find(wire)
    first = await join_and_wait(wire, partitions=4)
    assert assigned_partitions(await beat(wire, "b", 0)) is not None
    row = await describe(wire)
    assert (row.group_state, row.assignor_name) == ("Stable", "simple")
    assert row.members[0].assignment.topic_partitions[0].topic_id == topic.id
    assert len(assigned_partitions(await beat(wire, "a", first.member_epoch)) or ()) == 2
    (listed,) = (await wire.ask(ApiKey.LIST_GROUPS, 5, request(ApiKey.LIST_GROUPS))).groups
    assert (listed.group_type, listed.protocol_type) == ("share", "share")
    assert (await beat(wire, "a", -1)).member_epoch == -1
    assert await delete(wire) == ErrorCode.NON_EMPTY_GROUP
    assert (await beat(wire, "b", -1)).member_epoch == -1
    assert await delete(wire) == 0
    assert (await describe(wire)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    states = [shard.coordinator.states for shard in broker.node.share.states.shards()]
    assert not any(states), "the share coordinators deleted the states"


async def test_members_fetch_unacknowledged_records(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    await set_config(wire, ResourceType.GROUP, "g", "share.auto.offset.reset", "earliest")
    await produce(wire, topic, batch([b"a", b"b", b"c"]))
    await find(wire)
    await join_and_wait(wire, partitions=1)
    assert await start_offsets(wire) == {("t", 0): (-1, -1)}
    member = ShareMember(wire, topic, group="g")
    assert row_of(await member.fetch()).acquired_records[0].last_offset == 2
    assert not (await member.acknowledge_partition((0, 1, 1))).error_code
    assert (await start_offsets(wire))["t", 0] == (0, 1), (
        "two of the three records are acknowledged"
    )
    await beat(wire, "a", -1)
    assert not (await alter(wire, {0: 1})).error_code
    assert await start_offsets(wire) == {("t", 0): (1, 2)}


async def test_share_group_survives_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 4)
        await find(wire)
        await join_and_wait(wire, partitions=4)
        await alter(wire, {1: 0}, group="empty")
        before = [await describe(wire, group) for group in ("g", "empty")]
        offsets = [await start_offsets(wire, group) for group in ("g", "empty")]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert [await describe(wire, group) for group in ("g", "empty")] == before
        assert [await start_offsets(wire, group) for group in ("g", "empty")] == offsets
        epoch = before[0].members[0].member_epoch
        response = await beat(wire, "a", epoch)
        assert (response.member_epoch, assigned_partitions(response)) == (epoch, None)


async def test_changed_share_group_settings_take_effect_at_once() -> None:
    clock = MovableClock()
    clock.coordinator.freeze()
    async with started(None, clock) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 2)
        await find(wire)
        assert (await beat(wire, "a", 0)).heartbeat_interval_ms == 5_000
        name = "share.heartbeat.interval.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "7000") == 0
        assert (await beat(wire, "a", 2)).heartbeat_interval_ms == 7_000
        name = "share.session.timeout.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "50000") == 0
        response = await beat(wire, "a", 0)
        clock.coordinator.add(49_000)
        broker.node.groups.deadlines.clock_moved()
        assert len((await describe(wire)).members) == 1
        clock.coordinator.add(1_000)
        broker.node.groups.deadlines.clock_moved()
        assert (await describe(wire)).group_state == "Empty"
        response = await beat(wire, "a", response.member_epoch)
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_share_group_size_is_bounded() -> None:
    async with (
        started(group_share_max_size=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t")
        await find(wire)
        assert not (await beat(wire, "a", 0)).error_code
        assert (await beat(wire, "b", 0)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_share_requests_are_rejected_if_feature_is_disabled(wire: Wire) -> None:
    cls = UpdateFeaturesRequest
    row = cls.Feature(feature="share.version", max_version_level=0, upgrade_type=2)
    response = await wire.ask(ApiKey.UPDATE_FEATURES, 1, cls(feature_updates=[row]))
    assert not response.error_code, response
    await find(wire)
    response = await beat(wire, "a", 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "share.version=1" in response.error_message
    assert (await describe(wire)).error_code == ErrorCode.UNSUPPORTED_VERSION
    for failures in (await alter(wire, {0: 0}), await forget(wire, "t")):
        assert failures.error_code == ErrorCode.UNSUPPORTED_VERSION
    offsets: Any = request_class(OFFSETS)
    ask = offsets(groups=[offsets.Group(group_id="g", topics=[])])
    (group,) = (await wire.ask(OFFSETS, 1, ask)).groups
    assert group.error_code == ErrorCode.UNSUPPORTED_VERSION
    for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
        of_records = request_class(key)(group_id="g", member_id="a")
        response = await wire.ask(key, 1, of_records)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_deleted_topic_removes_share_states(wire: Wire) -> None:
    await create_topic(wire, "t", 2)
    await find(wire)
    await join_and_wait(wire, partitions=2)
    await delete_topic(wire, "t")
    assert await start_offsets(wire) == {}
    await create_topic(wire, "t", 1)
    assert assigned_partitions(await join_and_wait(wire, partitions=1)) == [0]


async def test_invalid_offset_changes_are_rejected(wire: Wire) -> None:
    await create_topic(wire, "t", 2)
    await find(wire)
    response = await alter(wire, {0: 5, 2: 5, -1: 5})
    rows = {row.partition_index: row.error_code for row in response.responses[0].partitions}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rows == {0: 0, 2: unknown, -1: unknown}
    assert await start_offsets(wire) == {("t", 0): (5, -5)}
    assert (await alter(wire, {0: 5}, topic="u")).responses[0].partitions[0].error_code == unknown
    assert (await alter(wire, {0: 5}, group="")).error_code == ErrorCode.INVALID_GROUP_ID
    codes = {row.topic_name: row.error_code for row in (await forget(wire, "t", "u")).responses}
    assert codes == {"t": 0, "u": unknown}
    (row,) = (await forget(wire, "t")).responses
    assert row.error_code == unknown, "the offset is deleted already"
    response = await forget(wire, "t", group="unknown")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await beat(wire, "a", 0)
    assert (await alter(wire, {0: 5})).error_code == ErrorCode.NON_EMPTY_GROUP
    assert (await forget(wire, "t")).error_code == ErrorCode.NON_EMPTY_GROUP


async def test_member_that_joins_during_deletion_of_offsets_gets_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Join while the deletion waits for a share coordinator, for example because it is loading."""
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
        trio.open_nursery() as nursery,
    ):
        topic = await create_topic(wire, "t")
        await find(wire)
        await set_config(wire, ResourceType.GROUP, "g", "share.auto.offset.reset", "earliest")
        await produce(wire, topic, batch([b"a", b"b"]))
        await join_and_wait(wire, partitions=1)
        await beat(wire, "a", -1)
        reached, released = trio.Event(), trio.Event()
        delete_states = broker.node.share.persister.delete

        async def delete_later(rows: Any) -> Any:
            reached.set()
            await released.wait()
            return await delete_states(rows)

        monkeypatch.setattr(broker.node.share.persister, "delete", delete_later)
        nursery.start_soon(forget, wire, "t")
        await reached.wait()
        joined = await beat(other, "b", 0)
        await trio.sleep(0.1)
        released.set()
        with trio.fail_after(ANSWER_SECONDS):
            while joined.error_code or not assigned_partitions(joined):
                await trio.sleep(0.05)
                joined = await beat(other, "b", joined.member_epoch, topics=["t"])
        assert await ShareMember(other, topic, "b", group="g").acquire() == [(0, 1, 1)]


async def test_failed_state_initialization_is_retried(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create_topic(wire, "t", 2)
    await find(wire)
    persister = broker.node.share.persister
    initialize = persister.initialize
    failures: list[int] = []

    async def fail_twice(rows: Any) -> Any:
        responses = await initialize(rows)
        if len(failures) < 2:
            failures.append(len(rows))
            for row in responses.values():
                row.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return responses

    monkeypatch.setattr(persister, "initialize", fail_twice)
    await join_and_wait(wire, partitions=2)
    assert failures == [2, 2]
    logged = [
        each.getMessage()
        for each in caplog.records
        if "could not be initialized" in each.getMessage()
    ]
    assert (
        len([each for each in logged if "share group g: 2 share-partition states" in each]) == 1
    ), logged


async def test_large_share_assignment_is_computed_in_background(wire: Wire) -> None:
    await create_topic(wire, "t", 2_500)
    await set_config(wire, ResourceType.GROUP, "g", "share.assignment.interval.ms", "0")
    await find(wire)
    await join_and_wait(wire, partitions=2_500)
    assert len(await start_offsets(wire)) == 2_500


async def test_assignment_interval_delays_assignment_of_new_member() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 2)
        await find(wire)
        name = "group.share.assignment.interval.ms"
        assert await set_config(wire, ResourceType.BROKER, "1", name, "15000") == 0
        await join_and_wait(wire, partitions=2)
        await beat(wire, "b", 0)
        row = await describe(wire)
        assert row.assignment_epoch < row.group_epoch
        assert await set_config(wire, ResourceType.BROKER, "1", name, "0") == 0
        await join_and_wait(wire, "b", partitions=1)
