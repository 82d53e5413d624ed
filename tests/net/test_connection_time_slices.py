"""One client does not hold up the others: turns end, and answers that nobody takes are bounded."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.net.connection import Connection
from kbroker.net.replies import ROW_BYTES
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from kbroker.runtime.time_slices import FairQueue, Line

from ..brokers import hand_to, started
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
UNSENT_BYTES = 1 << 20
"""The default of `connection.max.pending.response.bytes`."""
ALL = MetadataRequest(topics=None)


def owed_bytes(connection: Connection) -> int:
    return connection.replies.owed_bytes


async def connection_of(broker: Broker, wire: Wire) -> Connection:
    """The broker's end, once it has read something."""
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
    """Wait until it does not take more requests, because its client does not take its answers."""
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
    """Send while the block runs, as far as the broker takes it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_bytes, data)
        yield
        nursery.cancel_scope.cancel()


async def receive_sizes(wire: Wire, count: int) -> list[int]:
    """How large the next answers are, which are in order."""
    sizes = []
    for _ in range(count):
        correlation_id, _, _ = wire.asked.popleft()
        frame = await wire.receive_frame()
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        sizes.append(len(frame))
    return sizes


# -- answers that nobody takes


@pytest.mark.parametrize("count", [500, 2000])
async def test_answers_that_nobody_takes_stop_the_reader(count: int) -> None:
    async with broker_of_many() as (broker, other), connected(broker.endpoint) as deaf:
        answer_bytes = len(await _one_answer(other))
        data = b"".join(deaf.frame(ApiKey.METADATA, 9, ALL) for _ in range(count))
        with longest_step() as step:
            await deaf.send_bytes(data)
            connection = await connection_of(broker, deaf)
            most = 0
            while not connection.replies.is_full:
                assert await other.works()
                most = max(most, owed_bytes(connection))
            await has_stopped_reading(connection)
            assert await other.works()
        most = max(most, owed_bytes(connection))
        assert UNSENT_BYTES < most <= UNSENT_BYTES + answer_bytes
        assert connection.requests.count < count
        assert step.seconds < STEP_SECONDS_MAX, str(step)


async def _one_answer(wire: Wire) -> bytes:
    await wire.send(ApiKey.METADATA, 9, ALL)
    wire.asked.clear()
    return await wire.receive_frame()


async def test_who_begins_to_read_gets_every_answer_in_order() -> None:
    async with broker_of_many(1000) as (broker, _), connected(broker.endpoint) as deaf:
        count = 200
        await deaf.send_bytes(b"".join(deaf.frame(ApiKey.METADATA, 9, ALL) for _ in range(count)))
        await has_stopped_reading(await connection_of(broker, deaf))
        assert len(set(await receive_sizes(deaf, count))) == 1
        assert await deaf.works()


async def test_the_bound_is_a_setting() -> None:
    """One of a byte as well: then each answer is taken before the next request is looked at."""
    async with (
        started(connection_max_pending_response_bytes=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        asked = request(ApiKey.API_VERSIONS)
        await wire.send_bytes(
            b"".join(wire.frame(ApiKey.API_VERSIONS, 0, asked) for _ in range(500))
        )
        for _ in range(500):
            await wire.receive()


async def test_answers_behind_a_long_poll_are_bounded() -> None:
    async with broker_of_many() as (broker, other), connected(broker.endpoint) as wire:
        topic = Topic("many")
        answer_bytes = len(await _one_answer(other))
        data = wire.frame(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
        data += b"".join(wire.frame(ApiKey.METADATA, 9, ALL) for _ in range(100))
        await wire.send_bytes(data)
        connection = await connection_of(broker, wire)
        await has_stopped_reading(connection)
        assert UNSENT_BYTES < owed_bytes(connection) <= UNSENT_BYTES + answer_bytes
        await produce(other, topic, batch())
        assert (await wire.receive()).responses[0].partitions[0].records
        await receive_sizes(wire, 100)


async def test_a_client_that_takes_no_answers_is_idle() -> None:
    """Nothing is read from it any more, so that its end is not seen either."""
    async with started(connections_max_idle_ms=2000) as broker:
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "many", PARTITIONS)
            data = wire.frame(ApiKey.FETCH, 12, fetch_request(Topic("many"), max_wait_ms=NEVER))
            await wire.send_bytes(data + wire.frame(ApiKey.METADATA, 9, ALL) * 20)
            await has_stopped_reading(await connection_of(broker, wire))
        await until(lambda: not broker.server.connections)


ROWS = 5000


def produce_of_many_rows() -> ProduceRequest:
    """To partitions that do not exist, but for the first one: its answer waits for the disk."""
    rows = [ProduceRequest.Partition(index=index, records=b"") for index in range(1, ROWS)]
    first = ProduceRequest.Partition(index=0, records=batch())
    topic = ProduceRequest.Topic(name="t", partition_data=[first, *rows])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


@pytest.mark.slow
async def test_answers_that_are_not_there_yet_count_by_their_rows() -> None:
    """Each would be a thousand times as large as its bytes in the queue look."""
    async with started() as broker:
        waiting: list[Pending[Any]] = []

        def park(ctx: Any, asked: Any) -> Pending[Any]:
            waiting.append(Pending())
            return waiting[-1]

        hand_to(broker, ApiKey.PRODUCE, park)
        async with connected(broker.endpoint) as wire:
            frame = wire.frame(ApiKey.PRODUCE, 9, produce_of_many_rows(), answered=False)
            async with flooding(wire, frame * 50):
                await has_stopped_reading(await connection_of(broker, wire))
            assert (
                (len(waiting) - 1) * ROWS * ROW_BYTES
                <= UNSENT_BYTES
                < len(waiting) * ROWS * ROW_BYTES
            )


# -- turns


@pytest.mark.slow
async def test_a_turn_ends_among_many_requests_that_cost_little() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        asked = request(ApiKey.API_VERSIONS)
        data = b"".join(wire.frame(ApiKey.API_VERSIONS, 0, asked) for _ in range(10_000))
        with longest_step() as step:
            async with flooding(wire, data):
                await receive_sizes(wire, 10_000)
        assert step.seconds < STEP_SECONDS_MAX, str(step)


def names(count: int) -> list[MetadataRequest.Topic]:
    return [MetadataRequest.Topic(name=f"topic-{i}") for i in range(count)]


async def test_a_turn_ends_within_a_large_request() -> None:
    async with started() as broker:
        hand_to(broker, ApiKey.METADATA, lambda ctx, asked: MetadataResponse())
        async with connected(broker.endpoint) as wire:
            asked = MetadataRequest(topics=names(99_000))
            data = wire.frame(ApiKey.METADATA, 9, asked)
            with longest_step() as step:
                await wire.send_bytes(data)
                await wire.receive()
            assert step.seconds < STEP_SECONDS_MAX, str(step)


async def passes_of(wire: Wire, monkeypatch: pytest.MonkeyPatch, key: ApiKey, asked: Any) -> int:
    """How often others had their turn, where each ends as soon as it may."""
    waits = 0
    wait = FairQueue.wait

    async def counted(self: FairQueue, line: Line) -> None:
        nonlocal waits
        waits += 1
        await wait(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(FairQueue, "wait", counted)
        patch.setattr("kbroker.runtime.time_slices.TIME_SLICE_SECONDS", 0)
        await wire.ask(key, 3, asked)
    return waits


async def test_a_turn_may_end_behind_each_partition_whose_nodes_are_chosen(
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
        assert await passes_of(wire, monkeypatch, ApiKey.CREATE_TOPICS, create) >= 50
        assert await passes_of(wire, monkeypatch, ApiKey.CREATE_PARTITIONS, grow) >= 50


async def test_a_topic_grows_once_however_many_ask_for_it_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.runtime.time_slices.TIME_SLICE_SECONDS", 0)
    row = CreatePartitionsRequest.Topic(name="t", count=20)
    ask = CreatePartitionsRequest(topics=[row], timeout_ms=1000)
    codes = []

    async def grow(wire: Wire) -> None:
        answer = await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)
        codes.append(answer.results[0].error_code)

    async with started() as broker, connected(broker.endpoint) as one:
        await create_topic(one, "t", 2)
        async with connected(broker.endpoint) as two, trio.open_nursery() as nursery:
            nursery.start_soon(grow, one)
            nursery.start_soon(grow, two)
        assert len(broker.node.cluster.topics["t"].partitions) == 20
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]


@pytest.mark.slow
async def test_a_request_of_too_many_rows_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with started(request_max_elements=5000) as broker, connected(broker.endpoint) as wire:
        await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=names(5000)))
        await wire.send(ApiKey.METADATA, 9, MetadataRequest(topics=names(5001)))
        await wire.wait_closed()
    assert "5001 elements" in caplog.text
    assert "(request.max.elements)" in caplog.text


@cache
def long_answer() -> MetadataResponse:
    row = MetadataResponse.Topic(name="t", partitions=[MetadataResponse.Partition(isr_nodes=[1])])
    return MetadataResponse(topics=[row] * 200_000)


def at_once(ctx: Any, asked: Any) -> Any:
    return long_answer()


async def as_a_coroutine(ctx: Any, asked: Any) -> Any:
    return long_answer()


def pending(ctx: Any, asked: Any) -> Any:
    return Pending[Any](deadline=trio.current_time() + 0.01, on_timeout=long_answer)


def ready(ctx: Any, asked: Any) -> Any:
    answer = Pending[Any]()
    answer.resolve(long_answer())
    return answer


def polled(ctx: Any, asked: Any) -> Any:
    async def begin() -> Any:
        return long_answer()

    return Waiting(begin)


@pytest.mark.slow
@pytest.mark.parametrize("handler", [at_once, as_a_coroutine, pending, ready, polled])
async def test_a_turn_ends_within_a_large_answer(handler: Any) -> None:
    """However a handler gives it. Who answers at once has as much to say as it was asked for."""
    async with started() as broker:
        long_answer()
        hand_to(broker, ApiKey.METADATA, handler)
        async with connected(broker.endpoint) as wire, connected(broker.endpoint) as other:
            with longest_step() as step:
                await wire.send(ApiKey.METADATA, 9, MetadataRequest(topics=names(2000)))
                await wire.send(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.works)
                    (size, _) = await receive_sizes(wire, 2)
            assert size > 1_000_000
            assert step.seconds < STEP_SECONDS_MAX, str(step)
