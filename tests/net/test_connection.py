"""One connection: answers in order, pipelining, back-pressure, parked answers, acks=0, bad frames."""

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
from kbroker.net.connection import RECEIVE_BYTES, Connection
from kbroker.net.replies import REPLIES_MAX, Replies
from kbroker.node.request_memory import Claim
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import RequestHeader
from kbroker.protocol.messages.groups import JoinGroupRequest
from kbroker.protocol.messages.metadata import MetadataResponse

from ..brokers import Start, hand_to, started
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
    """Version 1, which needs no member id of the broker's."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )


# -- order


async def test_answers_come_in_the_order_of_requests(start: Start) -> None:
    """Slow and quick ones mixed, all sent at once; correlation ids are checked by the client."""
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
        answers = [await wire.receive() for _ in range(300)]
        offsets = [a.responses[0].partition_responses[0].base_offset for a in answers[::3]]
        assert offsets == list(range(100))
        expected = [str(i).encode() for i in range(0, 300, 3)]
        assert values_of(await fetch(wire, topic)) == expected


async def test_requests_that_arrive_byte_by_byte(wire: Wire) -> None:
    data = wire.frame(APIS, 0, request(APIS)) + wire.frame(
        ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[])
    )
    for i in range(len(data)):
        await wire.send_bytes(data[i : i + 1])
    assert (await wire.receive()).api_keys
    assert (await wire.receive()).brokers


async def test_a_parked_fetch_holds_later_answers_but_no_later_append(start: Start) -> None:
    """The append behind a parked fetch of its own connection is done at once."""
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


async def test_a_client_that_never_reads_stops_being_read(start: Start) -> None:
    """Its unanswered requests are bounded, others are served, and it can go on later."""
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
        assert scope.cancelled_caught, f"{sent} requests were taken without an answer being read"
        (deaf,) = broker.server.connections
        # What one read brings comes on top of the bound.
        assert len(deaf.replies.queue) < REPLIES_MAX + 256 * 1024 // len(frame) + 1
        async with connected(broker.endpoint) as other:
            assert await other.works()
        for _ in range(20):
            answer = await wire.receive()
            assert values_of(answer.responses[0].partitions[0]) == [bytes(500_000)]


async def test_many_pipelined_requests_beyond_the_bound_are_all_answered(wire: Wire) -> None:
    count = 5 * REPLIES_MAX
    data = b"".join(wire.frame(APIS, 0, request(APIS)) for _ in range(count))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_bytes, data)
        for _ in range(count):
            await wire.receive()


# -- parked answers


async def test_a_parked_fetch_wakes_when_records_come(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            assert await reader.is_silent()
            await produce(wire, topic, batch([b"a"]))
            row = (await reader.receive()).responses[0].partitions[0]
            assert (values_of(row), row.high_watermark) == ([b"a"], 1)


async def test_a_parked_fetch_waits_for_min_bytes(start: Start) -> None:
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


async def test_a_parked_fetch_ends_at_max_wait(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        asked_at = time.perf_counter()
        row = await fetch(wire, topic, max_wait_ms=200)
        assert time.perf_counter() - asked_at > 0.19
        assert (row.error_code, bytes(row.records)) == (0, b"")


@pytest.mark.parametrize("version", [12, 13])
async def test_a_parked_fetch_wakes_when_its_topic_goes(start: Start, version: int) -> None:
    """With 3, also by id; a new fetch by the id that is gone gets 100."""
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
async def test_a_session_of_a_deleted_topic_gets_3(start: Start, version: int) -> None:
    """As seen on Kafka: 3 while the topic is gone; made again, 103 by id."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            first = await reader.ask(ApiKey.FETCH, version, fetch_request(topic, session_epoch=0))
            assert first.session_id
            again = request(
                ApiKey.FETCH,
                max_wait_ms=NEVER,
                min_bytes=1,
                session_id=first.session_id,
                session_epoch=1,
            )
            await reader.send(ApiKey.FETCH, version, again)
            assert await reader.is_silent(0.05)
            await delete_topic(wire, "t")
            row = (await reader.receive()).responses[0].partitions[0]
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await create_topic(wire, "t")
            again.session_epoch, again.max_wait_ms = 2, 0
            row = (await reader.ask(ApiKey.FETCH, version, again)).responses[0].partitions[0]
            assert row.error_code == (ErrorCode.INCONSISTENT_TOPIC_ID if version == 13 else 0)


async def test_a_client_that_goes_away_frees_its_parked_fetch(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        replica = broker.node.partitions.named_replica("t", 0)
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            await until(lambda: len(replica._fetches) == 1)
        await until(lambda: not replica._fetches)
        assert len(broker.server.connections) == 1


async def test_a_client_that_half_closes_frees_its_parked_fetch(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            await reader.stream.send_eof()
            await reader.wait_closed()


async def test_answers_that_are_ready_still_reach_a_client_that_half_closed(wire: Wire) -> None:
    data = b"".join(wire.frame(APIS, 0, request(APIS)) for _ in range(50))
    await wire.send_bytes(data)
    await wire.stream.send_eof()
    for _ in range(50):
        assert (await wire.receive()).api_keys
    await wire.wait_closed()


async def test_a_client_that_goes_away_frees_its_parked_join(start: Start) -> None:
    """A first member joined; a second one waits for it, goes, and must not stay in the group."""
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
        again = await wire.ask(ApiKey.JOIN_GROUP, 1, join_request("g", joined.member_id))
        assert (again.error_code, len(again.members)) == (0, 1)


async def test_a_fetch_that_is_parked_does_not_hold_other_connections(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            for _ in range(20):
                assert await wire.works()


# -- acks=0


@pytest.mark.parametrize("version", range(3, 14))
async def test_acks_0_has_no_answer(broker: Broker, wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    ask = produce_request(topic, batch([b"quiet"]), acks=0)
    await wire.send(ApiKey.PRODUCE, version, ask, answered=False)
    assert await wire.works()
    assert values_of(await fetch(wire, topic, max_wait_ms=1000)) == [b"quiet"]


async def test_acks_0_does_not_delay_later_answers(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for i in range(50):
            ask = produce_request(topic, batch([str(i).encode()]), acks=0)
            await wire.send(ApiKey.PRODUCE, 9, ask, answered=False)
        row = await produce(wire, topic, batch([b"last"]))
        assert row.base_offset == 50


def refused_with_acks_0(topic: Topic) -> dict[str, object]:
    good, wrong_crc = batch(), bytearray(batch())
    wrong_crc[-1] ^= 1
    return {
        "unknown topic": produce_request(Topic("missing"), good, acks=0),
        "unknown partition": produce_request(topic, good, partition=7, acks=0),
        "wrong crc": produce_request(topic, bytes(wrong_crc), acks=0),
        "null records": produce_request(topic, None, acks=0),
        "no transactional id": produce_request(topic, batch(transactional=True), acks=0),
    }


@pytest.mark.parametrize("case", refused_with_acks_0(Topic("t")))
async def test_a_refusal_with_acks_0_closes(
    broker: Broker, wire: Wire, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await create_topic(wire, "t")
    ask = refused_with_acks_0(topic)[case]
    await wire.send(ApiKey.PRODUCE, 9, ask, answered=False)
    with caplog.at_level(logging.WARNING):
        assert await wire.wait_closed() == b""
    assert "acks=0" in caplog.text
    async with connected(broker.endpoint) as other:
        assert await other.works()


async def test_answers_before_a_refusal_still_go_out(wire: Wire) -> None:
    """The connection is closed behind the last good answer, not before it."""
    topic = await create_topic(wire, "t")
    good = wire.frame(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
    bad = produce_request(Topic("missing"), batch(), acks=0)
    await wire.send_bytes(good + wire.frame(ApiKey.PRODUCE, 9, bad, answered=False))
    assert (await wire.receive()).responses[0].partition_responses[0].base_offset == 0
    assert await wire.wait_closed() == b""


# -- frames


@pytest.mark.parametrize("size", [-1, 0, -(2**31), 2**31 - 1, 104_857_601, 0x15030300])
async def test_a_length_that_is_none_closes(
    broker: Broker, wire: Wire, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await wire.send_bytes(struct.pack(">i", size))
        assert await wire.wait_closed() == b""
    assert len(caplog.records) == 1
    # An exception would keep the frames that it came through, and the broker with them.
    assert not any(isinstance(each, Exception) for each in caplog.records[0].args or ())
    assert broker.node.request_memory.used == 0
    async with connected(broker.endpoint) as other:
        assert await other.works()


async def test_the_limit_is_a_setting() -> None:
    async with (
        started(socket_request_max_bytes=100_000, queued_max_request_bytes=200_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        header = struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + bytes(4)
        await wire.send_bytes(struct.pack(">i", 100_000) + header + bytes(100_000 - len(header)))
        assert len(await wire.receive_frame()) > 10
        await wire.send_bytes(struct.pack(">i", 100_001) + header)
        await wire.wait_closed()


LARGE = 900_000
"""Bytes of a request; of more than one of them there is no room in `small_memory`."""


def large_request(size: int = LARGE) -> bytes:
    """A Metadata request that is long because of what stands behind it."""
    head = struct.pack(">ihhih", size, ApiKey.METADATA, 1, 1, -1) + bytes(4)
    return head + bytes(size + 4 - len(head))


@asynccontextmanager
async def small_memory(**settings: Any) -> AsyncIterator[Broker]:
    async with started(
        socket_request_max_bytes=1_000_000, queued_max_request_bytes=1_000_000, **settings
    ) as broker:
        yield broker
    assert broker.node.request_memory.used == 0


async def test_large_requests_wait_for_room() -> None:
    """`queued.max.request.bytes`: what has come of requests at the same time is bounded."""
    count = 20
    async with small_memory() as broker, AsyncExitStack() as stack:
        memory = broker.node.request_memory
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
        # One goes on beyond the limit, and each was asked only after it had received something.
        assert 1_000_000 < most <= 1_000_000 + LARGE + count * RECEIVE_BYTES


async def test_what_is_announced_costs_nothing() -> None:
    """Slow clients that say that much is to come do not keep others from sending."""
    async with small_memory() as broker, AsyncExitStack() as stack:
        for _ in range(30):
            slow = await stack.enter_async_context(connected(broker.endpoint))
            await slow.send_bytes(large_request()[:100])
        wire = await stack.enter_async_context(connected(broker.endpoint))
        await wire.send_bytes(large_request())
        assert await wire.receive_frame()


async def test_requests_that_do_not_come_on_give_their_memory_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where there are many: who wants little does not wait for each of them in turn."""
    async with (
        small_memory(connection_setup_timeout_ms=10_000) as broker,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        slow = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(30)]
        for each in slow:
            nursery.start_soon(each.send_bytes, large_request()[:-1])
        await until(lambda: broker.node.request_memory.used > 1_000_000)
        wire = await stack.enter_async_context(connected(broker.endpoint))
        with trio.fail_after(10):
            await wire.send_bytes(large_request(150_000))
            assert await wire.receive_frame()
        await until(lambda: "arrives too slowly" in caplog.text)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_waiting_for_memory_is_not_the_fault_of_a_client() -> None:
    """The time for the first request does not run while there is no room for it."""
    async with small_memory(connection_setup_timeout_ms=3000) as broker:
        memory = broker.node.request_memory
        other = Claim(memory, "elsewhere", lambda: None)
        other.count(600_000, 400_000)
        first = Claim(memory, "elsewhere", lambda: None)
        first.count(500_000, 400_000)
        assert not first.may_continue
        # All is sent before the connection is closed.
        async with connected(broker.endpoint) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(first.wait)
            await until(lambda: first.may_continue)
            nursery.start_soon(wire.send_bytes, large_request())
            assert await wire.is_silent(4)
            other.release()
            first.release()
            # In the same turn of the loop: who is woken has not run yet.
            (connection,) = broker.server.connections
            assert not connection.is_overdue(trio.current_time(), 3, 3)
            assert await wire.receive_frame()


async def test_who_works_for_long_is_not_too_slow() -> None:
    """A large request that is complete holds its memory until its work is done."""
    async with small_memory() as broker:
        wake = trio.Event()

        async def handle(ctx: Any, asked: Any) -> MetadataResponse:
            await wake.wait()
            return MetadataResponse()

        hand_to(broker, ApiKey.METADATA, handle)
        async with (
            connected(broker.endpoint) as working,
            connected(broker.endpoint) as slow,
            connected(broker.endpoint) as other,
        ):
            await working.send_bytes(large_request())
            await until(lambda: broker.node.request_memory.used > LARGE - RECEIVE_BYTES)
            await slow.send_bytes(large_request()[:-1])
            await other.send_bytes(large_request()[:-1])
            await slow.wait_closed()  # it is not that nobody is given up
            wake.set()
            assert await working.receive_frame()


@pytest.mark.slow
async def test_who_sends_one_large_request_after_the_other_is_not_too_slow() -> None:
    """What came of the one before does not count against the next."""
    async with small_memory() as broker, AsyncExitStack() as stack:
        for _ in range(3):
            slow = await stack.enter_async_context(connected(broker.endpoint))
            await slow.send_bytes(large_request()[:-1])
        wire = await stack.enter_async_context(connected(broker.endpoint))
        until_seconds = trio.current_time() + 3
        while trio.current_time() < until_seconds:
            await wire.send_bytes(large_request())
            assert await wire.receive_frame()


async def test_the_first_bytes_of_a_large_request_count_too() -> None:
    """Those that came in one read with what was before it."""
    async with small_memory() as broker, connected(broker.endpoint) as wire:
        await wire.send_bytes(large_request()[:100_000])
        await until(lambda: broker.node.request_memory.used == 100_000 - 4)


async def test_room_is_given_back_when_a_large_request_breaks_off() -> None:
    async with small_memory() as broker:
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(large_request()[: LARGE // 2])
            await until(lambda: broker.node.request_memory.used > 0)
        await until(lambda: broker.node.request_memory.used == 0)


async def test_an_error_in_a_handler_ends_its_connection_only(
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


async def test_a_connect_and_close_storm(broker: Broker) -> None:
    for _ in range(300):
        stream = await trio.open_tcp_stream(*broker.endpoint)
        async with aclosing(stream):
            pass
    await until(lambda: not broker.server.connections)
    async with connected(broker.endpoint) as wire:
        assert (await metadata(wire, [])).brokers


async def test_who_gives_an_answer_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack that waits for the disk goes out with the sync; no task is woken for it."""

    async def no_writer(_: Connection) -> None:
        raise AssertionError("the writer was woken")

    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "orders")
        monkeypatch.setattr(Connection, "_resolve_first", no_writer)
        for offset in range(5):
            assert (await produce(wire, topic, batch())).base_offset == offset


class Writers(trio.abc.Instrument):
    """How many connections have a second task."""

    count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += "_write_all" in task.name


async def test_who_is_answered_at_once_costs_no_second_task() -> None:
    writers = Writers()
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


async def test_an_answer_that_cannot_be_sent_ends_its_own_connection_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever gives answers to several goes on after the first."""
    encode = Replies._encode

    def fail_for_one(replies: Replies, asked: RequestHeader, response: Any) -> Any:
        if asked.api_key == ApiKey.PRODUCE and asked.client_id == "unlucky":
            raise RuntimeError("planted")
        return encode(replies, asked, response)

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
        answer = await wire.receive()
        assert not answer.responses[0].partition_responses[0].error_code
        error_log = broker.nodes[0].node.context.error_log
        assert error_log.unhandled_errors == 1
        error_log.unhandled_errors = 0  # it was meant
    assert "planted" in caplog.text
