"""Tests of streams groups (KIP-1071) on the wire: internal topics, settings and restarts.

tests/coordinator tests the decisions of the coordinator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from kbroker.protocol.messages.topics import CreatePartitionsRequest
from kbroker.testing.clock import MovableClock

from ..brokers import started
from ..coordinator.harness import subtopology, topology
from ..wire import ANSWER_SECONDS, Wire, connected, create_topic, request
from .test_consumer_groups import find, set_config

TOPOLOGY = topology(
    subtopology("0", "t", sinks=["between"]),
    subtopology("1", repartition={"between": 0}, changelogs=["log"]),
)


async def streams_beat(
    wire: Wire, member: str, epoch: int, *, group: str = "g", **fields: Any
) -> Any:
    """Send a heartbeat; a join (epoch 0) has a topology that reads "t" by default."""
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 60_000,
            "process_id": member,
            "topology": topology(subtopology("0", "t")),
            **active_tasks(),
            **fields,
        }
    cls = StreamsGroupHeartbeatRequest
    ask = cls(group_id=group, member_id=member, member_epoch=epoch, **fields)
    return await wire.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, ask)


def active_tasks(*partitions: int) -> dict[str, Any]:
    """Return the fields of a member with only these active tasks of subtopology 0."""
    row = StreamsGroupHeartbeatRequest.TaskIds(subtopology_id="0", partitions=list(partitions))
    return {"active_tasks": [row] if partitions else [], "standby_tasks": [], "warmup_tasks": []}


def tasks(response: Any) -> dict[str, list[int]] | None:
    """Return the assigned active tasks, or None if the response has no assignment."""
    assert not response.error_code, response
    if response.active_tasks is None:
        return None
    return {row.subtopology_id: row.partitions for row in response.active_tasks}


def statuses(response: Any) -> dict[int, str]:
    return {each.status_code: each.status_detail for each in response.status}


async def describe_streams(wire: Wire, *groups: str) -> list[Any]:
    ask = request(ApiKey.STREAMS_GROUP_DESCRIBE, group_ids=list(groups or ("g",)))
    return list((await wire.ask(ApiKey.STREAMS_GROUP_DESCRIBE, 0, ask)).groups)


async def remove_delays(wire: Wire, group: str = "g") -> None:
    """Set all delays of a streams group to 0."""
    await find(wire, group)
    for name in ("initial.rebalance.delay", "assignment.interval"):
        setting = f"streams.{name}.ms"
        assert await set_config(wire, ResourceType.GROUP, group, setting, "0") == 0


async def test_streams_group_is_joined_described_left_and_deleted(wire: Wire) -> None:
    await create_topic(wire, "t", 4)
    await remove_delays(wire)
    assert tasks(await streams_beat(wire, "a", 0)) == {"0": [0, 1, 2, 3]}
    assert tasks(await streams_beat(wire, "b", 0)) == {}
    (row,) = await describe_streams(wire)
    assert (row.group_state, len(row.members)) == ("Reconciling", 2)
    (listed,) = (await wire.ask(ApiKey.LIST_GROUPS, 5, request(ApiKey.LIST_GROUPS))).groups
    assert (listed.group_type, listed.protocol_type) == ("streams", "streams")
    assert (await streams_beat(wire, "a", -1)).member_epoch == -1
    assert (await streams_beat(wire, "b", -1)).member_epoch == -1
    ask = request(ApiKey.DELETE_GROUPS, groups_names=["g"])
    assert not (await wire.ask(ApiKey.DELETE_GROUPS, 2, ask)).results[0].error_code
    (row,) = await describe_streams(wire)
    assert row.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_internal_topics_are_created(wire: Wire, broker: Broker) -> None:
    await create_topic(wire, "t", 3)
    await remove_delays(wire)
    response = await streams_beat(wire, "a", 0, topology=TOPOLOGY)
    assert statuses(response) == {3: "Internal topics are missing: between, log"}
    topics = broker.node.cluster.topics
    assert {name: len(topics[name].partitions) for name in ("between", "log")} == {
        "between": 3,
        "log": 3,
    }
    response = await streams_beat(wire, "a", 2)
    assert (statuses(response), tasks(response)) == ({}, {"0": [0, 1, 2], "1": [0, 1, 2]})


async def test_failed_creation_of_internal_topic_is_reported(wire: Wire) -> None:
    await create_topic(wire, "t", 3)
    await remove_delays(wire)
    part = subtopology("0", "t", changelogs=["log"])
    part.state_changelog_topics[0].replication_factor = 9
    response = await streams_beat(wire, "a", 0, topology=topology(part))
    assert "; Creation failed: log (" in statuses(response)[3]
    wrong = topology(subtopology("0", "__consumer_offsets"))
    response = await streams_beat(wire, "a", 0, topology=wrong)
    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    response = await streams_beat(wire, "a", 0, topology=topology(subtopology("0", "a/b")))
    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY


async def test_size_of_topology_is_checked_before_its_topics(wire: Wire) -> None:
    parts = [subtopology(str(number), "__consumer_offsets") for number in range(2_001)]
    response = await streams_beat(wire, "a", 0, topology=topology(*parts))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "at most 2000 topics" in response.error_message


async def test_new_partitions_add_tasks(wire: Wire) -> None:
    await create_topic(wire, "t", 1)
    await remove_delays(wire)
    assert tasks(await streams_beat(wire, "a", 0)) == {"0": [0]}
    cls = CreatePartitionsRequest
    ask = cls(topics=[cls.Topic(name="t", count=3, assignments=None)], timeout_ms=10_000)
    await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)
    assert tasks(await streams_beat(wire, "a", 2)) == {"0": [0, 1, 2]}


async def test_streams_group_survives_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 4)
        await remove_delays(wire)
        await streams_beat(wire, "a", 0)
        await streams_beat(wire, "b", 0)
        before = await describe_streams(wire)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await describe_streams(wire) == before
        response = await streams_beat(wire, "a", 2, **active_tasks(0, 1, 2, 3))
        assert (response.member_epoch, tasks(response)) == (2, {"0": [0, 1]})
        assert (await streams_beat(wire, "a", 2, **active_tasks(0, 1))).member_epoch == 3
        assert tasks(await streams_beat(wire, "b", 3)) == {"0": [2, 3]}


async def test_topology_description_survives_restart(tmp_path: Path) -> None:
    key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    node = TopologyDescriptionNode(name="source", node_type=1, source_topics=["t"])
    part = TopologyDescriptionSubtopology(subtopology_id="0", nodes=[node])
    sent = TopologyDescription(subtopologies=[part])
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 4)
        await remove_delays(wire)
        await streams_beat(wire, "a", 0)
        ask = request(key, group_id="g", member_id="a", topology_description=sent)
        assert not (await wire.ask(key, 0, ask)).error_code
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        describe = ApiKey.STREAMS_GROUP_DESCRIBE
        ask = request(describe, group_ids=["g"], include_topology_description=True)
        (row,) = (await wire.ask(describe, 1, ask)).groups
        assert (row.topology_description, row.assignor_name) == (sent, "sticky")
        ask = request(describe, group_ids=["g"])
        (row,) = (await wire.ask(describe, 1, ask)).groups
        assert (row.topology_description, row.topology_description_status) == (None, 0)


async def test_changed_streams_group_settings_take_effect_at_once() -> None:
    clock = MovableClock()
    clock.coordinator.freeze()
    async with started(None, clock) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 2)
        await find(wire)
        assert 5 in statuses(await streams_beat(wire, "a", 0)), (
            "the initial rebalance delay applies"
        )
        clock.coordinator.add(3_000)
        broker.node.groups.deadlines.clock_moved()
        assert tasks(await streams_beat(wire, "a", 1)) == {"0": [0, 1]}
        name = "streams.heartbeat.interval.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "7000") == 0
        assert (await streams_beat(wire, "a", 2)).heartbeat_interval_ms == 7_000
        name = "streams.num.standby.replicas"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "1") == 0
        name = "streams.session.timeout.ms"
        assert await set_config(wire, ResourceType.GROUP, "g", name, "50000") == 0
        settings = broker.node.groups.streams_settings("g")
        assert (settings.standby_replicas, settings.session_timeout_ms) == (1, 50_000)
        await streams_beat(wire, "a", 2)
        clock.coordinator.add(49_000)
        broker.node.groups.deadlines.clock_moved()
        assert len((await describe_streams(wire))[0].members) == 1
        clock.coordinator.add(1_000)
        broker.node.groups.deadlines.clock_moved()
        assert (await describe_streams(wire))[0].group_state == "Empty"


async def test_assignment_interval_delays_streams_assignment(wire: Wire) -> None:
    await create_topic(wire, "t", 2)
    await find(wire)
    name = "streams.initial.rebalance.delay.ms"
    assert await set_config(wire, ResourceType.GROUP, "g", name, "0") == 0
    await streams_beat(wire, "a", 0)
    response = await streams_beat(wire, "b", 0)
    assert (response.member_epoch, 5 in statuses(response)) == (2, True)
    name = "group.streams.assignment.interval.ms"
    assert await set_config(wire, ResourceType.BROKER, "1", name, "0") == 0
    response = await streams_beat(wire, "b", 2)
    assert (response.member_epoch, statuses(response)) == (3, {})


async def test_streams_requests_are_rejected_if_feature_is_disabled(wire: Wire) -> None:
    cls = UpdateFeaturesRequest
    row = cls.Feature(feature="streams.version", max_version_level=0, upgrade_type=2)
    response = await wire.ask(ApiKey.UPDATE_FEATURES, 1, cls(feature_updates=[row]))
    assert not response.error_code, response
    await find(wire)
    response = await streams_beat(wire, "a", 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "streams.version=1" in response.error_message
    assert (await describe_streams(wire))[0].error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_large_streams_assignment_is_computed_in_background(
    wire: Wire, broker: Broker
) -> None:
    await create_topic(wire, "t", 2_500)
    await remove_delays(wire)
    assert tasks(await streams_beat(wire, "a", 0)) == {}
    found: dict[str, list[int]] = {}
    with trio.fail_after(ANSWER_SECONDS):
        while not found:
            found = tasks(await streams_beat(wire, "a", 1)) or {}
    assert len(found["0"]) == 2_500
    assert broker.node.context.error_log.unhandled_errors == 0
