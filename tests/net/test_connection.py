"""Tests of one connection: response order, back-pressure, delayed responses and bad frames."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from kbroker.broker import Broker
from kbroker.handlers.context import Context
from kbroker.net.connection import RECEIVE_BYTES, Connection
from kbroker.net.replies import REPLIES_MAX, Replies
from kbroker.node.request_memory import Claim
from kbroker.partitions.waiters import Pending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import RequestHeader
from kbroker.protocol.messages.groups import JoinGroupRequest
from kbroker.protocol.messages.metadata import MetadataResponse

from ..brokers import Start, replace_handler, started
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
    metadata,
    produce,
    produce_request,
    request,
    until,
    values_of,
)

APIS = ApiKey.API_VERSIONS


def join_request(group: str, member: str = "") -> JoinGroupRequest:
    """Return a JoinGroup request of version 1, which needs no member ID from the broker."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )


# -- order


async def test_pipelined_requests_are_answered_in_order(start: Start) -> None:
    """Slow and fast requests are mixed. The client checks the correlation IDs."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        data = b""
        for i in range(300):
            if i % 3 == 0:
                data += wire.frame(
                    ApiKey.PRODUCE, 9, produce_request(topic, batch([str(i).encode()]))
                )
            elif i % 3 == 1:
                data += wire.frame(APIS, 0, request(APIS))
            else:
                data += wire.frame(ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=None))
        await wire.send_bytes(data)
        responses = [await wire.receive() for _ in range(300)]
        offsets = [a.responses[0].partition_responses[0].base_offset for a in responses[::3]]
        assert offsets == list(range(100))
        expected = [str(i).encode() for i in range(0, 300, 3)]
        assert values_of(await fetch(wire, topic)) == expected


async def test_requests_arriving_byte_by_byte_are_answered(wire: Wire) -> None:
    data = wire.frame(APIS, 0, request(APIS)) + wire.frame(
        ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[])
    )
    for i in range(len(data)):
        await wire.send_bytes(data[i : i + 1])
    assert (await wire.receive()).api_keys
    assert (await wire.receive()).brokers


async def test_pending_fetch_delays_later_responses_but_not_later_appends(start: Start) -> None:
    """An append sent after a pending fetch on the same connection is done immediately."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        idle = await create_topic(wire, "idle")
        await wire.send(ApiKey.FETCH, 12, fetch_request(idle, max_wait_ms=NEVER))
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"later"])))
        async with connected(broker.endpoint) as other:
            row = await fetch(other, topic, max_wait_ms=5000)
            assert values_of(row) == [b"later"]
            assert await wire.is_silent()
            await produce(other, idle, batch())
        assert (await wire.receive()).responses[0].partitions[0].records
        assert (await wire.receive()).responses[0].partition_responses[0].base_offset == 0


# -- back-pressure


@pytest.mark.slow
async def test_broker_stops_reading_from_client_that_never_reads(start: Start) -> None:
    """The unanswered requests are bounded, other clients are served, and the client can resume."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([bytes(500_000)]))
        ask = fetch_request(topic)
        sent = 0
        with trio.move_on_after(10) as scope:
            while sent < 200_000:
                frame = wire.frame(ApiKey.FETCH, 12, ask)
                scope.deadline = trio.current_time() + 1
                await wire.stream.send_all(frame)
                sent += 1
        assert scope.cancelled_caught, f"the broker accepted {sent} requests with no response read"
        (stalled,) = broker.server.connections
        # The requests of one read are added on top of the limit.
        assert len(stalled.replies.queue) < REPLIES_MAX + 256 * 1024 // len(frame) + 1
        async with connected(broker.endpoint) as other:
            assert await other.works()
        for _ in range(20):
            response = await wire.receive()
            assert values_of(response.responses[0].partitions[0]) == [bytes(500_000)]


@pytest.mark.slow
async def test_pipelined_requests_above_queue_limit_are_all_answered(wire: Wire) -> None:
    count = 5 * REPLIES_MAX
    data = b"".join(wire.frame(APIS, 0, request(APIS)) for _ in range(count))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_bytes, data)
        for _ in range(count):
            await wire.receive()


# -- pending responses


async def test_pending_fetch_completes_when_records_arrive(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            assert await reader.is_silent()
            await produce(wire, topic, batch([b"a"]))
            row = (await reader.receive()).responses[0].partitions[0]
            assert (values_of(row), row.high_watermark) == ([b"a"], 1)


async def test_pending_fetch_waits_for_min_bytes(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        one = batch([bytes(1000)])
        ask = fetch_request(topic, partitions=(0, 1), max_wait_ms=NEVER, min_bytes=3 * len(one))
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, ask)
            await produce(wire, topic, one)
            await produce(wire, topic, one, partition=1)
            assert await reader.is_silent()
            await produce(wire, topic, one)
            rows = (await reader.receive()).responses[0].partitions
            assert [len(row.records) for row in rows] == [2 * len(one), len(one)]


async def test_pending_fetch_completes_at_max_wait(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        asked_at = time.perf_counter()
        row = await fetch(wire, topic, max_wait_ms=200)
        assert time.perf_counter() - asked_at > 0.19
        assert (row.error_code, bytes(row.records)) == (0, b"")


async def test_deadline_of_answered_request_does_not_end_the_next_one() -> None:
    """The deadline of the writer stays, because moving it takes a tenth of a request's time."""
    given: list[Pending[MetadataResponse]] = []
    seconds = [0.2, 0.5, 0.1]

    def wait(ctx: Context, message: object) -> Pending[MetadataResponse]:
        deadline = trio.current_time() + seconds[len(given)]
        given.append(Pending(deadline=deadline, on_timeout=MetadataResponse))
        return given[-1]

    async with started() as broker:
        replace_handler(broker, ApiKey.METADATA, wait)
        async with connected(broker.endpoint) as wire:
            message = request(ApiKey.METADATA, topics=[])
            await wire.send(ApiKey.METADATA, 9, message)
            (connection,) = broker.server.connections
            await until(lambda: given and connection._pause is not None)
            await trio.testing.wait_all_tasks_blocked()
            pause = connection._pause
            assert pause is not None
            assert pause.deadline == given[0].deadline
            given[0].resolve(MetadataResponse())
            await wire.receive()
            assert pause.deadline == given[0].deadline
            for number in (1, 2):
                await wire.ask(ApiKey.METADATA, 9, message)
                assert trio.current_time() >= given[number].deadline


@pytest.mark.parametrize("version", [12, 13])
async def test_pending_fetch_fails_when_its_topic_is_deleted(start: Start, version: int) -> None:
    """The error is 3, also for a fetch by topic ID. A new fetch by the deleted ID gets 100."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, version, fetch_request(topic, max_wait_ms=NEVER))
            assert await reader.is_silent(0.05)
            await delete_topic(wire, "t")
            row = (await reader.receive()).responses[0].partitions[0]
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            row = await fetch(reader, topic, version=version)
            assert row.error_code == (3, ErrorCode.UNKNOWN_TOPIC_ID)[version == 13]


@pytest.mark.parametrize("version", [12, 13])
async def test_fetch_session_of_deleted_topic_gets_unknown_topic_or_partition(
    start: Start, version: int
) -> None:
    """Kafka returns 3 while the topic is missing, and 103 by ID after it was recreated."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            first = await reader.ask(ApiKey.FETCH, version, fetch_request(topic, session_epoch=0))
            assert first.session_id
            second = request(
                ApiKey.FETCH,
                max_wait_ms=NEVER,
                min_bytes=1,
                session_id=first.session_id,
                session_epoch=1,
            )
            await reader.send(ApiKey.FETCH, version, second)
            assert await reader.is_silent(0.05)
            await delete_topic(wire, "t")
            row = (await reader.receive()).responses[0].partitions[0]
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await create_topic(wire, "t")
            second.session_epoch, second.max_wait_ms = 2, 0
            row = (await reader.ask(ApiKey.FETCH, version, second)).responses[0].partitions[0]
            assert row.error_code == (ErrorCode.INCONSISTENT_TOPIC_ID if version == 13 else 0)


async def test_disconnected_client_frees_its_pending_fetch(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        replica = broker.node.partitions.named_replica("t", 0)
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            await until(lambda: len(replica._fetches) == 1)
        await until(lambda: not replica._fetches)
        assert len(broker.server.connections) == 1


async def test_half_closed_client_frees_its_pending_fetch(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            await reader.stream.send_eof()
            await reader.wait_closed()


async def test_half_closed_client_receives_ready_responses(wire: Wire) -> None:
    data = b"".join(wire.frame(APIS, 0, request(APIS)) for _ in range(50))
    await wire.send_bytes(data)
    await wire.stream.send_eof()
    for _ in range(50):
        assert (await wire.receive()).api_keys
    await wire.wait_closed()


async def test_disconnected_client_frees_its_pending_join(start: Start) -> None:
    """A second member disconnects while its join is pending; the group must drop the member."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
        joined = await wire.ask(ApiKey.JOIN_GROUP, 1, join_request("g"))
        assert joined.error_code == 0
        shard = broker.node.groups.shard("g")
        async with connected(broker.endpoint) as second:
            await second.send(ApiKey.JOIN_GROUP, 1, join_request("g"))
            await until(lambda: len(shard.coordinator.describe_group("g", 5).members) == 2)
            assert await second.is_silent(0.05)
        await until(lambda: len(shard.coordinator.describe_group("g", 5).members) == 1)
        rejoin = await wire.ask(ApiKey.JOIN_GROUP, 1, join_request("g", joined.member_id))
        assert (rejoin.error_code, len(rejoin.members)) == (0, 1)


async def test_pending_fetch_does_not_block_other_connections(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            for _ in range(20):
                assert await wire.works()


# -- acks=0


@pytest.mark.parametrize("version", range(3, 14))
async def test_produce_with_acks_0_gets_no_response(
    broker: Broker, wire: Wire, version: int
) -> None:
    topic = await create_topic(wire, "t")
    ask = produce_request(topic, batch([b"quiet"]), acks=0)
    await wire.send(ApiKey.PRODUCE, version, ask, answered=False)
    assert await wire.works()
    assert values_of(await fetch(wire, topic, max_wait_ms=1000)) == [b"quiet"]


async def test_produce_with_acks_0_does_not_delay_later_responses(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for i in range(50):
            ask = produce_request(topic, batch([str(i).encode()]), acks=0)
            await wire.send(ApiKey.PRODUCE, 9, ask, answered=False)
        row = await produce(wire, topic, batch([b"last"]))
        assert row.base_offset == 50


def rejected_with_acks_0(topic: Topic) -> dict[str, object]:
    good, wrong_crc = batch(), bytearray(batch())
    wrong_crc[-1] ^= 1
    return {
        "unknown topic": produce_request(Topic("missing"), good, acks=0),
        "unknown partition": produce_request(topic, good, partition=7, acks=0),
        "wrong crc": produce_request(topic, bytes(wrong_crc), acks=0),
        "null records": produce_request(topic, None, acks=0),
        "no transactional id": produce_request(topic, batch(transactional=True), acks=0),
    }


@pytest.mark.parametrize("case", rejected_with_acks_0(Topic("t")))
async def test_rejected_produce_with_acks_0_closes_connection(
    broker: Broker, wire: Wire, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await create_topic(wire, "t")
    ask = rejected_with_acks_0(topic)[case]
    await wire.send(ApiKey.PRODUCE, 9, ask, answered=False)
    with caplog.at_level(logging.WARNING):
        assert await wire.wait_closed() == b""
    assert "acks=0" in caplog.text
    async with connected(broker.endpoint) as other:
        assert await other.works()


async def test_responses_before_a_rejected_produce_are_sent(wire: Wire) -> None:
    """The connection is closed after the last successful response."""
    topic = await create_topic(wire, "t")
    good = wire.frame(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
    bad = produce_request(Topic("missing"), batch(), acks=0)
    await wire.send_bytes(good + wire.frame(ApiKey.PRODUCE, 9, bad, answered=False))
    assert (await wire.receive()).responses[0].partition_responses[0].base_offset == 0
    assert await wire.wait_closed() == b""


# -- frames


@pytest.mark.parametrize("size", [-1, 0, -(2**31), 2**31 - 1, 104_857_601, 0x15030300])
async def test_invalid_frame_length_closes_connection(
    broker: Broker, wire: Wire, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await wire.send_bytes(struct.pack(">i", size))
        assert await wire.wait_closed() == b""
    assert len(caplog.records) == 1
    # A stored exception would keep its frames, and thereby the broker, alive.
    assert not any(isinstance(each, Exception) for each in caplog.records[0].args or ())
    assert broker.node.limits.memory.used == 0
    async with connected(broker.endpoint) as other:
        assert await other.works()


async def test_socket_request_max_bytes_limits_frames() -> None:
    async with (
        started(socket_request_max_bytes=100_000, queued_max_request_bytes=200_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        header = struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + bytes(4)
        await wire.send_bytes(struct.pack(">i", 100_000) + header + bytes(100_000 - len(header)))
        assert len(await wire.receive_frame()) > 10
        await wire.send_bytes(struct.pack(">i", 100_001) + header)
        await wire.wait_closed()


# Bytes of a request; `small_memory` has memory for only one such request.
LARGE = 900_000


def large_request(size: int = LARGE) -> bytes:
    """Return a Metadata request that is padded with trailing bytes."""
    head = struct.pack(">ihhih", size, ApiKey.METADATA, 1, 1, -1) + bytes(4)
    return head + bytes(size + 4 - len(head))


@asynccontextmanager
async def small_memory(**settings: Any) -> AsyncIterator[Broker]:
    async with started(
        socket_request_max_bytes=1_000_000, queued_max_request_bytes=1_000_000, **settings
    ) as broker:
        yield broker
    assert broker.node.limits.memory.used == 0


async def test_large_requests_wait_for_memory() -> None:
    """`queued.max.request.bytes` limits the bytes of incomplete requests."""
    count = 20
    async with small_memory() as broker, AsyncExitStack() as stack:
        memory = broker.node.limits.memory
        wires = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(count)]
        most = 0
        answered = 0

        async def ask(wire: Wire) -> None:
            nonlocal answered
            await wire.send_bytes(large_request())
            await wire.receive_frame()
            answered += 1

        async with trio.open_nursery() as nursery:
            for wire in wires:
                nursery.start_soon(ask, wire)
            while answered < count:
                most = max(most, memory.used)
                await trio.lowlevel.checkpoint()
        # One request may exceed the limit, and each claim is checked only after a read.
        assert 1_000_000 < most <= 1_000_000 + LARGE + count * RECEIVE_BYTES


async def test_announced_frame_size_reserves_no_memory() -> None:
    """Slow clients that announce large requests do not block other clients."""
    async with small_memory() as broker, AsyncExitStack() as stack:
        for _ in range(30):
            slow = await stack.enter_async_context(connected(broker.endpoint))
            await slow.send_bytes(large_request()[:100])
        wire = await stack.enter_async_context(connected(broker.endpoint))
        await wire.send_bytes(large_request())
        assert await wire.receive_frame()


async def test_stalled_requests_release_their_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A small request does not wait for every stalled client in turn."""
    async with (
        small_memory(connection_setup_timeout_ms=10_000) as broker,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        slow = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(30)]
        for each in slow:
            nursery.start_soon(each.send_bytes, large_request()[:-1])
        await until(lambda: broker.node.limits.memory.used > 1_000_000)
        wire = await stack.enter_async_context(connected(broker.endpoint))
        with trio.fail_after(10):
            await wire.send_bytes(large_request(150_000))
            assert await wire.receive_frame()
        await until(lambda: "arrives too slowly" in caplog.text)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_waiting_for_memory_does_not_count_as_setup_time() -> None:
    """The deadline for the first request is paused while the broker has no memory for it."""
    async with small_memory(connection_setup_timeout_ms=3000) as broker:
        memory = broker.node.limits.memory
        other = Claim(memory, "elsewhere", lambda: None)
        other.count(600_000, 400_000)
        first = Claim(memory, "elsewhere", lambda: None)
        first.count(500_000, 400_000)
        assert not first.may_continue
        # The client sends everything before it closes the connection.
        async with connected(broker.endpoint) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(first.wait)
            await until(lambda: first.may_continue)
            nursery.start_soon(wire.send_bytes, large_request())
            assert await wire.is_silent(4)
            other.release()
            first.release()
            # This runs before the woken task does.
            (connection,) = broker.server.connections
            assert not connection.is_overdue(trio.current_time(), 3, 3)
            assert await wire.receive_frame()


async def test_long_running_handler_is_not_treated_as_slow_client() -> None:
    """A complete large request keeps its memory until its handler is done."""
    async with small_memory() as broker:
        wake = trio.Event()

        async def handle(ctx: Any, message: Any) -> MetadataResponse:
            await wake.wait()
            return MetadataResponse()

        replace_handler(broker, ApiKey.METADATA, handle)
        async with (
            connected(broker.endpoint) as working,
            connected(broker.endpoint) as slow,
            connected(broker.endpoint) as other,
        ):
            await working.send_bytes(large_request())
            await until(lambda: broker.node.limits.memory.used > LARGE - RECEIVE_BYTES)
            await slow.send_bytes(large_request()[:-1])
            await other.send_bytes(large_request()[:-1])
            await slow.wait_closed()  # proves that slow clients are disconnected
            wake.set()
            assert await working.receive_frame()


@pytest.mark.slow
async def test_client_with_successive_large_requests_is_not_too_slow() -> None:
    """Bytes of the previous request do not count against the next one."""
    async with small_memory() as broker, AsyncExitStack() as stack:
        for _ in range(3):
            slow = await stack.enter_async_context(connected(broker.endpoint))
            await slow.send_bytes(large_request()[:-1])
        wire = await stack.enter_async_context(connected(broker.endpoint))
        until_seconds = trio.current_time() + 3
        while trio.current_time() < until_seconds:
            await wire.send_bytes(large_request())
            assert await wire.receive_frame()


async def test_first_bytes_of_large_request_count_as_used_memory() -> None:
    """These are the bytes that arrive in the same read as the frame length."""
    async with small_memory() as broker, connected(broker.endpoint) as wire:
        await wire.send_bytes(large_request()[:100_000])
        await until(lambda: broker.node.limits.memory.used == 100_000 - 4)


async def test_memory_is_released_when_large_request_is_aborted() -> None:
    async with small_memory() as broker:
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(large_request()[: LARGE // 2])
            await until(lambda: broker.node.limits.memory.used > 0)
        await until(lambda: broker.node.limits.memory.used == 0)


async def test_handler_error_closes_only_its_own_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = broker.node
    async with connected(broker.endpoint) as wire, connected(broker.endpoint) as other:
        monkeypatch.setattr(node.fetch_sessions, "plan", lambda *_, **__: 1 / 0)
        await wire.send(ApiKey.FETCH, 12, fetch_request(Topic("t")))
        assert await wire.wait_closed() == b""
        assert node.context.error_log.unhandled_errors == 1
        node.context.error_log.unhandled_errors = 0
        assert await other.works()


async def test_broker_survives_connect_and_close_storm(broker: Broker) -> None:
    for _ in range(300):
        stream = await trio.open_tcp_stream(*broker.endpoint)
        async with aclosing(stream):
            pass
    await until(lambda: not broker.server.connections)
    async with connected(broker.endpoint) as wire:
        assert (await metadata(wire, [])).brokers


async def test_fsync_sends_produce_responses_without_waking_writer_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A produce response that waits for an fsync is sent by the fsync's completion."""

    async def fail_if_called(_: Connection) -> None:
        raise AssertionError("the writer was woken")

    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "orders")
        monkeypatch.setattr(Connection, "_resolve_first", fail_if_called)
        for offset in range(5):
            assert (await produce(wire, topic, batch())).base_offset == offset


class WriterTaskCounter(trio.abc.Instrument):
    """A trio instrument that counts the started writer tasks."""

    count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += "_write_all" in task.name


async def test_immediate_responses_need_no_writer_task() -> None:
    writers = WriterTaskCounter()
    trio.lowlevel.add_instrument(writers)
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        assert await wire.works()
        before = writers.count
        async with connected(broker.endpoint) as other:
            assert await other.works()
            await fetch(other, topic)
            assert writers.count == before
            await other.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            await until(lambda: writers.count > before)
            await produce(wire, topic, batch())
            assert await other.receive()
    trio.lowlevel.remove_instrument(writers)
    assert writers.count == before + 1


async def test_response_encoding_error_closes_only_its_own_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fsync that completes several requests continues after the first error."""
    encode = Replies._encode

    def fail_for_one(replies: Replies, header: RequestHeader, response: Any) -> Any:
        if header.api_key == ApiKey.PRODUCE and header.client_id == "unlucky":
            raise RuntimeError("planted")
        return encode(replies, header, response)

    monkeypatch.setattr(Replies, "_encode", fail_for_one)
    async with (
        started(tmp_path) as broker,
        connected(broker.endpoint) as unlucky,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "orders")
        ask = produce_request(topic, batch())
        sync_lock = broker.nodes[0].node.partitions.flusher.sync_lock
        async with sync_lock:
            await unlucky.send(ApiKey.PRODUCE, 9, ask, client_id="unlucky")
            await wire.send(ApiKey.PRODUCE, 9, ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await unlucky.wait_closed()
        response = await wire.receive()
        assert not response.responses[0].partition_responses[0].error_code
        error_log = broker.nodes[0].node.context.error_log
        assert error_log.unhandled_errors == 1
        error_log.unhandled_errors = 0  # the error was planted
    assert "planted" in caplog.text
