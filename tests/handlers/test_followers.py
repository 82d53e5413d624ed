"""Tests of a leader's responses to followers on the wire; the tests act as the follower."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.cluster.registrations import NO_EPOCH
from kbroker.handlers.produce_operation import LIGHT_COMPRESSED_BYTES_MAX
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.runtime.heavy_work import HeavyWork
from tests.brokers import started
from tests.wire import (
    EARLIEST,
    LATEST,
    NEVER,
    Topic,
    Wire,
    batch,
    connected,
    fetch,
    list_offset,
    produce,
    produce_request,
    until,
    values_of,
)

from ..replication.playing import PlayedFollower, fake_node, replicated


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started() as broker:
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with connected(broker.endpoint) as wire:
        yield wire


@pytest.fixture
async def follower(broker: Broker) -> AsyncIterator[PlayedFollower]:
    async with fake_node(broker, 2) as follower:
        yield follower


def replica_of(broker: Broker, topic: Topic) -> Replica:
    return broker.node.partitions.named_replica(topic.name, 0)


def isr_of(broker: Broker, topic: Topic) -> list[int]:
    return broker.node.cluster.topics[topic.name].partitions[0].isr


async def elect(broker: Broker, topic: Topic) -> None:
    """Start a new leader epoch with the same leader."""
    await broker.node.cluster.renew_leader(topic.name, 0, cause="test")


# -- acknowledgements and the high watermark


async def test_acks_all_waits_for_next_fetch_of_follower(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"a", b"b"])))
    assert await wire.is_silent()
    row = await follower.fetch(topic, 0)
    assert (values_of(row), row.high_watermark) == ([b"a", b"b"], 0), (
        "followers read beyond the high watermark"
    )
    assert await wire.is_silent(), "the follower has not confirmed the records"
    row = await follower.fetch(topic, 2)
    assert (row.high_watermark, row.records) == (2, b"")
    response = await wire.receive()
    assert response.responses[0].partition_responses[0].error_code == 0
    assert values_of(await fetch(wire, topic)) == [b"a", b"b"]


async def test_acks_1_does_not_wait_for_follower(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    assert (await produce(wire, topic, batch(), acks=1)).error_code == 0
    row = await fetch(wire, topic)
    assert (row.high_watermark, row.records) == (0, b""), "uncommitted records are not readable"
    await follower.fetch(topic, 1)
    assert (await fetch(wire, topic)).high_watermark == 1


async def test_acks_all_ignores_follower_outside_isr(broker: Broker, wire: Wire) -> None:
    async with fake_node(broker, 2, ready=False) as follower:
        topic = await replicated(broker, 1, 2)
        assert isr_of(broker, topic) == [1]
        assert (await produce(wire, topic, batch())).error_code == 0
        assert (await follower.fetch(topic, 0)).high_watermark == 1


async def test_too_small_isr_fails_before_and_after_append(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2, min_insync_replicas=2)
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(), timeout_ms=300))
    await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
    await follower.membership.end(clean=True)
    await until(lambda: isr_of(broker, topic) == [1])
    ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
    assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert (await produce(wire, topic, batch())).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await produce(wire, topic, batch(), acks=1)).error_code == 0
    assert (await fetch(wire, topic)).high_watermark == 0, "the high watermark does not advance"


async def test_late_follower_causes_request_timeout(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    row = await produce(wire, topic, batch(), timeout_ms=50)
    assert row.error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("acks", [-1, 1])
async def test_pending_produce_fails_if_other_leader_is_elected(
    broker: Broker, wire: Wire, follower: PlayedFollower, acks: int
) -> None:
    topic = await replicated(broker, 1, 2, flush_messages=1)
    async with broker.node.partitions.flusher.sync_lock:  # makes acks=1 wait as well
        request = produce_request(topic, batch(), acks=acks, timeout_ms=NEVER)
        await wire.send(ApiKey.PRODUCE, 9, request)
        await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
        await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
        ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("acks", [-1, 1])
async def test_produce_fails_if_batch_is_truncated_while_next_batch_is_validated(
    broker: Broker,
    wire: Wire,
    follower: PlayedFollower,
    acks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new leader has another record at the offset of the batch, and commits it."""
    topic = await replicated(broker, 1, 2, flush_messages=1)
    other = await broker.node.cluster.create_topic("other", [[1]], {}, cause="test")
    replica, validate = replica_of(broker, topic), HeavyWork.run_in_steps

    async def validate_after_leader_change(*args: Any) -> Any:
        await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
        replica.truncate_to(0, 0)
        replica.append_replicated(memoryview(batch([b"of the new leader"])), 0)
        replica.synced(1)
        replica.update_high_watermark(1)
        return await validate(*args)

    monkeypatch.setattr(HeavyWork, "run_in_steps", validate_after_leader_change)
    heavy = batch([Random(1).randbytes(2 * LIGHT_COMPRESSED_BYTES_MAX)], codec=Codec.GZIP)
    request = produce_request(topic, batch([b"lost"]), acks=acks)
    request.topic_data += produce_request(Topic(other.name, other.id), heavy).topic_data
    async with broker.node.partitions.flusher.sync_lock:  # makes acks=1 wait as well
        response = await wire.ask(ApiKey.PRODUCE, 9, request)
    codes = [row.error_code for each in response.responses for row in each.partition_responses]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]


async def test_pending_acks_1_fails_if_registration_is_lost(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2, flush_messages=1)
    async with broker.node.partitions.flusher.sync_lock:
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(), acks=1))
        await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
        broker.node.registered(NO_EPOCH)
        ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_pending_follower_fetch_fails_if_leadership_is_lost(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await follower.fetch(topic, 0, session_epoch=0)
    await follower.begin(topic, 0, partitions=(), max_wait_ms=NEVER, session_epoch=1)
    assert await follower.wire.is_silent()
    await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
    assert (await follower.rows())[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- validation of follower fetches


@pytest.mark.parametrize("stale", [0, 1, -1, 10**9])
async def test_follower_fetch_with_wrong_broker_epoch_is_rejected(
    broker: Broker, wire: Wire, follower: PlayedFollower, stale: int
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch(), acks=1)
    row = await follower.fetch(topic, 1, broker_epoch=stale)
    assert (row.error_code, row.high_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert replica_of(broker, topic).log.high_watermark == 0, (
        "the fetch does not advance the high watermark"
    )


@pytest.mark.parametrize("version", [4, 11, 14])
async def test_follower_fetch_without_broker_epoch_is_rejected(
    broker: Broker, wire: Wire, follower: PlayedFollower, version: int
) -> None:
    topic = await replicated(broker, 1, 2)
    assert (
        await fetch(wire, topic, version=version, replica_id=2)
    ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_follower_fetch_of_non_replica_is_rejected(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1)
    assert (await follower.fetch(topic, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_follower_fetch_of_earlier_registration_is_rejected(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    async with fake_node(broker, 2) as restarted:
        assert (await follower.fetch(topic, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await restarted.fetch(topic, 0)).error_code == 0


# -- pending fetches


async def test_append_completes_pending_follower_fetch(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await follower.begin(topic, 0, max_wait_ms=NEVER)
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"a"])))
    (row,) = await follower.rows()
    assert values_of(row) == [b"a"]


async def test_session_completes_if_only_high_watermark_advances(
    broker: Broker, wire: Wire
) -> None:
    """Another follower advances the high watermark; there are no new records."""
    async with fake_node(broker, 2) as second, fake_node(broker, 3) as third:
        topic = await replicated(broker, 1, 2, 3)
        await produce(wire, topic, batch(), acks=1)
        first = await second.fetch(topic, 1, session_epoch=0, max_wait_ms=NEVER)
        assert first.high_watermark == 0
        await second.begin(topic, 1, partitions=(), session_epoch=1, max_wait_ms=NEVER)
        assert await second.wire.is_silent()
        assert (await third.fetch(topic, 1)).high_watermark == 1
        (row,) = await second.rows()
        assert (row.high_watermark, row.records) == (1, b"")
        await second.begin(topic, 1, partitions=(), session_epoch=2, max_wait_ms=50)
        assert await second.rows() == []


async def test_fetch_without_session_waits_if_high_watermark_is_known(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch(), acks=1)
    assert (await follower.fetch(topic, 1, max_wait_ms=NEVER, high_watermark=0)).high_watermark == 1
    await follower.begin(topic, 1, max_wait_ms=NEVER, high_watermark=1)
    assert await follower.wire.is_silent()


async def test_empty_session_fetches_keep_follower_caught_up(
    broker: Broker, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await follower.fetch(topic, 0, session_epoch=0)
    leader_state = replica_of(broker, topic).leader_state
    assert leader_state is not None
    for epoch in range(1, 4):
        before = leader_state.followers[2].caught_up_at
        await follower.begin(topic, 0, partitions=(), session_epoch=epoch, max_wait_ms=1)
        assert await follower.rows() == []
        assert leader_state.followers[2].caught_up_at > before


# -- epochs


async def create_log_with_epochs(broker: Broker, wire: Wire, follower: PlayedFollower) -> Topic:
    """Create a log: epoch 0 has records 0 and 1, epoch 1 has record 2."""
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch([b"a", b"b"]), acks=1)
    await elect(broker, topic)
    await produce(wire, topic, batch([b"c"]), acks=1)
    return topic


async def test_diverged_follower_gets_diverging_epoch(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    """The records of the follower after the divergence do not advance the high watermark."""
    topic = await create_log_with_epochs(broker, wire, follower)
    row = await follower.fetch(topic, 3, last_fetched_epoch=0, current_leader_epoch=1)
    assert (row.error_code, row.records) == (0, b"")
    assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 2)
    assert row.high_watermark == 0
    row = await follower.fetch(topic, 2, last_fetched_epoch=0, current_leader_epoch=1)
    assert (values_of(row), row.high_watermark) == ([b"c"], 2)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_follower_fetch_with_wrong_leader_epoch_is_rejected(
    broker: Broker, wire: Wire, follower: PlayedFollower, epoch: int, code: int
) -> None:
    topic = await create_log_with_epochs(broker, wire, follower)
    assert (await follower.fetch(topic, 3, current_leader_epoch=epoch)).error_code == code
    assert replica_of(broker, topic).log.high_watermark == 0


async def test_follower_offset_beyond_log_end_is_rejected(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await create_log_with_epochs(broker, wire, follower)
    assert (await follower.fetch(topic, 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica_of(broker, topic).log.high_watermark == 0


async def test_offset_for_leader_epoch_serves_replicas(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await create_log_with_epochs(broker, wire, follower)
    for epoch, expected in ((0, (0, 2)), (1, (1, 3)), (2, (-1, -1))):
        row = OffsetForLeaderEpochRequest.Partition(
            partition=0, current_leader_epoch=1, leader_epoch=epoch
        )
        message = OffsetForLeaderEpochRequest(
            replica_id=2,
            topics=[OffsetForLeaderEpochRequest.Topic(topic=topic.name, partitions=[row])],
        )
        response = await follower.wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, message)
        found = response.topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, *expected)


# -- log end offset of a new leader


@pytest.mark.parametrize("version", [1, 4, 5, 11])
async def test_new_leader_withholds_latest_offset_until_known(
    broker: Broker, wire: Wire, follower: PlayedFollower, version: int
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch([b"a", b"b"]), acks=1)
    await follower.fetch(topic, 1)
    assert (await list_offset(wire, topic, LATEST, version)).offset == 1
    await elect(broker, topic)
    code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    late = NEVER << 20
    for timestamp in (LATEST, late):
        row = await list_offset(wire, topic, timestamp, version)
        assert (row.error_code, row.offset) == (code, -1)
    assert (await list_offset(wire, topic, EARLIEST, version)).offset == 0
    assert (await list_offset(wire, topic, 0, version)).offset == 0, "committed records are found"
    await follower.fetch(topic, 2)
    assert (await list_offset(wire, topic, LATEST, version)).offset == 2
    assert (await list_offset(wire, topic, late, version)).error_code == 0


# -- deleted records


def delete_records_request(topic: Topic, offset: int, timeout_ms: int) -> DeleteRecordsRequest:
    row = DeleteRecordsRequest.Partition(partition_index=0, offset=offset)
    named = DeleteRecordsRequest.Topic(name=topic.name, partitions=[row])
    return DeleteRecordsRequest(topics=[named], timeout_ms=timeout_ms)


async def test_delete_records_waits_for_all_replicas(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch([b"a"]), acks=1)
    await produce(wire, topic, batch([b"b"]), acks=1)
    await follower.fetch(topic, 2, session_epoch=0)
    await follower.begin(topic, 2, partitions=(), session_epoch=1, max_wait_ms=NEVER)
    await wire.send(ApiKey.DELETE_RECORDS, 2, delete_records_request(topic, 1, NEVER))
    (row,) = await follower.rows()
    assert row.log_start_offset == 1, "the follower gets the new log start offset immediately"
    assert await wire.is_silent()
    await follower.begin(topic, 2, session_epoch=2, log_start_offset=1)
    response = (await wire.receive()).topics[0].partitions[0]
    assert (response.error_code, response.low_watermark) == (0, 1)


async def test_delete_records_times_out_if_follower_is_late(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch(), acks=1)
    await follower.fetch(topic, 1)
    response = await wire.ask(ApiKey.DELETE_RECORDS, 2, delete_records_request(topic, 1, 50))
    row = response.topics[0].partitions[0]
    assert (row.error_code, row.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    await follower.membership.end(clean=True)
    response = await wire.ask(ApiKey.DELETE_RECORDS, 2, delete_records_request(topic, 1, NEVER))
    assert response.topics[0].partitions[0].low_watermark == 1, (
        "followers outside of the ISR are ignored"
    )


# -- follower fetching (KIP-392)


SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


async def preferred_replica(wire: Wire, topic: Topic, offset: int, rack: str) -> int:
    row = await fetch(wire, topic, offset, rack_id=rack, max_wait_ms=NEVER if rack == "b" else 0)
    assert row.error_code == 0
    preferred: int = row.preferred_read_replica
    assert (preferred == -1) == bool(row.records)
    return preferred


async def test_consumers_are_redirected_to_follower_in_their_rack() -> None:
    async with (
        started(broker_rack="a", replica_selector_class=SELECTOR) as broker,
        connected(broker.endpoint) as wire,
        fake_node(broker, 2, rack="b") as follower,
    ):
        topic = await replicated(broker, 1, 2)
        await produce(wire, topic, batch([b"a"]), acks=1)
        await follower.fetch(topic, 1)
        await produce(wire, topic, batch([b"b"]), acks=1)
        for rack, expected in (("b", 2), ("a", -1), ("c", -1), ("", -1)):
            assert await preferred_replica(wire, topic, 0, rack) == expected, rack
        row = await fetch(wire, topic, 2, rack_id="b")
        assert row.preferred_read_replica == -1, "the follower does not have that offset yet"


async def test_consumers_read_from_leader_without_replica_selector() -> None:
    async with (
        started(broker_rack="a") as broker,
        connected(broker.endpoint) as wire,
        fake_node(broker, 2, rack="b") as follower,
    ):
        topic = await replicated(broker, 1, 2)
        await produce(wire, topic, batch([b"a"]), acks=1)
        await follower.fetch(topic, 1)
        row = await fetch(wire, topic, rack_id="b")
        assert (row.preferred_read_replica, values_of(row)) == (-1, [b"a"])


async def test_follower_serves_consumers_up_to_its_high_watermark(
    broker: Broker, wire: Wire
) -> None:
    """The consumer needs version 11. The error for later offsets does not reset the consumer."""
    async with fake_node(broker, 2):
        topic = await replicated(broker, 2, 1)
        node = broker.node
        replica = node.partitions.named_hosted(topic.name, 0)
        assert not replica.is_leader
        replica.append_replicated(memoryview(batch([b"a"])), node.clock.log_ms())
        assert values_of(await fetch(wire, topic, version=12)) == []
        replica.update_high_watermark(5)
        row = await fetch(wire, topic, version=12)
        assert (values_of(row), row.high_watermark) == ([b"a"], 1)
        for version, offset, code in (
            (12, 2, ErrorCode.OFFSET_NOT_AVAILABLE),
            (10, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            assert (await fetch(wire, topic, offset, version=version)).error_code == code
        assert (await produce(wire, topic, batch())).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        row = await list_offset(wire, topic, LATEST)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- a leader whose registration ended, before it knows the new leader


async def leader_without_registration(broker: Broker, wire: Wire, *, acks: int = -1) -> Topic:
    """Append a batch to a topic whose leader, node 1, then loses its registration.

    With acks=-1 the batch waits for the follower, with acks=1 it is acknowledged.
    """
    topic = await replicated(broker, 1, 2)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=acks))
    await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
    if acks == 1:
        assert (await produce_result(wire))[0] == ErrorCode.NONE
    broker.node.registered(NO_EPOCH)
    return topic


async def produce_result(wire: Wire) -> tuple[ErrorCode, int, int, list[int]]:
    """Return the next Produce result: error, leader, leader epoch and the nodes with endpoints."""
    response = await wire.receive()
    ((row,),) = (each.partition_responses for each in response.responses)
    named = row.current_leader or ProduceResponse.Leader()
    nodes = [each.node_id for each in response.node_endpoints]
    return row.error_code, named.leader_id, named.leader_epoch, nodes


async def test_pending_producers_fail_when_new_leader_is_known(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await leader_without_registration(broker, wire)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch()))
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert await wire.is_silent()
    await broker.node.cluster.create_topic("other", [[2]], {}, cause="test")
    assert await wire.is_silent(), "the change concerns another topic"
    await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
    expected = (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 1, [2])
    assert [await produce_result(wire) for _ in range(3)] == [expected] * 3


async def test_produce_to_several_partitions_waits_for_leader_of_first(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    created = await broker.node.cluster.create_topic("t", [[1, 2], [1, 2]], {}, cause="test")
    broker.node.registered(NO_EPOCH)
    message = produce_request(Topic(created.name, created.id), batch())
    message.topic_data[0].partition_data.append(ProduceRequest.Partition(index=1, records=batch()))
    await wire.send(ApiKey.PRODUCE, 10, message)
    await broker.node.cluster.hand_over("t", 1, to=2, cause="test")
    assert await wire.is_silent()
    await broker.node.cluster.hand_over("t", 0, to=2, cause="test")
    (topic,) = (await wire.receive()).responses
    leaders = [each.current_leader.leader_id for each in topic.partition_responses]
    assert leaders == [2, 2]


async def test_pending_producer_fails_after_timeout_without_new_leader(
    broker: Broker, wire: Wire, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.partitions.leader_change_waiters.SECONDS_MAX", 0.05)
    topic = await leader_without_registration(broker, wire, acks=1)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert await produce_result(wire) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, [])


async def test_number_of_producers_waiting_for_new_leader_is_bounded(
    broker: Broker, wire: Wire, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.partitions.leader_change_waiters.SECONDS_MAX", NEVER)
    monkeypatch.setattr("kbroker.partitions.leader_change_waiters.WAITING_MAX", 1)
    topic = await leader_without_registration(broker, wire, acks=1)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert await wire.is_silent()
    async with connected(broker.endpoint) as other:
        row = await produce(other, topic, batch(), version=10, acks=1)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await wire.is_silent()


async def test_pending_batches_are_acknowledged_if_leader_is_reelected(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    epoch = broker.node.partitions.epoch
    topic = await leader_without_registration(broker, wire)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch()))
    assert await wire.is_silent()
    broker.node.registered(epoch)
    await elect(broker, topic)
    assert await wire.is_silent(), "the follower has not fetched the batches"
    await follower.fetch(topic, 2)
    assert [(await produce_result(wire))[0] for _ in range(2)] == [ErrorCode.NONE] * 2
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert (await produce_result(wire))[0] == ErrorCode.NONE
    assert replica_of(broker, topic).log.log_end_offset == 3
