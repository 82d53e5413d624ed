"""Tests of fairness between connections: time slices, and a limit for unsent responses."""

from __future__ import annotations

import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.handlers.context import Context
from kbroker.net.connection import Connection
from kbroker.net.replies import ROW_BYTES
from kbroker.node.request_limits import LARGE_READS_MAX
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from kbroker.runtime.time_slices import FairQueue, Line

from ..brokers import replace_handler, started
from ..loop_latency import STEP_SECONDS_MAX, longest_step
from ..wire import (
    NEVER,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
    request,
    until,
)

PARTITIONS = 3000
# Default of `connection.max.pending.response.bytes`.
UNSENT_BYTES = 1 << 20
ALL = MetadataRequest(topics=None)


def owed_bytes(connection: Connection) -> int:
    return connection.replies.owed_bytes


async def connection_of(broker: Broker, wire: Wire) -> Connection:
    """Return the broker's end of a connection, once it has read a request."""
    name = wire.stream.socket.getsockname()
    await until(
        lambda: any(
            _is_end_of(each, name) and each.requests.count for each in broker.server.connections
        )
    )
    return next(each for each in broker.server.connections if _is_end_of(each, name))


def _is_end_of(connection: Connection, name: Any) -> bool:
    transport: Any = connection._transport
    return bool(transport._socket.fileno() >= 0 and transport._socket.getpeername() == name)


async def has_stopped_reading(connection: Connection) -> None:
    """Wait until the broker stops reading because the client does not read its responses."""
    await until(lambda: connection.replies.is_full)
    before = -1
    while before != connection.requests.count:
        before = connection.requests.count
        await trio.testing.wait_all_tasks_blocked(0.05)


@asynccontextmanager
async def broker_of_many(partitions: int = PARTITIONS) -> AsyncIterator[tuple[Broker, Wire]]:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "many", partitions)
        yield broker, wire


@asynccontextmanager
async def flooding(wire: Wire, data: bytes) -> AsyncIterator[None]:
    """Send data while the block runs, as far as the broker reads it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_bytes, data)
        yield
        nursery.cancel_scope.cancel()


async def receive_sizes(wire: Wire, count: int) -> list[int]:
    """Return the sizes of the next responses and check their order."""
    sizes = []
    for _ in range(count):
        correlation_id, _, _ = wire.pending.popleft()
        frame = await wire.receive_frame()
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        sizes.append(len(frame))
    return sizes


# -- unread responses


@pytest.mark.slow
@pytest.mark.parametrize("count", [500, 2000])
async def test_unread_responses_stop_reading_requests(count: int) -> None:
    async with broker_of_many() as (broker, other), connected(broker.endpoint) as stalled:
        response_bytes = len(await receive_one_response(other))
        data = b"".join(stalled.frame(ApiKey.METADATA, 9, ALL) for _ in range(count))
        with longest_step() as step:
            await stalled.send_bytes(data)
            connection = await connection_of(broker, stalled)
            most = 0
            while not connection.replies.is_full:
                assert await other.works()
                most = max(most, owed_bytes(connection))
            await has_stopped_reading(connection)
            assert await other.works()
        most = max(most, owed_bytes(connection))
        assert UNSENT_BYTES < most <= UNSENT_BYTES + response_bytes
        assert connection.requests.count < count
        assert step.seconds < STEP_SECONDS_MAX, str(step)


async def receive_one_response(wire: Wire) -> bytes:
    await wire.send(ApiKey.METADATA, 9, ALL)
    wire.pending.clear()
    return await wire.receive_frame()


async def test_client_that_resumes_reading_gets_responses_in_order() -> None:
    async with broker_of_many(1000) as (broker, _), connected(broker.endpoint) as stalled:
        count = 200
        await stalled.send_bytes(
            b"".join(stalled.frame(ApiKey.METADATA, 9, ALL) for _ in range(count))
        )
        await has_stopped_reading(await connection_of(broker, stalled))
        assert len(set(await receive_sizes(stalled, count))) == 1
        assert await stalled.works()


async def test_pending_response_limit_of_one_byte_works() -> None:
    """With a limit of 1 byte, each response is sent before the next request is handled."""
    async with (
        started(connection_max_pending_response_bytes=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        message = request(ApiKey.API_VERSIONS)
        await wire.send_bytes(
            b"".join(wire.frame(ApiKey.API_VERSIONS, 0, message) for _ in range(500))
        )
        for _ in range(500):
            await wire.receive()


async def test_responses_queued_after_long_poll_are_bounded() -> None:
    async with broker_of_many() as (broker, other), connected(broker.endpoint) as wire:
        topic = Topic("many")
        response_bytes = len(await receive_one_response(other))
        data = wire.frame(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
        data += b"".join(wire.frame(ApiKey.METADATA, 9, ALL) for _ in range(100))
        await wire.send_bytes(data)
        connection = await connection_of(broker, wire)
        await has_stopped_reading(connection)
        assert UNSENT_BYTES < owed_bytes(connection) <= UNSENT_BYTES + response_bytes
        await produce(other, topic, batch())
        assert (await wire.receive()).responses[0].partitions[0].records
        await receive_sizes(wire, 100)


async def test_client_that_reads_no_responses_becomes_idle() -> None:
    """The broker has stopped reading, so it does not notice the disconnect."""
    async with started(connections_max_idle_ms=2000) as broker:
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "many", PARTITIONS)
            data = wire.frame(ApiKey.FETCH, 12, fetch_request(Topic("many"), max_wait_ms=NEVER))
            await wire.send_bytes(data + wire.frame(ApiKey.METADATA, 9, ALL) * 20)
            await has_stopped_reading(await connection_of(broker, wire))
        await until(lambda: not broker.server.connections)


ROWS = 5000


def produce_of_many_rows() -> ProduceRequest:
    """Return a request whose partitions, except for the first one, do not exist."""
    rows = [ProduceRequest.Partition(index=index, records=b"") for index in range(1, ROWS)]
    first = ProduceRequest.Partition(index=0, records=batch())
    topic = ProduceRequest.Topic(name="t", partition_data=[first, *rows])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


@pytest.mark.slow
async def test_pending_responses_are_counted_by_rows() -> None:
    """The response is about a thousand times larger than its queue entry."""
    async with started() as broker:
        waiting: list[Pending[Any]] = []

        def delay(ctx: Any, message: Any) -> Pending[Any]:
            waiting.append(Pending())
            return waiting[-1]

        replace_handler(broker, ApiKey.PRODUCE, delay)
        async with connected(broker.endpoint) as wire:
            frame = wire.frame(ApiKey.PRODUCE, 9, produce_of_many_rows(), answered=False)
            async with flooding(wire, frame * 50):
                await has_stopped_reading(await connection_of(broker, wire))
            assert (
                (len(waiting) - 1) * ROWS * ROW_BYTES
                <= UNSENT_BYTES
                < len(waiting) * ROWS * ROW_BYTES
            )


# -- time slices


@pytest.mark.slow
async def test_many_cheap_requests_yield_to_others() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        message = request(ApiKey.API_VERSIONS)
        data = b"".join(wire.frame(ApiKey.API_VERSIONS, 0, message) for _ in range(10_000))
        with longest_step() as step:
            async with flooding(wire, data):
                await receive_sizes(wire, 10_000)
        assert step.seconds < STEP_SECONDS_MAX, str(step)


def names(count: int) -> list[MetadataRequest.Topic]:
    return [MetadataRequest.Topic(name=f"topic-{i}") for i in range(count)]


@pytest.mark.slow
async def test_large_request_yields_to_others() -> None:
    async with started() as broker:
        replace_handler(broker, ApiKey.METADATA, lambda ctx, message: MetadataResponse())
        async with connected(broker.endpoint) as wire:
            message = MetadataRequest(topics=names(99_000))
            data = wire.frame(ApiKey.METADATA, 9, message)
            with longest_step() as step:
                await wire.send_bytes(data)
                await wire.receive()
            assert step.seconds < STEP_SECONDS_MAX, str(step)


async def yields_of(wire: Wire, monkeypatch: pytest.MonkeyPatch, key: ApiKey, message: Any) -> int:
    """Return how often a request yields if each time slice ends as soon as possible."""
    waits = 0
    wait = FairQueue.wait

    async def counted(self: FairQueue, line: Line) -> None:
        nonlocal waits
        waits += 1
        await wait(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(FairQueue, "wait", counted)
        patch.setattr("kbroker.runtime.time_slices.TIME_SLICE_SECONDS", 0)
        await wire.ask(key, 3, message)
    return waits


async def test_partition_placement_yields_after_each_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        create = CreateTopicsRequest(
            topics=[CreateTopicsRequest.Topic(name="t", num_partitions=50, replication_factor=1)],
            timeout_ms=1000,
        )
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.Topic(name="t", count=100)], timeout_ms=1000
        )
        assert await yields_of(wire, monkeypatch, ApiKey.CREATE_TOPICS, create) >= 50
        assert await yields_of(wire, monkeypatch, ApiKey.CREATE_PARTITIONS, grow) >= 50


async def test_concurrent_create_partitions_requests_grow_topic_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.runtime.time_slices.TIME_SLICE_SECONDS", 0)
    row = CreatePartitionsRequest.Topic(name="t", count=20)
    ask = CreatePartitionsRequest(topics=[row], timeout_ms=1000)
    codes = []

    async def grow(wire: Wire) -> None:
        response = await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)
        codes.append(response.results[0].error_code)

    async with started() as broker, connected(broker.endpoint) as one:
        await create_topic(one, "t", 2)
        async with connected(broker.endpoint) as two, trio.open_nursery() as nursery:
            nursery.start_soon(grow, one)
            nursery.start_soon(grow, two)
        assert len(broker.node.cluster.topics["t"].partitions) == 20
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]


@pytest.mark.slow
async def test_request_with_too_many_elements_closes_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started(request_max_elements=5000) as broker, connected(broker.endpoint) as wire:
        await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=names(5000)))
        await wire.send(ApiKey.METADATA, 9, MetadataRequest(topics=names(5001)))
        await wire.wait_closed()
    assert "5001 elements" in caplog.text
    assert "(request.max.elements)" in caplog.text


@cache
def long_response() -> MetadataResponse:
    row = MetadataResponse.Topic(name="t", partitions=[MetadataResponse.Partition(isr_nodes=[1])])
    return MetadataResponse(topics=[row] * 200_000)


def immediate(ctx: Any, message: Any) -> Any:
    return long_response()


async def coroutine(ctx: Any, message: Any) -> Any:
    return long_response()


def pending(ctx: Any, message: Any) -> Any:
    return Pending[Any](deadline=trio.current_time() + 0.01, on_timeout=long_response)


def respond_at_once(ctx: Any, message: Any) -> Any:
    response = Pending[Any]()
    response.resolve(long_response())
    return response


def polled(ctx: Any, message: Any) -> Any:
    async def begin() -> Any:
        return long_response()

    return Waiting(begin)


@pytest.mark.slow
@pytest.mark.parametrize("handler", [immediate, coroutine, pending, respond_at_once, polled])
async def test_large_response_yields_to_others(handler: Any) -> None:
    """Responses of every handler type. An immediate response is about as long as its request."""
    async with started() as broker:
        long_response()
        replace_handler(broker, ApiKey.METADATA, handler)
        async with connected(broker.endpoint) as wire, connected(broker.endpoint) as other:
            with longest_step() as step:
                await wire.send(ApiKey.METADATA, 9, MetadataRequest(topics=names(2000)))
                await wire.send(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.works)
                    (size, _) = await receive_sizes(wire, 2)
            assert size > 1_000_000
            assert step.seconds < STEP_SECONDS_MAX, str(step)


async def test_few_large_reads_are_handled_concurrently() -> None:
    """Each takes many times its size in memory, and a client may open many connections."""
    active = most = 0

    async def respond_later(ctx: Context, ask: Any) -> Any:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await trio.sleep(0.2)
        active -= 1
        return FetchResponse()

    message = fetch_request(Topic("t", uuid.uuid4()), partitions=range(10_000))
    async with started() as broker, AsyncExitStack() as stack:
        replace_handler(broker, ApiKey.FETCH, respond_later)
        wires = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(12)]
        for wire in wires:
            await wire.send(ApiKey.FETCH, 12, message)
        for wire in wires:
            await wire.receive()
    assert 1 < most <= LARGE_READS_MAX
