"""What a leader answers to a follower, over the wire; the test is the follower."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kbroker.broker import Broker
from kbroker.cluster.registrations import NO_EPOCH
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.messages.topics import DeleteRecordsRequest
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

from ..replication.playing import PlayedFollower, played, replicated


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
    async with played(broker, 2) as follower:
        yield follower


def replica_of(broker: Broker, topic: Topic) -> Replica:
    return broker.node.partitions.named_replica(topic.name, 0)


def isr_of(broker: Broker, topic: Topic) -> list[int]:
    return broker.node.cluster.topics[topic.name].partitions[0].isr


async def elect(broker: Broker, topic: Topic) -> None:
    """Let the leader begin a new epoch."""
    await broker.node.cluster.renew_leader(topic.name, 0, cause="test")


# -- acknowledgements and the high watermark


async def test_acks_all_waits_for_the_followers_next_fetch(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"a", b"b"])))
    assert await wire.is_silent()
    row = await follower.fetch(topic, 0)
    assert (values_of(row), row.high_watermark) == ([b"a", b"b"], 0), "beyond the high watermark"
    assert await wire.is_silent(), "it has them, but has not said so"
    row = await follower.fetch(topic, 2)
    assert (row.high_watermark, row.records) == (2, b"")
    answer = await wire.receive()
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert values_of(await fetch(wire, topic)) == [b"a", b"b"]


async def test_acks_1_does_not_wait_for_followers(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    assert (await produce(wire, topic, batch(), acks=1)).error_code == 0
    row = await fetch(wire, topic)
    assert (row.high_watermark, row.records) == (0, b""), "nobody reads what may be lost"
    await follower.fetch(topic, 1)
    assert (await fetch(wire, topic)).high_watermark == 1


async def test_nobody_waits_for_a_follower_that_is_not_in_sync(broker: Broker, wire: Wire) -> None:
    async with played(broker, 2, ready=False) as follower:
        topic = await replicated(broker, 1, 2)
        assert isr_of(broker, topic) == [1]
        assert (await produce(wire, topic, batch())).error_code == 0
        assert (await follower.fetch(topic, 0)).high_watermark == 1


async def test_too_few_in_sync_before_and_after_the_append(
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
    assert (await fetch(wire, topic)).high_watermark == 0, "it stands still"


async def test_an_acknowledgement_that_comes_late_is_a_timeout(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    row = await produce(wire, topic, batch(), timeout_ms=50)
    assert row.error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("acks", [-1, 1])
async def test_produce_is_refused_when_another_node_is_elected(
    broker: Broker, wire: Wire, follower: PlayedFollower, acks: int
) -> None:
    topic = await replicated(broker, 1, 2, flush_messages=1)
    async with broker.node.partitions.flusher.sync_lock:  # so that acks=1 has to wait too
        request = produce_request(topic, batch(), acks=acks, timeout_ms=NEVER)
        await wire.send(ApiKey.PRODUCE, 9, request)
        await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
        await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
        ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_acks_1_is_refused_when_the_registration_is_lost(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2, flush_messages=1)
    async with broker.node.partitions.flusher.sync_lock:
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(), acks=1))
        await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
        broker.node.registered(NO_EPOCH)
        ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_who_stops_leading_says_so_to_followers(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await follower.fetch(topic, 0, session_epoch=0)
    await follower.begin(topic, 0, partitions=(), max_wait_ms=NEVER, session_epoch=1)
    assert await follower.wire.is_silent()
    await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
    assert (await follower.rows())[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- who may fetch as a replica


@pytest.mark.parametrize("stale", [0, 1, -1, 10**9])
async def test_another_broker_epoch_is_refused(
    broker: Broker, wire: Wire, follower: PlayedFollower, stale: int
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch(), acks=1)
    row = await follower.fetch(topic, 1, broker_epoch=stale)
    assert (row.error_code, row.high_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert replica_of(broker, topic).log.high_watermark == 0, "it counted for nothing"


@pytest.mark.parametrize("version", [4, 11, 14])
async def test_versions_that_cannot_tell_the_epoch_are_refused(
    broker: Broker, wire: Wire, follower: PlayedFollower, version: int
) -> None:
    topic = await replicated(broker, 1, 2)
    assert (
        await fetch(wire, topic, version=version, replica_id=2)
    ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_node_that_is_no_replica_is_refused(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1)
    assert (await follower.fetch(topic, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_earlier_run_of_a_follower_is_refused(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    async with played(broker, 2) as again:
        assert (await follower.fetch(topic, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await again.fetch(topic, 0)).error_code == 0


# -- parked fetches


async def test_an_append_wakes_a_follower(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await follower.begin(topic, 0, max_wait_ms=NEVER)
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"a"])))
    (row,) = await follower.rows()
    assert values_of(row) == [b"a"]


async def test_a_session_hears_of_the_high_watermark_alone(broker: Broker, wire: Wire) -> None:
    """Another follower moved it; there is nothing else to tell."""
    async with played(broker, 2) as second, played(broker, 3) as third:
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


async def test_without_a_session_a_follower_says_what_it_knows(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch(), acks=1)
    assert (await follower.fetch(topic, 1, max_wait_ms=NEVER, high_watermark=0)).high_watermark == 1
    await follower.begin(topic, 1, max_wait_ms=NEVER, high_watermark=1)
    assert await follower.wire.is_silent()


async def test_an_idle_session_still_says_that_the_follower_is_there(
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


async def two_epochs(broker: Broker, wire: Wire, follower: PlayedFollower) -> Topic:
    """Records 0 and 1 of epoch 0, record 2 of epoch 1."""
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch([b"a", b"b"]), acks=1)
    await elect(broker, topic)
    await produce(wire, topic, batch([b"c"]), acks=1)
    return topic


async def test_a_log_that_parted_is_told_where(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    """And what it has beyond that counts for nothing."""
    topic = await two_epochs(broker, wire, follower)
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
async def test_a_follower_of_another_epoch_counts_for_nothing(
    broker: Broker, wire: Wire, follower: PlayedFollower, epoch: int, code: int
) -> None:
    topic = await two_epochs(broker, wire, follower)
    assert (await follower.fetch(topic, 3, current_leader_epoch=epoch)).error_code == code
    assert replica_of(broker, topic).log.high_watermark == 0


async def test_an_offset_that_the_log_does_not_have_counts_for_nothing(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await two_epochs(broker, wire, follower)
    assert (await follower.fetch(topic, 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica_of(broker, topic).log.high_watermark == 0


async def test_where_epochs_ended_is_told_to_replicas_too(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await two_epochs(broker, wire, follower)
    for epoch, expected in ((0, (0, 2)), (1, (1, 3)), (2, (-1, -1))):
        row = OffsetForLeaderEpochRequest.Partition(
            partition=0, current_leader_epoch=1, leader_epoch=epoch
        )
        asked = OffsetForLeaderEpochRequest(
            replica_id=2,
            topics=[OffsetForLeaderEpochRequest.Topic(topic=topic.name, partitions=[row])],
        )
        answer = await follower.wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, asked)
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, *expected)


# -- where the log ends, to clients of a new leader


@pytest.mark.parametrize("version", [1, 4, 5, 11])
async def test_a_new_leader_withholds_the_end_until_it_knows_it(
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
    assert (await list_offset(wire, topic, 0, version)).offset == 0, "what is committed is found"
    await follower.fetch(topic, 2)
    assert (await list_offset(wire, topic, LATEST, version)).offset == 2
    assert (await list_offset(wire, topic, late, version)).error_code == 0


# -- deleted records


def deletion(topic: Topic, offset: int, timeout_ms: int) -> DeleteRecordsRequest:
    row = DeleteRecordsRequest.Partition(partition_index=0, offset=offset)
    named = DeleteRecordsRequest.Topic(name=topic.name, partitions=[row])
    return DeleteRecordsRequest(topics=[named], timeout_ms=timeout_ms)


async def test_records_are_deleted_when_all_replicas_have_deleted_them(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch([b"a"]), acks=1)
    await produce(wire, topic, batch([b"b"]), acks=1)
    await follower.fetch(topic, 2, session_epoch=0)
    await follower.begin(topic, 2, partitions=(), session_epoch=1, max_wait_ms=NEVER)
    await wire.send(ApiKey.DELETE_RECORDS, 2, deletion(topic, 1, NEVER))
    (row,) = await follower.rows()
    assert row.log_start_offset == 1, "it is told at once"
    assert await wire.is_silent()
    await follower.begin(topic, 2, session_epoch=2, log_start_offset=1)
    answer = (await wire.receive()).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 1)


async def test_a_follower_that_does_not_delete_in_time(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch(), acks=1)
    await follower.fetch(topic, 1)
    answer = await wire.ask(ApiKey.DELETE_RECORDS, 2, deletion(topic, 1, 50))
    row = answer.topics[0].partitions[0]
    assert (row.error_code, row.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    await follower.membership.end(clean=True)
    answer = await wire.ask(ApiKey.DELETE_RECORDS, 2, deletion(topic, 1, NEVER))
    assert answer.topics[0].partitions[0].low_watermark == 1, "one that is down is not asked"


# -- readers in a rack


SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


async def rack_answer(wire: Wire, topic: Topic, offset: int, rack: str) -> int:
    row = await fetch(wire, topic, offset, rack_id=rack, max_wait_ms=NEVER if rack == "b" else 0)
    assert row.error_code == 0
    preferred: int = row.preferred_read_replica
    assert (preferred == -1) == bool(row.records)
    return preferred


async def test_consumers_are_sent_to_a_follower_in_their_rack() -> None:
    async with (
        started(broker_rack="a", replica_selector_class=SELECTOR) as broker,
        connected(broker.endpoint) as wire,
        played(broker, 2, rack="b") as follower,
    ):
        topic = await replicated(broker, 1, 2)
        await produce(wire, topic, batch([b"a"]), acks=1)
        await follower.fetch(topic, 1)
        await produce(wire, topic, batch([b"b"]), acks=1)
        for rack, expected in (("b", 2), ("a", -1), ("c", -1), ("", -1)):
            assert await rack_answer(wire, topic, 0, rack) == expected, rack
        row = await fetch(wire, topic, 2, rack_id="b")
        assert row.preferred_read_replica == -1, "the follower does not have that yet"


async def test_consumers_read_from_the_leader_unless_told_otherwise() -> None:
    async with (
        started(broker_rack="a") as broker,
        connected(broker.endpoint) as wire,
        played(broker, 2, rack="b") as follower,
    ):
        topic = await replicated(broker, 1, 2)
        await produce(wire, topic, batch([b"a"]), acks=1)
        await follower.fetch(topic, 1)
        row = await fetch(wire, topic, rack_id="b")
        assert (row.preferred_read_replica, values_of(row)) == (-1, [b"a"])


async def test_a_follower_serves_up_to_its_own_high_watermark(broker: Broker, wire: Wire) -> None:
    """From version 11 on, which knows of it; and sends nobody back to the start of the log."""
    async with played(broker, 2):
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


# -- a leader that others have given up, and that has not heard yet who leads instead


async def given_up(broker: Broker, wire: Wire, *, acks: int = -1) -> Topic:
    """A topic with one batch that node 1 led until a moment ago, under a registration that is over.

    With acks=-1 the batch waits for the follower, with acks=1 it is acknowledged.
    """
    topic = await replicated(broker, 1, 2)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=acks))
    await until(lambda: replica_of(broker, topic).log.log_end_offset == 1)
    if acks == 1:
        assert (await told(wire))[0] == ErrorCode.NONE
    broker.node.registered(NO_EPOCH)
    return topic


async def told(wire: Wire) -> tuple[ErrorCode, int, int, list[int]]:
    """What the next answer to a Produce says: error, leader, its epoch, and whose address is there."""
    answer = await wire.receive()
    ((row,),) = (each.partition_responses for each in answer.responses)
    named = row.current_leader or ProduceResponse.Leader()
    nodes = [each.node_id for each in answer.node_endpoints]
    return row.error_code, named.leader_id, named.leader_epoch, nodes


async def test_producers_are_refused_when_it_is_known_who_leads_instead(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await given_up(broker, wire)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch()))
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert await wire.is_silent()
    await broker.node.cluster.create_topic("other", [[2]], {}, cause="test")
    assert await wire.is_silent(), "that was other news"
    await broker.node.cluster.hand_over(topic.name, 0, to=2, cause="test")
    expected = (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 1, [2])
    assert [await told(wire) for _ in range(3)] == [expected] * 3


async def test_who_writes_to_several_partitions_waits_for_news_of_the_first(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    made = await broker.node.cluster.create_topic("t", [[1, 2], [1, 2]], {}, cause="test")
    broker.node.registered(NO_EPOCH)
    asked = produce_request(Topic(made.name, made.id), batch())
    asked.topic_data[0].partition_data.append(ProduceRequest.Partition(index=1, records=batch()))
    await wire.send(ApiKey.PRODUCE, 10, asked)
    await broker.node.cluster.hand_over("t", 1, to=2, cause="test")
    assert await wire.is_silent()
    await broker.node.cluster.hand_over("t", 0, to=2, cause="test")
    (topic,) = (await wire.receive()).responses
    leaders = [each.current_leader.leader_id for each in topic.partition_responses]
    assert leaders == [2, 2]


async def test_a_producer_is_refused_in_the_end_without_such_news(
    broker: Broker, wire: Wire, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.partitions.leader_change_waiters.SECONDS_MAX", 0.05)
    topic = await given_up(broker, wire, acks=1)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert await told(wire) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, [])


async def test_not_too_many_producers_wait_for_it(
    broker: Broker, wire: Wire, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.partitions.leader_change_waiters.SECONDS_MAX", NEVER)
    monkeypatch.setattr("kbroker.partitions.leader_change_waiters.WAITING_MAX", 1)
    topic = await given_up(broker, wire, acks=1)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert await wire.is_silent()
    async with connected(broker.endpoint) as other:
        row = await produce(other, topic, batch(), version=10, acks=1)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await wire.is_silent()


async def test_batches_that_wait_are_acknowledged_when_it_leads_again(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    epoch = broker.node.partitions.epoch
    topic = await given_up(broker, wire)
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch()))
    assert await wire.is_silent()
    broker.node.registered(epoch)
    await elect(broker, topic)
    assert await wire.is_silent(), "the follower does not have them"
    await follower.fetch(topic, 2)
    assert [(await told(wire))[0] for _ in range(2)] == [ErrorCode.NONE] * 2
    await wire.send(ApiKey.PRODUCE, 10, produce_request(topic, batch(), acks=1))
    assert (await told(wire))[0] == ErrorCode.NONE
    assert replica_of(broker, topic).log.log_end_offset == 3
