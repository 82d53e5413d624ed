"""A simulation run: a cluster, its clients, the faults, and the outcome."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from traceback import format_exception
from typing import TextIO

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import CreateTopicsRequest

from .checks import Checks
from .clients import (
    ALL,
    LEADER_ONLY,
    Client,
    Consumer,
    History,
    Producer,
    RequestFailed,
    TopicIdPartition,
    Violation,
    must,
)
from .machine import Machine
from .nemesis import Kind, Nemesis
from .network import Network
from .pipelining import PipeliningProducer
from .seeded import Events, Source, run
from .store import SharedTruth

CHAOS_SECONDS = 10.0
# Seconds in which a healed cluster must recover.
HEALED_SECONDS = 15.0
CHECK_SECONDS = 0.05
PRODUCERS, PIPELINING, CONSUMERS = 3, 2, 2
PRODUCE_PAUSE = (0.02, 0.25)
VALUES_EACH = 1_000_000
KINDS = (Kind.SETTINGS, Kind.SETTINGS, Kind.NO_SYNC, Kind.LOST_DISK)
# Cluster sizes to choose from.
NODES = (3, 3, 3, 4, 5)


@dataclass
class Outcome:
    """The outcome of a run; `work` counts its events."""

    seed: int
    digest: int
    events: int
    seconds: float
    work: Counter[str] = field(default_factory=Counter)

    @property
    def counts(self) -> bool:
        """Return True if an election, an ISR change or a truncation happened."""
        return any(self.work[name] for name in ("elections", "ISR changes", "truncations"))


class World:
    """A cluster under test, its clients, and its nemesis."""

    topic = "orders"
    partitions = 3

    def __init__(self, seed: int, trace: TextIO | None = None, nodes: int | None = None) -> None:
        self.seed = seed
        self.source = Source(seed)
        self.events = Events(trace)
        self.history = History()
        self.network = Network(self.source, self.events)
        self.truth = SharedTruth(self.source.of("store"))
        self._chance = self.source.of("world")
        self.kind = self._chance.choice(KINDS)
        options = {
            "log.cleaner.enable": "false",
            "flush.policy": "os" if self.kind is Kind.NO_SYNC else "fsync",
            "replica.lag.time.max.ms": self._chance.choice(("500", "1000")),
            "replica.fetch.wait.max.ms": "200",
        }
        count = nodes or self._chance.choice(NODES)
        self.machines = [
            Machine(number, self.network, self.truth, self.source, self.events, options, count)
            for number in range(1, count + 1)
        ]
        self.replicas = min(3, len(self.machines))
        self.checks = Checks(self.machines, self.truth, self.events)
        self.admin = self._client("admin")
        self.producers: list[Producer | PipeliningProducer] = [
            self._producer(number) for number in range(PRODUCERS)
        ]
        self.producers += [
            self._pipelining(number) for number in range(PRODUCERS, PRODUCERS + PIPELINING)
        ]
        self.consumers = [
            Consumer(self._client(f"consumer-{number}"), self.history, self.events)
            for number in range(CONSUMERS)
        ]
        self.nemesis = Nemesis(self)
        self.nursery: trio.Nursery

    def _client(self, name: str) -> Client:
        nodes = {machine.id: machine.endpoint for machine in self.machines}
        return Client(name, self.network, nodes, self.source)

    def _producer(self, number: int) -> Producer:
        values = range(VALUES_EACH * number, VALUES_EACH * (number + 1))
        client = self._client(f"producer-{number}")
        acks = LEADER_ONLY if number == 0 else ALL
        return Producer(client, self.history, self.events, values, acks)

    def _pipelining(self, number: int) -> PipeliningProducer:
        values = range(VALUES_EACH * number, VALUES_EACH * (number + 1))
        client = self._client(f"producer-{number}")
        return PipeliningProducer(client, self.history, self.events, values, self.topic)

    async def run(self) -> Outcome:
        """Run the simulation. Raises Violation in an exception group."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.truth.run)
            for machine in self.machines:
                machine.start(self.nursery)
            self.nursery.start_soon(self._check_regularly)
            await self._create_topic()
            async with trio.open_nursery() as producing:
                for producer in self.producers:
                    producing.start_soon(producer.run, PRODUCE_PAUSE)
                for consumer in self.consumers:
                    self.nursery.start_soon(consumer.run)
                await self.nemesis.run(CHAOS_SECONDS)
                self._heal()
                await self._await_recovery()
                for producer in self.producers:
                    producer.stopping = True
            await self._all_read()
            self.checks.compare_all()
            self._check_nothing_lost()
            self.nursery.cancel_scope.cancel()
        return self._outcome()

    async def _check_regularly(self) -> None:
        while True:
            await trio.sleep(CHECK_SECONDS)
            self.checks.check_all()

    async def _create_topic(self) -> None:
        topic = CreateTopicsRequest.Topic(
            name=self.topic,
            num_partitions=self.partitions,
            replication_factor=self.replicas,
            configs=[CreateTopicsRequest.Config(name="min.insync.replicas", value="2")],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        made = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        while True:
            try:
                response = await self.admin.request_any(request)
                if response.topics[0].error_code in made:
                    return
                self.events.note(f"admin: {response.topics[0].error_message}")
            except RequestFailed as error:
                self.events.note(f"admin: {error}")
            await self.admin.pause()

    # -- the end

    def _heal(self) -> None:
        self.events.note("healed")
        self.network.heal_all()
        for machine in self.machines:
            self.truth.heal(machine.name)
            machine.disk.heal()

    async def _await_recovery(self) -> None:
        """Wait until all replicas are in sync and every producer gets an acknowledgement."""
        acked = [producer.acked for producer in self.producers]
        await self._until(self.checks.all_in_sync, "all replicas are in sync")
        await self._until(
            lambda: all(
                producer.acked > before
                for producer, before in zip(self.producers, acked, strict=True)
            ),
            "every producer gets an acknowledgement",
        )

    async def _all_read(self) -> None:
        await self._until(self.checks.all_replicas_match, "replicas are equal")
        await self._until(self._consumers_are_done, "consumers have read everything")

    async def _until(self, holds: Callable[[], bool], description: str) -> None:
        """Wait for a condition that a healthy cluster must reach."""
        deadline = trio.current_time() + HEALED_SECONDS
        while not holds():
            if trio.current_time() > deadline:
                now = "; ".join(self._description())
                raise Violation(
                    f"the cluster did not recover within {HEALED_SECONDS} s ({description}): {now}"
                )
            await trio.sleep(CHECK_SECONDS)

    def _description(self) -> Iterator[str]:
        """Describe the state of all partitions and the positions of the consumers."""
        for place, partition in self.checks.partitions.items():
            committed = self.checks.committed.get(place)
            positions = [each.positions.get(place, 0) for each in self.consumers]
            leaders = [client.client.leaders.get(place) for client in self.consumers]
            yield (
                f"{place}: leader {partition.leader}, epoch {partition.leader_epoch}, ISR "
                f"{partition.isr} of {partition.replicas}, committed end "
                f"{committed.end if committed else 0}, consumers at {positions} from {leaders}"
            )

    def _consumers_are_done(self) -> bool:
        return all(
            consumer.positions.get(place, 0) == self.checks.committed[place].end
            for consumer in self.consumers
            for place in self.checks.places()
            if place in self.checks.committed
        )

    def _check_nothing_lost(self) -> None:
        """Check that each value acknowledged by the ISR is stored once, and others at most once."""
        places = set(self.checks.places())
        found_at: dict[int, tuple[TopicIdPartition, int]] = {}
        for place, rows in self.history.read.items():
            for offset, value in rows.items():
                other = found_at.setdefault(value, (place, offset))
                must(other == (place, offset), f"{value} is at {other} and at {place} {offset}")
        for sent in self.history.acked:
            if sent.acks != ALL or sent.place not in places:
                continue
            for offset, value in enumerate(sent.values, sent.offset):
                must(
                    found_at.get(value) == (sent.place, offset),
                    f"{value} was acknowledged at {sent.place} {offset}, and is at "
                    f"{found_at.get(value)}",
                )

    def _outcome(self) -> Outcome:
        work = Counter(self.nemesis.done)
        work[f"seeds in which {self.kind.value}"] = 1
        work["acked"] = len(self.history.acked)
        work["read"] = sum(map(len, self.history.read.values()))
        work["truncations"] = sum(machine.truncations for machine in self.machines)
        work["operations of disks failed"] = sum(machine.failures for machine in self.machines)
        work.update(self.checks.counts)
        work.update(self.truth.faults_met)
        return Outcome(self.seed, self.events.digest, self.events.count, trio.current_time(), work)


def simulate(seed: int, trace: TextIO | None = None, nodes: int | None = None) -> Outcome:
    """Run one seed. Adds to any error a note with the command that repeats it."""

    async def main() -> Outcome:
        return await World(seed, trace, nodes).run()

    try:
        return run(main, seed)
    except BaseException as error:
        error.add_note(repeat_command(seed, nodes))
        raise


def simulate_in_worker(seed: int, nodes: int | None = None) -> Outcome:
    """Run one seed in a worker process: without logs, and with errors that can be pickled."""
    logging.disable()  # injected faults log many errors; `--trace` shows them
    try:
        return simulate(seed, nodes=nodes)
    except BaseException as error:  # noqa: BLE001 - the parent process shows it
        # Not every error can be pickled.
        raise AssertionError("".join(format_exception(error))) from None


def repeat_command(seed: int, nodes: int | None = None) -> str:
    """Return the command that repeats a failed seed."""
    more = "" if nodes is None else f" --nodes {nodes}"
    return f"seed {seed} failed; run: python -m tests.simulation --seed {seed}{more} --trace"
