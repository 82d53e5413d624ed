"""Idle connections: a connection that only waits for requests has no tasks."""

from __future__ import annotations

import tracemalloc
from contextlib import AsyncExitStack
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.broker import Broker
from kbroker.net.connection import IDLE_SECONDS, Connection
from kbroker.net.readiness_poller import HAS_EPOLL
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    fetch_request,
    metadata,
    produce,
    produce_request,
    until,
    values_of,
)

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the system has no epoll")

IDLE_CONNECTIONS = 300
# Maximum Python memory of one idle connection, with the client's socket in this process.
IDLE_BYTES = 5000
LONG_POLL_MS = 20_000


def only_connection(broker: Broker) -> Connection:
    (connection,) = broker.server.connections
    return connection


def suspend(connection: Connection) -> None:
    """End the tasks of a connection, as after `IDLE_SECONDS` without requests."""
    connection.suspend_if_idle(trio.current_time() + IDLE_SECONDS + 1)


async def connection_with_tasks(broker: Broker, wire: Wire, topic: Topic) -> Connection:
    """Return the only connection, with tasks: it has just sent a delayed response."""
    await fetch(wire, topic, max_wait_ms=10)
    connection = only_connection(broker)
    assert not connection.is_idle
    return connection


async def test_connection_is_idle_until_a_response_is_delayed() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        topic = await create_topic(wire, "t")
        await metadata(wire)
        suspend(only_connection(broker))
        await until(lambda: only_connection(broker).is_idle)
        await metadata(wire)
        assert only_connection(broker).is_idle
        await connection_with_tasks(broker, wire, topic)


async def test_connection_becomes_idle_after_time_without_requests() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        connection = await connection_with_tasks(broker, wire, topic)
        connection.suspend_if_idle(trio.current_time())
        await wait_all_tasks_blocked()
        assert not connection.is_idle, "it sent a response just now"
        await until(lambda: connection.is_idle)
        assert await wire.works()
        assert connection.is_idle
        await produce(wire, topic, batch([b"x"]))
        assert values_of(await fetch(wire, topic)) == [b"x"]


async def test_long_poll_keeps_connection_from_becoming_idle() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as reader,
        connected(broker.endpoint) as writer,
    ):
        topic = await create_topic(writer, "t")
        await reader.send(ApiKey.FETCH, 12, fetch_request(topic, 0, max_wait_ms=LONG_POLL_MS))
        await until(lambda: any(each.owes_replies for each in broker.server.connections))
        for connection in broker.server.connections:
            suspend(connection)
        await wait_all_tasks_blocked()
        await produce(writer, topic, batch([b"x"]))
        response = await reader.receive()
        assert values_of(response.responses[0].partitions[0]) == [b"x"]


async def test_requests_are_served_while_connection_becomes_idle() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(20):
            suspend(await connection_with_tasks(broker, wire, topic))
            assert await wire.works()
            await metadata(wire)


@pytest.mark.parametrize("has_writer", [False, True])
async def test_repeated_suspension_keeps_connection_open(
    pytestconfig: pytest.Config, has_writer: bool
) -> None:
    """Suspend in every iteration of the event loop; each request is answered."""
    random = Random(pytestconfig.getoption("--seed"))
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for number in range(50):
            if has_writer:
                await connection_with_tasks(broker, wire, topic)
            else:
                await create_topic(wire, f"t{number}")  # awaited by the reader
            for _ in range(random.randrange(2, 12)):
                suspend(only_connection(broker))
                if random.random() < 0.7:
                    await trio.lowlevel.checkpoint()
            assert await wire.works()


@pytest.mark.parametrize("had_tasks", [False, True])
async def test_connection_closed_by_client_while_idle_is_removed(had_tasks: bool) -> None:
    async with started(max_connections=1) as broker:
        for number in range(3):
            async with connected(broker.endpoint) as wire:
                assert await wire.works()
                if had_tasks:
                    topic = await create_topic(wire, f"t{number}")
                    suspend(await connection_with_tasks(broker, wire, topic))
                    await until(lambda: only_connection(broker).is_idle)
            await until(lambda: not broker.server.connections)


async def test_idle_connection_can_be_closed_by_broker() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        connection = only_connection(broker)
        connection.close()
        await wire.wait_closed()
        await until(lambda: not broker.server.connections)
        assert connection.peer.is_closed


async def test_request_is_completed_if_connection_closes_while_its_tasks_start() -> None:
    """The request that starts the tasks was read, so its records are appended."""
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await create_topic(other, "t")
        assert await wire.works()
        port = wire.stream.socket.getsockname()[1]
        connection = next(each for each in broker.server.connections if each.peer.port == port)
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"x"])))
        await until(lambda: connection.requests.count == 2)
        connection.close()
        await wire.wait_closed()
        assert values_of(await fetch(other, topic)) == [b"x"]


async def test_connection_can_be_closed_while_it_becomes_idle() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        connection = await connection_with_tasks(broker, wire, await create_topic(wire, "t"))
        suspend(connection)
        connection.close()
        await wire.wait_closed()
        await until(lambda: not broker.server.connections)


async def test_idle_connection_closes_when_broker_stops() -> None:
    async with AsyncExitStack() as stack:
        async with started() as broker:
            wire = await stack.enter_async_context(connected(broker.endpoint))
            assert await wire.works()
            connection = only_connection(broker)
            assert connection.is_idle
        await wire.wait_closed()
        assert connection.peer.is_closed
        assert not broker.server.connections


async def test_idle_connection_closes_after_invalid_frame(caplog: pytest.LogCaptureFixture) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        assert only_connection(broker).is_idle
        await wire.send_bytes(b"\xff" * 8)
        await wire.wait_closed()
        assert "frame of -1 bytes" in caplog.text
        await until(lambda: not broker.server.connections)


@pytest.mark.slow
async def test_idle_connections_use_little_memory() -> None:
    async with (
        started(max_connections_per_ip=2 * IDLE_CONNECTIONS) as broker,
        AsyncExitStack() as stack,
    ):

        async def connect(count: int) -> None:
            for _ in range(count):
                wire = await stack.enter_async_context(connected(broker.endpoint))
                assert await wire.works()

        await connect(10)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await connect(IDLE_CONNECTIONS)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        idle = sum(each.is_idle for each in broker.server.connections)
        assert idle > 0.9 * IDLE_CONNECTIONS, (
            "a few may have tasks, because they waited for a time slice"
        )
        assert (after - before) / IDLE_CONNECTIONS < IDLE_BYTES
