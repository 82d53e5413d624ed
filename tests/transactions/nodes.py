"""The bank on three nodes: each round crashes or stops one node, or kills all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from ..replication.cluster import NODES, Cluster
from .bank import SETTINGS, TOPICS, Bank
from .client import PARTITIONS, PLACES
from .history import BROKER, Operation

# Number of transactions to commit while a node is down.
COMMITS_WITHOUT = 5
FAULTS = ("crash node", "stop node", "kill broker")
SETTINGS_OF_NODES = (
    *SETTINGS,
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "auto.leader.rebalance.enable=false",
)


def three_nodes(directory: Path) -> Cluster:
    """Return a three-node cluster for the bank; each record is stored on at least two nodes."""
    return Cluster(directory, SETTINGS_OF_NODES, TOPICS, tuple(PARTITIONS))


class BankOfNodes(Bank):
    """A run on three nodes. `elections` counts the leader elections that the faults caused."""

    server: Cluster
    # Faults whose round counts only if a leader was elected.
    needs_election: Collection[str] = FAULTS

    def __init__(self, server: Cluster, directory: Path, seed: int) -> None:
        self.elections = 0
        super().__init__(server, directory, seed)

    def round(self, fault: str) -> bool:
        before = self.server.partition_states()
        counts = super().round(fault)
        self.server.await_in_sync(PLACES)
        after = self.server.partition_states()
        elections = sum(after[place].epoch > before[place].epoch for place in PLACES)
        self.elections += elections
        return counts and (elections > 0 or fault not in self.needs_election)

    def inject(self, fault: str) -> bool:
        if fault == "kill broker":
            return self.kill_broker()
        return self._end_node(self.server.crash if fault == "crash node" else self.server.stop)

    def _end_node(self, end: Callable[[int], None]) -> bool:
        """Stop a node while transactions are open; the others commit without it for a while."""
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
