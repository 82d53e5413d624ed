"""Coordinators of three nodes: each runs on the leader of its partition and moves with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.broker.local_node import LocalNode
from kbroker.cluster import NO_LEADER, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ResourceType
from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import request_class
from kbroker.protocol.share_state_log import SharePartitionKey

from ..handlers import test_share_groups as share_groups
from ..handlers.test_consumer_groups import (
    assigned_partitions,
    beat,
    describe,
    owned_partitions,
    set_config,
)
from ..handlers.test_groups import Member, committed
from ..handlers.test_groups_coordinators import GROUP, TRANSACTION, find
from ..handlers.test_streams_groups import (
    active_tasks,
    describe_streams,
    remove_delays,
    streams_beat,
    tasks,
)
from ..replication.routed import Routed, all_in_sync, coordinator, routed, started_with_coordinators
from ..wire import (
    ANSWER_SECONDS,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    produce,
    request,
    until,
)

GROUPS = [f"group {number}" for number in range(12)]
ENDS = ["stop", "crash"]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started_with_coordinators(group_min_session_timeout_ms=500) as broker:
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Routed]:
    async with routed(broker) as wire:
        yield wire


async def end(node: LocalNode, how: str) -> None:
    """End a node by "stop" or "crash"."""
    await (node.stop() if how == "stop" else node.crash())


async def test_internal_topics_have_replicas_on_all_nodes(broker: Broker) -> None:
    topics = broker.running().cluster.topics
    for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        assert {len(each.replicas) for each in topics[name].partitions} == {3}
        assert {each.leader for each in topics[name].partitions} == {1, 2, 3}
    assert topics[TRANSACTIONS_TOPIC].configs["min.insync.replicas"] == "2"


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
async def test_every_node_returns_same_coordinators(broker: Broker, kind: int) -> None:
    named: list[list[tuple[int, str, int]]] = []
    for local in broker.nodes:
        async with connected(local.endpoint) as wire:
            rows = await find(wire, 4, *GROUPS, kind=kind)
            assert [row.error_code for row in rows] == [0] * len(GROUPS)
            named.append([(row.node_id, row.host, row.port) for row in rows])
    assert named[0] == named[1] == named[2]
    assert {node_id for node_id, _, _ in named[0]} == {1, 2, 3}
    for node_id, host, port in named[0]:
        assert (host, port) == broker.local_node(node_id).endpoint


async def test_other_nodes_reject_requests_for_coordinator(broker: Broker) -> None:
    owner = await coordinator(broker, "groups", "g")
    for local in broker.nodes:
        async with connected(local.endpoint) as wire:
            member = Member(wire)
            code = (await member.join()).error_code
            assert code == (0 if local.id == owner else ErrorCode.NOT_COORDINATOR)


async def test_each_node_lists_its_own_groups(broker: Broker, wire: Routed) -> None:
    await create_topic(wire, "t")
    for number, group in enumerate(GROUPS):
        await commit(wire, group, number)
    listed: dict[str, int] = {}
    for local in broker.nodes:
        async with connected(local.endpoint) as own:
            response = await own.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
            listed |= {row.group_id: local.id for row in response.groups}
    assert listed == {group: await coordinator(broker, "groups", group) for group in GROUPS}


async def commit(wire: Wire, group: str, offset: int) -> None:
    assert await Member(wire, group).commit("t", offset) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
async def test_committed_offsets_move_with_their_coordinator(
    broker: Broker, wire: Routed, how: str
) -> None:
    """The coordinator moves repeatedly, and returns to a node that had it before."""
    await create_topic(wire, "t")
    for number, group in enumerate(GROUPS):
        await commit(wire, group, number)
    for local in (*broker.nodes, broker.nodes[0]):
        await end(local, how)
        for number, group in enumerate(GROUPS):
            assert await retry_committed_offset(wire, group) == number
            await retry_commit(wire, group, number)
        await local.start()
        await all_in_sync(broker)
        assert [await retry_committed_offset(wire, group) for group in GROUPS] == list(
            range(len(GROUPS))
        )


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
async def test_share_states_move_with_their_coordinator(
    broker: Broker, wire: Routed, how: str
) -> None:
    topic = await create_topic(wire, "t", 4)
    await broker.running().share.states.create_topic()
    await all_in_sync(broker)
    states = [SharePartitionKey("queue", topic.id, index) for index in range(4)]
    for number, share in enumerate(states):
        await ask_for_state(broker, ApiKey.INITIALIZE_SHARE_GROUP_STATE, share, start_offset=number)
    for local in broker.nodes:
        await end(local, how)
        for number, share in enumerate(states):
            key = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
            assert (await ask_for_state(broker, key, share)).start_offset == number
            key = ApiKey.WRITE_SHARE_GROUP_STATE
            await ask_for_state(broker, key, share, start_offset=-1, delivery_complete_count=1)
        await local.start()
        await all_in_sync(broker)


async def ask_for_state(
    broker: Broker, key: ApiKey, share: SharePartitionKey, **fields: Any
) -> Any:
    """Return the response row of a share partition, with retries as brokers do."""
    cls: Any = request_class(key)
    topic = cls.Topic(
        topic_id=share.topic_id, partitions=[cls.Partition(partition=share.partition, **fields)]
    )
    message = request(key, group_id=share.group_id, topics=[topic])
    version = load_apis()[key].versions[-1]
    with trio.fail_after(ANSWER_SECONDS):
        while True:
            node_id = await coordinator(broker, "share.states", share.name)
            async with connected(broker.local_node(node_id).endpoint) as wire:
                (row,) = (await wire.ask(key, version, message)).results[0].partitions
            if not row.error_code:
                return row
            assert ErrorCode(row.error_code).retriable, row
            await trio.sleep(0.01)


RETRIED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


async def retry_committed_offset(wire: Routed, group: str) -> int:
    """Return the committed offset of a group, with retries as clients do."""
    rows = [request(ApiKey.OFFSET_FETCH).Topic(name="t", partition_indexes=[0])]
    ask = request(ApiKey.OFFSET_FETCH, group_id=group, topics=rows)
    with trio.fail_after(ANSWER_SECONDS):
        while True:
            response = await wire.ask(ApiKey.OFFSET_FETCH, 5, ask)
            if response.error_code not in RETRIED:
                assert not response.error_code
                return int(response.topics[0].partitions[0].committed_offset)
            await trio.sleep(0.01)


async def retry_commit(wire: Routed, group: str, offset: int) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        while code := await Member(wire, group).commit("t", offset):
            assert ErrorCode(code).retriable, code
            await trio.sleep(0.01)


@pytest.mark.parametrize("how", ENDS)
async def test_member_continues_after_coordinator_moved(
    broker: Broker, wire: Routed, how: str
) -> None:
    """The generation is unchanged, so no member has to rejoin."""
    await create_topic(wire, "t")
    member = Member(wire)
    await member.enter()
    generation = member.generation
    first = await coordinator(broker, "groups", "g")
    await end(broker.local_node(first), how)
    with trio.fail_after(ANSWER_SECONDS):
        while code := await member.heartbeat():
            assert code in RETRIED
            await trio.sleep(0.01)
    assert await coordinator(broker, "groups", "g") != first
    assert await member.commit("t", 7) == 0
    assert await committed(wire, "t") == 7
    assert member.generation == generation


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
async def test_consumer_group_members_continue_after_coordinator_moved(
    broker: Broker, wire: Routed, how: str
) -> None:
    """Epochs and assignments are unchanged in each state of a group (KIP-848)."""
    topic = await create_topic(wire, "t", 4)
    name = "consumer.assignment.interval.ms"
    for group in ("stable", "reconciling"):
        assert await set_config(wire, ResourceType.GROUP, group, name, "0") == 0
    for group in ("stable", "reconciling", "assigning"):
        assert assigned_partitions(await beat(wire, "a", 0, group=group)) == [0, 1, 2, 3]
    for group in ("reconciling", "assigning"):
        assert assigned_partitions(await beat(wire, "b", 0, group=group)) == []
    assert assigned_partitions(await beat(wire, "a", 2, group="reconciling")) == [0, 1]
    for group, state in (("stable", "Stable"), ("reconciling", "Reconciling")):
        first = await coordinator(broker, "groups", group)
        (before,) = await described(wire, group)
        assert before.group_state == state
        await end(broker.local_node(first), how)
        assert await described(wire, group) == [before]
        await broker.local_node(first).start()
        await all_in_sync(broker)
    owned = owned_partitions(topic.id, 0, 1)
    response = await beat(wire, "a", 2, group="reconciling", topic_partitions=owned)
    assert response.member_epoch == 3
    assert assigned_partitions(await beat(wire, "b", 3, group="reconciling")) == [2, 3]
    await trio.sleep(1)
    assert (await beat(wire, "a", 2, group="assigning")).member_epoch == 2
    assert (await described(wire, "assigning"))[0].group_state == "Reconciling"


@pytest.mark.parametrize("how", ENDS)
async def test_streams_group_members_continue_after_coordinator_moved(
    broker: Broker, wire: Routed, how: str
) -> None:
    """Epochs, tasks and topology are unchanged; tasks that may have been missed are resent."""
    await create_topic(wire, "t", 4)
    for group in ("stable", "moving"):
        await remove_delays(wire, group)
        assert tasks(await streams_beat(wire, "a", 0, group=group)) == {"0": [0, 1, 2, 3]}
    assert tasks(await streams_beat(wire, "b", 0, group="moving")) == {}
    assert tasks(await streams_beat(wire, "a", 2, group="moving")) == {"0": [0, 1]}
    for group, state in (("stable", "Stable"), ("moving", "Reconciling")):
        first = await coordinator(broker, "groups", group)
        (before,) = await described(wire, group, describe_streams)
        assert before.group_state == state
        await end(broker.local_node(first), how)
        assert await described(wire, group, describe_streams) == [before]
        await broker.local_node(first).start()
        await all_in_sync(broker)
    response = await streams_beat(wire, "a", 2, group="moving", **active_tasks(0, 1))
    assert response.member_epoch == 3
    assert tasks(await streams_beat(wire, "b", 3, group="moving")) == {"0": [2, 3]}
    assert tasks(await streams_beat(wire, "a", 2, group="stable")) == {"0": [0, 1, 2, 3]}


@pytest.mark.parametrize("how", ENDS)
async def test_share_group_members_continue_after_coordinator_moved(
    broker: Broker, wire: Routed, how: str
) -> None:
    """Epochs and assignments are unchanged; pending state initializations are repeated."""
    await create_topic(wire, "t", 4)
    await set_config(wire, ResourceType.GROUP, "g", "share.assignment.interval.ms", "0")
    await share_groups.join_and_wait(wire, partitions=4)
    await all_in_sync(broker)
    before = await shared(wire, "g")
    first = await coordinator(broker, "groups", "g")
    await end(broker.local_node(first), how)
    assert await shared(wire, "g") == before
    await broker.local_node(first).start()
    await all_in_sync(broker)
    response = await share_groups.beat(wire, "a", before.members[0].member_epoch)
    assert (response.error_code, assigned_partitions(response)) == (0, None)
    await create_topic(wire, "u", 4)
    response = await share_groups.beat(wire, "a", response.member_epoch, topics=["t", "u"])
    assert not response.error_code, "the states of the other topic are now pending"
    await end(broker.local_node(await coordinator(broker, "groups", "g")), how)
    await shared(wire, "g")
    with trio.fail_after(ANSWER_SECONDS):
        while len(assigned_partitions(response) or ()) != 8:
            await trio.sleep(0.01)
            next_beat = await share_groups.beat(wire, "a", response.member_epoch, topics=["t", "u"])
            if next_beat.error_code not in RETRIED:
                response = next_beat
    row = await shared(wire, "g")
    assert [len(each.partitions) for each in row.members[0].assignment.topic_partitions] == [4, 4]


async def test_share_group_lag_includes_partitions_led_by_other_nodes(
    broker: Broker, wire: Routed
) -> None:
    topic = await create_topic(wire, "t", 4)
    for index in range(4):
        row = await produce(wire, topic, batch([b"x", b"y"]), partition=index)
        assert not row.error_code
    response = await share_groups.alter(wire, dict.fromkeys(range(4), 1))
    assert not response.error_code, response
    leaders = {each.leader for each in broker.running().cluster.topics["t"].partitions}
    assert len(leaders) > 1
    behind = await share_groups.start_offsets(wire)
    assert behind == {("t", index): (1, 1) for index in range(4)}


async def shared(wire: Routed, group: str) -> Any:
    """Describe a share group with retries, as clients do while its coordinator moves."""
    with trio.fail_after(ANSWER_SECONDS):
        while True:
            row = await share_groups.describe(wire, group)
            if row.error_code not in RETRIED:
                return row
            await trio.sleep(0.01)


async def described(
    wire: Routed, group: str, ask: Callable[..., Awaitable[list[Any]]] = describe
) -> list[Any]:
    """Describe a group with retries, as clients do while its coordinator moves."""
    with trio.fail_after(ANSWER_SECONDS):
        while True:
            rows = await ask(wire, group)
            if rows[0].error_code not in RETRIED:
                return rows
            await trio.sleep(0.01)


async def test_pending_join_fails_if_coordinator_moves(broker: Broker, wire: Routed) -> None:
    """The node of the coordinator stops while a member waits for others to join."""
    members = [Member(wire, rebalance_timeout_ms=60_000), Member(wire)]
    await members[0].enter()
    owner = broker.local_node(await coordinator(broker, "groups", "g"))
    responses: list[Any] = []
    async with connected(owner.endpoint) as pending, trio.open_nursery() as nursery:
        members[1].wire = pending

        async def join() -> None:
            responses.append(await members[1].join())

        nursery.start_soon(join)
        shard = owner.node.groups.shard("g")
        await until(lambda: shard.coordinator.describe_group("g", 5).group_state != "Stable")
        await owner.stop()
    assert [response.error_code for response in responses] == [ErrorCode.NOT_COORDINATOR]


async def test_coordinators_delete_offsets_of_topic_deleted_while_node_was_down(
    broker: Broker, wire: Routed
) -> None:
    """Coordinators that another node had taken over delete the offsets too."""
    for name in ("t", "other"):
        await create_topic(wire, name)
    for group in GROUPS:
        for name in ("t", "other"):
            assert await Member(wire, group).commit(name, 5) == 0
    await broker.nodes[2].crash()
    await delete_topic(wire, "t")
    await broker.nodes[2].start()
    await all_in_sync(broker)
    for group in GROUPS:
        await until(lambda group=group: has_only_other(broker, group))  # type: ignore[misc]


def has_only_other(broker: Broker, group: str) -> bool:
    """Return True if the group's coordinator has only offsets of the other topic."""
    owner = broker.running().groups.coordinator_id(group)
    if owner == NO_LEADER:
        return False
    try:
        shard = broker.local_node(owner).node.groups.shard(group)
    except KafkaError:
        return False  # the coordinator is moving
    return set(shard.coordinator.committed(group)) == {("other", 0)}
