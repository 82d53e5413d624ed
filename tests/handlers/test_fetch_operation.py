"""Tests of the limit of pending fetches over the wire."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from kbroker.broker import Broker
from kbroker.handlers.fetch_operation import THROTTLE_MS_MAX
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..wire import (
    NEVER,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
    until,
    values_of,
)

PARTITIONS = 20
# One address has half of the limit: four pending fetches of all partitions.
LIMIT = 8 * PARTITIONS


async def send_fetch(wire: Wire, topic: Topic, version: int, max_wait_ms: int = NEVER) -> None:
    """Send a fetch of all partitions, which have no records."""
    message = fetch_request(topic, partitions=range(PARTITIONS), max_wait_ms=max_wait_ms)
    await wire.send(ApiKey.FETCH, version, message)


def pending_partitions(broker: Broker) -> int:
    return broker.node.limits.pending_fetches.partitions


@pytest.mark.parametrize("version", [3, 12, 18])
async def test_fetch_above_limit_is_answered_and_throttled(version: int) -> None:
    """The pending partitions stay below the limit, and the client gets a throttle time."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(started(pending_fetch_max_partitions=LIMIT))
        wires = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(5)]
        topic = await create_topic(wires[0], "t", PARTITIONS)
        for wire in wires[:4]:
            await send_fetch(wire, topic, version)
        await until(lambda: pending_partitions(broker) == LIMIT // 2)
        last = wires[4]
        await send_fetch(last, topic, version)
        response = await last.receive()
        assert response.throttle_time_ms == THROTTLE_MS_MAX
        assert sum(len(each.partitions) for each in response.responses) in (0, PARTITIONS)
        began = trio.current_time()
        await last.works()
        assert trio.current_time() - began > THROTTLE_MS_MAX / 2000, "the broker mutes the client"
        assert pending_partitions(broker) == LIMIT // 2
        # A fetch with records is answered without a throttle time, and ends the pending ones.
        await produce(last, topic, batch([b"a"]))
        for wire in wires[:4]:
            (row, *_) = (await wire.receive()).responses[0].partitions
            assert row.records
        assert pending_partitions(broker) == 0
        message = fetch_request(topic, partitions=range(PARTITIONS), max_wait_ms=NEVER)
        response = await last.ask(ApiKey.FETCH, 12, message)
        assert (response.throttle_time_ms, values_of(response.responses[0].partitions[0])) == (
            0,
            [b"a"],
        )


@pytest.mark.parametrize("version", [3, 12])
async def test_queued_fetches_count_until_client_disconnects(version: int) -> None:
    """A fetch that waits for an earlier response holds memory too."""
    async with started(pending_fetch_max_partitions=LIMIT) as broker:
        async with connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "t", PARTITIONS)
            await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            for _ in range(3):
                await send_fetch(wire, topic, version)
            await until(lambda: pending_partitions(broker) == 3 * PARTITIONS)
        await until(lambda: pending_partitions(broker) == 0)


async def test_fetch_of_few_partitions_waits_above_limit() -> None:
    async with (
        started(pending_fetch_max_partitions=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t", PARTITIONS)
        await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
        assert await wire.is_silent()


async def test_expired_fetch_stops_counting() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", PARTITIONS)
        await send_fetch(wire, topic, 12, max_wait_ms=20)
        response = await wire.receive()
        assert response.throttle_time_ms == 0
        assert pending_partitions(broker) == 0
