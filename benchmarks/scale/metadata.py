"""Benchmark of the metadata of a large cluster, without logs.

python -m benchmarks.scale.metadata --write

The process simulates 50 nodes and 50,000 partitions, and measures CPU time and memory of one node.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
import tracemalloc
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from kbroker.cluster import Cluster, LocalStore, Partition, PartitionChange
from kbroker.cluster.controller import Controller
from kbroker.cluster.etcd_gateway import Gateway, Message, to_base64
from kbroker.cluster.etcd_store import CAUSE, ENTRY, EtcdStore
from kbroker.cluster.membership import Membership
from kbroker.cluster.placement import place
from kbroker.cluster.store import Change, Document, Lease
from kbroker.config import BrokerConfig
from kbroker.protocol.compile import encode_for_many
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.storage.files import MemFiles

from .page import Row, cell, describe_conditions, write
from .rounds import FACTOR, Figure

PROGRAM = "benchmarks.scale.metadata"
NODES, PARTITIONS = 50, 50_000
PARTITIONS_OF_TOPIC = 100
LARGE_TOPIC = 10_000
METADATA_VERSION = 12
PREFIX = "/kbroker/scale/"
APPLY_SECONDS = 600

ROWS: Mapping[str, Row] = {
    "create": Row("**create** all topics of 100 partitions each: place, store, apply", "s"),
    "create one": Row("only the last topic", "ms"),
    "place": Row("replica placement of 10,000 partitions (one CreateTopics)", "s"),
    "document": Row("entry of a topic with 10,000 partitions (etcd limit: 1,500 kB)", "kB"),
    "new read": Row("**start-up**: read all entries from etcd", "s"),
    "new memory": Row("memory of a node: entries and their cache", "MB"),
    "changed read": Row("start-up after each partition has changed once", "s"),
    "changed turn": Row("longest event-loop iteration of that start-up", "ms"),
    "changed memory": Row("memory of a node", "MB"),
    "changed": Row("**node failure**: changed partitions", ""),
    "transactions": Row("transactions of the controller", ""),
    "compares": Row("maximum number of compares in a transaction (etcd limit: 128)", ""),
    "put bytes": Row("maximum size of a transaction", "kB"),
    "election": Row("CPU time of the controller", "s"),
    "storm": Row("CPU time of each other node to apply the changes", "s"),
    "answer": Row("**Metadata response** with all topics", "MB"),
    "answer time": Row("CPU time to encode this response, once for all clients", "s"),
}


class CountingStore(LocalStore):
    """A local store that records its changes and the size of its transactions."""

    def __init__(self) -> None:
        files = MemFiles()
        files.mkdir("data")
        super().__init__(files, "data/journal")
        self.compares: list[int] = []
        self.put_bytes: list[int] = []
        self.changes: list[Change] = []
        self.watch(self.changes.append, after=self.revision)

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        self.compares.append(len(compares))
        self.put_bytes.append(len(json.dumps(puts, separators=(",", ":"))))
        return await super().transact(puts, compares=compares, cause=cause, lease=lease)

    def begin(self) -> None:
        """Forget the changes and sizes recorded so far."""
        self.compares.clear()
        self.put_bytes.clear()
        self.changes.clear()


class FakeEtcd(Gateway):
    """A fake etcd member with given keys, which sends watch events to a node."""

    def __init__(self, entries: Mapping[str, tuple[Document, int]], revision: int) -> None:
        super().__init__(["http://nobody:2379"])
        self._revision = str(revision)
        self._pairs = [_pair(ENTRY + key, *entries[key]) for key in sorted(entries)]
        self.page_seconds: list[float] = []  # CPU time of the reader for each page
        self.own_seconds = 0.0  # CPU time of this fake
        self._answered_at = 0.0
        self._events, self._received_events = trio.open_memory_channel[str](100_000)

    async def ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        if self._answered_at:
            self.page_seconds.append(time.process_time() - self._answered_at)
        await trio.lowlevel.checkpoint()
        began = time.process_time()
        first, limit = message["key"], int(message.get("limit", 0)) or None
        begin = _first_from(self._pairs, b64decode(first))
        pairs = self._pairs[begin:][:limit]
        is_more = begin + len(pairs) < len(self._pairs)
        text = json.dumps({"header": {"revision": self._revision}, "kvs": pairs, "more": is_more})
        self._answered_at = time.process_time()
        self.own_seconds += self._answered_at - began
        answer: Message = json.loads(text)  # like a client of etcd
        return answer

    @asynccontextmanager
    async def stream(self, path: str, message: Message) -> AsyncIterator[Any]:
        yield self

    async def next(self) -> Message:
        """Return the next events of a watch."""
        events: Message = json.loads(await self._received_events.receive())
        return events

    def send_events(self, change: Change) -> None:
        """Send the events of a change."""
        pairs = [_pair(CAUSE, {"cause": change.cause}, change.revision)]
        pairs += [
            _pair(ENTRY + key, entry.value, change.revision)
            for key, entry in change.entries.items()
            if entry is not None
        ]
        self._events.send_nowait(json.dumps({"events": [{"kv": each} for each in pairs]}))


class Follower(EtcdStore):
    """A store client that only follows changes and does not verify its state."""

    async def run(self) -> None:
        await self._follow()


def _pair(key: str, value: Document, revision: int) -> Message:
    data = json.dumps(value, separators=(",", ":")).encode()
    return {
        "key": to_base64((PREFIX + key).encode()),
        "value": to_base64(data),
        "mod_revision": str(revision),
        "create_revision": str(revision),
    }


def _first_from(pairs: Sequence[Message], key: bytes) -> int:
    """Return the index of the first pair whose key is not less than `key`."""
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) // 2
        if b64decode(pairs[middle]["key"]) < key:
            low = middle + 1
        else:
            high = middle
    return low


class World:
    """A cluster with one active controller; the other nodes are only registered."""

    def __init__(self, nodes: int) -> None:
        self.store = CountingStore()
        self._nodes = nodes
        self.members: list[Membership] = []
        self.cluster: Cluster
        self.controller: Controller

    async def start(self) -> None:
        self.cluster = await Cluster.open(self.store)
        for node_id in range(1, self._nodes + 1):
            config = BrokerConfig.load(options={"node.id": str(node_id)}, nodes=self._nodes)
            member = Membership(
                self.cluster,
                config,
                directories={f"directory-{node_id}": "/data"},
                is_clean=True,
                keeps_records=True,
            )
            await member.register({})
            await member.become_ready()
            self.members.append(member)
            if node_id == 1:
                self.controller = Controller(self.cluster, member, config)
                self.cluster.subscribe_nodes(self.controller.nodes_changed)
                self.cluster.subscribe(self.controller.topics_changed)
                await self.controller.process_changes()

    async def create(self, number: int) -> None:
        """Create one topic."""
        placed = [*self.cluster.place_partitions(PARTITIONS_OF_TOPIC, FACTOR)]
        await self.cluster.create_topic(f"topic-{number}", placed, {}, cause="benchmark")


async def measure(nodes: int, partitions: int) -> list[Figure]:
    """Return all results of one round."""
    world = World(nodes)
    await world.start()
    return [
        *await _measure_creation(world, partitions),
        *_measure_placement(world),
        *await _measure_start(world, "new"),
        *await _measure_election(world),
        *await _measure_start_after_changes(world),
        *_measure_metadata_response(world),
    ]


async def _measure_creation(world: World, partitions: int) -> list[Figure]:
    began = last = time.process_time()
    for number in range(partitions // PARTITIONS_OF_TOPIC):
        last = time.process_time()
        await world.create(number)
    now = time.process_time()
    await world.controller.process_changes()
    return [Figure("create", now - began), Figure("create one", (now - last) * 1000)]


def _measure_placement(world: World) -> list[Figure]:
    racks = dict.fromkeys(world.cluster.open_ids)
    began = time.process_time()
    placed = [*place(racks, LARGE_TOPIC, FACTOR, load=world.cluster.load)]
    seconds = time.process_time() - began
    size = len(json.dumps(placed, separators=(",", ":")))
    return [Figure("place", seconds), Figure("document", size / 1000)]


async def _measure_start(world: World, when: str) -> list[Figure]:
    """Measure a new node that reads all entries."""
    gateway = await _make_gateway(world)
    began = time.process_time()
    async with _following(gateway):
        seconds = time.process_time() - began - gateway.own_seconds
    return [
        Figure(f"{when} read", seconds),
        Figure(f"{when} turn", max(gateway.page_seconds, default=0.0) * 1000),
        Figure(f"{when} memory", await _measure_memory(gateway)),
    ]


async def _make_gateway(world: World) -> FakeEtcd:
    revision, entries = await world.store.range("")
    return FakeEtcd({key: (each.value, each.revision) for key, each in entries.items()}, revision)


@asynccontextmanager
async def _following(gateway: FakeEtcd) -> AsyncIterator[EtcdStore]:
    """Run the store and the cache of a node that follows etcd."""
    store = Follower(gateway, PREFIX)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await store.wait_until_read()
        cluster = Cluster(store, "played")
        revision, entries = await store.range("")
        cluster.fill(entries)
        store.watch(cluster.apply, after=revision)
        yield store
        nursery.cancel_scope.cancel()


async def _measure_memory(gateway: FakeEtcd) -> float:
    """Return the memory of a node's metadata in MB."""
    gc.collect()
    tracemalloc.start()
    async with _following(gateway):
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return size / 1e6


async def _measure_election(world: World) -> list[Figure]:
    """Measure the failure of the last node: new leaders and smaller ISRs."""
    gateway = await _make_gateway(world)
    async with _following(gateway) as store:
        world.store.begin()
        await world.members[-1].lease.revoke()
        began = time.process_time()
        await world.controller.process_changes()
        seconds = time.process_time() - began
        changes = list(world.store.changes)
        for each in changes:
            gateway.send_events(each)
        began = time.process_time()
        with trio.fail_after(APPLY_SECONDS):
            while store.revision < changes[-1].revision:  # changes arrive in callbacks
                await trio.lowlevel.checkpoint()
        storm = time.process_time() - began
    changed = sum(len(each.entries) for each in changes[1:])
    return [
        Figure("changed", changed),
        Figure("transactions", len(world.store.compares)),
        Figure("compares", max(world.store.compares)),
        Figure("put bytes", max(world.store.put_bytes) / 1000),
        Figure("election", seconds),
        Figure("storm", storm),
    ]


async def _measure_start_after_changes(world: World) -> list[Figure]:
    """Measure a new node after each partition has an entry of its own, because it changed once."""
    for topic in world.cluster.topics.values():
        changes = [PartitionChange(topic, each, each) for each in topic.partitions]
        await world.cluster.put_partitions(changes, fences={}, cause="benchmark")
    return await _measure_start(world, "changed")


def _measure_metadata_response(world: World) -> list[Figure]:
    """Measure the Metadata response with all topics."""
    began = time.process_time()
    response = MetadataResponse(
        brokers=[
            MetadataResponse.Broker(node_id=each, host=f"broker-{each}.example.com", port=9092)
            for each in world.cluster.node_ids
        ],
        cluster_id=world.cluster.id,
        topics=[
            MetadataResponse.Topic(
                name=topic.name, topic_id=topic.id, partitions=[*map(_row, topic.partitions)]
            )
            for topic in world.cluster.topics.values()
        ],
    )
    encoded = _result(encode_for_many(response, METADATA_VERSION))
    seconds = time.process_time() - began
    size = len(encoded.body)
    return [Figure("answer", size / 1e6), Figure("answer time", seconds)]


def _row(partition: Partition) -> MetadataResponse.Partition:
    return MetadataResponse.Partition(
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
    )


def _result(work: Iterator[None]) -> Any:
    """Run a generator and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="number of rounds (default 3)")
    parser.add_argument(
        "--nodes", type=int, default=NODES, help=f"number of nodes (default {NODES})"
    )
    parser.add_argument(
        "--partitions",
        type=int,
        default=PARTITIONS,
        help=f"number of partitions (default {PARTITIONS})",
    )
    parser.add_argument("--write", action="store_true", help="write docs/how-to/size-a-cluster.md")
    options = parser.parse_args()
    logging.disable()  # hide messages about failed nodes
    rounds = [
        dict(trio.run(measure, options.nodes, options.partitions)) for _ in range(options.repeat)
    ]
    text = (
        "\n".join(
            [
                f"Written by `python -m {PROGRAM} --write`; {describe_conditions(options.repeat)}",
                "",
                *_table(rounds),
            ]
        )
        + "\n"
    )
    print(text)
    if options.write:
        write("metadata", text)


def _table(rounds: Sequence[Mapping[str, float]]) -> Iterator[str]:
    yield "| | median (min to max) |"
    yield "|---|--:|"
    for name, row in ROWS.items():
        yield f"| {row.title} | {cell(row, [each[name] for each in rounds])} |"


if __name__ == "__main__":
    main()
