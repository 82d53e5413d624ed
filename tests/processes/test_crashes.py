"""Crash tests with nodes in processes: all acknowledged records are on all nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..cluster.etcd import Etcd
from ..replication.test_crashes import crash_nodes
from .etcd_cluster import EtcdCluster

pytestmark = pytest.mark.long


def test_crashes_lose_no_acknowledged_records(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Half as many rounds as in one process, because leases take seconds to expire."""
    rounds = request.config.getoption("rounds") // 2
    etcd = Etcd(tmp_path, members=3)
    try:
        members = ",".join(each.removeprefix("http://") for each in etcd.endpoints)
        cluster = EtcdCluster(tmp_path / "cluster", f"etcd://{members}/test")
        crash_nodes(cluster, rounds, request.config.getoption("seed"))
    finally:
        etcd.stop()
