"""Operations that change cluster state, and what clients observe."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.cluster import ResourceType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.testing import RunningBroker, WaitTimeout

from ..coordinator.harness import subtopology, topology
from ..handlers import test_share_groups as share_groups
from ..handlers.test_consumer_groups import beat, find, set_config
from ..handlers.test_groups import Member, committed
from ..handlers.test_streams_groups import remove_delays, streams_beat, tasks
from ..wire import (
    EARLIEST,
    Topic,
    Wire,
    batch,
    connected,
    fetch,
    fetch_request,
    list_offset,
    metadata,
    produce,
    request,
    sequenced,
)

ORDERS = Topic("orders")


# -- groups


async def test_expire_member_ends_session_at_once(broker: RunningBroker, wire: Wire) -> None:
    member = Member(wire)
    await member.enter()
    assert await broker.expire_member("g", member.id) == [member.id]
    assert await member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    member.id = ""
    await member.enter()
    assert await member.heartbeat() == 0
    assert await broker.expire_member("g", "test") == [member.id], "expired by its client ID"


async def test_expire_member_of_share_group_ends_session_at_once(
    broker: RunningBroker, wire: Wire
) -> None:
    await find(wire)
    await share_groups.beat(wire, "a", 0, topics=["orders"])
    epoch = (await share_groups.beat(wire, "b", 0, topics=["orders"])).member_epoch
    assert (await broker.wait_for_group("g", members=2)).type == "Share"
    with pytest.raises(ValueError, match=r"group 'g' has no member 'x' \(valid: a, b\)"):
        await broker.expire_member("g", "x")
    assert await broker.expire_member("g", "a") == ["a"]
    answer = await share_groups.beat(wire, "a", 2)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "member a missed heartbeats" in await broker.report()
    await broker.move_coordinator("g")
    answer = await share_groups.beat(wire, "b", epoch)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    await find(wire)
    assert not (await share_groups.beat(wire, "b", epoch)).error_code


async def test_share_group_becomes_idle(broker: RunningBroker, wire: Wire) -> None:
    await find(wire)
    await set_config(wire, ResourceType.GROUP, "g", "share.assignment.interval.ms", "0")
    await share_groups.alter(wire, {0: 0, 1: 0}, topic="orders")
    await broker.produce("orders", b"x", partition=0)
    await broker.wait_until_idle("g", timeout=5)
    answer = await share_groups.beat(wire, "a", 0, topics=["orders"])
    assert await broker.lag("g") == 1
    await broker.wait_for_assignment("g", {"orders": [0, 1]})
    with pytest.raises(WaitTimeout, match="g: has completed 0 of 1 in orders-0"):
        await broker.wait_until_idle("g", timeout=0.05)
    await share_groups.beat(wire, "a", -1)
    await share_groups.alter(wire, {0: 1}, topic="orders")
    await share_groups.beat(wire, "a", 0, topics=["orders"])
    await broker.wait_for_lag("g")
    await broker.wait_until_idle("g", timeout=5)
    assert not answer.error_code


async def test_expire_member_rebalances_other_members(broker: RunningBroker, wire: Wire) -> None:
    async with connected(broker.broker.endpoint) as second_wire:
        first, second = Member(wire), Member(second_wire, group_instance_id="twin")
        await first.enter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.enter)
            await broker.wait_for_request(ApiKey.JOIN_GROUP, None, 3, 5)
            await first.enter()
        assert await broker.expire_member("g", "twin") == [second.id]
        assert await first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert "missed heartbeats" in await broker.report()


@pytest.mark.parametrize("group", ["g", "none"])
async def test_expire_unknown_member_is_rejected(
    broker: RunningBroker, wire: Wire, group: str
) -> None:
    member = Member(wire)
    await member.enter()
    has = member.id if group == "g" else "none"
    with pytest.raises(ValueError, match=rf"group '{group}' has no member 'x' \(valid: {has}\)"):
        await broker.expire_member(group, "x")


async def test_expire_member_works_for_consumer_and_streams_protocol(
    broker: RunningBroker, wire: Wire
) -> None:
    """Consumer groups (KIP-848) and streams groups (KIP-1071), and their waiters."""
    for group in ("consumers", "streams"):
        await find(wire, group)
    await remove_delays(wire, "streams")
    orders = topology(subtopology("0", "orders"))
    await beat(wire, "c", 0, group="consumers", subscribed_topic_names=["orders"])
    await streams_beat(wire, "s", 0, group="streams", topology=orders)
    await broker.wait_until_idle("streams")
    await produce(wire, ORDERS, batch([b"x"]))
    with pytest.raises(WaitTimeout, match="has committed None of 1 in orders-0"):
        await broker.wait_until_idle("streams", timeout=0.1)
    answer = await streams_beat(wire, "t", 0, group="streams", topology=orders)
    with pytest.raises(WaitTimeout, match="is Reconciling"):
        await broker.wait_until_idle("streams", timeout=0.1)
    assert await broker.expire_member("consumers", "c") == ["c"]
    assert await broker.expire_member("streams", "s") == ["s"]
    answer = await streams_beat(wire, "t", answer.member_epoch, group="streams")
    assert tasks(answer) == {"0": [0, 1]}
    assert "member s missed heartbeats" in await broker.report()


async def test_operation_on_unknown_group_is_rejected(broker: RunningBroker) -> None:
    with pytest.raises(ValueError, match="there is no group 'g'"):
        await broker.expire_member("g", "x")
    with pytest.raises(ValueError, match=r"there is no group 'g' \(valid: none\)"):
        await broker.move_coordinator("g")


async def test_move_coordinator_reloads_group_from_log(broker: RunningBroker, wire: Wire) -> None:
    member = Member(wire)
    await member.enter()
    assert await member.commit("orders", 7) == 0
    await broker.move_coordinator("g")
    assert await member.heartbeat() == ErrorCode.NOT_COORDINATOR
    assert await member.commit("orders", 8) == ErrorCode.NOT_COORDINATOR
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
    assert await member.heartbeat() == 0, "the group was reloaded from the log"
    assert await committed(wire, "orders") == 7
    assert await member.commit("orders", 8) == 0


async def test_waiting_member_is_notified_of_moved_coordinator(
    broker: RunningBroker, wire: Wire
) -> None:
    async with connected(broker.broker.endpoint) as second_wire:
        await Member(wire).enter()
        waiting = Member(second_wire)
        error_codes = []

        async def join() -> None:
            error_codes.append((await waiting.join()).error_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await broker.wait_for_request(ApiKey.JOIN_GROUP, None, 4, 5)
            await wait_all_tasks_blocked()
            await broker.move_coordinator("g")
        assert error_codes == [ErrorCode.NOT_COORDINATOR]


# -- partitions


async def test_move_leader_makes_client_refresh_metadata(broker: RunningBroker, wire: Wire) -> None:
    (before,) = (await metadata(wire, ["orders"])).topics
    await broker.move_leader("orders", 0)
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await produce(wire, ORDERS, batch())).error_code == moved
    assert (await fetch(wire, ORDERS)).error_code == moved
    assert (await list_offset(wire, ORDERS, EARLIEST)).error_code == moved
    assert (await produce(wire, ORDERS, batch(), partition=1)).error_code == 0
    (after,) = (await metadata(wire, ["orders"])).topics
    epochs = {row.partition_index: row.leader_epoch for row in before.partitions}
    assert {row.partition_index: row.leader_epoch for row in after.partitions} == {
        0: epochs[0] + 1,
        1: epochs[1],
    }
    assert (await produce(wire, ORDERS, batch())).error_code == 0
    fenced = await fetch(wire, ORDERS, current_leader_epoch=epochs[0])
    assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_move_leader_without_partition_moves_all_leaders(
    broker: RunningBroker, wire: Wire
) -> None:
    await broker.move_leader("orders")
    for partition in (0, 1):
        row = await produce(wire, ORDERS, batch(), partition=partition)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError, match="there is no partition orders-7"):
        await broker.move_leader("orders", 7)
    with pytest.raises(KafkaError, match="there is no partition other-0"):
        await broker.move_leader("other")


async def test_waiting_fetch_is_notified_of_moved_leader(broker: RunningBroker, wire: Wire) -> None:
    (topic,) = (await metadata(wire, ["orders"])).topics
    epoch = next(row.leader_epoch for row in topic.partitions if not row.partition_index)
    sent_request = fetch_request(ORDERS, max_wait_ms=10_000, current_leader_epoch=epoch)
    await wire.send(ApiKey.FETCH, 12, sent_request)
    await broker.wait_for_request(ApiKey.FETCH, None, 1, 5)
    await wait_all_tasks_blocked()
    await broker.move_leader("orders")
    (answer,) = (await wire.receive()).responses
    assert answer.partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("read", [0, 2, 3])
async def test_offset_out_of_range_invalidates_all_positions(
    broker: RunningBroker, wire: Wire, read: int
) -> None:
    for _ in range(3):
        await produce(wire, ORDERS, batch())
    start = await broker.offset_out_of_range("orders", 0)
    assert start == 4
    assert (await fetch(wire, ORDERS, read)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await list_offset(wire, ORDERS, EARLIEST)).offset == start
    assert (await produce(wire, ORDERS, batch())).base_offset == start
    assert (await fetch(wire, ORDERS, start)).error_code == 0
    assert len(await broker.records("orders")) == 1


async def test_waiting_fetch_is_notified_of_invalid_position(
    broker: RunningBroker, wire: Wire
) -> None:
    await wire.send(ApiKey.FETCH, 12, fetch_request(ORDERS, max_wait_ms=10_000))
    await broker.wait_for_request(ApiKey.FETCH, None, 1, 5)
    await wait_all_tasks_blocked()
    await broker.offset_out_of_range("orders")
    (answer,) = (await wire.receive()).responses
    assert answer.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- producers


async def test_fence_producer_rejects_old_epoch(broker: RunningBroker, wire: Wire) -> None:
    async def write(producer_id: int, sequence: int, epoch: int = 0) -> int:
        data = sequenced(producer_id, sequence, epoch=epoch)
        return int((await produce(wire, ORDERS, data)).error_code)

    with pytest.raises(ValueError, match=r"\(valid: none\)"):
        await broker.fence_producer()
    assert [await write(7, 0), await write(8, 0)] == [0, 0]
    with pytest.raises(ValueError, match=r"no producer 9 has written records \(valid: 7, 8\)"):
        await broker.fence_producer(9)
    assert await broker.fence_producer(7) == [7]
    assert [await write(7, 1), await write(8, 1)] == [ErrorCode.INVALID_PRODUCER_EPOCH, 0]
    assert await write(7, 0, epoch=1) == 0
    assert await broker.fence_producer() == [7, 8]
    assert await write(8, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
