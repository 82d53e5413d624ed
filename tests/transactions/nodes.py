"""The bank on three nodes: each round ends with a crash or a stop of one of them, or of all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from ..replication.cluster import NODES, Cluster
from .bank import SETTINGS, TOPICS, Bank
from .client import PARTITIONS, PLACES
from .history import BROKER, Operation

COMMITS_WITHOUT = 5
"""How many transactions are committed while a node is down."""
MOMENTS = ("crash node", "stop node", "kill broker")
SETTINGS_OF_NODES = (
    *SETTINGS,
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "auto.leader.rebalance.enable=false",
)


def three_nodes(directory: Path) -> Cluster:
    """The broker of the bank with three nodes; every record is on two of them at least."""
    return Cluster(directory, SETTINGS_OF_NODES, TOPICS, tuple(PARTITIONS))


class BankOfNodes(Bank):
    """A run on three nodes. `elections` counts leaders that were elected because of what was done."""

    server: Cluster
    needs_election: Collection[str] = MOMENTS
    """Moments that do not count without an election."""

    def __init__(self, server: Cluster, directory: Path, seed: int) -> None:
        self.elections = 0
        super().__init__(server, directory, seed)

    def round(self, moment: str) -> bool:
        before = self.server.look()
        counts = super().round(moment)
        self.server.await_in_sync(PLACES)
        after = self.server.look()
        elections = sum(after[place].epoch > before[place].epoch for place in PLACES)
        self.elections += elections
        return counts and (elections > 0 or moment not in self.needs_election)

    def happen(self, moment: str) -> bool:
        if moment == "kill broker":
            return self.kill_broker()
        return self._end_node(self.server.crash if moment == "crash node" else self.server.stop)

    def _end_node(self, end: Callable[[int], None]) -> bool:
        """End a node in the middle of transactions; the others go on without it for a while."""
        node = self.random.choice(NODES)
        self._wait(self._is_any_open, "a transaction")
        end(node)
        counts = self._is_any_open()
        self._recorder.write(Operation.KILL, process=BROKER)
        before = self.commits
        self._wait(lambda: self.commits >= before + COMMITS_WITHOUT, f"commits without {node}")
        self.server.revive(node)
        if self.random.random() < 0.5:
            self.server.await_in_sync(PLACES)
            self.server.move_leaders_back()
        return counts
