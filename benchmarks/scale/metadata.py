"""The metadata of a large cluster by itself, without logs: `python -m benchmarks.scale.metadata --write`

50 nodes and 50,000 partitions in one process. What one node computes and holds is what is measured;
times are those of a processor.
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

from .page import Row, cell, facts, write
from .rounds import FACTOR, Figure

PROGRAM = "benchmarks.scale.metadata"
NODES, PARTITIONS = 50, 50_000
PARTITIONS_OF_TOPIC = 100
LARGE_TOPIC = 10_000
METADATA_VERSION = 12
PREFIX = "/kbroker/scale/"
TOLD_SECONDS = 600

ROWS: Mapping[str, Row] = {
    "create": Row("**create** all topics, 100 partitions each: place, store, hear of it", "s"),
    "create one": Row("the last of them alone", "ms"),
    "place": Row("choose the nodes of 10,000 partitions (one CreateTopics)", "s"),
    "document": Row("entry of a topic of 10,000 partitions (etcd takes 1,500 kB)", "kB"),
    "new read": Row("**a start**: read everything from etcd", "s"),
    "new memory": Row("memory of a node for it: entries and their cache", "MB"),
    "changed read": Row("the same when each partition has changed once", "s"),
    "changed turn": Row("the longest turn of the event loop in that", "ms"),
    "changed memory": Row("memory of a node for it", "MB"),
    "changed": Row("**a node is gone**: partitions that change", ""),
    "transactions": Row("transactions of the controller for it", ""),
    "compares": Row("most compares in one (etcd takes 128)", ""),
    "put bytes": Row("most bytes in one", "kB"),
    "election": Row("processor time of the controller", "s"),
    "storm": Row("processor time of each other node to hear of it", "s"),
    "answer": Row("**an answer to Metadata** about all topics", "MB"),
    "answer time": Row("processor time to make it, once for all who ask", "s"),
}


class Counting(LocalStore):
    """It says how large transactions are, and keeps its changes."""

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
        """Count from here on."""
        self.compares.clear()
        self.put_bytes.clear()
        self.changes.clear()


class PlayedEtcd(Gateway):
    """A member that has certain keys, of which a node is told as by etcd."""

    def __init__(self, entries: Mapping[str, tuple[Document, int]], revision: int) -> None:
        super().__init__(["http://nobody:2379"])
        self._revision = str(revision)
        self._pairs = [_pair(ENTRY + key, *entries[key]) for key in sorted(entries)]
        self.turn_seconds: list[float] = []
        """How long the reader was at work on each page (processor time)."""
        self.own_seconds = 0.0
        """What it took to play the member."""
        self._answered_at = 0.0
        self._events, self._told = trio.open_memory_channel[str](100_000)

    async def ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        if self._answered_at:
            self.turn_seconds.append(time.process_time() - self._answered_at)
        await trio.lowlevel.checkpoint()
        began = time.process_time()
        first, limit = message["key"], int(message.get("limit", 0)) or None
        begin = _first_from(self._pairs, b64decode(first))
        pairs = self._pairs[begin:][:limit]
        is_more = begin + len(pairs) < len(self._pairs)
        text = json.dumps({"header": {"revision": self._revision}, "kvs": pairs, "more": is_more})
        self._answered_at = time.process_time()
        self.own_seconds += self._answered_at - began
        answer: Message = json.loads(text)  # as whoever asks etcd does
        return answer

    @asynccontextmanager
    async def stream(self, path: str, message: Message) -> AsyncIterator[Any]:
        yield self

    async def next(self) -> Message:
        """The next events, as of a watch."""
        events: Message = json.loads(await self._told.receive())
        return events

    def tell(self, change: Change) -> None:
        """Let a change be heard of."""
        pairs = [_pair(CAUSE, {"cause": change.cause}, change.revision)]
        pairs += [
            _pair(ENTRY + key, entry.value, change.revision)
            for key, entry in change.entries.items()
            if entry is not None
        ]
        self._events.send_nowait(json.dumps({"events": [{"kv": each} for each in pairs]}))


class Follower(EtcdStore):
    """A client that only follows: it never looks whether it is right."""

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
    """The place of the first pair that is not before a key."""
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) // 2
        if b64decode(pairs[middle]["key"]) < key:
            low = middle + 1
        else:
            high = middle
    return low


class World:
    """A cluster of which one node is the controller; the others only run."""

    def __init__(self, nodes: int) -> None:
        self.store = Counting()
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
                await self.controller.settle()

    async def create(self, number: int) -> None:
        """Make one topic."""
        placed = [*self.cluster.place_partitions(PARTITIONS_OF_TOPIC, FACTOR)]
        await self.cluster.create_topic(f"topic-{number}", placed, {}, cause="benchmark")


async def measure(nodes: int, partitions: int) -> list[Figure]:
    """All figures of one round."""
    world = World(nodes)
    await world.start()
    return [
        *await _creation(world, partitions),
        *_placing(world),
        *await _start(world, "new"),
        *await _election(world),
        *await _touched(world),
        *_answer(world),
    ]


async def _creation(world: World, partitions: int) -> list[Figure]:
    began = last = time.process_time()
    for number in range(partitions // PARTITIONS_OF_TOPIC):
        last = time.process_time()
        await world.create(number)
    now = time.process_time()
    await world.controller.settle()
    return [Figure("create", now - began), Figure("create one", (now - last) * 1000)]


def _placing(world: World) -> list[Figure]:
    racks = dict.fromkeys(world.cluster.open_ids)
    began = time.process_time()
    placed = [*place(racks, LARGE_TOPIC, FACTOR, load=world.cluster.load)]
    seconds = time.process_time() - began
    size = len(json.dumps(placed, separators=(",", ":")))
    return [Figure("place", seconds), Figure("document", size / 1000)]


async def _start(world: World, when: str) -> list[Figure]:
    """A node that comes reads all that there is."""
    gateway = await _gateway(world)
    began = time.process_time()
    async with _following(gateway):
        seconds = time.process_time() - began - gateway.own_seconds
    return [
        Figure(f"{when} read", seconds),
        Figure(f"{when} turn", max(gateway.turn_seconds, default=0.0) * 1000),
        Figure(f"{when} memory", await _memory(gateway)),
    ]


async def _gateway(world: World) -> PlayedEtcd:
    revision, entries = await world.store.range("")
    return PlayedEtcd({key: (each.value, each.revision) for key, each in entries.items()}, revision)


@asynccontextmanager
async def _following(gateway: PlayedEtcd) -> AsyncIterator[EtcdStore]:
    """The store and the cache of a node, in step with etcd."""
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


async def _memory(gateway: PlayedEtcd) -> float:
    """What a node's metadata takes (MB)."""
    gc.collect()
    tracemalloc.start()
    async with _following(gateway):
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return size / 1e6


async def _election(world: World) -> list[Figure]:
    """The last node is gone: others lead what it led, and it is in sync nowhere."""
    gateway = await _gateway(world)
    async with _following(gateway) as store:
        world.store.begin()
        await world.members[-1].lease.revoke()
        began = time.process_time()
        await world.controller.settle()
        seconds = time.process_time() - began
        changes = list(world.store.changes)
        for each in changes:
            gateway.tell(each)
        began = time.process_time()
        with trio.fail_after(TOLD_SECONDS):
            while store.revision < changes[-1].revision:  # it tells by callbacks
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


async def _touched(world: World) -> list[Figure]:
    """When each partition has an entry of its own, because it has changed once."""
    for topic in world.cluster.topics.values():
        changes = [PartitionChange(topic, each, each) for each in topic.partitions]
        await world.cluster.put_partitions(changes, fences={}, cause="benchmark")
    return await _start(world, "changed")


def _answer(world: World) -> list[Figure]:
    """What a client gets that asks for all topics."""
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
    """What a generator returns at its end."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"default: {NODES}")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help=f"default: {PARTITIONS}")
    parser.add_argument("--write", action="store_true", help="write docs/how-to/size-a-cluster.md")
    options = parser.parse_args()
    logging.disable()  # of nodes that are gone
    rounds = [
        dict(trio.run(measure, options.nodes, options.partitions)) for _ in range(options.repeat)
    ]
    text = (
        "\n".join(
            [f"Made by `python -m {PROGRAM} --write`; {facts(options.repeat)}", "", *_table(rounds)]
        )
        + "\n"
    )
    print(text)
    if options.write:
        write("metadata", text)


def _table(rounds: Sequence[Mapping[str, float]]) -> Iterator[str]:
    yield "| | median (least to most) |"
    yield "|---|--:|"
    for name, row in ROWS.items():
        yield f"| {row.title} | {cell(row, [each[name] for each in rounds])} |"


if __name__ == "__main__":
    main()
