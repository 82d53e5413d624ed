"""Fault injection for a simulated cluster, with concurrent administrative operations."""

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

from .clients import RequestFailed
from .machine import Machine
from .network import FAST, SLOW
from .store import StoreFaults

if TYPE_CHECKING:
    from .world import World


class Kind(Enum):
    """Extra faults, of which a run has one."""

    SETTINGS = "min.insync.replicas changes"
    NO_SYNC = "nodes do not wait for their disks"
    LOST_DISK = "a disk is lost"


PAUSE_SECONDS = (0.05, 1.2)
# Downtime of a node in seconds: shorter or longer than its session timeout.
SHORT_SECONDS, LONG_SECONDS = (0.01, 0.3), (0.3, 2.5)
POWER_CUTS: tuple[Mode, ...] = ("drop", "torn", "mixed")
TOPIC_RESOURCE = 2
Fault = Callable[[], Awaitable[None]]


class Nemesis:
    """Injector of random faults, which removes all of them in the end."""

    def __init__(self, world: World) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._chance: Random = world.source.of("nemesis")
        self._end = 0.0
        # Nodes that a current fault stops.
        self._down: set[int] = set()
        self._topics = 0
        self._is_disk_lost = False
        self._is_store_stopped = False
        self._faults: list[tuple[Fault, int]] = [
            (self.crash, 5),
            (self.stop, 2),
            (self.cut_off_store, 3),
            (self.slow_down_disk, 2),
            (self.fill_or_lock_disk, 3),
            (self.disturb_store, 3),
            (self.stop_store, 3),
            (self.create_and_delete_topic, 1),
        ]
        if len(world.machines) > 1:
            self._faults += [
                (self.isolate, 3),
                (self.cut_one_way, 2),
                (self.break_connections, 1),
                (self.slow_down_links, 2),
                (self.reassign, 3),
                (self.elect, 3),
            ]
        if world.kind is not Kind.NO_SYNC:
            # These faults stop nodes without checking which replicas are in sync.
            self._faults += [(self.cut_power_of_all, 1), (self.fail_disk, 3)]
        if world.kind is Kind.SETTINGS:
            self._faults.append((self.change_minimum, 2))
        if world.kind is Kind.LOST_DISK:
            self._faults.append((self.lose_disk, 3))

    async def run(self, seconds: float) -> None:
        """Start random faults for `seconds`; some of them overlap."""
        self._end = trio.current_time() + seconds
        faults, weights = zip(*self._faults, strict=True)
        async with trio.open_nursery() as nursery:
            while trio.current_time() < self._end:
                (fault,) = self._chance.choices(faults, weights)
                self.done[fault.__name__] += 1
                self._world.events.note(f"nemesis {fault.__name__}")
                nursery.start_soon(fault)
                await self._keep_active(*PAUSE_SECONDS)

    async def _keep_active(self, at_least: float, at_most: float) -> None:
        """Keep a fault active for a random time, at most until the end of the run."""
        due = trio.current_time() + self._chance.uniform(at_least, at_most)
        await trio.sleep_until(min(due, max(self._end, trio.current_time())))

    # -- nodes

    def _random_machine(self) -> Machine:
        return self._chance.choice(self._world.machines)

    def _stoppable_machine(self) -> Machine | None:
        """Return a machine whose node may be stopped now.

        Without fsync a record is safe only on other nodes, and they cannot tell a killed process
        from a power cut. So only one node is stopped at a time, and the next one when all replicas
        are in sync: with `min.insync.replicas` of 2, this loses no records.
        """
        left = [each for each in self._world.machines if each.id not in self._down]
        if self._world.kind is Kind.NO_SYNC and not (
            all(each.node is not None for each in self._world.machines)
            and self._world.checks.all_in_sync()
        ):
            return None
        return self._chance.choice(left) if left else None

    async def crash(self) -> None:
        """Kill a node or cut its power, and restart it later."""
        machine = self._stoppable_machine()
        if machine is not None:
            await self._crash(machine, self._chance.choice((None, *POWER_CUTS)))

    async def _crash(self, machine: Machine, mode: Mode | None) -> None:
        self._down.add(machine.id)
        await machine.crash(mode, self._chance.randrange(1 << 30))
        await self._keep_active(*self._chance.choice((SHORT_SECONDS, LONG_SECONDS)))
        machine.start(self._world.nursery)
        self._down.discard(machine.id)

    async def stop(self) -> None:
        """Restart a node with a controlled shutdown."""
        machine = self._stoppable_machine()
        if machine is not None:
            self._down.add(machine.id)
            await machine.stop()
            await self._keep_active(0.01, 1.5)
            machine.start(self._world.nursery)
            self._down.discard(machine.id)

    async def cut_power_of_all(self) -> None:
        """Cut the power of all machines at once."""
        async with trio.open_nursery() as nursery:
            for machine in self._world.machines:
                if machine.id not in self._down:
                    nursery.start_soon(self._crash, machine, self._chance.choice(POWER_CUTS))

    async def lose_disk(self) -> None:
        """Replace a disk once per run, if other replicas have its records."""
        machine, checks = self._stoppable_machine(), self._world.checks
        if machine is None or self._is_disk_lost or not checks.others_have_all_of(machine.id):
            return
        self._is_disk_lost = True
        self._down.add(machine.id)
        await machine.lose_disk()
        await self._keep_active(*self._chance.choice((SHORT_SECONDS, LONG_SECONDS)))
        machine.start(self._world.nursery)
        self._down.discard(machine.id)

    async def slow_down_disk(self) -> None:
        """Make the syncs of one machine slow."""
        disk = self._random_machine().disk
        disk.sync_seconds = self._chance.choice((0.005, 0.05, 0.3))
        await self._keep_active(0.3, 2)
        disk.sync_seconds = 0.0

    async def fill_or_lock_disk(self) -> None:
        """Make a disk full or read-only."""
        disk = self._random_machine().disk
        if self._chance.random() < 0.5:
            disk.is_read_only = True
        else:
            disk.fill(self._chance.choice((0, 100, 1000, 5000)))
        await self._keep_active(0.3, 3)
        disk.heal()

    async def fail_disk(self) -> None:
        """Let some writes and syncs of a machine fail, then restart it."""
        machine = self._stoppable_machine()
        if machine is None:
            return
        self._down.add(machine.id)
        machine.disk.failing_share = self._chance.choice((0.02, 0.2, 1.0))
        await self._keep_active(0.2, 2)
        machine.disk.failing_share = 0.0
        await self._crash(machine, self._chance.choice((None, *POWER_CUTS)))

    # -- the network

    async def isolate(self) -> None:
        """Cut a node off from all others, and sometimes from the metadata store."""
        network, machine = self._world.network, self._random_machine()
        other_machines = [each for each in self._world.machines if each is not machine]
        without_store = self._chance.random() < 0.5
        for other in other_machines:
            network.cut(machine.name, other.name)
            network.cut(other.name, machine.name)
        if without_store:
            self._world.truth.cut(machine.name)
        await self._keep_active(0.2, 3)
        for other in other_machines:
            network.heal(machine.name, other.name)
            network.heal(other.name, machine.name)
        if without_store:
            self._world.truth.heal(machine.name)

    async def cut_one_way(self) -> None:
        """Cut one direction between two nodes."""
        network = self._world.network
        host, to = self._chance.sample([each.name for each in self._world.machines], 2)
        network.cut(host, to)
        await self._keep_active(0.2, 2)
        network.heal(host, to)

    async def cut_off_store(self) -> None:
        """Drop the requests of one node to the metadata store, the responses, or both."""
        truth, machine = self._world.truth, self._random_machine()
        requests, responses = self._chance.choice(((True, True), (True, False), (False, True)))
        truth.cut(machine.name, requests=requests, responses=responses)
        await self._keep_active(0.1, 3)
        truth.heal(machine.name)

    async def break_connections(self) -> None:
        """Reset the connections between two nodes."""
        hosts = self._chance.sample([each.name for each in self._world.machines], 2)
        self._world.network.reset_between(*hosts)

    async def slow_down_links(self) -> None:
        """Make all links of one node slow."""
        network, machine = self._world.network, self._random_machine()
        names = [each.name for each in self._world.machines if each is not machine]
        links = [network.link(machine.name, name) for name in names]
        links += [network.link(name, machine.name) for name in names]
        for link in links:
            link.seconds = SLOW
        await self._keep_active(0.3, 2)
        for link in links:
            link.seconds = FAST

    async def disturb_store(self) -> None:
        """Make the metadata store lose and delay messages."""
        truth = self._world.truth
        share = self._chance.choice((0.05, 0.2))
        bad = truth.faults = StoreFaults(
            lost_requests=share,
            lost_responses=share,
            late_requests=share,
            stale_reads=share,
            late_events=share,
            late_expiry=share,
            late_seconds=self._chance.choice((0.1, 1.0, 3.0)),
            timeout_seconds=0.5,
        )
        await self._keep_active(0.3, 3)
        if truth.faults is bad:
            truth.faults = StoreFaults()

    async def stop_store(self) -> None:
        """Pause the metadata store, often for longer than a session; all leases may expire."""
        truth = self._world.truth
        if self._is_store_stopped:
            return
        self._is_store_stopped = True
        truth.pause()
        await self._keep_active(0.3, 3)
        await truth.resume(leases_first=self._chance.random() < 0.7)
        self._is_store_stopped = False

    # -- operators

    async def _send_admin_request(self, message: object) -> None:
        try:
            await self._world.admin.request_any(message)
        except RequestFailed as error:
            self._world.events.note(f"admin: {error}")

    async def reassign(self) -> None:
        """Reassign a partition to random replicas, possibly the same ones in another order."""
        world = self._world
        nodes = [machine.id for machine in world.machines]
        row = AlterPartitionReassignmentsRequest.Partition(
            partition_index=self._chance.randrange(world.partitions),
            replicas=self._chance.sample(nodes, self._chance.choice((2, 3, 3))),
        )
        topic = AlterPartitionReassignmentsRequest.Topic(name=world.topic, partitions=[row])
        await self._send_admin_request(
            AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=[topic])
        )

    async def elect(self) -> None:
        """Elect the preferred leaders of all partitions."""
        await self._send_admin_request(ElectLeadersRequest(topic_partitions=None, timeout_ms=1000))

    async def create_and_delete_topic(self) -> None:
        """Create a topic, and delete it while clients use it."""
        world = self._world
        self._topics += 1
        name = f"passing-{self._topics % 3}"
        # With one in-sync replica, `lose_disk` could delete the last copy of a record.
        minimum = "2" if world.kind is Kind.LOST_DISK else "1"
        topic = CreateTopicsRequest.Topic(
            name=name,
            num_partitions=2,
            replication_factor=world.replicas,
            configs=[CreateTopicsRequest.Config(name="min.insync.replicas", value=minimum)],
        )
        await self._send_admin_request(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        await self._keep_active(0.5, 3)
        world.history.passing.add(name)
        await self._send_admin_request(
            DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=name)], timeout_ms=1000)
        )

    async def change_minimum(self) -> None:
        """Change min.insync.replicas of the topic."""
        config = IncrementalAlterConfigsRequest.Config(
            name="min.insync.replicas", config_operation=0, value=self._chance.choice("12")
        )
        resource = IncrementalAlterConfigsRequest.Resource(
            resource_type=TOPIC_RESOURCE, resource_name=self._world.topic, configs=[config]
        )
        await self._send_admin_request(IncrementalAlterConfigsRequest(resources=[resource]))
