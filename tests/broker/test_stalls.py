"""Tests of a process stall that is longer than a session: sessions must not expire."""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..handlers.test_consumer_groups import beat, find
from ..handlers.test_groups import Member
from ..sharing import ACCEPT, ACKNOWLEDGE, ShareMember, shared_topic
from ..wire import Wire, batch, connected, create_topic, produce, request

# Longer than broker.session.timeout.ms and the timeouts of the clients.
STALL_SECONDS = 2
TIMEOUT_MS = 1500
CLIENTS = 20


async def test_process_stall_elects_no_leader(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        cluster = broker.node.cluster
        assert broker.node.config.broker_session_timeout_ms < STALL_SECONDS * 1000
        before = {each.node_id: each.epoch for each in cluster.nodes.values()}
        assert len(before) == 3
        stall()
        await trio.sleep(0.3)
        assert {each.node_id: each.epoch for each in cluster.nodes.values()} == before
        assert len(cluster.ready_ids) == 3


def stall() -> None:
    """Stall all tasks of the process."""
    time.sleep(STALL_SECONDS)


def send_at_once(wire: Wire, key: ApiKey, version: int, message: Any) -> None:
    """Send a request before any other task runs, so that the request waits during a stall."""
    data = wire.frame(key, version, message)
    assert os.write(wire.stream.socket.fileno(), data) == len(data)


async def connect_all(stack: AsyncExitStack, broker: Broker) -> list[Wire]:
    return [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(CLIENTS)]


async def receive_all(wires: list[Wire]) -> list[Any]:
    return [await wire.receive() for wire in wires]


async def test_stall_expires_no_classic_member_whose_heartbeat_has_arrived() -> None:
    async with started(group_min_session_timeout_ms=1000) as broker, AsyncExitStack() as stack:
        wires = await connect_all(stack, broker)
        members = [
            Member(wire, f"g{number}", session_timeout_ms=TIMEOUT_MS)
            for number, wire in enumerate(wires)
        ]
        for member in members:
            await member.enter()
        for member in members:
            assert not await member.heartbeat()
        for member in members:
            heartbeat = request(
                ApiKey.HEARTBEAT,
                group_id=member.group,
                generation_id=member.generation,
                member_id=member.id,
            )
            send_at_once(member.wire, ApiKey.HEARTBEAT, 3, heartbeat)
        stall()
        assert [each.error_code for each in await receive_all(wires)] == [0] * CLIENTS


async def test_stall_expires_no_consumer_whose_heartbeat_has_arrived() -> None:
    settings = {
        "group_consumer_min_session_timeout_ms": 1000,
        "group_consumer_session_timeout_ms": TIMEOUT_MS,
        "group_consumer_min_heartbeat_interval_ms": 100,
        "group_consumer_heartbeat_interval_ms": 500,
    }
    async with started(**settings) as broker, AsyncExitStack() as stack:
        wires = await connect_all(stack, broker)
        await create_topic(wires[0], "t")
        epochs: dict[Wire, int] = {}
        for number, wire in enumerate(wires):
            await find(wire, f"g{number}")
            joined = await beat(wire, "m", 0, group=f"g{number}")
            assert not joined.error_code
            epochs[wire] = joined.member_epoch
        for number, wire in enumerate(wires):
            assert not (await beat(wire, "m", epochs[wire], group=f"g{number}")).error_code
        for number, wire in enumerate(wires):
            message = request(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                group_id=f"g{number}",
                member_id="m",
                member_epoch=epochs[wire],
            )
            send_at_once(wire, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
        stall()
        assert [each.error_code for each in await receive_all(wires)] == [0] * CLIENTS


async def test_stall_aborts_no_transaction_whose_end_has_arrived() -> None:
    async with started() as broker, AsyncExitStack() as stack:
        wires = await connect_all(stack, broker)
        await create_topic(wires[0], "t")
        await wires[0].ask(
            ApiKey.FIND_COORDINATOR,
            4,
            request(ApiKey.FIND_COORDINATOR, coordinator_keys=["x"], key_type=1),
        )
        producers = []
        for number, wire in enumerate(wires):
            name = f"x{number}"
            init = request(
                ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS
            )
            producers.append(await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init))
        for number, wire in enumerate(wires):
            add = request(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                v3_and_below_transactional_id=f"x{number}",
                v3_and_below_producer_id=producers[number].producer_id,
                v3_and_below_producer_epoch=producers[number].producer_epoch,
            )
            add.v3_and_below_topics = [type(add).Topic(name="t", partitions=[0])]
            await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)
        for number, wire in enumerate(wires):
            end = request(
                ApiKey.END_TXN,
                transactional_id=f"x{number}",
                producer_id=producers[number].producer_id,
                producer_epoch=producers[number].producer_epoch,
                committed=True,
            )
            send_at_once(wire, ApiKey.END_TXN, 3, end)
        stall()
        assert [each.error_code for each in await receive_all(wires)] == [0] * CLIENTS


async def test_stall_releases_no_share_lock_whose_acknowledgement_has_arrived() -> None:
    settings = {
        "group_share_min_record_lock_duration_ms": 1000,
        "group_share_record_lock_duration_ms": TIMEOUT_MS,
    }
    async with started(**settings) as broker, AsyncExitStack() as stack:
        wires = await connect_all(stack, broker)
        topic = await shared_topic(broker, wires[0])
        members = [ShareMember(wire, topic, f"m{number}") for number, wire in enumerate(wires)]
        for member in members:
            await member.begin()
        offsets = []
        for number, member in enumerate(members):
            await produce(wires[0], topic, batch([b"%d" % number]))
            ((first, _, _),) = await member.acquire()
            offsets.append(first)
        for member, offset in zip(members, offsets, strict=True):
            message = member.acknowledgement({0: [(offset, offset, ACCEPT)]})
            send_at_once(member.wire, ACKNOWLEDGE, member.version, message)
        stall()
        rows = [row for each in await receive_all(wires) for row in each.responses[0].partitions]
        assert [row.error_code for row in rows] == [0] * CLIENTS
