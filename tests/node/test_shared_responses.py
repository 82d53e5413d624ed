"""Tests of responses that are encoded once and shared by many clients."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from kbroker.broker import open_broker
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.node.shared_responses import RESPONSES_MAX, SharedResponses
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded, decode, encode, encode_for_many
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.runtime.time_slices import FairQueue, TimeSlice

from ..brokers import started
from ..wire import connected, create_topic

ALL = MetadataRequest(topics=None)
RESPONSE: Any = MetadataResponse


class SlowResponses:
    """Shared responses whose creation takes several steps, and counters of the creations."""

    def __init__(self) -> None:
        self.changes = 0
        self.started_count = 0
        self.completed = 0
        self.during_work: Callable[[], None] = lambda: None
        self.responses = SharedResponses(lambda: self.changes)

    def make(self) -> Generator[None, None, Encoded]:
        self.started_count += 1
        number = self.started_count
        for _ in range(3):
            yield
            self.during_work()
        self.completed += 1
        return Encoded(RESPONSE, 9, b"%d" % number)

    async def ask(self, key: str = "all") -> bytes:
        get = self.responses.get(key, self.make, TimeSlice(FairQueue()))
        return (get if isinstance(get, Encoded) else await get).body


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowResponses:
    """Return responses whose creation yields after each step."""
    monkeypatch.setattr("kbroker.runtime.time_slices.TIME_SLICE_SECONDS", -1)
    return SlowResponses()


async def ask_concurrently(slow: SlowResponses, clients: int) -> list[bytes]:
    received: list[bytes] = []

    async def ask() -> None:
        received.append(await slow.ask())

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(ask)
    return received


async def test_response_is_created_once_until_a_change(slow: SlowResponses) -> None:
    assert [await slow.ask() for _ in range(3)] == [b"1"] * 3
    slow.changes += 1
    assert [await slow.ask() for _ in range(3)] == [b"2"] * 3
    assert await slow.ask("others") == b"3"
    assert slow.completed == 3


async def test_concurrent_requests_wait_for_one_response(slow: SlowResponses) -> None:
    assert await ask_concurrently(slow, 10) == [b"1"] * 10
    assert slow.started_count == 1


async def test_requests_after_a_change_get_a_new_response(slow: SlowResponses) -> None:
    received: list[bytes] = []

    async def ask() -> None:
        received.append(await slow.ask())

    async with trio.open_nursery() as nursery:

        def change_and_ask_again() -> None:
            slow.during_work = lambda: None
            slow.changes += 1
            for _ in range(5):
                nursery.start_soon(ask)

        slow.during_work = change_and_ask_again
        assert await slow.ask() == b"1"
    assert received == [b"2"] * 5
    assert await slow.ask() == b"2"
    assert slow.started_count == 2


async def test_constant_changes_do_not_block_requests(slow: SlowResponses) -> None:
    def change() -> None:
        slow.changes += 1

    slow.during_work = change
    received = await ask_concurrently(slow, 10)
    assert len(received) == 10
    assert slow.started_count <= 2
    await slow.ask()
    assert slow.started_count <= 3


async def test_cancelled_creation_is_taken_over_by_waiters(slow: SlowResponses) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            def cancel() -> None:
                slow.during_work = lambda: None
                nursery.start_soon(ask_concurrently, slow, 5)
                scope.cancel()

            slow.during_work = cancel
            await slow.ask()
    assert scope.cancelled_caught
    assert (slow.started_count, slow.completed) == (2, 1)
    assert await slow.ask() == b"2"


async def test_cached_responses_are_bounded(slow: SlowResponses) -> None:
    for number in range(10 * RESPONSES_MAX):
        await slow.ask(str(number))
    assert len(slow.responses._cached) == RESPONSES_MAX
    assert await slow.ask("79") == b"80"


def test_shared_encoding_equals_normal_encoding() -> None:
    message = MetadataResponse(cluster_id="c", controller_id=3)
    work = encode_for_many(message, 9)
    try:
        while True:
            next(work)
    except StopIteration as end:
        encoded: Encoded = end.value
    assert b"".join(encode(encoded, 9)) == b"".join(encode(message, 9))  # type: ignore[arg-type]
    assert encoded.decoded() == decode(MetadataResponse, encoded.body, 9)[0] == message


def names(response: Any) -> list[str]:
    return [topic.name for topic in response.topics]


async def test_shared_metadata_reflects_changes_and_client_addresses() -> None:
    async with (
        open_broker(
            BrokerConfig(), data_dir=None, listeners=[Listener("PLAINTEXT", "0.0.0.0", 0)]
        ) as broker,
        connected(("127.0.0.1", broker.endpoint.port)) as one,
        connected(("127.0.0.2", broker.endpoint.port)) as other,
    ):
        await create_topic(one, "a")
        for wire, host in ((one, "127.0.0.1"), (other, "127.0.0.2")) * 2:
            response = await wire.ask(ApiKey.METADATA, 9, ALL)
            assert names(response) == ["a"]
            assert [row.host for row in response.brokers] == [host]
        await create_topic(other, "b")
        assert names(await one.ask(ApiKey.METADATA, 9, ALL)) == ["a", "b"]
        old = await one.ask(ApiKey.METADATA, 0, MetadataRequest(topics=[]))
        assert names(old) == ["a", "b"]


async def test_many_clients_share_one_large_response() -> None:
    async with started() as broker, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(20)]
        await create_topic(clients[0], "many", 3000)
        for wire in clients:
            await wire.send(ApiKey.METADATA, 12, ALL)
        responses = [(await wire.receive_frame())[4:] for wire in clients]
        assert len(set(responses)) == 1
        shared = broker.nodes[0].node.responses.all_topics
        assert len(shared._cached) == 1
        assert not shared._pending
