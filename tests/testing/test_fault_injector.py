"""Schedules and effects of faults, as seen in the bytes of a connection."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
import trio

from kbroker.net.connection import Connection
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import DescribeConfigsRequest
from kbroker.protocol.messages.groups import DescribeGroupsRequest, ListGroupsResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.records import HEADER_SIZE
from kbroker.testing import RunningBroker, UnfiredFault, WaitTimeout
from kbroker.testing.fault import Fault

from ..brokers import started
from ..handlers.test_groups import Member
from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    delete_topic,
    fetch,
    fetch_request,
    metadata,
    produce,
    produce_request,
    request,
)

HIT = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
ORDERS = Topic("orders")
DELAY_MS = 80


async def count_records(broker: RunningBroker) -> int:
    return len(await broker.records("orders"))


async def list_groups_errors(wire: Wire, count: int) -> list[int]:
    """Send a number of ListGroups requests, and return their error codes."""
    return [
        (await wire.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))).error_code
        for _ in range(count)
    ]


# -- schedules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "hit"),
    [
        (lambda fault: fault, [1]),
        (lambda fault: fault.once(), [1]),
        (lambda fault: fault.times(3), [1, 2, 3]),
        (lambda fault: fault.on_call(3), [3]),
        (lambda fault: fault.on_call(2).times(2), [2, 3]),
        (lambda fault: fault.always(), [1, 2, 3, 4, 5, 6]),
        (lambda fault: fault.on_call(4).always(), [4, 5, 6]),
    ],
)
async def test_fault_hits_requests_of_its_schedule(
    broker: RunningBroker, wire: Wire, schedule: Any, hit: list[int]
) -> None:
    fault = schedule(broker.fault("ListGroups", error=HIT))
    assert await list_groups_errors(wire, 6) == [HIT if call in hit else 0 for call in range(1, 7)]
    assert fault.hits == len(hit)
    await fault.wait(len(hit))
    with pytest.raises(WaitTimeout, match=f"hit {len(hit)} requests"):
        await fault.wait(len(hit) + 1, timeout=0.01)


async def test_probability_repeats_with_same_seed(broker: RunningBroker, wire: Wire) -> None:
    chance = random.Random(5)
    expected = [HIT if chance.random() < 0.4 else 0 for _ in range(20)]
    broker.fault("ListGroups", error=HIT).with_probability(0.4, seed=5)
    assert await list_groups_errors(wire, 20) == expected
    assert set(expected) == {HIT, 0}


async def test_until_hits_each_client_until_its_request(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("ListGroups", error=HIT).until("Metadata")
    assert await list_groups_errors(wire, 2) == [HIT, HIT]
    await metadata(wire, ["orders"])
    assert await list_groups_errors(wire, 2) == [0, 0]


async def test_unfired_fault_names_similar_requests(broker: RunningBroker, wire: Wire) -> None:
    fault = broker.fault("Produce", error=HIT, topic="order")
    await produce(wire, ORDERS, batch())
    with pytest.raises(UnfiredFault, match=r"never fired: saw 1 x Produce 9, topic 'orders'"):
        broker.check_faults()
    fault.optional()
    broker.check_faults()


async def test_disarmed_fault_hits_nothing(broker: RunningBroker, wire: Wire) -> None:
    fault = broker.fault("ListGroups", error=HIT).always()
    assert await list_groups_errors(wire, 1) == [HIT]
    fault.disarm()
    assert await list_groups_errors(wire, 1) == [0]
    assert fault.hits == 1


# -- effects, before and after the request is handled


@pytest.mark.parametrize(("at", "written"), [("before", 0), ("after", 1)])
async def test_error_before_or_after_work_is_returned(
    broker: RunningBroker, wire: Wire, at: str, written: int
) -> None:
    broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", at=at)
    assert (await produce(wire, ORDERS, batch())).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await count_records(broker) == written
    assert (await produce(wire, ORDERS, batch())).error_code == 0


@pytest.mark.parametrize(("at", "written"), [("before", 0), ("after", 1)])
async def test_disconnect_closes_connection(
    broker: RunningBroker, wire: Wire, at: str, written: int
) -> None:
    broker.fault("Produce", at=at).disconnect()
    with pytest.raises(ConnectionClosed, match="after 0 of 4"):
        await produce(wire, ORDERS, batch())
    assert await count_records(broker) == written


async def test_disconnect_after_write_with_acks_0_closes_connection(
    broker: RunningBroker, wire: Wire
) -> None:
    broker.fault("Produce", at="after").disconnect()
    sent_request = produce_request(ORDERS, batch(), acks=0)
    await wire.send(ApiKey.PRODUCE, 9, sent_request, answered=False)
    assert await wire.wait_closed() == b""
    assert await count_records(broker) == 1


@pytest.mark.parametrize("at", ["before", "after"])
async def test_delay_keeps_order_of_responses(broker: RunningBroker, wire: Wire, at: str) -> None:
    fault = broker.fault("Produce", at=at).delay(DELAY_MS)
    began = trio.current_time()
    for value in (b"0", b"1", b"2"):
        await wire.send(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch([value])))
    offsets = [
        (await wire.receive()).responses[0].partition_responses[0].base_offset for _ in range(3)
    ]
    assert trio.current_time() - began >= DELAY_MS / 1000
    assert offsets == [0, 1, 2]
    assert [record.text for record in await broker.records("orders")] == ["0", "1", "2"]
    assert fault.hits == 1


async def test_throttle_sets_throttle_time(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("Produce").throttle(250)
    throttle_times = []
    for _ in range(2):
        answer = await wire.ask(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch()))
        throttle_times.append(answer.throttle_time_ms)
    assert throttle_times == [250, 0]
    assert await count_records(broker) == 2


@pytest.mark.parametrize(("at", "written"), [("before", 0), ("after", 1)])
async def test_blackhole_sends_no_response(
    broker: RunningBroker, wire: Wire, at: str, written: int
) -> None:
    broker.fault("Produce", at=at).blackhole()
    await wire.send(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch()))
    assert await wire.is_silent()
    assert await count_records(broker) == written
    async with connected(broker.broker.endpoint) as other:
        assert await other.works()


async def test_truncate_response_sends_half_a_frame(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("Produce").truncate_response()
    await wire.send(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch()))
    data = await wire.wait_closed()
    (size,) = struct.unpack_from(">i", data)
    assert len(data) == (4 + size) // 2
    assert await count_records(broker) == 1


async def test_requests_after_truncated_response_are_dropped(
    broker: RunningBroker, wire: Wire
) -> None:
    broker.fault("Produce").truncate_response()
    data = wire.frame(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch()))
    find = request(ApiKey.FIND_COORDINATOR, key="g")
    await wire.send_bytes(data + wire.frame(ApiKey.FIND_COORDINATOR, 0, find))
    assert len(await wire.wait_closed()) < 50


@pytest.mark.parametrize("effect", ["delay", "throttle"])
async def test_member_that_disconnects_during_changed_response_is_removed(
    broker: RunningBroker, wire: Wire, effect: str
) -> None:
    """A member that disconnects before it gets its response must not stay in the group."""
    await Member(wire).enter()
    fault = broker.fault("JoinGroup", at="after", versions=3)
    getattr(fault, effect)(10)
    async with connected(broker.broker.endpoint) as other, trio.open_nursery() as nursery:
        nursery.start_soon(Member(other, version=3).join)
        await fault.wait()
        group = await broker.group("g")
        assert group is not None
        assert len(group.members) == 2
        nursery.cancel_scope.cancel()

    async def observe() -> tuple[bool, object]:
        group = await broker.group("g")
        return group is not None and len(group.members) == 1, group

    await broker.wait_until(observe, "one member", 30)


async def test_duplicate_response_sends_two_responses(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("Produce").duplicate_response()
    await wire.send(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch()))
    assert await wire.receive_frame() == await wire.receive_frame()
    assert await wire.is_silent(0.05)
    assert await count_records(broker) == 1


@pytest.mark.parametrize("at", ["before", "after"])
async def test_corrupt_batch_hits_produced_batch(
    broker: RunningBroker, wire: Wire, at: str
) -> None:
    """`at` makes no difference, because a batch must be corrupted before it is written."""
    fault = broker.fault("Produce", topic="orders", partition=1, at=at).corrupt_batch(bit=3)
    assert (await produce(wire, ORDERS, batch())).error_code == 0
    assert (await produce(wire, ORDERS, None, partition=1)).error_code != 0
    assert fault.hits == 0
    row = await produce(wire, ORDERS, batch(), partition=1)
    assert row.error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await produce(wire, ORDERS, batch(), partition=1)).error_code == 0
    assert fault.hits == 1


@pytest.mark.parametrize("bit", [0, 13, 100_003])
async def test_corrupt_batch_hits_fetched_batch(
    broker: RunningBroker, wire: Wire, bit: int
) -> None:
    fault = broker.fault("Fetch", topic="orders").corrupt_batch(bit=bit)
    assert (await fetch(wire, ORDERS)).records == b""
    assert fault.hits == 0, "a response without records does not count"
    await produce(wire, ORDERS, batch())
    broken, whole = [bytes((await fetch(wire, ORDERS)).records) for _ in range(2)]
    (position,) = [at for at in range(len(whole)) if whole[at] != broken[at]]
    assert position == HEADER_SIZE + bit // 8 % (len(whole) - HEADER_SIZE)
    assert broken[position] ^ whole[position] == 1 << bit % 8
    assert fault.hits == 1


async def test_corrupt_batch_hits_fetch_only_with_records(
    broker: RunningBroker, wire: Wire
) -> None:
    fault = broker.fault("Fetch").corrupt_batch()
    await wire.send(ApiKey.FETCH, 12, fetch_request(ORDERS, max_wait_ms=10_000))
    await broker.wait_for_request(ApiKey.FETCH, None, 1, 5)
    assert fault.hits == 0
    await broker.produce("orders", "x", partition=0)
    await wire.receive()
    await fault.wait()


async def test_server_without_test_kit_has_no_fault_injector() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        assert [type(each) for each in broker.server.connections] == [Connection]


async def test_error_in_shared_response_affects_one_client(
    broker: RunningBroker, wire: Wire
) -> None:
    broker.fault("Metadata", error=HIT, at="after").on_call(2)
    answers = [await metadata(wire) for _ in range(3)]
    list_groups_errors = [
        [row.error_code for row in answer.topics[0].partitions] for answer in answers
    ]
    assert list_groups_errors == [[0, 0], [HIT, HIT], [0, 0]]


# -- criteria


async def test_fault_matches_several_apis_and_partitions(broker: RunningBroker, wire: Wire) -> None:
    broker.fault(["Produce", "Fetch"], error=HIT, partition=[1, 7]).times(2)
    assert (await produce(wire, ORDERS, batch())).error_code == 0
    assert (await produce(wire, ORDERS, batch(), partition=1)).error_code == HIT
    sent_request = fetch_request(ORDERS, partitions=(0, 1))
    (topic,) = (await wire.ask(ApiKey.FETCH, 12, sent_request)).responses
    assert {row.partition_index: row.error_code for row in topic.partitions} == {0: 0, 1: HIT}


async def test_fault_matches_topic_by_unknown_id(broker: RunningBroker, wire: Wire) -> None:
    (row,) = (await metadata(wire, ["orders"], 12)).topics
    await delete_topic(wire, "orders")
    fault = broker.fault("Fetch", error="UNKNOWN_TOPIC_ID", topic=str(row.topic_id))
    found = await fetch(wire, Topic("", row.topic_id), version=13)
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fault.hits == 1


async def test_error_serves_rows_of_other_groups_and_resources(
    broker: RunningBroker, wire: Wire
) -> None:
    broker.fault("DescribeGroups", error=HIT, group="mine")
    sent_request = DescribeGroupsRequest(groups=["mine", "other"])
    answer = await wire.ask(ApiKey.DESCRIBE_GROUPS, 5, sent_request)
    found = {row.group_id: row.error_code == HIT for row in answer.groups}
    assert found == {"mine": True, "other": False}

    resources = [
        DescribeConfigsRequest.Resource(resource_type=2, resource_name=name)
        for name in ("orders", "absent")
    ]
    broker.fault("DescribeConfigs", error=HIT, resource="orders")
    answer = await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=resources))
    assert {row.resource_name: row.error_code for row in answer.results} == {
        "orders": HIT,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("at", ["before", "after"])
async def test_top_level_error_is_not_in_rows(broker: RunningBroker, wire: Wire, at: str) -> None:
    broker.fault("Fetch", error="FETCH_SESSION_ID_NOT_FOUND", top_level=True, at=at)
    answer = await wire.ask(ApiKey.FETCH, 12, fetch_request(ORDERS))
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not any(row.error_code for topic in answer.responses for row in topic.partitions)


# -- hooks


async def test_hook_gets_requests_and_responses(broker: RunningBroker, wire: Wire) -> None:
    seen: list[Any] = []

    @broker.on("Produce", topic="orders")
    def observe_request(message: ProduceRequest, info: Any) -> None:
        seen.append((type(message), info.partitions))

    @broker.on("Produce", at="after")
    def observe_response(message: ProduceResponse, info: Any) -> None:
        seen.append((type(message), info.partitions))

    assert (await produce(wire, ORDERS, batch(), partition=1)).error_code == 0
    assert seen == [(ProduceRequest, {"orders": {1}}), (ProduceResponse, {"orders": {1}})]


async def test_request_that_hook_passes_on_can_be_hit_by_next_fault(
    broker: RunningBroker, wire: Wire
) -> None:
    first = broker.fault("ListGroups").hook(lambda message, info: None).always()
    second = broker.fault("ListGroups", error=HIT).on_call(2)
    assert await list_groups_errors(wire, 3) == [0, HIT, 0]
    assert (first.hits, second.hits) == (3, 1)


async def test_fault_without_effect_only_counts(broker: RunningBroker, wire: Wire) -> None:
    count = broker.fault("ListGroups").times(2)
    broker.fault("ListGroups", error=HIT)
    assert await list_groups_errors(wire, 3) == [HIT, 0, 0]
    assert count.hits == 2


async def test_hits_before_effect_was_set_do_not_count(broker: RunningBroker, wire: Wire) -> None:
    fault = broker.fault("ListGroups")
    assert await list_groups_errors(wire, 1) == [0]
    fault.throttle(5)
    assert fault.hits == 0
    with pytest.raises(UnfiredFault):
        broker.check_faults()
    assert await list_groups_errors(wire, 1) == [0]
    assert fault.hits == 1


async def test_when_function_selects_requests(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("Produce", error=HIT, when=lambda request: request.timeout_ms == 7)
    assert (await produce(wire, ORDERS, batch())).error_code == 0
    assert (await produce(wire, ORDERS, batch(), timeout_ms=7)).error_code == HIT
    assert all(info.request is None for info in broker.faults.log), "the log does not keep requests"


async def test_exception_of_when_function_fails_test(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("ListGroups", error=HIT, when=lambda request: bool(request.missing)).optional()
    assert await list_groups_errors(wire, 1) == [0]
    with pytest.raises(AttributeError, match="missing"):
        broker.check_faults()
    broker.disarm_faults()


async def test_response_of_hook_is_sent(broker: RunningBroker, wire: Wire) -> None:
    answer = ListGroupsResponse(error_code=HIT)
    fault = broker.fault("ListGroups").hook(lambda message, info: answer).on_call(2)
    assert await list_groups_errors(wire, 3) == [0, HIT, 0]
    assert fault.hits == 1


async def test_slow_hook_keeps_order_of_responses(broker: RunningBroker, wire: Wire) -> None:
    may_continue = trio.Event()

    async def wait_in_hook(message: Any, info: Any) -> None:
        await may_continue.wait()

    fault: Fault[Any] = broker.fault("Produce").hook(wait_in_hook)
    for value in (b"0", b"1"):
        await wire.send(ApiKey.PRODUCE, 9, produce_request(ORDERS, batch([value])))
    await fault.wait()
    assert await wire.is_silent(0.05)
    may_continue.set()
    await wire.receive()
    await wire.receive()
    assert [record.text for record in await broker.records("orders")] == ["0", "1"]


async def test_earlier_request_is_answered_while_hook_runs(
    broker: RunningBroker, wire: Wire
) -> None:
    may_continue = trio.Event()

    @broker.on("ListGroups")
    async def wait_in_hook(message: Any, info: Any) -> None:
        await may_continue.wait()

    find = wire.frame(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
    await wire.send_bytes(find + wire.frame(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS)))
    assert (await wire.receive()).error_code == 0
    assert await wire.is_silent(0.02)
    may_continue.set()
    assert (await wire.receive()).error_code == 0


async def test_hook_can_change_response(broker: RunningBroker, wire: Wire) -> None:
    @broker.on("ListGroups", at="after")
    async def change_response(message: Any, info: Any) -> Any:
        message.error_code = HIT
        return message

    assert await list_groups_errors(wire, 2) == [HIT, HIT]


@pytest.mark.parametrize("at", ["before", "after"])
async def test_hook_can_close_connection(broker: RunningBroker, wire: Wire, at: str) -> None:
    @broker.on("ListGroups", at=at)
    def close(message: Any, info: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionClosed):
        await list_groups_errors(wire, 1)
    broker.check_faults()


@pytest.mark.parametrize("at", ["before", "after"])
async def test_exception_of_hook_fails_test(broker: RunningBroker, wire: Wire, at: str) -> None:
    @broker.on("ListGroups", at=at)
    def raise_error(message: Any, info: Any) -> None:
        raise KeyError("missing")

    with pytest.raises(ConnectionClosed):
        await list_groups_errors(wire, 1)
    assert "a hook raised KeyError('missing')" in await broker.report()
    with pytest.raises(KeyError, match="missing"):
        broker.check_faults()
    broker.disarm_faults()


async def test_hook_with_wrong_result_type_fails_test(broker: RunningBroker, wire: Wire) -> None:
    broker.fault("ListGroups").hook(lambda message, info: "yes")
    with pytest.raises(ConnectionClosed):
        await list_groups_errors(wire, 1)
    with pytest.raises(TypeError, match="None or a ListGroupsResponse, not 'yes'"):
        broker.check_faults()
    broker.disarm_faults()
