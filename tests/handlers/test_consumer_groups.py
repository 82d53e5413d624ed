"""Tests of KIP-848 consumer groups on the wire: settings, restarts and limits.

tests/coordinator tests the decisions of the coordinator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.topics import CreatePartitionsRequest
from kbroker.testing.clock import MovableClock

from ..brokers import started
from ..wire import Wire, connected, create_topic, delete_topic, request


async def find(wire: Wire, group: str = "g") -> None:
    ask = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[group])
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, ask)


async def beat(
    wire: Wire, member: str, epoch: int, *, group: str = "g", version: int = 1, **fields: Any
) -> Any:
    """Send a heartbeat; a join (epoch 0) subscribes to "t" by default."""
    cls = ConsumerGroupHeartbeatRequest
    if epoch == 0:
        fields = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 60_000} | fields
        fields["topic_partitions"] = []
    ask = cls(group_id=group, member_id=member, member_epoch=epoch, **fields)
    return await wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, ask)


def owned_partitions(topic_id: UUID, *partitions: int) -> list[Any]:
    return [ConsumerGroupHeartbeatRequest.Topic(topic_id=topic_id, partitions=list(partitions))]


def assigned_partitions(response: Any) -> list[int] | None:
    """Return the assigned partitions of one topic, or None if the response has no assignment."""
    assert not response.error_code, response
    if response.assignment is None:
        return None
    return [index for row in response.assignment.topic_partitions for index in row.partitions]


async def describe(wire: Wire, *groups: str, version: int = 1) -> list[Any]:
    ask = request(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=list(groups or ("g",)))
    response = await wire.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, ask)
    return list(response.groups)


async def set_config(wire: Wire, kind: int, resource: str, name: str, value: str) -> int:
    cls = IncrementalAlterConfigsRequest
    row = cls.Config(name=name, config_operation=0, value=value)
    ask = cls(resources=[cls.Resource(resource_type=kind, resource_name=resource, configs=[row])])
    response = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)
    return int(response.responses[0].error_code)


async def test_group_is_joined_described_left_and_deleted(wire: Wire) -> None:
    topic = await create_topic(wire, "t", 4)
    await find(wire)
    assert assigned_partitions(await beat(wire, "a", 0)) == [0, 1, 2, 3]
    assert assigned_partitions(await beat(wire, "b", 0)) == []
    (row,) = await describe(wire)
    assert row.group_state == "Assigning", "a second must pass between target assignments"
    (listed,) = (await wire.ask(ApiKey.LIST_GROUPS, 5, request(ApiKey.LIST_GROUPS))).groups
    assert (listed.group_type, listed.protocol_type) == ("consumer", "consumer")
    assert row.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert row.members[0].assignment.topic_partitions[0].topic_id == topic.id
    assert (await beat(wire, "a", -1)).member_epoch == -1
    assert (await beat(wire, "b", -1)).member_epoch == -1
    ask = request(ApiKey.DELETE_GROUPS, groups_names=["g"])
    assert not (await wire.ask(ApiKey.DELETE_GROUPS, 2, ask)).results[0].error_code
    (row,) = await describe(wire)
    assert row.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_group_survives_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 4)
        await find(wire)
        await beat(wire, "a", 0, instance_id="i")
        await beat(wire, "r", 0, group="patterns", subscribed_topic_regex="t.*")
        before = await describe(wire, "g", "patterns")
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await describe(wire, "g", "patterns") == before
        response = await beat(
            wire, "a", 2, instance_id="i", topic_partitions=owned_partitions(topic.id, 0, 1, 2, 3)
        )
        assert (response.member_epoch, assigned_partitions(response)) == (2, None)


async def test_assignment_follows_created_grown_and_deleted_topics(wire: Wire) -> None:
    await set_config(wire, ResourceType.GROUP, "g", "consumer.assignment.interval.ms", "0")
    await find(wire)
    assert assigned_partitions(await beat(wire, "a", 0)) == []
    await create_topic(wire, "t", 2)
    response = await beat(wire, "a", 2)
    assert assigned_partitions(response) == [0, 1]
    cls = CreatePartitionsRequest
    ask = cls(topics=[cls.Topic(name="t", count=3, assignments=None)], timeout_ms=10_000)
    await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)
    assert assigned_partitions(await beat(wire, "a", 3)) == [0, 1, 2]
    await delete_topic(wire, "t")
    response = await beat(wire, "a", 4, topic_partitions=[])
    assert (response.member_epoch, assigned_partitions(response)) == (5, [])


async def test_changed_group_and_broker_settings_take_effect_at_once() -> None:
    clock = MovableClock()
    clock.coordinator.freeze()
    async with started(None, clock) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 2)
        await find(wire)
        assert (await beat(wire, "a", 0)).heartbeat_interval_ms == 5_000
        name = "consumer.heartbeat.interval.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "7000") == 0
        assert (await beat(wire, "a", 2)).heartbeat_interval_ms == 7_000
        name = "group.consumer.assignment.interval.ms"
        assert await set_config(wire, ResourceType.BROKER, "1", name, "0") == 0
        assert assigned_partitions(await beat(wire, "b", 0)) == []
        (row,) = await describe(wire)
        assert (row.group_state, row.assignment_epoch) == ("Reconciling", 3)
        name = "consumer.session.timeout.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "50000") == 0
        await beat(wire, "a", 2)
        clock.coordinator.add(49_000)
        broker.node.groups.deadlines.clock_moved()
        (row,) = await describe(wire)
        assert [member.member_id for member in row.members] == ["a"]
        clock.coordinator.add(1_000)
        broker.node.groups.deadlines.clock_moved()
        (row,) = await describe(wire)
        assert row.group_state == "Empty"


async def test_broker_limits_cap_stored_group_settings(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        name = "consumer.session.timeout.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "60000") == 0
        assert broker.node.groups.consumer_settings("g").session_timeout_ms == 60_000
    options = {"group_consumer_max_session_timeout_ms": 50_000}
    async with started(tmp_path, **options) as broker:
        settings = broker.node.groups.consumer_settings("g")
        assert settings.session_timeout_ms == 50_000
        assert settings.assignors == ("uniform", "range")


async def test_heartbeat_is_rejected_if_group_feature_is_disabled(wire: Wire) -> None:
    cls = UpdateFeaturesRequest
    row = cls.Feature(feature="group.version", max_version_level=0, upgrade_type=2)
    response = await wire.ask(ApiKey.UPDATE_FEATURES, 1, cls(feature_updates=[row]))
    assert not response.error_code, response
    await find(wire)
    response = await beat(wire, "a", 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.version=1" in response.error_message
    assert (await describe(wire))[0].error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_large_assignment_is_computed_in_background(wire: Wire, broker: Broker) -> None:
    await create_topic(wire, "t", 2_500)
    await find(wire)
    response = await beat(wire, "a", 0)
    assert (response.member_epoch, assigned_partitions(response)) == (1, [])
    with trio.fail_after(30):
        while response.member_epoch == 1:
            await trio.sleep(0.01)
            response = await beat(wire, "a", 1)
    assert (response.member_epoch, len(assigned_partitions(response) or ())) == (2, 2_500)
    assert broker.node.context.error_log.unhandled_errors == 0


async def test_empty_group_switches_protocol_with_new_members(wire: Wire) -> None:
    await create_topic(wire, "t", 1)
    await find(wire)
    await beat(wire, "a", 0)
    await beat(wire, "a", -1)
    ask = request(
        ApiKey.JOIN_GROUP, group_id="g", session_timeout_ms=10_000, protocol_type="consumer"
    )
    ask.protocols = [type(ask).Protocol(name="range", metadata=b"")]
    response = await wire.ask(ApiKey.JOIN_GROUP, 1, ask)
    assert not response.error_code
    assert (await describe(wire))[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    leave = request(ApiKey.LEAVE_GROUP, group_id="g", member_id=response.member_id)
    await wire.ask(ApiKey.LEAVE_GROUP, 1, leave)
    assert assigned_partitions(await beat(wire, "a", 0)) == [0]
