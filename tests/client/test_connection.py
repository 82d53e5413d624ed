"""A connection of the client: its first request, and requests of several tasks."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from kbroker.client import check_round_trip, connection
from kbroker.client.connection import Connection
from kbroker.client.errors import TimedOut
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.produce import ProduceRequest

from ..brokers import started


async def test_health_check_of_busy_broker_succeeds_within_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that starts on a slow disk blocks the event loop that also runs the health check."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.05)

    async def block_loop() -> None:
        time.sleep(0.3)  # noqa: ASYNC251  # blocks on purpose

    async with started() as broker, trio.open_nursery() as nursery:
        nursery.start_soon(block_loop)
        response = await check_round_trip(*broker.endpoint, 30)
    assert response.brokers


PRODUCE = ProduceRequest(topic_data=[ProduceRequest.Topic(name="t" * 100)])


def connection_to(stream: trio.abc.Stream) -> Connection:
    client = Connection(stream)
    client.versions = {ApiKey.PRODUCE: (0, 13)}
    return client


async def test_requests_with_and_without_response_do_not_interleave() -> None:
    ours, theirs = lockstep_stream_pair()
    client = connection_to(ours)
    received: list[int] = []

    async def receive() -> None:
        for is_answered in (True, False):
            size = int.from_bytes(await receive_exactly(theirs, 4))
            frame = await receive_exactly(theirs, size)
            received.append(int.from_bytes(frame[:2]))
            await wait_all_tasks_blocked()
            if is_answered:
                body = frame[4:8] + bytes(4)  # no topics, and no throttling
                await theirs.send_all(len(body + bytes(4)).to_bytes(4) + body + bytes(4))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            nursery.start_soon(client.request, ApiKey.PRODUCE, 3, PRODUCE)
            await wait_all_tasks_blocked()
            await client.send_without_response(PRODUCE, newest=3)
    assert received == [ApiKey.PRODUCE] * 2
    assert not client.broken


async def receive_exactly(stream: trio.abc.Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.receive_some(size - len(data))
    return data


async def test_connection_is_broken_after_partly_sent_request_without_response() -> None:
    ours, theirs = lockstep_stream_pair()
    client = connection_to(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_without_response, PRODUCE)
        await theirs.receive_some(10)
        nursery.cancel_scope.cancel()
    assert client.broken
    with pytest.raises(ConnectionResetError, match="before this request was sent"):
        await client.send_without_response(PRODUCE)


async def test_time_limit_begins_when_request_is_sent(autojump_clock: object) -> None:
    """The time in which the broker delays the response of an earlier request does not count."""
    ours, theirs = memory_stream_pair()
    client = connection_to(ours)

    async def answer_after_delay() -> None:
        for _ in range(2):
            frame = await receive_exactly(theirs, int.from_bytes(await receive_exactly(theirs, 4)))
            await trio.sleep(8)
            body = frame[4:8] + bytes(8)
            await theirs.send_all(len(body).to_bytes(4) + body)

    async def ask() -> None:
        await client.ask(PRODUCE, newest=3, seconds=10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_after_delay)
        nursery.start_soon(ask)
        nursery.start_soon(ask)


async def test_request_without_response_times_out(autojump_clock: object) -> None:
    ours, _theirs = memory_stream_pair()
    client = connection_to(ours)
    with pytest.raises(TimedOut, match="no response to Produce within 10 s"):
        await client.ask(PRODUCE, newest=3, seconds=10)
    assert client.broken
