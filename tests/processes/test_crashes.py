"""As the crash tests of one process: what was acknowledged is on all nodes, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..cluster.etcd import Etcd
from ..replication.test_crashes import crash_nodes
from .etcd_cluster import EtcdCluster

pytestmark = pytest.mark.long


def test_nothing_acknowledged_is_lost(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In half as many rounds: it takes some seconds until a node is missed."""
    rounds = request.config.getoption("rounds") // 2
    etcd = Etcd(tmp_path, members=3)
    try:
        members = ",".join(each.removeprefix("http://") for each in etcd.endpoints)
        cluster = EtcdCluster(tmp_path / "cluster", f"etcd://{members}/test")
        crash_nodes(cluster, rounds, request.config.getoption("seed"))
    finally:
        etcd.stop()
