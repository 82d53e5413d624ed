"""Bad luck: what goes wrong in a simulated cluster, and operators who choose that time to work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

import trio

from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
)
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.storage.crash_files import Mode

from .clients import Failed
from .machine import Machine
from .network import FAST, SLOW
from .store import StoreFaults

if TYPE_CHECKING:
    from .world import World


class Kind(Enum):
    """What may go wrong in a run beside the usual, and could not together with the others."""

    SETTINGS = "min.insync.replicas changes"
    NO_SYNC = "nodes do not wait for their disks"
    LOST_DISK = "a disk is lost"


PAUSE_SECONDS = (0.05, 1.2)
SHORT_SECONDS, LONG_SECONDS = (0.01, 0.3), (0.3, 2.5)
"""How long a node is down: nobody misses it, or somebody does."""
POWER_CUTS: tuple[Mode, ...] = ("drop", "torn", "mixed")
TOPIC_RESOURCE = 2
Harm = Callable[[], Awaitable[None]]


class Nemesis:
    """Does harm until a time, and undoes all of it."""

    def __init__(self, world: World) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._chance: Random = world.source.of("nemesis")
        self._end = 0.0
        self._down: set[int] = set()
        """Nodes that something is done to which ends them."""
        self._topics = 0
        self._is_disk_lost = False
        self._is_store_stopped = False
        self._harms: list[tuple[Harm, int]] = [
            (self.crash, 5),
            (self.stop, 2),
            (self.cut_off_store, 3),
            (self.slow_disk, 2),
            (self.refusing_disk, 3),
            (self.bad_store, 3),
            (self.stop_store, 3),
            (self.come_and_go, 1),
        ]
        if len(world.machines) > 1:
            self._harms += [
                (self.isolate, 3),
                (self.cut_one_way, 2),
                (self.break_connections, 1),
                (self.slow_links, 2),
                (self.reassign, 3),
                (self.elect, 3),
            ]
        if world.kind is not Kind.NO_SYNC:
            # Both end nodes without regard to which replicas are in sync at that moment.
            self._harms += [(self.power_cut_of_all, 1), (self.failing_disk, 3)]
        if world.kind is Kind.SETTINGS:
            self._harms.append((self.change_minimum, 2))
        if world.kind is Kind.LOST_DISK:
            self._harms.append((self.lose_disk, 3))

    async def run(self, seconds: float) -> None:
        """One thing after the other, some of them at the same time."""
        self._end = trio.current_time() + seconds
        harms, weights = zip(*self._harms, strict=True)
        async with trio.open_nursery() as nursery:
            while trio.current_time() < self._end:
                (harm,) = self._chance.choices(harms, weights)
                self.done[harm.__name__] += 1
                self._world.events.note(f"nemesis {harm.__name__}")
                nursery.start_soon(harm)
                await self._hold(*PAUSE_SECONDS)

    async def _hold(self, at_least: float, at_most: float) -> None:
        """Let harm last for a while, but not beyond the end."""
        due = trio.current_time() + self._chance.uniform(at_least, at_most)
        await trio.sleep_until(min(due, max(self._end, trio.current_time())))

    # -- nodes

    def _some_machine(self) -> Machine:
        return self._chance.choice(self._world.machines)

    def _victim(self) -> Machine | None:
        """A machine whose node may end now.

        Nodes that do not wait for their disks rest on each other, and nobody can tell a process
        that was killed from a machine that lost power. So one of them at a time ends, and the next
        one when all is in sync again: `min.insync.replicas - 1` such ends lose nothing.
        """
        left = [each for each in self._world.machines if each.id not in self._down]
        if self._world.kind is Kind.NO_SYNC and not (
            all(each.node is not None for each in self._world.machines)
            and self._world.checks.all_in_sync()
        ):
            return None
        return self._chance.choice(left) if left else None

    async def crash(self) -> None:
        """A process is killed, or a machine loses power; some time later it is back."""
        machine = self._victim()
        if machine is not None:
            await self._crash(machine, self._chance.choice((None, *POWER_CUTS)))

    async def _crash(self, machine: Machine, mode: Mode | None) -> None:
        self._down.add(machine.id)
        await machine.crash(mode, self._chance.randrange(1 << 30))
        await self._hold(*self._chance.choice((SHORT_SECONDS, LONG_SECONDS)))
        machine.start(self._world.nursery)
        self._down.discard(machine.id)

    async def stop(self) -> None:
        """A node is restarted in good order."""
        machine = self._victim()
        if machine is not None:
            self._down.add(machine.id)
            await machine.stop()
            await self._hold(0.01, 1.5)
            machine.start(self._world.nursery)
            self._down.discard(machine.id)

    async def power_cut_of_all(self) -> None:
        """All machines at once lose power."""
        async with trio.open_nursery() as nursery:
            for machine in self._world.machines:
                if machine.id not in self._down:
                    nursery.start_soon(self._crash, machine, self._chance.choice(POWER_CUTS))

    async def lose_disk(self) -> None:
        """A machine gets a new disk, once in a run and when others have what it had."""
        machine, checks = self._victim(), self._world.checks
        if machine is None or self._is_disk_lost or not checks.others_have_all_of(machine.id):
            return
        self._is_disk_lost = True
        self._down.add(machine.id)
        await machine.lose_disk()
        await self._hold(*self._chance.choice((SHORT_SECONDS, LONG_SECONDS)))
        machine.start(self._world.nursery)
        self._down.discard(machine.id)

    async def slow_disk(self) -> None:
        """Syncs of one machine take long."""
        disk = self._some_machine().disk
        disk.sync_seconds = self._chance.choice((0.005, 0.05, 0.3))
        await self._hold(0.3, 2)
        disk.sync_seconds = 0.0

    async def refusing_disk(self) -> None:
        """A disk takes nothing more: it is full, or read-only."""
        disk = self._some_machine().disk
        if self._chance.random() < 0.5:
            disk.is_read_only = True
        else:
            disk.fill(self._chance.choice((0, 100, 1000, 5000)))
        await self._hold(0.3, 3)
        disk.heal()

    async def failing_disk(self) -> None:
        """Writes and syncs of one machine fail now and then; some time later it is restarted."""
        machine = self._victim()
        if machine is None:
            return
        self._down.add(machine.id)
        machine.disk.failing_share = self._chance.choice((0.02, 0.2, 1.0))
        await self._hold(0.2, 2)
        machine.disk.failing_share = 0.0
        await self._crash(machine, self._chance.choice((None, *POWER_CUTS)))

    # -- the network

    async def isolate(self) -> None:
        """One node and all others do not hear of each other; by chance it has no store either."""
        network, machine = self._world.network, self._some_machine()
        others = [each for each in self._world.machines if each is not machine]
        without_store = self._chance.random() < 0.5
        for other in others:
            network.cut(machine.name, other.name)
            network.cut(other.name, machine.name)
        if without_store:
            self._world.truth.cut(machine.name)
        await self._hold(0.2, 3)
        for other in others:
            network.heal(machine.name, other.name)
            network.heal(other.name, machine.name)
        if without_store:
            self._world.truth.heal(machine.name)

    async def cut_one_way(self) -> None:
        """One direction between two nodes is cut."""
        network = self._world.network
        host, to = self._chance.sample([each.name for each in self._world.machines], 2)
        network.cut(host, to)
        await self._hold(0.2, 2)
        network.heal(host, to)

    async def cut_off_store(self) -> None:
        """What one node asks of the store, or is answered, does not get through."""
        truth, machine = self._world.truth, self._some_machine()
        requests, answers = self._chance.choice(((True, True), (True, False), (False, True)))
        truth.cut(machine.name, requests=requests, answers=answers)
        await self._hold(0.1, 3)
        truth.heal(machine.name)

    async def break_connections(self) -> None:
        """Connections between two nodes break."""
        hosts = self._chance.sample([each.name for each in self._world.machines], 2)
        self._world.network.reset_between(*hosts)

    async def slow_links(self) -> None:
        """Everything from and to one node takes long."""
        network, machine = self._world.network, self._some_machine()
        names = [each.name for each in self._world.machines if each is not machine]
        links = [network.link(machine.name, name) for name in names]
        links += [network.link(name, machine.name) for name in names]
        for link in links:
            link.seconds = SLOW
        await self._hold(0.3, 2)
        for link in links:
            link.seconds = FAST

    async def bad_store(self) -> None:
        """The store loses and delays what goes to it and comes from it."""
        truth = self._world.truth
        share = self._chance.choice((0.05, 0.2))
        bad = truth.faults = StoreFaults(
            lost_requests=share,
            lost_answers=share,
            late_requests=share,
            stale_reads=share,
            late_events=share,
            late_expiry=share,
            late_seconds=self._chance.choice((0.1, 1.0, 3.0)),
            timeout_seconds=0.5,
        )
        await self._hold(0.3, 3)
        if truth.faults is bad:
            truth.faults = StoreFaults()

    async def stop_store(self) -> None:
        """The store stands still, often for longer than a session; then all leases may end at once."""
        truth = self._world.truth
        if self._is_store_stopped:
            return
        self._is_store_stopped = True
        truth.stand_still()
        await self._hold(0.3, 3)
        await truth.go_on(leases_first=self._chance.random() < 0.7)
        self._is_store_stopped = False

    # -- operators

    async def _order(self, message: object) -> None:
        try:
            await self._world.admin.ask_any(message)
        except Failed as error:
            self._world.events.note(f"admin: {error}")

    async def reassign(self) -> None:
        """A partition moves to other replicas, or to the same ones in another order."""
        world = self._world
        nodes = [machine.id for machine in world.machines]
        row = AlterPartitionReassignmentsRequest.Partition(
            partition_index=self._chance.randrange(world.partitions),
            replicas=self._chance.sample(nodes, self._chance.choice((2, 3, 3))),
        )
        topic = AlterPartitionReassignmentsRequest.Topic(name=world.topic, partitions=[row])
        await self._order(AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=[topic]))

    async def elect(self) -> None:
        """The first of the replicas of each partition shall lead it, and now."""
        await self._order(ElectLeadersRequest(topic_partitions=None, timeout_ms=1000))

    async def come_and_go(self) -> None:
        """A topic is made, and deleted while it is used."""
        world = self._world
        self._topics += 1
        name = f"passing-{self._topics % 3}"
        # The last replica in sync may be the one whose disk is lost, unless there must be two.
        minimum = "2" if world.kind is Kind.LOST_DISK else "1"
        topic = CreateTopicsRequest.Topic(
            name=name,
            num_partitions=2,
            replication_factor=world.replicas,
            configs=[CreateTopicsRequest.Config(name="min.insync.replicas", value=minimum)],
        )
        await self._order(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        await self._hold(0.5, 3)
        world.history.passing.add(name)
        await self._order(
            DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=name)], timeout_ms=1000)
        )

    async def change_minimum(self) -> None:
        """min.insync.replicas of the topic changes."""
        config = IncrementalAlterConfigsRequest.Config(
            name="min.insync.replicas", config_operation=0, value=self._chance.choice("12")
        )
        resource = IncrementalAlterConfigsRequest.Resource(
            resource_type=TOPIC_RESOURCE, resource_name=self._world.topic, configs=[config]
        )
        await self._order(IncrementalAlterConfigsRequest(resources=[resource]))
