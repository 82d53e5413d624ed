"""Tests of Fetch; test_connection.py tests pending fetches."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.handlers.fetch_operation import FetchOperation
from kbroker.node.fetch_sessions import Target
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.protocol.records import iter_headers, read_records

from ..brokers import Start, started
from ..wire import (
    NEVER,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    fetch_request,
    produce,
    request,
    until,
    values_of,
)

VERSIONS = range(4, 19)


@pytest.mark.parametrize("version", VERSIONS)
async def test_fetch_returns_records_and_offsets(start: Start, version: int) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        await produce(wire, topic, batch([b"a"]))
        await produce(wire, topic, batch([b"b", b"c"], codec=1), partition=1)
        response = await wire.ask(ApiKey.FETCH, version, fetch_request(topic, partitions=(1, 0)))
        assert (response.error_code, response.session_id, response.throttle_time_ms) == (0, 0, 0)
        (row,) = response.responses
        assert row.topic_id == topic.id if version >= 13 else row.topic == "t"
        assert [p.partition_index for p in row.partitions] == [1, 0], (
            "partitions keep the order of the request"
        )
        assert [values_of(p) for p in row.partitions] == [[b"b", b"c"], [b"a"]]
        first = row.partitions[0]
        assert (first.error_code, first.high_watermark, first.last_stable_offset) == (0, 2, 2)
        assert first.log_start_offset == (0 if version >= 5 else -1)
        assert first.preferred_read_replica == -1
        assert first.aborted_transactions is None


@pytest.mark.parametrize("version", VERSIONS)
async def test_read_committed_fetch_returns_empty_aborted_transactions(
    wire: Wire, version: int
) -> None:
    """Other fetches get null instead of an empty list."""
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"a"]))
    row = await fetch(wire, topic, version=version, isolation_level=1)
    assert row.aborted_transactions == []
    assert (values_of(row), row.last_stable_offset) == ([b"a"], 1)


# -- batches and limits


async def test_fetch_starts_with_batch_that_contains_offset(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for i in range(4):
            await produce(wire, topic, batch([b"%d" % n for n in range(5 * i, 5 * i + 5)]))
        for offset in range(20):
            row = await fetch(wire, topic, offset)
            first = next(read_records(row.records))
            assert first.offset == offset - offset % 5, "the batch is returned unchanged"
            assert len(values_of(row)) == 20 - first.offset


async def three_partitions(wire: Wire, size: int = 10_000) -> tuple[Topic, int]:
    """Create a topic with two batches in each of three partitions; return the size of a batch."""
    topic = await create_topic(wire, "t", 3)
    one = batch([bytes(size)])
    for partition in range(3):
        for _ in range(2):
            await produce(wire, topic, one, partition=partition)
    return topic, len(one)


async def fetched_sizes(
    wire: Wire, topic: Topic, order: tuple[int, ...], **limits: int
) -> list[int]:
    response = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic, partitions=order, **limits))
    rows = response.responses[0].partitions
    assert [row.partition_index for row in rows] == list(order)
    for row in rows:
        position = 0
        for position, header in iter_headers(row.records):
            position += header.size
        assert position == len(row.records), "only complete batches are returned"
    return [len(row.records) for row in rows]


async def test_first_batch_is_returned_even_if_above_limit(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic, one = await three_partitions(wire)
        assert await fetched_sizes(wire, topic, (0, 1, 2), max_bytes=1) == [one, 0, 0]
        assert await fetched_sizes(wire, topic, (2, 0, 1), max_bytes=1) == [one, 0, 0]
        found = await fetched_sizes(wire, topic, (0, 1, 2), partition_max_bytes=1)
        assert found == [one, 0, 0], "only for the first partition with records"


async def test_first_nonempty_partition_may_exceed_request_limit(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 3)
        one = batch([bytes(5000)])
        await produce(wire, topic, one, partition=1)
        await produce(wire, topic, one, partition=2)
        assert await fetched_sizes(wire, topic, (0, 1, 2), max_bytes=10) == [0, len(one), 0]


async def test_partition_and_request_limits_are_respected(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic, one = await three_partitions(wire)
        assert await fetched_sizes(wire, topic, (0, 1, 2), partition_max_bytes=one) == [one] * 3
        assert (
            await fetched_sizes(wire, topic, (0, 1, 2), partition_max_bytes=2 * one)
            == [2 * one] * 3
        )
        assert await fetched_sizes(wire, topic, (0, 1, 2), max_bytes=3 * one) == [2 * one, one, 0]
        assert await fetched_sizes(wire, topic, (0, 1, 2), max_bytes=3 * one - 1) == [2 * one, 0, 0]


async def test_broker_limit_caps_fetch_response() -> None:
    async with started(fetch_max_bytes=25_000) as broker, connected(broker.endpoint) as wire:
        topic, one = await three_partitions(wire)
        assert await fetched_sizes(wire, topic, (0, 1, 2)) == [2 * one, 0, 0]


async def test_large_responses_are_sent_completely(start: Start) -> None:
    """The responses exceed the socket buffers many times and span several segments."""
    async with start(log_segment_bytes=1_048_576) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        sent = [b"%03d" % i + bytes(300_000) for i in range(50)]
        for value in sent:
            await produce(wire, topic, batch([value]))
        found: list[bytes | None] = []
        while len(found) < len(sent):
            row = await fetch(wire, topic, len(found), partition_max_bytes=50 << 20)
            found += values_of(row)
        assert found == sent


# -- offsets


@pytest.mark.parametrize("version", VERSIONS)
async def test_offset_outside_of_log_is_out_of_range(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"0", b"1"]))
    for offset in (-1, -100, 3, 2**62):
        row = await fetch(wire, topic, offset, version)
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (-1, -1, -1)
        assert row.records is not None
        assert len(row.records) == 0
    row = await fetch(wire, topic, 2, version)
    assert (row.error_code, bytes(row.records), row.high_watermark) == (0, b"", 2)


async def test_offset_below_advanced_log_start_is_out_of_range(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for i in range(6):
            await produce(wire, topic, batch([b"%d" % i]))
        await delete_records(wire, "t", 4)
        assert (await fetch(wire, topic, 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        row = await fetch(wire, topic, 4)
        assert (values_of(row), row.log_start_offset) == ([b"4", b"5"], 4)


async def delete_records(wire: Wire, name: str, offset: int) -> Any:
    cls = DeleteRecordsRequest
    rows = [cls.Partition(partition_index=0, offset=offset)]
    response = await wire.ask(
        ApiKey.DELETE_RECORDS, 2, cls(topics=[cls.Topic(name=name, partitions=rows)])
    )
    return response.topics[0].partitions[0]


async def test_log_start_inside_batch_returns_whole_batch(start: Start) -> None:
    """The client skips the records before its offset."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"0", b"1", b"2", b"3"]))
        await delete_records(wire, "t", 2)
        assert (await fetch(wire, topic, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        row = await fetch(wire, topic, 2)
        assert [r.value for r in read_records(row.records) if r.offset >= 2] == [b"2", b"3"]


# -- immediate responses


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("no wait", {"max_wait_ms": 0}),
        ("negative wait", {"max_wait_ms": -5}),
        ("no bytes wanted", {"min_bytes": 0}),
        ("negative bytes", {"min_bytes": -1}),
    ],
)
async def test_fetch_without_wait_or_min_bytes_responds_immediately(
    wire: Wire, case: str, settings: dict[str, int]
) -> None:
    topic = await create_topic(wire, "t")
    row = await fetch(wire, topic, **{"max_wait_ms": NEVER, **settings})
    assert row.error_code == 0


@pytest.mark.parametrize(
    ("partitions", "part_bytes", "min_bytes", "max_bytes", "waits"),
    [
        ((0,), 1 << 20, 5000, 1000, False),  # the response is limited to 1000 bytes
        ((0,), 1 << 20, 1000, 1000, False),  # two batches exist, although they do not fit
        ((0,), 1 << 20, 5000, 100, False),
        ((0,), 1000, 1000, 1 << 20, False),
        ((0,), 100, 500, 1 << 20, False),  # the first batch is returned completely
        ((0,), 1000, 1500, 1 << 20, True),
        ((0,), 100, 5000, 1 << 20, True),
        ((0, 1), 1000, 1500, 1 << 20, False),
        ((0, 1), 1000, 2000, 1 << 20, False),
        ((0, 1), 1000, 2001, 1 << 20, True),
    ],
)
async def test_fetch_waits_for_min_bytes_up_to_response_limits(
    wire: Wire,
    partitions: tuple[int, ...],
    part_bytes: int,
    min_bytes: int,
    max_bytes: int,
    waits: bool,
) -> None:
    """Apache Kafka 4.3 waits in the same cases; it sends a part of the last batch."""
    topic = await create_topic(wire, "t", 2)
    for partition in (0, 1):
        for _ in range(3):
            await produce(wire, topic, batch([bytes(600)]), partition=partition)
    request = fetch_request(
        topic,
        partitions=partitions,
        partition_max_bytes=part_bytes,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_wait_ms=NEVER,
    )
    await wire.send(ApiKey.FETCH, 12, request)
    if waits:
        assert await wire.is_silent(0.05)
    else:
        assert (await wire.receive()).responses[0].partitions[0].records


async def test_fetch_with_unknown_partition_waits_for_other_partitions(
    broker: Broker, wire: Wire
) -> None:
    topic = await create_topic(wire, "t", 2)
    request = fetch_request(topic, partitions=(0, 7, 1), max_wait_ms=NEVER)
    await wire.send(ApiKey.FETCH, 12, request)
    assert await wire.is_silent(0.05)
    async with connected(broker.endpoint) as other:
        await produce(other, topic, batch([b"a"]), partition=1)
    rows = (await wire.receive()).responses[0].partitions
    found = {row.partition_index: (row.error_code, len(row.records) > 0) for row in rows}
    assert found == {0: (0, False), 7: (3, False), 1: (0, True)}


async def test_fetch_of_only_unknown_partitions_responds_immediately(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    row = await fetch(wire, topic, partitions=(7,), max_wait_ms=NEVER)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_fetch_without_partitions_responds_immediately(wire: Wire) -> None:
    for version in (4, 12, 13, 18):
        ask = FetchRequest(max_wait_ms=NEVER, min_bytes=1)
        response = await wire.ask(ApiKey.FETCH, version, ask)
        assert response.responses == []


@pytest.mark.parametrize(
    "bad",
    [
        {"offset": 5},
        {"current_leader_epoch": 9},
    ],
    ids=str,
)
async def test_fetch_with_partition_error_responds_immediately(
    wire: Wire, bad: dict[str, Any]
) -> None:
    topic = await create_topic(wire, "t")
    response = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER, **bad))
    assert any(p.error_code for t in response.responses for p in t.partitions)


async def test_records_of_one_partition_complete_fetch(wire: Wire) -> None:
    topic = await create_topic(wire, "t", 3)
    await produce(wire, topic, batch(), partition=2)
    ask = fetch_request(topic, partitions=(0, 1, 2), max_wait_ms=NEVER)
    response = await wire.ask(ApiKey.FETCH, 12, ask)
    assert [bool(p.records) for p in response.responses[0].partitions] == [False, False, True]


@pytest.mark.parametrize("version", VERSIONS)
async def test_fetch_of_unknown_topic_returns_error_of_version(wire: Wire, version: int) -> None:
    row = await fetch(wire, Topic("missing", uuid.uuid4()), version=version)
    code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert row.error_code == code


@pytest.mark.parametrize("version", VERSIONS)
async def test_zstd_batches_are_served_in_every_version(wire: Wire, version: int) -> None:
    """Kafka 4.x has no version check either."""
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"z"], codec=4))
    assert values_of(await fetch(wire, topic, version=version)) == [b"z"]


# -- sessions


async def open_session(wire: Wire, topic: Topic, version: int = 12, **fields: Any) -> int:
    ask = fetch_request(topic, session_epoch=0, **fields)
    response = await wire.ask(ApiKey.FETCH, version, ask)
    assert response.session_id > 0
    return int(response.session_id)


def incremental_request(
    session: int, epoch: int, topics: list[Any] | None = None, **fields: Any
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=topics or [],
        **fields,
    )


async def test_full_fetch_keeps_order_of_session_partitions(wire: Wire) -> None:
    """Only incremental responses move the partitions whose records they contain, as in Kafka."""
    topic = await create_topic(wire, "t", 2)
    for partition in (0, 1):
        await produce(wire, topic, batch([b"x"]), partition=partition)
    session = await open_session(wire, topic, partitions=(0, 1), max_bytes=1)
    for epoch, first in ((1, 0), (2, 1), (3, 0)):
        message = incremental_request(session, epoch, max_bytes=1)
        response = await wire.ask(ApiKey.FETCH, 12, message)
        (row,) = response.responses[0].partitions
        assert row.partition_index == first


@pytest.mark.parametrize("version", range(7, 19))
async def test_incremental_response_contains_only_changed_partitions(
    wire: Wire, version: int
) -> None:
    topic = await create_topic(wire, "t", 3)
    session = await open_session(wire, topic, version, partitions=(0, 1, 2))
    response = await wire.ask(ApiKey.FETCH, version, incremental_request(session, 1))
    assert (response.session_id, response.responses) == (session, [])
    await produce(wire, topic, batch([b"x"]), partition=1)
    response = await wire.ask(ApiKey.FETCH, version, incremental_request(session, 2))
    (row,) = response.responses[0].partitions
    assert (row.partition_index, values_of(row)) == (1, [b"x"])
    # The partition is fetched at the offset stored in the session until the client moves it.
    response = await wire.ask(ApiKey.FETCH, version, incremental_request(session, 3))
    assert values_of(response.responses[0].partitions[0]) == [b"x"]
    moved = fetch_request(topic, 1, partitions=(1,)).topics
    response = await wire.ask(ApiKey.FETCH, version, incremental_request(session, 4, moved))
    assert response.responses == []


async def test_incremental_fetch_reads_only_changed_partitions(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of thousands of partitions causes work only for the active ones."""
    topic = await create_topic(wire, "t", 20)
    session = await open_session(wire, topic, partitions=range(20))
    read: list[int] = []
    read_replica = FetchOperation._read_replica

    def counting_read(self: FetchOperation, target: Target, *rest: Any) -> Any:
        read.append(target.key[1])
        return read_replica(self, target, *rest)

    monkeypatch.setattr(FetchOperation, "_read_replica", counting_read)
    assert (await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 1))).responses == []
    assert read == []
    await produce(wire, topic, batch([b"x"]), partition=7)
    await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 2))
    assert read == [7]
    read.clear()
    moved = fetch_request(topic, 1, partitions=(7,)).topics
    assert (
        await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 3, moved))
    ).responses == []
    assert read == [7], "the client changed the fetch offset"
    assert (await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 4))).responses == []
    assert read == [7]


async def test_pending_fetch_rereads_only_changed_partitions(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch without a session also rereads only changed partitions."""
    topic = await create_topic(wire, "t", 20)
    read: list[int] = []
    read_replica = FetchOperation._read_replica

    def counting_read(self: FetchOperation, target: Target, *rest: Any) -> Any:
        read.append(target.key[1])
        return read_replica(self, target, *rest)

    monkeypatch.setattr(FetchOperation, "_read_replica", counting_read)
    await wire.send(ApiKey.FETCH, 12, fetch_request(topic, partitions=range(20), max_wait_ms=NEVER))
    async with connected(broker.endpoint) as other:
        await until(lambda: len(read) == 20)
        await produce(other, topic, batch([b"x"]), partition=7)
    response = await wire.receive()
    assert [values_of(row) for row in response.responses[0].partitions].count([b"x"]) == 1
    assert read == [*range(20), 7]


async def test_incremental_response_contains_advanced_log_start(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"0"]))
    await produce(wire, topic, batch([b"1"]))
    session = await open_session(wire, topic, offset=2)
    assert (await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 1))).responses == []
    await delete_records(wire, "t", 1)
    response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 2))
    assert response.responses[0].partitions[0].log_start_offset == 1


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_wrong_session_id_or_epoch_is_rejected(wire: Wire, version: int) -> None:
    """The error response has no session ID and no partitions, and the session stays open."""
    topic = await create_topic(wire, "t")
    session = await open_session(wire, topic, version)
    for message, code in (
        (incremental_request(session + 1, 1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (incremental_request(session, 2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (incremental_request(session, 9), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ):
        response = await wire.ask(ApiKey.FETCH, version, message)
        assert (response.error_code, response.session_id, response.responses) == (code, 0, [])
    assert (await wire.ask(ApiKey.FETCH, version, incremental_request(session, 1))).error_code == 0


async def test_session_cannot_mix_topic_names_and_ids(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    for first, second in ((12, 13), (13, 12)):
        session = await open_session(wire, topic, first)
        response = await wire.ask(ApiKey.FETCH, second, incremental_request(session, 1))
        assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize("version", [7, 12, 13])
async def test_forgotten_partition_is_not_fetched(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t", 2)
    await produce(wire, topic, batch([b"0"]))
    await produce(wire, topic, batch([b"1"]), partition=1)
    session = await open_session(wire, topic, version, partitions=(0, 1))
    forgotten = FetchRequest.ForgottenTopic(topic="t", topic_id=topic.id, partitions=[0])
    response = await wire.ask(
        ApiKey.FETCH, version, incremental_request(session, 1, forgotten_topics_data=[forgotten])
    )
    assert [p.partition_index for p in response.responses[0].partitions] == [1]


@pytest.mark.parametrize("version", [7, 12, 13])
@pytest.mark.parametrize("partition", [0, 1])
async def test_partition_added_and_forgotten_in_one_request_is_forgotten(
    wire: Wire, version: int, partition: int
) -> None:
    topic = await create_topic(wire, "t", 3)
    for index in (0, 1):
        await produce(wire, topic, batch([b"0"]), partition=index)
    session = await open_session(wire, topic, version, partitions=(0, 2))
    forgotten = FetchRequest.ForgottenTopic(topic="t", topic_id=topic.id, partitions=[partition])
    request = fetch_request(topic, partitions=(partition,), forgotten_topics_data=[forgotten])
    request.session_id, request.session_epoch = session, 1
    response = await wire.ask(ApiKey.FETCH, version, request)
    found = [p.partition_index for each in response.responses for p in each.partitions]
    assert found == ([] if partition == 0 else [0])


async def test_failing_partition_is_in_every_incremental_response(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    session = await open_session(wire, topic, partitions=(0, 5))
    for epoch in (1, 2, 3):
        response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, epoch))
        rows = response.responses[0].partitions
        assert [(p.partition_index, p.error_code) for p in rows] == [(5, 3)]


async def test_new_session_replaces_named_session(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    session = await open_session(wire, topic)
    ask = fetch_request(topic, session_id=session, session_epoch=0)
    second = (await wire.ask(ApiKey.FETCH, 12, ask)).session_id
    assert second not in (0, session)
    assert len(broker.node.fetch_sessions) == 1
    response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 1))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_final_epoch_closes_session(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    session = await open_session(wire, topic)
    response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, -1, max_bytes=1000))
    assert (response.error_code, response.session_id) == (0, 0)
    assert len(broker.node.fetch_sessions) == 0


async def test_session_cache_is_bounded() -> None:
    async with (
        started(max_incremental_fetch_session_cache_slots=3) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        for _ in range(6):
            ask = fetch_request(topic, session_epoch=0)
            response = await wire.ask(ApiKey.FETCH, 12, ask)
            assert response.responses, "the request is served, perhaps without a session"
        assert len(broker.node.fetch_sessions) == 3


@pytest.mark.slow
async def test_unknown_partitions_use_no_session_memory(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "t")
    ask = fetch_request(Topic("none"), partitions=tuple(range(40_000)), session_epoch=0)
    response = await wire.ask(ApiKey.FETCH, 12, ask)
    assert (response.session_id, len(response.responses[0].partitions)) == (0, 40_000)
    assert broker.node.fetch_sessions.partitions == 0
    # A session keeps a few of them and lists them in every response.
    ask = fetch_request(Topic("none"), partitions=(0, 1), session_epoch=0)
    session = (await wire.ask(ApiKey.FETCH, 12, ask)).session_id
    response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 1))
    assert [row.error_code for row in response.responses[0].partitions] == [3, 3]


async def test_sessions_of_closed_connections_are_evicted_first() -> None:
    async with started(max_incremental_fetch_session_cache_slots=1) as broker:
        async with connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "t")
            await open_session(wire, topic)
        await until(lambda: not broker.server.connections)
        async with connected(broker.endpoint) as wire:
            assert await open_session(wire, topic)


async def test_session_reports_deleted_and_recreated_topic(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    session = await open_session(wire, topic)
    await delete_topic(wire, "t")
    response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 1))
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create_topic(wire, "t")
    response = await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 2))
    assert response.responses[0].partitions[0].error_code == 0
    assert (await wire.ask(ApiKey.FETCH, 12, incremental_request(session, 3))).responses == []


async def test_incremental_fetch_waits_for_max_wait(wire: Wire) -> None:
    topic = await create_topic(wire, "t", 2)
    session = await open_session(wire, topic, partitions=(0, 1))
    ask = incremental_request(session, 1)
    ask.max_wait_ms = 300
    began_at = time.perf_counter()
    response = await wire.ask(ApiKey.FETCH, 12, ask)
    assert time.perf_counter() - began_at > 0.29
    assert response.responses == []


# -- leader epochs


async def create_log_with_epochs(directory: Path) -> Topic:
    """Create a log: epoch 0 has offsets 0 to 2, epoch 1 offsets 3 and 4, and epoch 2 is empty."""
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"0", b"1", b"2"]))
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        await produce(wire, topic, batch([b"3", b"4"]))
    return topic


@pytest.mark.slow
@pytest.mark.parametrize("version", range(9, 19))
async def test_fetch_checks_current_leader_epoch(tmp_path: Path, version: int) -> None:
    topic = await create_log_with_epochs(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        for epoch, code in (
            (-1, 0),
            (0, ErrorCode.FENCED_LEADER_EPOCH),
            (1, ErrorCode.FENCED_LEADER_EPOCH),
            (2, 0),
            (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            row = await fetch(wire, topic, 0, version, current_leader_epoch=epoch)
            assert row.error_code == code
            assert bool(row.records) == (code == 0)


@pytest.mark.slow
@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize(
    ("offset", "last_epoch", "code", "diverging"),
    [
        (3, -1, 0, None),
        (3, 0, 0, None),
        (5, 1, 0, None),
        (2, 0, 0, None),
        (4, 0, 0, (0, 3)),  # epoch 0 ended before offset 4
        (5, 2, 0, None),  # an empty epoch ends at the log end offset
        (3, 3, 1, None),  # above the current epoch
        (3, 9, 1, None),
    ],
)
async def test_fetch_after_divergence_returns_diverging_epoch(
    tmp_path: Path,
    version: int,
    offset: int,
    last_epoch: int,
    code: int,
    diverging: tuple[int, int] | None,
) -> None:
    topic = await create_log_with_epochs(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        row = await fetch(wire, topic, offset, version, last_fetched_epoch=last_epoch)
        assert row.error_code == code
        found = row.diverging_epoch
        assert (found and (found.epoch, found.end_offset)) == diverging
        if diverging:
            assert bytes(row.records) == b""


async def test_diverging_epoch_is_returned_immediately(tmp_path: Path) -> None:
    topic = await create_log_with_epochs(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        row = await fetch(wire, topic, 4, last_fetched_epoch=0, max_wait_ms=NEVER)
        assert row.diverging_epoch.end_offset == 3


# -- internal topics


async def test_offsets_topic_can_be_fetched(wire: Wire) -> None:
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
    row = await fetch(wire, Topic("__consumer_offsets"))
    assert (row.error_code, row.high_watermark) == (0, 0)
