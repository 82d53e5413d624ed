"""Faults of machines and networks: no acknowledged record is lost.

Three broker nodes and three etcd members run on their own simulated machines, under the load of the
crash tests and with their checks: acknowledged records are read back, and the files of all replicas
are equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from ..kill.history import Place
from ..machine import Machine
from ..replication.cluster import NODES, PLACES, State
from ..replication.test_crashes import FOLLOWER, LEADER, SINGLES, Run, crash_nodes
from .cluster import SETTINGS, MachineCluster
from .network import NoNetwork

pytestmark = pytest.mark.long

SESSION_SECONDS = 3.0
assert f"broker.session.timeout.ms={SESSION_SECONDS * 1000:.0f}" in SETTINGS
NOBODY, ANY, CONTROLLER, EVERY = "nobody", "any", "controller", "every"
# The crash tests of one process run this many rounds per round here: failure detection is slow.
ROUNDS_SHARE = 10


class MachineRun(Run):
    """A crash test run with the faults of FAULTS."""

    cluster: MachineCluster

    def __init__(self, cluster: MachineCluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self.without_election = {kind for kind, fault in FAULTS.items() if not fault.elects}
        # Callbacks that end the current fault.
        self.undo = ExitStack()

    def _draw(self, kind: str) -> list[int]:
        victims = FAULTS[kind].victims
        if victims == NOBODY:
            return []
        if victims == EVERY:
            return self.random.sample(NODES, 3)
        if victims == ANY:
            return [self.random.choice(NODES)]
        if victims == CONTROLLER:
            return [self.cluster.controller()]
        return super()._draw(victims)

    def _crash(self, kind: str, victims: list[int], before: dict[Place, State]) -> list[float]:
        available = FAULTS[kind].inject(self, victims)
        led = [place for place in PLACES if before[place].leader in victims]
        self.load.watch(led if available is None else available)
        return self._await_watched(f"{kind} of {victims}")

    def _revive(self, kind: str, victims: list[int]) -> None:
        self.undo.close()

    def await_recovery(self) -> None:
        """Wait until all partitions acknowledge records and all replicas are in sync."""
        self.load.watch(PLACES)
        self._await_watched("recovery")
        super().await_recovery()

    # -- faults: each returns the partitions that must stay available, or None for the victims' ones

    def kill(self, victims: Sequence[int]) -> list[Place] | None:
        for node in victims:
            self.cluster.kill_node(node)
            self.undo.callback(self.cluster.revive, node)
        return [] if len(victims) == len(NODES) else None

    def kill_follower(self, victims: Sequence[int]) -> list[Place]:
        self.kill(victims)
        return PLACES

    def pause(self, victims: Sequence[int]) -> list[Place] | None:
        (node,) = victims
        seconds = self.random.choice([1.0, 2.5, 3.5, 8.0, 30.0])
        self.cluster.pause_node(node)
        self.undo.callback(self.cluster.revive, node)
        self.undo.callback(_sleep_until, time.monotonic() + seconds)
        return None if seconds > 2 * SESSION_SECONDS else []

    def lose_disk(self, victims: Sequence[int]) -> None:
        self.kill(victims)
        for node in victims:
            self.cluster.lose_directory(node)

    def isolate(self, victims: Sequence[int]) -> None:
        """Cut a node off from the other nodes and from etcd, but not from clients."""
        (node,) = victims
        targets = [*self.cluster.machines_but(victims), *self.cluster.members]
        self._cut([node], targets)

    def isolate_others(self, victims: Sequence[int]) -> list[Place]:
        """Cut all other nodes off from etcd and from the victim, which then lacks in-sync replicas."""
        (node,) = victims
        targets = [each for each in NODES if each != node]
        self._cut(targets, [self.cluster.machine_of(node), *self.cluster.members])
        return SINGLES

    def cut_from_etcd(self, victims: Sequence[int]) -> None:
        """Cut the leader off from etcd until its session ends and others lead."""
        self._cut(victims, self.cluster.members)
        time.sleep(self.random.uniform(1.5, 3) * SESSION_SECONDS)

    def cut_one_way(self, victims: Sequence[int]) -> list[Place]:
        """Drop the packets from one node to another, but not in the other direction."""
        (node,) = victims
        other = self.random.choice(self.cluster.machines_but(victims))
        self.cluster.network.drop([self.cluster.machine_of(node)], [other])
        self.undo.callback(self.cluster.network.heal)
        return PLACES

    def cut_between_two(self, victims: Sequence[int]) -> list[Place]:
        """Cut two nodes off from each other, but not from the third."""
        self._cut(victims, [self.random.choice(self.cluster.machines_but(victims))])
        return PLACES

    def flap(self, victims: Sequence[int]) -> list[Place]:
        for _ in range(5):
            self.isolate(victims)
            time.sleep(1)
            self.cluster.network.heal()
            time.sleep(1)
        return PLACES

    def lose_responses(self, victims: Sequence[int]) -> list[Place]:
        """Drop etcd's responses to a node while it has to change much metadata."""
        (node,) = victims
        self.cluster.network.drop(self.cluster.members, [self.cluster.machine_of(node)])
        other = self.random.choice([each for each in NODES if each != node])
        self.kill([other])
        time.sleep(self.random.uniform(0.5, 1.5 * SESSION_SECONDS))
        self.cluster.network.heal()
        return PLACES

    def kill_etcd_leader(self, _: Sequence[int]) -> list[Place]:
        return self._kill_etcd([self.cluster.etcd.leader()])

    def kill_most_of_etcd(self, _: Sequence[int]) -> list[Place]:
        """Kill two etcd members; no metadata change is possible or needed."""
        self._kill_etcd(self.random.sample(range(len(self.cluster.members)), 2))
        time.sleep(2 * SESSION_SECONDS)
        return PLACES

    def restart_etcd(self, _: Sequence[int]) -> list[Place]:
        self._kill_etcd(range(len(self.cluster.members)))
        self.undo.close()
        return PLACES

    def pause_etcd(self, _: Sequence[int]) -> list[Place]:
        number = self.random.randrange(len(self.cluster.members))
        self.cluster.etcd.pause(number)
        self.undo.callback(self.cluster.etcd.resume, number)
        time.sleep(self.random.uniform(0, 2 * SESSION_SECONDS))
        return PLACES

    def fill_etcd(self, _: Sequence[int]) -> list[Place]:
        """Compact etcd and make it read-only."""
        self.cluster.etcd.compact()
        self.cluster.etcd.alarm(True)
        self.undo.callback(self.cluster.etcd.alarm, False)
        time.sleep(2 * SESSION_SECONDS)
        return PLACES

    def _cut(self, nodes: Sequence[int], targets: Sequence[Machine]) -> None:
        machines = [self.cluster.machine_of(node) for node in nodes]
        self.cluster.network.cut(machines, targets)
        self.undo.callback(self.cluster.network.heal)

    def _kill_etcd(self, numbers: Sequence[int]) -> list[Place]:
        self.undo.callback(self.cluster.etcd.wait)
        for number in numbers:
            self.cluster.etcd.kill(number)
            self.undo.callback(self.cluster.etcd.restart, number)
        return PLACES


class Fault(NamedTuple):
    """A fault and its victims. `elects` is True if the fault always causes an election."""

    victims: str
    inject: Callable[[MachineRun, Sequence[int]], list[Place] | None]
    elects: bool = True


NODE_FAULTS = {
    "leader": Fault(LEADER, MachineRun.kill),
    "leader paused": Fault(LEADER, MachineRun.pause, elects=False),
    "follower": Fault(FOLLOWER, MachineRun.kill_follower, elects=False),
    "controller": Fault(CONTROLLER, MachineRun.kill, elects=False),
    "all": Fault(EVERY, MachineRun.kill),
    "disk": Fault(LEADER, MachineRun.lose_disk),
}
NETWORK_FAULTS = {
    "leader alone": Fault(LEADER, MachineRun.isolate),
    "leader without etcd": Fault(LEADER, MachineRun.cut_from_etcd),
    "leader with etcd": Fault(LEADER, MachineRun.isolate_others, elects=False),
    "one way": Fault(ANY, MachineRun.cut_one_way, elects=False),
    "between two": Fault(LEADER, MachineRun.cut_between_two, elects=False),
    "flapping": Fault(LEADER, MachineRun.flap, elects=False),
}
ETCD_FAULTS = {
    "quorum of etcd": Fault(NOBODY, MachineRun.kill_most_of_etcd, elects=False),
    "responses of etcd": Fault(LEADER, MachineRun.lose_responses, elects=False),
    "leader of etcd": Fault(NOBODY, MachineRun.kill_etcd_leader, elects=False),
    "all of etcd": Fault(NOBODY, MachineRun.restart_etcd, elects=False),
    "etcd paused": Fault(NOBODY, MachineRun.pause_etcd, elects=False),
    "etcd full": Fault(NOBODY, MachineRun.fill_etcd, elects=False),
}
FAULTS = NETWORK_FAULTS | NODE_FAULTS | ETCD_FAULTS
# The faults by value of `--faults`.
KINDS = {"nodes": NODE_FAULTS, "networks": NETWORK_FAULTS, "etcd": ETCD_FAULTS, None: FAULTS}


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def test_no_acknowledged_record_is_lost_in_faults_of_machines_and_networks(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = max(1, request.config.getoption("rounds") // ROUNDS_SHARE)
    seed = request.config.getoption("seed")
    try:
        cluster = MachineCluster(tmp_path)
    except NoNetwork:
        pytest.skip("cannot create network namespaces on this system")
    kinds = KINDS[request.config.getoption("faults")]
    crash_nodes(cluster, rounds, seed, tuple(kinds), MachineRun)
