"""Bounds of the stores of a node that clients fill and that outlive a request.

One client fills a store far beyond its bound. The store stays within the bound, another client is
still served, and the store is empty again when the first client disconnected or expired. Without
the bound the same requests exceed it, which shows that the bound is effective.
"""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import pytest
import trio

from kbroker.broker import Broker
from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.coordinator.common.memory import EXPECTED_BYTES
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.share.group import ShareGroup
from kbroker.coordinator.state import ShardState
from kbroker.coordinator.streams.group import StreamsGroup
from kbroker.net import replies
from kbroker.node import activity, client_metrics
from kbroker.node.activity import Activity
from kbroker.partitions import history
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.runtime import rates
from kbroker.storage import producer_state
from kbroker.testing.clock import MovableClock

from ..brokers import started
from ..handlers.quota_requests import set_quota
from ..handlers.test_consumer_groups import beat, find
from ..handlers.test_share_groups import beat as share_beat
from ..handlers.test_streams_groups import streams_beat
from ..wire import (
    NEVER,
    Topic,
    Wire,
    connected,
    create_topic,
    fetch,
    fetch_request,
    produce,
    request,
    sequenced,
    until,
)

# Function that creates one entry of a store, by its number.
CreateEntry: TypeAlias = Callable[[Wire, int], Awaitable[Any]]
BYTES = 64 * 1024
COUNT = 20
# Number of entries that a client tries to create.
SENT = 100
SESSION_MS = 30_000
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
TOPIC = Topic("t")


class Store(NamedTuple):
    """A store and how to fill it.

    Attributes:
        name: The name of the row.
        create: Creates an entry; its result is true if the client was served.
        size: Returns the bytes or entries in the store, computed without its own counter.
        bound: Maximum size.
        setting: Name of the setting with the bound, with `_` instead of dots.
        limit: Value of the setting, if it differs from the bound.
        constant: Module and name of the constant with the bound, if there is no setting.
        others: Other settings.
        empty: True if the store is empty after the client disconnected and its sessions expired.
    """

    name: str
    create: CreateEntry
    size: Callable[[Broker], int]
    bound: int
    setting: str | None = None
    limit: int | None = None
    constant: tuple[Any, str] | None = None
    others: Mapping[str, Any] = MappingProxyType({})
    empty: bool = True


# -- groups


def states(broker: Broker) -> Iterable[ShardState]:
    return (shard.coordinator._state for shard in broker.node.groups.shards())


async def join(wire: Wire, number: int, *, metadata: bytes = bytes(4000), **fields: Any) -> Any:
    """Join a group with one member that has much metadata."""
    row = JoinGroupRequest.Protocol(name="range", metadata=metadata)
    message = JoinGroupRequest(
        group_id=f"group-{number}",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[row],
        **fields,
    )
    return await wire.ask(ApiKey.JOIN_GROUP, 9, message)


async def static_join(wire: Wire, number: int) -> bool:
    response = await join(wire, number, group_instance_id="i")
    assert response.error_code in (0, LOADING)
    return not response.error_code


async def member_id(wire: Wire, number: int) -> bool:
    response = await join(wire, number)
    assert response.error_code in (ErrorCode.MEMBER_ID_REQUIRED, LOADING)
    return bool(response.error_code == ErrorCode.MEMBER_ID_REQUIRED)


async def assignment(wire: Wire, number: int) -> bool:
    """Join as the leader of a group, and store a large assignment."""
    response = await join(wire, number, metadata=b"", group_instance_id="i")
    if response.error_code:
        return False
    row = SyncGroupRequest.Assignment(member_id=response.member_id, assignment=bytes(4000))
    message = SyncGroupRequest(
        group_id=f"group-{number}",
        generation_id=response.generation_id,
        member_id=response.member_id,
        group_instance_id="i",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[row],
    )
    synced = await wire.ask(ApiKey.SYNC_GROUP, 5, message)
    assert synced.error_code in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return not synced.error_code


def classic_members(broker: Broker) -> Iterable[Any]:
    groups = itertools.chain.from_iterable(
        state.groups_of(ClassicGroup) for state in states(broker)
    )
    return itertools.chain.from_iterable(group.members.values() for group in groups)


def classic_metadata(broker: Broker) -> int:
    offered = (member.protocols for member in classic_members(broker))
    return sum(len(metadata) for protocols in offered for _, metadata in protocols)


def assignments(broker: Broker) -> int:
    return sum(len(member.assignment) for member in classic_members(broker))


def expected_members(broker: Broker) -> int:
    groups = itertools.chain.from_iterable(
        state.groups_of(ClassicGroup) for state in states(broker)
    )
    return sum(len(group.pending) for group in groups)


def names(number: int) -> list[str]:
    return [f"{number}-{index}-{'x' * 200}" for index in range(20)]


async def consumer_member(wire: Wire, number: int) -> bool:
    response = await beat(
        wire, f"member-{number}", 0, group=f"group-{number}", subscribed_topic_names=names(number)
    )
    assert response.error_code in (0, LOADING)
    return not response.error_code


async def share_member(wire: Wire, number: int) -> bool:
    response = await share_beat(
        wire, f"member-{number}", 0, group=f"group-{number}", topics=names(number)
    )
    assert response.error_code in (0, LOADING)
    return not response.error_code


async def streams_member(wire: Wire, number: int) -> bool:
    response = await streams_beat(
        wire, f"member-{number}", 0, group=f"group-{number}", process_id="x" * 900
    )
    assert response.error_code in (0, LOADING)
    return not response.error_code


def subscriptions(kind: type[ConsumerGroup | ShareGroup]) -> Callable[[Broker], int]:
    def size(broker: Broker) -> int:
        groups: list[Any] = [
            group
            for state in states(broker)
            for group in state.groups.values()
            if isinstance(group, kind)
        ]
        members = itertools.chain.from_iterable(group.members.values() for group in groups)
        return sum(len(topic) for member in members for topic in member.topics)

    return size


def processes(broker: Broker) -> int:
    groups = itertools.chain.from_iterable(
        state.groups_of(StreamsGroup) for state in states(broker)
    )
    members = itertools.chain.from_iterable(group.members.values() for group in groups)
    return sum(len(member.process_id) for member in members)


async def commit(wire: Wire, number: int) -> bool:
    """Commit an offset with long metadata, or the offset of `SERVED` that is already committed."""
    cls = OffsetCommitRequest
    row = cls.Partition(partition_index=0, committed_offset=1, committed_metadata="x" * 4000)
    topic = cls.Topic(name=TOPIC.name, partitions=[row])
    message = cls(
        group_id=f"group-{min(number, SERVED)}", generation_id_or_member_epoch=-1, topics=[topic]
    )
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 8, message)
    ((row_,),) = (each.partitions for each in response.topics)
    assert row_.error_code in (0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    return not row_.error_code


def offset_metadata(broker: Broker) -> int:
    offsets = itertools.chain.from_iterable(state.offsets.values() for state in states(broker))
    return sum(len(value.metadata) for partitions in offsets for value in partitions.values())


async def transactional_id(wire: Wire, number: int) -> bool:
    cls = InitProducerIdRequest
    message = cls(transactional_id=f"{number}-{'x' * 1000}", transaction_timeout_ms=1000)
    response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)
    assert response.error_code in (0, LOADING)
    return not response.error_code


def transactional_ids(broker: Broker) -> int:
    return sum(len(name) for _, name, _ in broker.node.transactions.known())


# -- sessions and caches


async def fetch_session(wire: Wire, number: int) -> bool:
    response = await wire.ask(ApiKey.FETCH, 12, fetch_request(TOPIC, session_epoch=0))
    return not response.error_code


async def pending_fetch(wire: Wire, number: int) -> bool:
    """Send a fetch that waits forever; a client that is served gets existing records."""
    if number >= SERVED:
        return not (await fetch(wire, TOPIC)).error_code
    await wire.send(ApiKey.FETCH, 12, fetch_request(TOPIC, max_wait_ms=NEVER))
    return True


def queued_replies(broker: Broker) -> int:
    return max((len(each.replies.queue) for each in broker.server.connections), default=0)


async def producer(wire: Wire, number: int) -> bool:
    return not (await produce(wire, TOPIC, sequenced(1000 + number, 0))).error_code


def producers(broker: Broker) -> int:
    return sum(1 for _ in broker.node.partitions.named_replica(TOPIC.name, 0).log.producers)


async def telemetry(wire: Wire, number: int) -> bool:
    message = request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, client_instance_id=uuid.uuid4())
    response = await wire.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, message)
    return not response.error_code


async def fetch_with_new_client_id(wire: Wire, number: int) -> bool:
    """Send a fetch with a different client ID each time."""
    await wire.send(ApiKey.FETCH, 12, fetch_request(TOPIC), client_id=f"client-{number}")
    return not (await wire.receive()).error_code


# Lowest number of the entries of other clients.
SERVED = 1_000

STORES = [
    Store(
        "classic-metadata",
        static_join,
        classic_metadata,
        BYTES,
        setting="group_coordinator_members_max_bytes",
    ),
    Store(
        "classic-assignments",
        assignment,
        assignments,
        BYTES,
        setting="group_coordinator_members_max_bytes",
    ),
    Store(
        "classic-member-ids",
        member_id,
        expected_members,
        BYTES // 2 // EXPECTED_BYTES,
        setting="group_coordinator_members_max_bytes",
        limit=BYTES // 2,
    ),
    Store(
        "consumer-members",
        consumer_member,
        subscriptions(ConsumerGroup),
        BYTES,
        setting="group_coordinator_members_max_bytes",
    ),
    Store(
        "share-members",
        share_member,
        subscriptions(ShareGroup),
        BYTES,
        setting="group_coordinator_members_max_bytes",
    ),
    Store(
        "streams-members",
        streams_member,
        processes,
        BYTES,
        setting="group_coordinator_members_max_bytes",
    ),
    Store(
        "offset-metadata",
        commit,
        offset_metadata,
        BYTES,
        setting="group_coordinator_offsets_max_bytes",
        empty=False,
    ),
    Store(
        "transactional-ids",
        transactional_id,
        transactional_ids,
        BYTES,
        setting="transaction_coordinator_ids_max_bytes",
        empty=False,
    ),
    Store(
        "fetch-sessions",
        fetch_session,
        lambda broker: len(broker.node.fetch_sessions),
        COUNT,
        setting="max_incremental_fetch_session_cache_slots",
        empty=False,
    ),
    Store(
        "replies",
        pending_fetch,
        queued_replies,
        COUNT + 1,  # the last entry fills the queue
        limit=COUNT,
        constant=(replies, "REPLIES_MAX"),
        # While replies fill the queue, nothing is received, so only this ends the connection.
        others={"connections_max_idle_ms": 1_000},
    ),
    Store(
        "producers",
        producer,
        producers,
        COUNT,
        constant=(producer_state, "PRODUCERS_MAX"),
        empty=False,
    ),
    Store(
        "telemetry-instances",
        telemetry,
        lambda broker: len(broker.node.client_metrics._instances),
        COUNT,
        constant=(client_metrics, "INSTANCES_MAX"),
        empty=False,
    ),
    Store(
        "quota-rates",
        fetch_with_new_client_id,
        lambda broker: max(len(meters) for meters in broker.node.quota_manager.rates.values()),
        COUNT,
        constant=(rates, "METERS_MAX"),
        empty=False,
    ),
    Store(
        "client-activity",
        fetch_with_new_client_id,
        lambda broker: len(broker.node.activity.clients) if broker.node.activity else 0,
        COUNT,
        constant=(activity, "CLIENTS_MAX"),
        empty=False,
    ),
    Store(
        "group-history",
        static_join,
        lambda broker: len(broker.node.groups.history._changes),
        COUNT,
        constant=(history, "OBJECTS_MAX"),
        empty=False,
    ),
]


class World(NamedTuple):
    """A broker, its clock, and the addresses of two clients."""

    broker: Broker
    clock: MovableClock

    @asynccontextmanager
    async def client(self, host: str) -> AsyncIterator[Wire]:
        """Open a connection from an address of this machine."""
        connected_ = socket.create_connection(
            ("127.0.0.1", self.broker.endpoint[1]), source_address=(host, 0)
        )
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected_))
        async with stream:
            yield Wire(stream)

    async def expire(self, milliseconds: int) -> None:
        self.clock.coordinator.add(milliseconds)
        self.broker.node.groups.deadlines.clock_moved()


@asynccontextmanager
async def make_world(store: Store, limit: int, patch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Run a broker in which a store has this bound."""
    settings = dict(store.others)
    if store.setting is not None:
        settings[store.setting] = limit
    if store.constant is not None:
        patch.setattr(*store.constant, limit)
    clock = MovableClock()
    clock.coordinator.freeze()
    async with started(None, clock, **settings) as broker, connected(broker.endpoint) as wire:
        broker.node.activity = Activity(clock.log_ms)
        await create_topic(wire, TOPIC.name)
        await find(wire)
        message = request(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=["x"])
        await wire.ask(ApiKey.FIND_COORDINATOR, 4, message)
        await set_quota(wire, {"client-id": None}, consumer_byte_rate=1e9)
        assert await store.create(wire, SERVED)
        yield World(broker, clock)


async def fill(store: Store, world: World, wire: Wire) -> int:
    """Try to create entries. Return the largest size of the store."""
    largest = 0
    for number in range(SENT):
        await store.create(wire, number)
        largest = max(largest, store.size(world.broker))
    if store.name == "replies":
        await trio.testing.wait_all_tasks_blocked()
        largest = max(largest, store.size(world.broker))
    return largest


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
async def test_one_client_cannot_exceed_bound_of_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_world(store, store.limit or store.bound, monkeypatch) as world:
        async with world.client("127.0.0.2") as greedy:
            largest = await fill(store, world, greedy)
            assert store.bound / 20 < largest <= store.bound
            async with world.client("127.0.0.3") as polite:
                assert await store.create(polite, SERVED + 1)
        if store.empty:
            await until(lambda: len(world.broker.server.connections) <= 1)
            await world.expire(10 * SESSION_MS)
            await until(lambda: store.size(world.broker) == 0)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
async def test_same_requests_exceed_store_without_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        make_world(store, 2**30, monkeypatch) as world,
        world.client("127.0.0.2") as greedy,
    ):
        assert await fill(store, world, greedy) > store.bound
