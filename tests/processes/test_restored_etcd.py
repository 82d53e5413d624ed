"""Nodes keep all records and report an action if etcd is restored from an older snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.data_dirs.found_directories import SEEN_REVISION

from ..cluster.etcd import Etcd
from ..kill.server import Server
from .commands import consume, kbroker, produce, wait_until, wait_until_healthy
from .test_etcd import nodes_of, serve_error_at

pytestmark = pytest.mark.long

RECORDS = 500
OLDER = "holds an older state of the metadata"


@contextmanager
def etcd_in(directory: Path) -> Iterator[Etcd]:
    directory.mkdir()
    etcd = Etcd(directory)
    try:
        yield etcd
    finally:
        etcd.stop()


def bytes_of_orders(node: Server) -> int:
    """Return the bytes of records of a node, including stray directories."""
    found = node.data.glob("orders-0*/*.log")
    return sum(path.stat().st_size for path in found)


def saved_revision(node: Server) -> int:
    path = node.data / SEEN_REVISION
    return int(path.read_text()) if path.exists() else 0


def create_orders(nodes: Mapping[int, Server]) -> None:
    before = {node_id: saved_revision(node) for node_id, node in nodes.items()}
    kbroker(nodes[1].bootstrap, "topic", "create", "orders", "--replication-factor", "3")
    produce(nodes[1].bootstrap, 0, RECORDS)
    wait_until_healthy(nodes[1].bootstrap)
    wait_until(
        lambda: all(saved_revision(node) > before[node_id] for node_id, node in nodes.items())
    )


def test_records_unknown_to_restored_etcd_are_kept(tmp_path: Path) -> None:
    with etcd_in(tmp_path / "etcd") as etcd:
        address = f"etcd://{etcd.endpoints[0].removeprefix('http://')}/restored"
        with nodes_of(address, tmp_path) as nodes:
            copied = etcd.copy()
            wait_until_healthy(nodes[1].bootstrap)
            create_orders(nodes)
            sizes = [bytes_of_orders(node) for node in nodes.values()]
            assert all(sizes)
            etcd.restore(copied)
            for node in nodes.values():
                wait_until(lambda: OLDER in node.log_path.read_text())  # noqa: B023
            assert consume(nodes[2].bootstrap) == [*range(RECORDS)], "nodes that run go on"
            health = kbroker(nodes[2].bootstrap, "cluster", "health", status=1)
            assert OLDER in health
            assert "restore the newest snapshot" in health
            for node in nodes.values():
                node.kill()
            sentence = serve_error_at(address, nodes[3].data, "--node-id", "3", "--port", "0")
            assert OLDER in sentence
            assert SEEN_REVISION in sentence
            assert [bytes_of_orders(node) for node in nodes.values()] == sizes
            for node in nodes.values():
                (node.data / SEEN_REVISION).unlink()
                node.start()
            for node in nodes.values():
                wait_until(lambda: "-stray" in node.log_path.read_text())  # noqa: B023
                assert list(node.data.glob("orders-0*-stray"))
            assert [bytes_of_orders(node) for node in nodes.values()] == sizes


def test_nodes_resume_when_newest_state_is_restored(tmp_path: Path) -> None:
    with etcd_in(tmp_path / "etcd") as etcd:
        address = f"etcd://{etcd.endpoints[0].removeprefix('http://')}/restored"
        with nodes_of(address, tmp_path) as nodes:
            older = etcd.copy()
            wait_until_healthy(nodes[1].bootstrap)
            create_orders(nodes)
            newest = etcd.copy()
            etcd.restore(older)
            wait_until(lambda: OLDER in nodes[1].log_path.read_text())
            etcd.restore(newest)
            wait_until_healthy(nodes[1].bootstrap)
            produce(nodes[1].bootstrap, RECORDS, 2 * RECORDS)
            assert consume(nodes[2].bootstrap) == [*range(2 * RECORDS)]


def test_etcd_quota_alarm_is_reported_with_action(tmp_path: Path) -> None:
    with etcd_in(tmp_path / "etcd") as etcd:
        address = f"etcd://{etcd.endpoints[0].removeprefix('http://')}/full"
        with nodes_of(address, tmp_path) as nodes:
            kbroker(nodes[1].bootstrap, "topic", "create", "orders", "--replication-factor", "3")
            wait_until_healthy(nodes[1].bootstrap)
            etcd.alarm(True)

            def health() -> str:
                return kbroker(nodes[1].bootstrap, "cluster", "health", "-o", "json", status=1)

            wait_until(lambda: "NOSPACE" in nodes[1].log_path.read_text())
            output = health()
            assert "NOSPACE" in output
            assert "etcdctl alarm disarm" in output
            etcd.alarm(False)
            wait_until_healthy(nodes[1].bootstrap)
            produce(nodes[1].bootstrap, 0, RECORDS)
