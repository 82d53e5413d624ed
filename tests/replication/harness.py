"""Clusters of several nodes in one process with breakable links, and access to their logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.broker.local_node import LocalNode
from kbroker.client.endpoint import Endpoint
from kbroker.cluster import Cluster
from kbroker.cluster.live_config import LiveConfig
from kbroker.cluster.peers import Peers, PeerTransport
from kbroker.partitions.replica import Replica
from kbroker.protocol.records import read_records
from kbroker.storage.log import Log
from tests.wire import Topic, Wire, batch, connected, produce, until


class HeldStream(trio.abc.Stream):
    """A stream that transfers nothing while its link is held."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        is_open: Callable[[], trio.Event],
        received: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._is_open = is_open
        self._received = received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._is_open().wait()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self._received()
        await self._is_open().wait()
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


class Links:
    """The links between nodes, as seen by followers."""

    def __init__(self) -> None:
        self._held: dict[int, trio.Event] = {}
        self._conditions: dict[int, Callable[[], bool]] = {}
        self._always = trio.Event()
        self._always.set()

    def hold_from(self, follower: int, condition: Callable[[], bool]) -> None:
        """Let a follower receive only responses that were sent before the condition was true."""
        self._conditions[follower] = condition

    def received(self, follower: int) -> None:
        if follower in self._conditions and self._conditions[follower]():
            del self._conditions[follower]
            self.hold(follower)

    async def until_held(self, follower: int) -> None:
        """Wait until a response is held."""
        await until(lambda: follower in self._held)

    def hold(self, *followers: int) -> None:
        """Hold all requests of these nodes to other nodes, and the responses."""
        for node_id in followers:
            self._held.setdefault(node_id, trio.Event())

    def release(self, *followers: int) -> None:
        """Transfer everything that was held."""
        for node_id in followers:
            self._held.pop(node_id).set()

    @contextmanager
    def holding(self, *followers: int) -> Iterator[None]:
        self.hold(*followers)
        try:
            yield
        finally:
            self.release(*followers)

    def open_for(self, follower: int) -> trio.Event:
        return self._held.get(follower, self._always)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Links:
    """Return the links of all nodes that are created afterwards."""
    found = Links()

    def peers(cluster: Cluster, config: LiveConfig, transport: PeerTransport) -> Peers:
        node_id = config.static.node_id

        async def held_dial(endpoint: Endpoint) -> trio.abc.Stream:
            return HeldStream(
                await transport.dial(endpoint),
                lambda: found.open_for(node_id),
                lambda: found.received(node_id),
            )

        return Peers(cluster, config, transport._replace(dial=held_dial))

    monkeypatch.setattr("kbroker.node.node.Peers", peers)
    return found


@asynccontextmanager
async def wire_to(local: LocalNode) -> AsyncIterator[Wire]:
    """Connect a client to one node."""
    async with connected(local.endpoint) as wire:
        yield wire


def replica_on(broker: Broker, node_id: int, topic: str, index: int = 0) -> Replica:
    """Return a partition on one node."""
    return broker.local_node(node_id).node.partitions.named_hosted(topic, index)


def log_on(broker: Broker, node_id: int, topic: str, index: int = 0) -> Log:
    return replica_on(broker, node_id, topic, index).log


def read_batches(log: Log) -> bytes:
    """Return all batches of a log as bytes."""
    parts, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, limit=log.log_end_offset)
        parts.append(part.records if isinstance(part.records, bytes) else part.records.read())
        assert part.next_offset > offset
        offset = part.next_offset
    return b"".join(parts)


def values_in(log: Log) -> list[bytes | None]:
    return [record.value for record in read_records(read_batches(log))]


async def until_equal(broker: Broker, topic: str, *node_ids: int, index: int = 0) -> None:
    """Wait until these nodes have the same records, all of them committed."""

    def logs() -> list[Log]:
        return [log_on(broker, node_id, topic, index) for node_id in node_ids]

    await until(
        lambda: (
            len({(log.log_end_offset, log.high_watermark) for log in logs()}) == 1
            and all(log.log_end_offset == log.high_watermark for log in logs())
        )
    )
    first, *copies = (read_batches(log) for log in logs())
    assert all(other == first for other in copies)


def leader_of(broker: Broker, topic: str, index: int = 0) -> int:
    partition = broker.running().cluster.partition(topic, index)
    assert partition is not None
    return partition.leader


async def until_leader(broker: Broker, topic: str, among: set[int], index: int = 0) -> int:
    """Wait until one of these nodes acts as leader of a partition, and return its id."""

    def leads() -> bool:
        leader = leader_of(broker, topic, index)
        return leader in among and replica_on(broker, leader, topic, index).is_leader

    await until(leads)
    return leader_of(broker, topic, index)


async def place_topic(
    broker: Broker,
    name: str,
    *replicas: int,
    partitions: int = 1,
    configs: dict[str, str] | None = None,
) -> Topic:
    """Create a topic whose partitions have these replicas, the leader first."""
    cluster = broker.running().cluster
    assignments = [list(replicas)] * partitions
    topic = await cluster.create_topic(name, assignments, configs or {}, cause="a test")
    return Topic(name, topic.id)


async def send(broker: Broker, node_id: int, topic: Topic, *values: bytes, **settings: Any) -> int:
    """Produce one batch to a node and return its offset. Fails the test on an error."""
    row = await try_send(broker, node_id, topic, *values, **settings)
    assert row.error_code == 0, row
    return int(row.base_offset)


async def try_send(
    broker: Broker, node_id: int, topic: Topic, *values: bytes, **settings: Any
) -> Any:
    """Produce one batch to a node and return the partition's row of the response."""
    async with wire_to(broker.local_node(node_id)) as wire:
        return await produce(wire, topic, batch(values), **settings)
