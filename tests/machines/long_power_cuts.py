"""Power cuts of one, two and all of three nodes over etcd: acknowledged records are fsynced.

Each node has its directory on a disk that loses unsynced data (`power_disk`). This needs pyfuse3
and root permissions: `make soak PART=power` runs it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kbroker.storage.crash_files import MODES, Mode

from ..cluster.etcd import Etcd
from ..processes.etcd_cluster import SESSION, EtcdCluster
from ..replication import test_crashes
from ..replication.cluster import NODES
from ..replication.test_crashes import ALL, FOLLOWER, LEADER, PROCESS, TWO, crash_nodes
from .power_disk import PowerDisk

pytestmark = test_crashes.pytestmark

# Kinds of rounds; the first one cuts all nodes at once.
ROUNDS = (PROCESS, LEADER, PROCESS, TWO, FOLLOWER, ALL)


class PowerCluster(EtcdCluster):
    """A cluster whose crashes are power cuts."""

    def __init__(
        self,
        directory: Path,
        address: str,
        seed: int,
        modes: Sequence[Mode] = MODES,
        settings: Sequence[str] = SESSION,
    ) -> None:
        super().__init__(directory, address, settings)
        self._random = random.Random(seed)
        self._modes = modes
        self._disks = {node: PowerDisk(server.data) for node, server in self._nodes.items()}

    def crash(self, node: int) -> None:
        self.kill_node(node)
        self._cut(node)

    def kill(self) -> None:
        super().kill()
        for node in NODES:
            self._cut(node)

    def _cut(self, node: int) -> None:
        self._disks[node].cut(self._random.choice(self._modes), self._random.getrandbits(32))

    def close(self) -> None:
        super().close()
        for disk in self._disks.values():
            disk.close()


@contextmanager
def etcd_address(directory: Path) -> Iterator[str]:
    with ExitStack() as stack:
        etcd = Etcd(directory)
        stack.callback(etcd.stop)
        (member,) = etcd.endpoints
        yield f"etcd://{member.removeprefix('http://')}/test"


def test_check_detects_brokers_without_fsync(tmp_path: Path) -> None:
    """The check detects brokers that acknowledge records before fsync."""
    settings = (*SESSION, "flush.policy=os")
    with etcd_address(tmp_path) as address:
        cluster = PowerCluster(tmp_path / "cluster", address, 0, ("drop",), settings)
        with pytest.raises(AssertionError, match="findings"):
            crash_nodes(cluster, 3, 0, (PROCESS,))


def test_no_acknowledged_record_is_lost_in_power_cuts(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("seed")
    with etcd_address(tmp_path) as address:
        cluster = PowerCluster(tmp_path / "cluster", address, seed)
        crash_nodes(cluster, request.config.getoption("rounds"), seed, ROUNDS)
