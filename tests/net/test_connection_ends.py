"""Tests of each way to end a connection: none may log a traceback, even with unsent data."""

from __future__ import annotations

import random
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.metadata import MetadataRequest

from ..brokers import started
from ..wire import (
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

LARGE_BYTES = 900_000
# Number of fetches whose responses exceed all socket buffers.
FETCHES = 40
BAD_FRAME = struct.pack(">ihhi", 10, 3, 9, 1) + b"\xff\xff"
SEND_SECONDS = 0.5
ROUNDS, CLIENTS = 6, 20
End = Callable[[Broker, Wire], Awaitable[None]]


async def send_too_many_elements(broker: Broker, wire: Wire) -> None:
    """Send a request with more topics than allowed."""
    topics = [MetadataRequest.Topic(name="t")] * 300_000
    await wire.send(ApiKey.METADATA, 9, MetadataRequest(topics=topics))


async def undecodable_frame(broker: Broker, wire: Wire) -> None:
    """Send a frame that cannot be decoded."""
    await wire.send_bytes(BAD_FRAME)


async def reset(broker: Broker, wire: Wire) -> None:
    """Reset the connection, which raises an error in the broker."""
    await wire.reset()


async def send_too_many_elements_and_reset(broker: Broker, wire: Wire) -> None:
    await send_too_many_elements(broker, wire)
    await reset(broker, wire)


async def half_close(broker: Broker, wire: Wire) -> None:
    await wire.stream.send_eof()


async def leave(broker: Broker, wire: Wire) -> None:
    await wire.stream.aclose()


async def close(broker: Broker, wire: Wire) -> None:
    for each in tuple(broker.nodes[0].server.connections):
        each.close()


async def abort(broker: Broker, wire: Wire) -> None:
    broker.nodes[0].server.close_connections()


async def reset_by_server(broker: Broker, wire: Wire) -> None:
    broker.nodes[0].server.reset_connections()


ENDS: list[End] = [
    send_too_many_elements,
    undecodable_frame,
    reset,
    send_too_many_elements_and_reset,
    half_close,
    leave,
    close,
    abort,
    reset_by_server,
]


async def leave_responses_unsent(broker: Broker, wire: Wire, topic: Topic) -> None:
    """Request more than the client reads, and wait until the broker cannot send."""
    for _ in range(FETCHES):
        await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_bytes=4 * LARGE_BYTES))
    (connection,) = broker.nodes[0].server.connections
    await until(lambda: connection.owes_replies)
    await trio.testing.wait_all_tasks_blocked(0.02)


async def leave_fetch_pending(broker: Broker, wire: Wire, topic: Topic) -> None:
    await wire.send(ApiKey.FETCH, 12, fetch_request(topic, offset=4, max_wait_ms=600_000))


async def leave_nothing_pending(broker: Broker, wire: Wire, topic: Topic) -> None:
    await wire.ask(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "state", [leave_nothing_pending, leave_fetch_pending, leave_responses_unsent]
)
async def test_connection_that_ends_logs_no_traceback(
    caplog: pytest.LogCaptureFixture,
    end: End,
    state: Callable[[Broker, Wire, Topic], Awaitable[None]],
) -> None:
    async with started() as broker:
        async with connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "t")
            for _ in range(4):
                await produce(wire, topic, batch([bytes(LARGE_BYTES)]))
        await until(lambda: not broker.nodes[0].server.connections)
        wire = Wire(await trio.open_tcp_stream(*broker.endpoint))
        await state(broker, wire, topic)
        with trio.move_on_after(SEND_SECONDS):  # a broker with unsent responses stops reading
            await end(broker, wire)
        with suppress(OSError):
            await wire.reset()
        await trio.aclose_forcefully(wire.stream)
        await until(lambda: not broker.nodes[0].server.connections)
        assert broker.node.context.error_log.unhandled_errors == 0
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []


async def _random_client(broker: Broker, topic: Topic, chance: random.Random) -> None:
    """Send random requests, read some of the responses, and end the connection in a random way."""
    async with await trio.open_tcp_stream(*broker.endpoint) as stream:
        wire = Wire(stream)
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            with trio.move_on_after(2 * SEND_SECONDS):
                for _ in range(chance.randint(1, 6)):
                    send = chance.choice(
                        (_large_fetch, _pending_fetch, _metadata, send_too_many_topics)
                    )
                    await send(wire, topic)
                    await trio.sleep(chance.random() * 0.03)
                if chance.random() < 0.3:
                    await stream.receive_some(100_000)
            if chance.random() < 0.3:
                await stream.send_eof()
            await trio.sleep(chance.random() * 0.05)
            if chance.random() < 0.7:
                await wire.reset()


async def _large_fetch(wire: Wire, topic: Topic) -> None:
    await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_bytes=4 * LARGE_BYTES))


async def _pending_fetch(wire: Wire, topic: Topic) -> None:
    """Send a delayed fetch; the broker notices the disconnect only after it completes."""
    await wire.send(ApiKey.FETCH, 12, fetch_request(topic, offset=4, max_wait_ms=200))


async def _metadata(wire: Wire, topic: Topic) -> None:
    await wire.send(ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[]))


async def send_too_many_topics(wire: Wire, topic: Topic) -> None:
    topics = [MetadataRequest.Topic(name="t")] * 150_000
    await wire.send(ApiKey.METADATA, 9, MetadataRequest(topics=topics))


@pytest.mark.slow
async def test_clients_that_end_at_random_log_no_traceback(
    caplog: pytest.LogCaptureFixture, pytestconfig: pytest.Config
) -> None:
    chance = random.Random(pytestconfig.option.seed)
    async with started() as broker:
        async with connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "t")
            for _ in range(4):
                await produce(wire, topic, batch([bytes(LARGE_BYTES)]))
        for _ in range(ROUNDS):
            async with trio.open_nursery() as nursery:
                for _ in range(CLIENTS):
                    nursery.start_soon(_random_client, broker, topic, chance)
        await until(lambda: not broker.nodes[0].server.connections)
        assert broker.node.context.error_log.unhandled_errors == 0
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []
