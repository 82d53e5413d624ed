"""What happens to machines and the networks between them: nothing acknowledged is lost by it.

Three nodes and three members of etcd, each on a machine of its own, under the load of the crash tests and
with their checks: what was acknowledged is read back, and the files of all replicas are equal.
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
ROUNDS_SHARE = 10
"""Where the crash tests of one process have so many rounds, this has one: nodes are missed late."""


class MachineRun(Run):
    """The same load and checks; what happens stands in FAULTS."""

    cluster: MachineCluster

    def __init__(self, cluster: MachineCluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self.without_election = {kind for kind, fault in FAULTS.items() if not fault.elects}
        self.undo = ExitStack()
        """What ends the present fault."""

    def _draw(self, kind: str) -> list[int]:
        who = FAULTS[kind].who
        if who == NOBODY:
            return []
        if who == EVERY:
            return self.random.sample(NODES, 3)
        if who == ANY:
            return [self.random.choice(NODES)]
        if who == CONTROLLER:
            return [self.cluster.controller()]
        return super()._draw(who)

    def _crash(self, kind: str, victims: list[int], before: dict[Place, State]) -> list[float]:
        going_on = FAULTS[kind].strike(self, victims)
        led = [place for place in PLACES if before[place].leader in victims]
        self.load.watch(led if going_on is None else going_on)
        return self._await_watched(f"{kind} of {victims}")

    def _revive(self, kind: str, victims: list[int]) -> None:
        self.undo.close()

    def await_recovery(self) -> None:
        """Wait until acks come again for all partitions, and all replicas are in sync."""
        self.load.watch(PLACES)
        self._await_watched("all is well")
        super().await_recovery()

    # -- what happens; each returns the partitions that go on meanwhile, None for those of the victims

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
        """From the other nodes and from etcd; clients still reach it."""
        (node,) = victims
        rest = [*self.cluster.machines_but(victims), *self.cluster.members]
        self._cut([node], rest)

    def isolate_others(self, victims: Sequence[int]) -> list[Place]:
        """A node keeps etcd for itself. Alone it is too few for acks=all of the topic that is kept."""
        (node,) = victims
        others = [each for each in NODES if each != node]
        self._cut(others, [self.cluster.machine_of(node), *self.cluster.members])
        return SINGLES

    def cut_from_etcd(self, victims: Sequence[int]) -> None:
        """It goes on with its followers until its session ends, and others lead."""
        self._cut(victims, self.cluster.members)
        time.sleep(self.random.uniform(1.5, 3) * SESSION_SECONDS)

    def cut_one_way(self, victims: Sequence[int]) -> list[Place]:
        """What one node sends to another one is lost, and not what comes back."""
        (node,) = victims
        other = self.random.choice(self.cluster.machines_but(victims))
        self.cluster.network.drop([self.cluster.machine_of(node)], [other])
        self.undo.callback(self.cluster.network.heal)
        return PLACES

    def cut_between_two(self, victims: Sequence[int]) -> list[Place]:
        """Both see the third one."""
        self._cut(victims, [self.random.choice(self.cluster.machines_but(victims))])
        return PLACES

    def flap(self, victims: Sequence[int]) -> list[Place]:
        for _ in range(5):
            self.isolate(victims)
            time.sleep(1)
            self.cluster.network.heal()
            time.sleep(1)
        return PLACES

    def lose_answers(self, victims: Sequence[int]) -> list[Place]:
        """What a node asks of etcd is done, and it does not hear of it, while it is to change much."""
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
        """Nothing can be decided any more, and nothing has to be."""
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
        """It has forgotten what was, and takes nothing new."""
        self.cluster.etcd.compact()
        self.cluster.etcd.alarm(True)
        self.undo.callback(self.cluster.etcd.alarm, False)
        time.sleep(2 * SESSION_SECONDS)
        return PLACES

    def _cut(self, nodes: Sequence[int], others: Sequence[Machine]) -> None:
        machines = [self.cluster.machine_of(node) for node in nodes]
        self.cluster.network.cut(machines, others)
        self.undo.callback(self.cluster.network.heal)

    def _kill_etcd(self, numbers: Sequence[int]) -> list[Place]:
        self.undo.callback(self.cluster.etcd.wait)
        for number in numbers:
            self.cluster.etcd.kill(number)
            self.undo.callback(self.cluster.etcd.restart, number)
        return PLACES


class Fault(NamedTuple):
    """What happens, to which node, and whether others are elected because of it, always."""

    who: str
    strike: Callable[[MachineRun, Sequence[int]], list[Place] | None]
    elects: bool = True


OF_NODES = {
    "leader": Fault(LEADER, MachineRun.kill),
    "leader paused": Fault(LEADER, MachineRun.pause, elects=False),
    "follower": Fault(FOLLOWER, MachineRun.kill_follower, elects=False),
    "controller": Fault(CONTROLLER, MachineRun.kill, elects=False),
    "all": Fault(EVERY, MachineRun.kill),
    "disk": Fault(LEADER, MachineRun.lose_disk),
}
OF_NETWORKS = {
    "leader alone": Fault(LEADER, MachineRun.isolate),
    "leader without etcd": Fault(LEADER, MachineRun.cut_from_etcd),
    "leader with etcd": Fault(LEADER, MachineRun.isolate_others, elects=False),
    "one way": Fault(ANY, MachineRun.cut_one_way, elects=False),
    "between two": Fault(LEADER, MachineRun.cut_between_two, elects=False),
    "flapping": Fault(LEADER, MachineRun.flap, elects=False),
}
OF_ETCD = {
    "quorum of etcd": Fault(NOBODY, MachineRun.kill_most_of_etcd, elects=False),
    "answers of etcd": Fault(LEADER, MachineRun.lose_answers, elects=False),
    "leader of etcd": Fault(NOBODY, MachineRun.kill_etcd_leader, elects=False),
    "all of etcd": Fault(NOBODY, MachineRun.restart_etcd, elects=False),
    "etcd paused": Fault(NOBODY, MachineRun.pause_etcd, elects=False),
    "etcd full": Fault(NOBODY, MachineRun.fill_etcd, elects=False),
}
FAULTS = OF_NETWORKS | OF_NODES | OF_ETCD
KINDS = {"nodes": OF_NODES, "networks": OF_NETWORKS, "etcd": OF_ETCD, None: FAULTS}
"""By `--faults`."""


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def test_nothing_acknowledged_is_lost(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = max(1, request.config.getoption("rounds") // ROUNDS_SHARE)
    seed = request.config.getoption("seed")
    try:
        cluster = MachineCluster(tmp_path)
    except NoNetwork:
        pytest.skip("no networks can be made here")
    kinds = KINDS[request.config.getoption("faults")]
    crash_nodes(cluster, rounds, seed, tuple(kinds), MachineRun)
