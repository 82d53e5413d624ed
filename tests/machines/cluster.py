"""Three broker nodes and three etcd members, each on its own simulated machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..cluster.etcd import Etcd
from ..kill.history import Place
from ..kill.server import Address
from ..machine import Machine
from ..processes.etcd_cluster import EtcdCluster
from ..replication.cluster import NODES, State, describe
from ..wire import connected, metadata
from .network import Network

SETTINGS = (
    "broker.session.timeout.ms=3000",
    "broker.heartbeat.interval.ms=500",
    "replica.lag.time.max.ms=4000",
)


class MachineCluster(EtcdCluster):
    """A cluster of processes, and the network between them."""

    def __init__(self, directory: Path) -> None:
        self.network = Network(2 * len(NODES))
        machines = self.network.machines
        self.members = machines[len(NODES) :]
        try:
            self.etcd = Etcd(directory, len(self.members), machines=self.members)
        except BaseException:
            self.network.close()
            raise
        members = ",".join(each.removeprefix("http://") for each in self.etcd.endpoints)
        address = f"etcd://{members}/test"
        super().__init__(directory / "cluster", address, SETTINGS, machines[: len(NODES)])

    def machine_of(self, node: int) -> Machine:
        """Return the machine of a node."""
        return self._nodes[node].machine

    def machines_but(self, nodes: Sequence[int]) -> list[Machine]:
        """Return the machines of the other nodes."""
        return [self.machine_of(node) for node in NODES if node not in nodes]

    def close(self) -> None:
        super().close()
        self.etcd.stop()
        self.network.close()

    def partition_states(self) -> dict[Place, State]:
        """Return the newest known state of each partition; isolated nodes may know older states."""
        found: dict[Place, State] = {}
        for node in NODES:
            response = self._ask(node, partial(describe, names=self._names)) or {}
            for place, state in response.items():
                known = found.get(place, state)
                if state.epoch == known.epoch:
                    state = state._replace(in_sync=state.in_sync & known.in_sync)
                found[place] = max(state, known, key=lambda each: each.epoch)
        return found

    def controller(self) -> int:
        """Return the controller, according to the first node that knows it."""
        found = self._ask_any(_controller)
        assert found in NODES, found
        return int(found)


async def _controller(address: Address) -> int | None:
    async with connected(address) as wire:
        node = int((await metadata(wire, [])).controller_id)
    return node if node in NODES else None
