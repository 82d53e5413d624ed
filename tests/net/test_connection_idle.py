"""Idle connections: a connection that only waits for its client has no task."""

from __future__ import annotations

import tracemalloc
from contextlib import AsyncExitStack

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

IDLE = 300
IDLE_BYTES = 5000
LONG_MS = 20_000


def only(broker: Broker) -> Connection:
    (connection,) = broker.server.connections
    return connection


def let_rest(connection: Connection) -> None:
    """As if it had been idle for some time."""
    connection.suspend_if_idle(trio.current_time() + IDLE_SECONDS + 1)


async def awake(broker: Broker, wire: Wire, topic: Topic) -> Connection:
    """The connection after an answer that had to be waited for."""
    await fetch(wire, topic, max_wait_ms=10)
    connection = only(broker)
    assert not connection.is_idle
    return connection


async def test_a_connection_rests_until_something_is_to_be_waited_for() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        topic = await create_topic(wire, "t")
        await metadata(wire)
        let_rest(only(broker))
        await until(lambda: only(broker).is_idle)
        await metadata(wire)
        assert only(broker).is_idle
        await awake(broker, wire, topic)


async def test_its_tasks_end_when_they_had_nothing_to_do_for_some_time() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        connection = await awake(broker, wire, topic)
        connection.suspend_if_idle(trio.current_time())
        await wait_all_tasks_blocked()
        assert not connection.is_idle, "it was busy just now"
        await until(lambda: connection.is_idle)
        assert await wire.works()
        assert connection.is_idle
        await produce(wire, topic, batch([b"x"]))
        assert values_of(await fetch(wire, topic)) == [b"x"]


async def test_who_waits_for_records_does_not_rest() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as reader,
        connected(broker.endpoint) as writer,
    ):
        topic = await create_topic(writer, "t")
        await reader.send(ApiKey.FETCH, 12, fetch_request(topic, 0, max_wait_ms=LONG_MS))
        await until(lambda: any(each.owes_replies for each in broker.server.connections))
        for connection in broker.server.connections:
            let_rest(connection)
        await wait_all_tasks_blocked()
        await produce(writer, topic, batch([b"x"]))
        answer = await reader.receive()
        assert values_of(answer.responses[0].partitions[0]) == [b"x"]


async def test_what_comes_while_the_tasks_end_is_answered() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(20):
            let_rest(await awake(broker, wire, topic))
            assert await wire.works()
            await metadata(wire)


@pytest.mark.parametrize("is_awake", [False, True])
async def test_who_closes_while_it_rests_is_forgotten(is_awake: bool) -> None:
    async with started(max_connections=1) as broker:
        for number in range(3):
            async with connected(broker.endpoint) as wire:
                assert await wire.works()
                if is_awake:
                    topic = await create_topic(wire, f"t{number}")
                    let_rest(await awake(broker, wire, topic))
                    await until(lambda: only(broker).is_idle)
            await until(lambda: not broker.server.connections)


async def test_it_can_be_closed_from_here() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        connection = only(broker)
        connection.close()
        await wire.wait_closed()
        await until(lambda: not broker.server.connections)
        assert connection.peer.is_closed


async def test_it_can_be_closed_while_its_tasks_begin() -> None:
    """The request that made them necessary is carried out: it was read."""
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


async def test_it_can_be_closed_while_its_tasks_end() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        connection = await awake(broker, wire, await create_topic(wire, "t"))
        let_rest(connection)
        connection.close()
        await wire.wait_closed()
        await until(lambda: not broker.server.connections)


async def test_it_ends_with_its_broker() -> None:
    async with AsyncExitStack() as stack:
        async with started() as broker:
            wire = await stack.enter_async_context(connected(broker.endpoint))
            assert await wire.works()
            connection = only(broker)
            assert connection.is_idle
        await wire.wait_closed()
        assert connection.peer.is_closed
        assert not broker.server.connections


async def test_it_is_closed_for_what_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        assert only(broker).is_idle
        await wire.send_bytes(b"\xff" * 8)
        await wire.wait_closed()
        assert "frame of -1 bytes" in caplog.text
        await until(lambda: not broker.server.connections)


async def test_many_that_rest_take_little_memory() -> None:
    """What Python takes for each, the sockets of this test's own end included."""
    async with started(max_connections_per_ip=2 * IDLE) as broker, AsyncExitStack() as stack:

        async def connect(count: int) -> None:
            for _ in range(count):
                wire = await stack.enter_async_context(connected(broker.endpoint))
                assert await wire.works()

        await connect(10)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await connect(IDLE)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        resting = sum(each.is_idle for each in broker.server.connections)
        assert resting > 0.9 * IDLE, "others had their turn before some of them"
        assert (after - before) / IDLE < IDLE_BYTES
