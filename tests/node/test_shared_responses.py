"""What many clients ask alike is answered from one answer."""

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


class Making:
    """Answers that take some pauses to make, and how many were made."""

    def __init__(self) -> None:
        self.changes = 0
        self.begun = 0
        self.made = 0
        self.in_mid_work: Callable[[], None] = lambda: None
        self.responses = SharedResponses(lambda: self.changes)

    def make(self) -> Generator[None, None, Encoded]:
        self.begun += 1
        number = self.begun
        for _ in range(3):
            yield
            self.in_mid_work()
        self.made += 1
        return Encoded(RESPONSE, 9, b"%d" % number)

    async def ask(self, key: str = "all") -> bytes:
        get = self.responses.get(key, self.make, TimeSlice(FairQueue()))
        return (get if isinstance(get, Encoded) else await get).body


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Making:
    """Answers for which every turn is too short."""
    monkeypatch.setattr("kbroker.runtime.time_slices.TIME_SLICE_SECONDS", -1)
    return Making()


async def ask_at_once(making: Making, clients: int) -> list[bytes]:
    heard: list[bytes] = []

    async def ask() -> None:
        heard.append(await making.ask())

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(ask)
    return heard


async def test_it_is_made_once_until_something_changes(making: Making) -> None:
    assert [await making.ask() for _ in range(3)] == [b"1"] * 3
    making.changes += 1
    assert [await making.ask() for _ in range(3)] == [b"2"] * 3
    assert await making.ask("others") == b"3"
    assert making.made == 3


async def test_who_asks_while_it_is_made_waits_for_it(making: Making) -> None:
    assert await ask_at_once(making, 10) == [b"1"] * 10
    assert making.begun == 1


async def test_what_changes_meanwhile_is_told_to_who_asks_later(making: Making) -> None:
    heard: list[bytes] = []

    async def ask() -> None:
        heard.append(await making.ask())

    async with trio.open_nursery() as nursery:

        def change_and_ask_again() -> None:
            making.in_mid_work = lambda: None
            making.changes += 1
            for _ in range(5):
                nursery.start_soon(ask)

        making.in_mid_work = change_and_ask_again
        assert await making.ask() == b"1"
    assert heard == [b"2"] * 5
    assert await making.ask() == b"2"
    assert making.begun == 2


async def test_where_all_changes_all_the_time_nobody_waits_for_ever(making: Making) -> None:
    def change() -> None:
        making.changes += 1

    making.in_mid_work = change
    heard = await ask_at_once(making, 10)
    assert len(heard) == 10
    assert making.begun <= 2
    await making.ask()
    assert making.begun <= 3


async def test_who_gives_up_making_it_leaves_it_to_others(making: Making) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            def give_up() -> None:
                making.in_mid_work = lambda: None
                nursery.start_soon(ask_at_once, making, 5)
                scope.cancel()

            making.in_mid_work = give_up
            await making.ask()
    assert scope.cancelled_caught
    assert (making.begun, making.made) == (2, 1)
    assert await making.ask() == b"2"


async def test_few_are_kept(making: Making) -> None:
    for number in range(10 * RESPONSES_MAX):
        await making.ask(str(number))
    assert len(making.responses._cached) == RESPONSES_MAX
    assert await making.ask("79") == b"80"


def test_a_message_for_many_is_encoded_as_for_one() -> None:
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


async def test_clients_hear_of_each_change_and_of_their_own_addresses() -> None:
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


async def test_many_clients_get_one_answer_of_many_partitions() -> None:
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
