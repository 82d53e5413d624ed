"""Nodes of two versions in one cluster; the newer version is this one plus a feature level."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import kbroker
from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest

from ..cluster.etcd import Etcd
from ..ports import free_ports
from ..wire import connected
from .commands import consume, produce, run, wait_until_healthy
from .commands import kbroker as command
from .deployed import Deployed

pytestmark = pytest.mark.long

FEATURE = "transaction.version"
UPGRADE, DOWNGRADE = 1, 2
NODES = 3


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """Return a directory with a kbroker that supports level 3 of the feature."""
    directory = tmp_path / "newer"
    shutil.copytree(Path(kbroker.__file__).parent, directory / "kbroker")
    features = directory / "kbroker/cluster/features.py"
    text = features.read_text()
    changed = text.replace("TRANSACTION_VERSION: range(3)", "TRANSACTION_VERSION: range(4)")
    assert changed != text
    features.write_text(changed)
    return str(directory)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    running = Etcd(tmp_path)
    yield running
    running.stop()


class Cluster:
    """Three nodes that can be started in either version."""

    def __init__(self, directory: Path, etcd: Etcd, newer: str) -> None:
        member = etcd.endpoints[0].removeprefix("http://")
        first = free_ports(NODES)
        self._newer = newer
        self._places = {
            node_id: (first + node_id - 1, directory / f"node-{node_id}")
            for node_id in range(1, NODES + 1)
        }
        self._cluster = f"etcd://{member}/main"
        self.nodes: dict[int, Deployed] = {}

    def serve_command(self, node_id: int) -> list[str]:
        port, data = self._places[node_id]
        node_options = ["--node-id", str(node_id), "--port", str(port), "--data-dir", str(data)]
        settings = ["default.replication.factor=3", "min.insync.replicas=2"]
        return [
            "serve",
            "--cluster",
            self._cluster,
            *node_options,
            "-o",
            settings[0],
            "-o",
            settings[1],
        ]

    def environment(self, is_newer: bool) -> dict[str, str]:
        return {"PYTHONPATH": self._newer, "PYTHONSAFEPATH": "1"} if is_newer else {}

    def start(self, node_id: int, *, is_newer: bool) -> None:
        address = f"127.0.0.1:{self._places[node_id][0]}"
        node = Deployed(address, self.serve_command(node_id), self.environment(is_newer))
        self.nodes[node_id] = node
        node.start()

    def replace(self, node_id: int, *, is_newer: bool) -> None:
        """Stop a node cleanly, start it in a version, and wait until it is in sync."""
        self.nodes[node_id].terminate()
        self.start_in_sync(node_id, is_newer=is_newer)

    def start_in_sync(self, node_id: int, *, is_newer: bool) -> None:
        """Start a node in a version, and wait until it is in sync."""
        self.start(node_id, is_newer=is_newer)
        wait_until_healthy(self.nodes[node_id].address)

    def finalize(self, level: int, kind: int) -> tuple[int, str | None]:
        """Update the feature and return the error code and message."""
        row = UpdateFeaturesRequest.Feature(
            feature=FEATURE, max_version_level=level, upgrade_type=kind
        )

        async def ask() -> tuple[int, str | None]:
            async with connected(Endpoint.parse(self.nodes[1].address)) as wire:
                request = UpdateFeaturesRequest(feature_updates=[row])
                response = await wire.ask(ApiKey.UPDATE_FEATURES, 2, request)
                return response.error_code, response.error_message

        return trio.run(ask)


def test_rolling_upgrade_and_downgrade_work(tmp_path: Path, etcd: Etcd, newer: str) -> None:
    cluster = Cluster(tmp_path, etcd, newer)
    sent = 0

    def more() -> None:
        nonlocal sent
        produce(cluster.nodes[2].address, sent, sent + 50)
        sent += 50

    try:
        for node_id in (1, 2, 3):
            cluster.start(node_id, is_newer=False)
        command(cluster.nodes[1].address, "topic", "create", "orders", "--partitions", "3")
        more()
        for node_id in (1, 2):
            cluster.replace(node_id, is_newer=True)
            more()
        code, message = cluster.finalize(3, UPGRADE)
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert message == f"{FEATURE}: node 3 does not support level 3 (valid: 0 to 2)"
        cluster.replace(3, is_newer=True)
        assert cluster.finalize(3, UPGRADE) == (0, None)
        more()

        cluster.nodes[3].terminate()
        refused = run(*cluster.serve_command(3))
        assert refused.returncode == 3
        assert f"the cluster runs {FEATURE} at level 3" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert cluster.finalize(2, DOWNGRADE) == (0, None)
        cluster.start_in_sync(3, is_newer=False)
        more()
        for node_id in (2, 1):
            cluster.replace(node_id, is_newer=False)
            more()
        assert consume(cluster.nodes[3].address) == [*range(sent)]
    finally:
        for node in cluster.nodes.values():
            node.kill()
