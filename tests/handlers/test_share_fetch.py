"""Tests of ShareFetch and ShareAcknowledge by members of share groups (KIP-932)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.cluster import ResourceType
from kbroker.config import BrokerConfig
from kbroker.handlers import share_fetch
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_state import (
    ReadShareGroupStateRequest,
    WriteShareGroupStateRequest,
)
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.protocol.records import Record, encode_batch
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.testing.clock import MovableClock

from ..brokers import LOOPBACK, started
from ..sharing import (
    ACCEPT,
    FETCH,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    initialize,
    row_of,
    shared_topic,
    wait_until_stored,
)
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    produce,
    request,
    until,
    values_of,
)
from .test_consumer_groups import set_config

WRONG_STATE, INVALID = ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST
NOT_FOUND, WRONG_EPOCH = (
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)


async def topic_with_records(
    broker: Broker, wire: Wire, batches: int = 1, records: int = 10
) -> Topic:
    """Create a topic with records that are available to the share group."""
    topic = await shared_topic(broker, wire)
    for _ in range(batches):
        await produce(wire, topic, batch([b"%d" % number for number in range(records)]))
    return topic


# -- records


async def test_records_are_acquired_by_one_member() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await topic_with_records(broker, wire)
        first, second = ShareMember(wire, topic), ShareMember(other, topic, "b")
        response = await first.fetch()
        row = row_of(response)
        assert values_of(row) == [b"%d" % number for number in range(10)]
        assert [
            (r.first_offset, r.last_offset, r.delivery_count) for r in row.acquired_records
        ] == [(0, 9, 1)]
        assert response.acquisition_lock_timeout_ms == 30_000
        assert await second.acquire(max_wait_ms=0) == []
        assert not (await first.acknowledge_partition((0, 4, ACCEPT), (5, 9, RELEASE))).error_code
        assert await second.acquire() == [(5, 9, 2)]


async def test_acknowledgements_survive_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire, 2)
        member = ShareMember(wire, topic)
        assert await member.acquire() == [(0, 19, 1)]
        row = await member.acknowledge_partition(
            (0, 2, [ACCEPT, REJECT, GAP]), (3, 9, ACCEPT), (12, 12, ACCEPT)
        )
        assert not row.error_code
        row = await member.acknowledge_partition((11, 11, RELEASE))
        assert not row.error_code
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        member = ShareMember(wire, topic)
        assert await member.acquire() == [(10, 10, 1), (11, 11, 2), (13, 19, 1)]


@pytest.mark.parametrize("version", [1, 2])
async def test_only_batches_with_acquired_records_are_sent(version: int) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire, 4)
        member = ShareMember(wire, topic, version=version)
        row = row_of(await member.fetch(max_records=15))
        assert len(values_of(row)) == 20
        assert [(r.first_offset, r.last_offset) for r in row.acquired_records] == [(0, 19)]


async def test_strict_acquire_mode_limits_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        member = ShareMember(wire, topic)
        row = row_of(await member.fetch(max_records=3, share_acquire_mode=1))
        assert len(values_of(row)) == 10, "the whole batch is sent"
        assert [(r.first_offset, r.last_offset) for r in row.acquired_records] == [(0, 2)]


async def test_fetch_waits_for_append() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await shared_topic(broker, wire)
        member = ShareMember(wire, topic)
        await member.begin()
        await member.send_fetch()
        (share_partition,) = broker.node.share.partitions
        await until(lambda: share_partition.waits)
        await produce(other, topic, batch())
        assert len(row_of(await wire.receive()).acquired_records) == 1
        assert not share_partition.waits


async def test_fetch_waits_for_released_records() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await topic_with_records(broker, wire)
        first, second = ShareMember(wire, topic), ShareMember(other, topic, "b")
        await first.acquire()
        await second.begin()
        await second.send_fetch()
        (share_partition,) = broker.node.share.partitions
        await until(lambda: share_partition.waits)
        await first.acknowledge_partition((2, 3, RELEASE))
        (range_,) = row_of(await other.receive()).acquired_records
        assert (range_.first_offset, range_.last_offset) == (2, 3)


# Number of members with a pending fetch of the same partition.
WAITING_MEMBERS = 50


@asynccontextmanager
async def waiting_members(
    broker: Broker, topic: Topic, **fields: Any
) -> AsyncIterator[list[ShareMember]]:
    async with AsyncExitStack() as stack:
        members = []
        for number in range(WAITING_MEMBERS):
            other = await stack.enter_async_context(connected(broker.endpoint))
            members.append(ShareMember(other, topic, f"member-{number}"))
            await members[-1].begin()
            await members[-1].send_fetch((), **fields)
        (share_partition,) = broker.node.share.partitions
        await until(lambda: len(share_partition.waits) == WAITING_MEMBERS)
        yield members


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by an item for each read of a fetch."""
    calls: list[None] = []
    real = vars(share_fetch)["_ShareFetchOperation"]._read_all

    async def read_all(self: Any, *arguments: Any) -> Any:
        calls.append(None)
        return await real(self, *arguments)

    monkeypatch.setattr(vars(share_fetch)["_ShareFetchOperation"], "_read_all", read_all)
    return calls


async def test_append_wakes_one_waiting_member(reads: list[None]) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        async with waiting_members(broker, topic) as members:
            reads.clear()
            for member in members[:5]:  # in the order of arrival
                await produce(wire, topic, batch())
                assert len(row_of(await member.wire.receive()).acquired_records) == 1
            assert len(reads) == 5


async def test_remaining_records_wake_next_member(reads: list[None]) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        async with waiting_members(broker, topic, max_records=2, share_acquire_mode=1) as members:
            reads.clear()
            await produce(wire, topic, batch([b"a"] * 6))
            for number in range(3):
                (acquired,) = row_of(await members[number].wire.receive()).acquired_records
                assert (acquired.first_offset, acquired.last_offset) == (
                    2 * number,
                    2 * number + 1,
                )
            assert len(reads) == 3
            members[0].epoch = 2
            await members[0].acknowledge_partition((0, 1, RELEASE))
            (acquired,) = row_of(await members[3].wire.receive()).acquired_records
            assert (acquired.first_offset, acquired.delivery_count) == (0, 2)
            assert len(reads) == 4


async def test_fetch_with_high_min_bytes_does_not_block_other_members() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as first,
        connected(broker.endpoint) as second,
    ):
        topic = await shared_topic(broker, wire)
        high_minimum, low_minimum = ShareMember(first, topic), ShareMember(second, topic, "b")
        await high_minimum.begin()
        await low_minimum.begin()
        await high_minimum.send_fetch((), min_bytes=100_000)
        (share_partition,) = broker.node.share.partitions
        await until(lambda: len(share_partition.waits) == 1)
        await low_minimum.send_fetch(())
        await until(lambda: len(share_partition.waits) == 2)
        await produce(wire, topic, batch())
        assert len(row_of(await second.receive()).acquired_records) == 1
        assert len(share_partition.waits) == 1


async def test_disconnected_members_pass_records_to_next_member() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        async with waiting_members(broker, topic) as members:
            for member in members[:-1]:
                await member.wire.stream.aclose()
            await produce(wire, topic, batch())
            row = row_of(await members[-1].wire.receive())
            assert len(row.acquired_records) == 1


async def test_end_of_transaction_wakes_one_waiting_member(reads: list[None]) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        await set_config(wire, ResourceType.GROUP, GROUP, "share.isolation.level", "read_committed")
        async with waiting_members(broker, topic) as members:
            reads.clear()
            producer = await write_transaction(wire, topic, "first", broker.node.clock.log_ms())
            assert not reads
            await end_transaction(wire, "first", producer, commit=True)
            assert row_of(await members[0].wire.receive()).acquired_records
            assert len(reads) == 1


async def test_acquisition_locks_expire() -> None:
    clock = MovableClock()
    clock.coordinator.freeze()
    async with (
        open_broker(
            BrokerConfig.load(), data_dir=None, listeners=[LOOPBACK], clock=clock
        ) as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await topic_with_records(broker, wire)
        first, second = ShareMember(wire, topic), ShareMember(other, topic, "b")
        await first.acquire()
        clock.coordinator.add(20_000)
        row = await first.acknowledge_partition((0, 4, RENEW), is_renew_ack=True)
        assert not row.error_code
        await second.begin()
        await second.send_fetch()
        clock.coordinator.add(15_000)
        broker.node.share.partitions.clock_moved()
        (range_,) = row_of(await other.receive()).acquired_records
        assert (range_.first_offset, range_.last_offset, range_.delivery_count) == (5, 9, 2)
        assert (await first.acknowledge_partition((5, 9, ACCEPT))).error_code == WRONG_STATE
        assert not (await first.acknowledge_partition((0, 4, ACCEPT))).error_code


async def test_partitions_are_fetched_round_robin() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire, 3)
        for index in range(3):
            await produce(wire, topic, batch([b"x"] * 10), partition=index)
        member = ShareMember(wire, topic)
        await member.begin(0, 1, 2)
        order = []
        for _ in range(3):
            response = await member.fetch((), max_records=10)
            order += [
                row.partition_index
                for each in response.responses
                for row in each.partitions
                if row.acquired_records
            ]
        assert sorted(order) == [0, 1, 2]


async def test_fetch_starts_at_advanced_log_start() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire, 3)
        row = DeleteRecordsRequest.Partition(partition_index=0, offset=15)
        delete_records = DeleteRecordsRequest(
            topics=[DeleteRecordsRequest.Topic(name=topic.name, partitions=[row])], timeout_ms=5000
        )
        member = ShareMember(wire, topic)
        await member.begin()
        await wire.ask(ApiKey.DELETE_RECORDS, 2, delete_records)
        assert await member.acquire(()) == [(15, 29, 1)]


async def write_transaction(wire: Wire, topic: Topic, name: str, now_ms: int) -> Any:
    """Write four records in a transaction; return the response to InitProducerId."""
    coordinator = request(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=[name])
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, coordinator)
    begin = request(ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
    begin.producer_id = begin.producer_epoch = -1
    producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, begin)
    data = encode_batch(
        [Record(b"k", b"v", now_ms)] * 4,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    ask: Any = request(ApiKey.PRODUCE, transactional_id=name, acks=-1, timeout_ms=5000)
    row = type(ask).Partition(index=0, records=data)
    ask.topic_data = [type(ask).Topic(name=topic.name, partition_data=[row])]
    response = await wire.ask(ApiKey.PRODUCE, 12, ask)
    assert not response.responses[0].partition_responses[0].error_code
    return producer


async def end_transaction(wire: Wire, name: str, producer: Any, *, commit: bool) -> None:
    ask = request(ApiKey.END_TXN, transactional_id=name, committed=commit)
    ask.producer_id, ask.producer_epoch = producer.producer_id, producer.producer_epoch
    assert not (await wire.ask(ApiKey.END_TXN, 5, ask)).error_code


async def test_read_committed_group_gets_only_committed_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        await set_config(wire, ResourceType.GROUP, GROUP, "share.isolation.level", "read_committed")
        member = ShareMember(wire, topic)
        await member.begin()
        now_ms = broker.node.clock.log_ms()
        first = await write_transaction(wire, topic, "first", now_ms)
        assert await member.fetch((), max_wait_ms=0)
        second = await write_transaction(wire, topic, "second", now_ms)
        await end_transaction(wire, "first", first, commit=False)
        await end_transaction(wire, "second", second, commit=True)
        assert await member.acquire(()) == [(4, 9, 1)]
        assert not (await member.acknowledge_partition((4, 9, ACCEPT))).error_code
        (share_partition,) = broker.node.share.partitions
        assert share_partition.delivery is not None
        assert share_partition.delivery.start_offset == 10


@pytest.mark.parametrize(
    ("reset", "offset"),
    [
        ("earliest", 0),
        ("latest", 2),
        ("by_duration:PT1H", 1),
        ("by_duration:P1DT1H1M1.5S", 0),
        (f"by_duration:P{'9' * 400}D", 0),
    ],
)
async def test_auto_offset_reset_sets_start_offset(reset: str, offset: int) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire, start=-1)
        await set_config(wire, ResourceType.GROUP, GROUP, "share.auto.offset.reset", reset)
        now_ms = broker.node.clock.log_ms()
        for at_ms in (now_ms - 2 * 3_600_000, now_ms):
            await produce(wire, topic, batch([Record(None, b"x", at_ms)]))
        member = ShareMember(wire, topic)
        await member.begin()
        await until(
            lambda: all(
                share_partition.delivery for share_partition in broker.node.share.partitions
            )
        )
        (share_partition,) = broker.node.share.partitions
        assert share_partition.delivery is not None
        assert share_partition.delivery.start_offset == offset


async def test_reset_by_duration_without_newer_record_fails() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire, start=-1)
        await set_config(
            wire, ResourceType.GROUP, GROUP, "share.auto.offset.reset", "by_duration:PT1S"
        )
        row = await ShareMember(wire, topic).fetch_error_row()
        assert row.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


# -- sessions


async def test_share_session_epochs_are_checked() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire, 2)
        member = ShareMember(wire, topic)
        for epoch in (1, -1, -2):
            assert (await member.fetch(share_session_epoch=epoch)).error_code == NOT_FOUND
            response = await member.acknowledge({}, share_session_epoch=epoch)
            assert response.error_code == NOT_FOUND
        assert (await member.acknowledge({})).error_code == WRONG_EPOCH
        await member.begin()
        for epoch in (2, -2):
            assert (await member.fetch(share_session_epoch=epoch)).error_code == WRONG_EPOCH
            response = await member.acknowledge({}, share_session_epoch=epoch)
            assert response.error_code == WRONG_EPOCH
        assert not (await member.fetch((1,), max_wait_ms=0)).error_code
        assert not (await member.acknowledge({0: []})).error_code
        assert not (await member.close()).error_code
        assert (await member.close()).error_code == NOT_FOUND


async def test_first_fetch_with_acknowledgements_is_rejected() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        response = await ShareMember(wire, topic).fetch((0,), {0: [(0, 0, ACCEPT)]})
        assert response.error_code == INVALID


async def test_session_partitions_can_be_added_and_forgotten() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire, 2)
        for index in range(2):
            await produce(wire, topic, batch(), partition=index)
        member = ShareMember(wire, topic)
        await member.begin(0)
        response = await member.fetch((1,), forget=(0,))
        assert row_of(response, 1).acquired_records
        assert len(response.responses[0].partitions) == 1


async def test_closed_connection_ends_session_and_releases_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        async with connected(broker.endpoint) as leaver:
            assert await ShareMember(leaver, topic).acquire() == [(0, 9, 1)]
            assert len(broker.node.share.sessions) == 1
        await until(lambda: not len(broker.node.share.sessions))
        assert await ShareMember(wire, topic, "b").acquire() == [(0, 9, 2)]


async def test_share_partition_is_unloaded_after_last_connection() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        async with connected(broker.endpoint) as leaver:
            member = ShareMember(leaver, topic)
            await member.acquire()
            await member.close()
            assert len(broker.node.share.partitions) == 1
        await until(lambda: not len(broker.node.share.partitions))


async def test_closing_session_releases_records() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await topic_with_records(broker, wire)
        first, second = ShareMember(wire, topic), ShareMember(other, topic, "b")
        await first.acquire()
        message = first.fetch_request((), {0: [(0, 2, ACCEPT)]}, share_session_epoch=-1)
        row = row_of(await wire.ask(FETCH, 2, message))
        assert (row.error_code, row.acknowledge_error_code) == (0, 0)
        assert await second.acquire() == [(3, 9, 2)]
        await second.acknowledge({0: [(3, 3, ACCEPT)]}, share_session_epoch=-1)
        first.epoch = 0
        assert await first.acquire() == [(4, 9, 3)]


async def test_number_of_sessions_is_bounded() -> None:
    async with (
        started(group_share_max_share_sessions=1, group_share_max_size=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await shared_topic(broker, wire)
        first, second = ShareMember(wire, topic), ShareMember(wire, topic, "b")
        await first.begin()
        response = await second.fetch(max_wait_ms=1)
        assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        first.epoch = 0
        await first.begin()
        await first.close()
        await second.begin()


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": None},
        {"member_id": None},
        {"member_id": ""},
        {"member_id": "x" * 37},
        {"is_renew_ack": True, "max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 1},
        {"is_renew_ack": True},
    ],
)
async def test_invalid_request_fields_are_rejected(fields: dict[str, Any]) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        member = ShareMember(wire, topic)
        response = await member.fetch(**fields)
        assert (response.error_code, response.responses) == (INVALID, [])
        named = {name: fields[name] for name in fields if name.endswith("_id")}
        if named:
            assert (await member.acknowledge({}, **named)).error_code == INVALID


async def test_unknown_acquire_mode_is_rejected() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        response = await ShareMember(wire, topic).fetch(share_acquire_mode=2)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


# -- acknowledgements


@pytest.mark.parametrize(
    ("acknowledgements", "code"),
    [
        ([(1, 0, ACCEPT)], INVALID),
        ([(0, 0, [])], INVALID),
        ([(0, 2, [ACCEPT, ACCEPT])], INVALID),
        ([(0, 0, 5)], INVALID),
        ([(0, 0, -1)], INVALID),
        ([(0, 0, RENEW)], INVALID),
        ([(5, 6, ACCEPT), (4, 4, ACCEPT)], INVALID),
        ([(0, 99, ACCEPT)], INVALID),
        ([(0, 3, ACCEPT), (3, 4, ACCEPT)], WRONG_STATE),
        ([], 0),
    ],
)
async def test_invalid_acknowledgements_are_rejected(
    acknowledgements: list[Any], code: int
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        member = ShareMember(wire, topic)
        await member.acquire()
        response = await member.acknowledge({0: acknowledgements})
        codes = [row.error_code for each in response.responses for row in each.partitions]
        assert codes == ([code] if acknowledgements else [])
        row = row_of(
            await member.fetch((), {0: acknowledgements, 5: [(0, 0, ACCEPT)]}, max_records=0), 5
        )
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (row.error_code, row.acknowledge_error_code) == (unknown, unknown)
        assert not (await member.acknowledge_partition((0, 9, ACCEPT))).error_code, (
            "the rejected acknowledgements have no effect"
        )


async def test_acknowledgements_of_unknown_partitions_are_rejected() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        member = ShareMember(wire, topic)
        await member.acquire()
        unknown = Topic("u", uuid.uuid4())
        stranger = ShareMember(wire, unknown)
        stranger.epoch = member.epoch
        assert (
            await stranger.acknowledge_partition((0, 0, ACCEPT))
        ).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        member.epoch = stranger.epoch
        row = await member.acknowledge_partition((0, 0, ACCEPT), partition=1)
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_fetch_carries_acknowledgements() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire, 2)
        member = ShareMember(wire, topic)
        assert await member.acquire(max_records=5) == [(0, 9, 1)]
        row = row_of(await member.fetch((), {0: [(0, 9, ACCEPT)]}))
        assert (row.error_code, row.acknowledge_error_code) == (0, 0)
        assert [(r.first_offset, r.last_offset) for r in row.acquired_records] == [(10, 19)]
        await wait_until_stored(broker.node)
        await member.acknowledge_partition((10, 19, ACCEPT))
        assert broker.node.share.partitions.known(SharePartitionKey(GROUP, topic.id, 0))


# -- states


async def test_group_without_state_cannot_fetch() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        row = await ShareMember(wire, topic).fetch_error_row()
        assert row.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert not len(broker.node.share.partitions)


async def test_higher_state_epoch_fences_member() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        member = ShareMember(wire, topic)
        await member.acquire()
        await initialize(broker.node, topic, start=3, epoch=1)
        response = await member.acknowledge({0: [(0, 9, ACCEPT)]})
        row = row_of(response)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader.leader_id == broker.node.id
        assert response.node_endpoints[0].node_id == broker.node.id
        assert await member.acquire(()) == [(3, 9, 1)]


async def test_higher_leader_epoch_fences_leader() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire)
        member = ShareMember(wire, topic)
        await member.acquire()
        share = SharePartitionKey(GROUP, topic.id, 0)
        await broker.node.share.persister.read(
            {share: ReadShareGroupStateRequest.Partition(leader_epoch=100)}
        )
        row = await member.acknowledge_partition((0, 9, ACCEPT))
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_state_changes_are_stored_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire, 5)
        member = ShareMember(wire, topic)
        await member.acquire()
        written: list[WriteShareGroupStateRequest.Partition] = []
        persister = broker.node.share.persister
        real = persister.write

        async def write(rows: Any) -> Any:
            written.extend(rows.values())
            return await real(rows)

        monkeypatch.setattr(persister, "write", write)
        for number in range(5):
            message = member.fetch_request((), {0: [(number, number, ACCEPT)]}, max_records=0)
            await member.wire.send(FETCH, 2, message)
            member.epoch += 1
        for _ in range(5):
            assert not row_of(await wire.receive()).acknowledge_error_code
        assert sum(len(each.state_batches) for each in written) <= 5


async def test_deleted_topic_completes_pending_fetch() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await topic_with_records(broker, wire)
        member = ShareMember(other, topic)
        await member.acquire()
        await member.send_fetch(())
        (share_partition,) = broker.node.share.partitions
        await until(lambda: share_partition.waits)
        await delete_topic(wire, "t")
        row = row_of(await other.receive())
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not len(broker.node.share.partitions)
        row = row_of(await member.fetch((), max_wait_ms=0))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_pending_fetches_complete_when_node_stops() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        member = ShareMember(wire, topic)
        await member.begin()
        await member.send_fetch(())
        (share_partition,) = broker.node.share.partitions
        await until(lambda: share_partition.waits)
        await broker.node.release_waits()
        assert not (await wire.receive()).error_code


async def test_only_needed_batch_headers_are_scanned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scanned = 0
    real = vars(share_fetch)["slice_headers"]

    def headers(found: Any) -> Any:
        nonlocal scanned
        for each in real(found):
            scanned += 1
            yield each

    monkeypatch.setattr(share_fetch, "slice_headers", headers)
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await topic_with_records(broker, wire, 100, 1)
        assert await ShareMember(wire, topic).acquire(max_records=3) == [(0, 2, 1)]
        assert scanned <= 6
