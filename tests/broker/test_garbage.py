"""Requests and responses are freed without the garbage collector.

Objects in a reference cycle, for example a request with its records, stay until the garbage
collector runs, which is rare in a broker.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.handlers.registry import load_apis
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import LeaveGroupRequest
from kbroker.protocol.records import read_header, with_payload

from ..brokers import started
from ..fuzz.world import VALID, World, make_world
from ..handlers.test_consumer_groups import set_config
from ..sharing import GROUP, ShareMember, shared_topic
from ..wire import (
    ConnectionClosed,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce_request,
    until,
)

TIMES = 5
# Seconds after which a client stops waiting for members or records.
ANSWER_SECONDS = 0.3
# Thread switch interval during a count: other threads free objects as well, for example a checkpoint.
NO_SWITCH_SECONDS = 60


@contextmanager
def collection_disabled() -> Iterator[Counter[str]]:
    """Run without the garbage collector; at the end, count by class the objects that only it frees.

    `gc.DEBUG_SAVEALL` does not show all of them: the collector closes a suspended generator first,
    and the objects that the generator kept alive are then freed without being counted.
    """
    cycles: Counter[str] = Counter()
    interval = sys.getswitchinterval()
    gc.collect()
    gc.disable()
    try:
        yield cycles
        sys.setswitchinterval(NO_SWITCH_SECONDS)
        before = own_objects()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        cycles.update(type(each).__qualname__ for each in gc.garbage)
        for each in own_objects():
            before.pop(each, None)
        cycles.update(before.values())
    finally:
        sys.setswitchinterval(interval)
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def own_objects() -> dict[int, str]:
    """Return the class of each object of kbroker's classes, by its id."""
    return {
        id(each): type(each).__qualname__
        for each in gc.get_objects()
        if type(each).__module__.startswith("kbroker.")
    }


async def send_and_close(broker: Broker, key: ApiKey, version: int, message: Any) -> None:
    """Send a request on a new connection, and close the connection."""
    async with connected(broker.endpoint) as wire:
        await wire.send(key, version, message)
        with trio.move_on_after(ANSWER_SECONDS), suppress(ConnectionClosed):
            await wire.receive()


async def send_all_seeds(broker: Broker, world: World, key: ApiKey) -> None:
    """Send valid requests of one API, in its newest version."""
    version = load_apis()[key].versions[-1]
    for seed in range(TIMES):
        message = VALID[key](world, random.Random(seed))
        await send_and_close(broker, key, version, message)
    await wait_all_tasks_blocked(0.01)


@pytest.mark.slow
async def test_requests_and_connections_leave_no_reference_cycles(tmp_path: Path) -> None:
    """Every API is tested, even if its response waits for the disk or for other clients."""
    async with started(tmp_path) as broker:
        async with connected(broker.endpoint) as wire:
            world = await make_world(wire)
        leaks = {}
        for key in map(ApiKey, load_apis()):
            with collection_disabled() as cycles:
                await send_all_seeds(broker, world, key)
            if cycles:
                leaks[key.name] = cycles
    assert not leaks


@pytest.mark.parametrize("is_pending", [False, True])
async def test_reset_connections_leave_no_reference_cycles(
    tmp_path: Path, is_pending: bool
) -> None:
    async with started(tmp_path) as broker:
        async with connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "orders")
        with collection_disabled() as cycles:
            for _ in range(TIMES):
                async with connected(broker.endpoint) as wire:
                    await wire.ask(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
                    if is_pending:
                        message = fetch_request(topic, 1, max_wait_ms=60_000, min_bytes=100)
                        await wire.send(ApiKey.FETCH, 11, message)
                        await wait_all_tasks_blocked(0.01)
                    await wire.reset()
            await until(lambda: not broker.nodes[0].server.connections)
            await wait_all_tasks_blocked(0.01)
    assert not cycles


async def test_emptied_group_leaves_no_reference_cycles(tmp_path: Path) -> None:
    """The undo information of a change is dropped once its record is stored."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        world = await make_world(wire)
        member = LeaveGroupRequest.Member(member_id=world.member_id)
        message = LeaveGroupRequest(group_id="stable", members=[member])
        with collection_disabled() as cycles:
            response = await wire.ask(ApiKey.LEAVE_GROUP, 5, message)
            await wait_all_tasks_blocked(0.01)
        assert not response.members[0].error_code
    assert not cycles


async def test_rejected_share_partition_leaves_no_reference_cycles(tmp_path: Path) -> None:
    """The group starts at a timestamp that no record has."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire, start=-1)
        name, begins = "share.auto.offset.reset", "by_duration:PT1S"
        await set_config(wire, ResourceType.GROUP, GROUP, name, begins)
        with collection_disabled() as cycles:
            for _ in range(TIMES):
                async with connected(broker.endpoint) as member_wire:
                    row = await ShareMember(member_wire, topic).fetch_error_row()
                assert row.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
            await until(lambda: len(broker.nodes[0].server.connections) == 1)
            await wait_all_tasks_blocked(0.01)
    assert not cycles


@pytest.mark.slow
@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize("is_rejected", [False, True])
async def test_batches_validated_in_pieces_leave_no_reference_cycles(
    tmp_path: Path, codec: Codec, is_rejected: bool
) -> None:
    """Validation starts in the event loop, moves to a thread, and starts again as heavy work."""
    data = batch([bytes(5_000_000)], codec=codec)
    if is_rejected:
        header = read_header(data)
        data, _ = with_payload(header, compress(codec, bytes(5_000_000)))
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "orders")
        with collection_disabled() as cycles:
            for _ in range(TIMES):
                response = await wire.ask(ApiKey.PRODUCE, 9, produce_request(topic, data))
                row = response.responses[0].partition_responses[0]
                assert bool(row.error_code) == is_rejected
            await wait_all_tasks_blocked(0.01)
    assert not cycles


def produce_requests() -> list[Any]:
    """Return all Produce requests in this process, without those of other tests."""
    gc.collect()
    kind = messages.request_class(ApiKey.PRODUCE)
    return [each for each in gc.get_objects() if type(each) is kind]


async def test_records_waiting_for_sync_are_released(tmp_path: Path) -> None:
    """The records are in the log; only their offsets are needed for the response."""
    others = {id(each) for each in produce_requests()}
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "orders")
        partitions = broker.node.partitions
        replica = partitions.named_replica(topic.name, 0)
        async with partitions.flusher.sync_lock:
            for _ in range(TIMES):
                await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
            await until(lambda: replica.log.log_end_offset == TIMES)
            assert replica.durable_end == 0
            kept = [each for each in produce_requests() if id(each) not in others]
            assert len(kept) <= 1  # the connection keeps a reference to its last request
        for _ in range(TIMES):
            await wire.receive()


async def test_large_request_is_released_with_its_connection(tmp_path: Path) -> None:
    """All received parts of an incomplete request are released."""
    async with started(tmp_path) as broker:
        with collection_disabled() as cycles:
            async with connected(broker.endpoint) as wire:
                await wire.send_bytes((50_000_000).to_bytes(4, "big") + bytes(5_000_000))
                await until(lambda: broker.node.limits.memory.used > 4_000_000)
            await until(lambda: not broker.node.limits.memory.used)
            await wait_all_tasks_blocked(0.01)
    assert not cycles
