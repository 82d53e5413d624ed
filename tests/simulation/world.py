"""One run from one seed: a cluster, its clients, bad luck, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TextIO

import trio

from kbroker.cluster.local_store import LocalStore
from kbroker.cluster.store import MetadataStore
from kbroker.protocol.messages.topics import CreateTopicsRequest

from .checks import Checks
from .clients import ALL, LEADER_ONLY, Client, Consumer, Failed, History, Producer, must
from .machine import Machine
from .network import Network
from .seeded import Events, Source, run

CHAOS_SECONDS = 9.0
HEAL_SECONDS = 6.0
TOPIC = "orders"
VALUES_EACH = 1_000_000


@dataclass
class Outcome:
    """What a run came to."""

    seed: int
    digest: int
    events: int
    work: Counter[str] = field(default_factory=Counter)


class World:
    """A cluster under test."""

    def __init__(self, seed: int, trace: TextIO | None = None, nodes: int = 1) -> None:
        self.source = Source(seed)
        self.seed = seed
        self.events = Events(trace)
        self.network = Network(self.source, self.events)
        self.chance = self.source.of("world")
        self.history = History()
        self.work: Counter[str] = Counter()
        self.machines = [
            Machine(
                node_id,
                self.network,
                self.source,
                self.events,
                {"log.cleaner.enable": "false", "flush.policy": "fsync"},
                self._connect_store,
            )
            for node_id in range(1, nodes + 1)
        ]
        self.checks = Checks(self.machines)
        self._numbers = count()
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []

    async def _connect_store(self, node_id: int) -> MetadataStore:
        self.machines[0].disk.files.mkdir("/data")
        return LocalStore(self.machines[0].disk.files, "/data/cluster.journal")

    def client(self, name: str) -> Client:
        nodes = {machine.id: machine.endpoint for machine in self.machines}
        return Client(name, self.network, nodes, self.source)

    async def run(self) -> Outcome:
        async with trio.open_nursery() as nursery:
            for machine in self.machines:
                await machine.start(nursery)
            nursery.start_soon(self._check_regularly)
            await self._create_topic()
            self._start_clients(nursery)
            await self._disturb(nursery)
            await self._heal(nursery)
            nursery.cancel_scope.cancel()
        return Outcome(self.seed, self.events.digest, self.events.count, self.work)

    async def _check_regularly(self) -> None:
        while True:
            await trio.sleep(0.02)
            self.checks.check_all()

    async def _create_topic(self) -> None:
        admin = self.client("admin")
        topic = CreateTopicsRequest.Topic(
            name=TOPIC, num_partitions=3, replication_factor=min(3, len(self.machines))
        )
        while True:
            try:
                await admin.ask_any(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
                return
            except Failed:
                await admin.pause()

    def _start_clients(self, nursery: trio.Nursery) -> None:
        for number in range(3):
            values = range(VALUES_EACH * number, VALUES_EACH * (number + 1))
            acks = LEADER_ONLY if number == 2 else ALL
            client = self.client(f"producer-{number}")
            producer = Producer(client, self.history, self.events, values, acks)
            self._producers.append(producer)
            nursery.start_soon(producer.run, TOPIC, (0.05, 0.3))
        for number in range(2):
            consumer = Consumer(self.client(f"consumer-{number}"), self.history, self.events)
            self._consumers.append(consumer)
            nursery.start_soon(consumer.run, TOPIC)

    async def _disturb(self, nursery: trio.Nursery) -> None:
        end = trio.current_time() + CHAOS_SECONDS
        while trio.current_time() < end:
            await trio.sleep(self.chance.uniform(0.2, 2))
            machine = self.chance.choice(self.machines)
            await machine.crash("drop", self.chance.randrange(1 << 30))
            self.work["crashes"] += 1
            await trio.sleep(self.chance.uniform(0, 1))
            await machine.start(nursery)

    async def _heal(self, nursery: trio.Nursery) -> None:
        for producer in self._producers:
            producer.stopping = True
        await trio.sleep(HEAL_SECONDS)
        self.checks.check_all()
        self._check_nothing_lost()

    def _check_nothing_lost(self) -> None:
        for consumer in self._consumers:
            for place, committed in self.checks.committed.items():
                must(
                    consumer.positions.get(place, 0) == committed.end,
                    f"{place}: {consumer.positions.get(place, 0)} of {committed.end} were read",
                )
        where: dict[int, tuple[object, int]] = {}
        for place, rows in self.history.read.items():
            for offset, value in rows.items():
                must(value not in where, f"{value} is at {where.get(value)} and {place, offset}")
                where[value] = place, offset
        for sent in self.history.acked:
            for index, value in enumerate(sent.values):
                must(
                    where.get(value) == (sent.place, sent.offset + index),
                    f"{value} was acked at {sent.place} {sent.offset + index} and is at {where.get(value)}",
                )
        self.work["acked"] = len(self.history.acked)


def simulate(seed: int, trace: TextIO | None = None) -> Outcome:
    async def main() -> Outcome:
        return await World(seed, trace).run()

    return run(main, seed)
