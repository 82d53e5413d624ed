"""Nodes with metadata on a real etcd, and rejected starts."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from kbroker.protocol.errors import ErrorCode

from ..cluster.etcd import Etcd
from ..kill.server import Server
from ..ports import free_ports
from ..wire import Topic, batch, connected
from ..wire import produce as raw_produce
from .commands import (
    WAIT_SECONDS,
    consume,
    kbroker,
    produce,
    run,
    serve_error,
    wait_until,
    wait_until_healthy,
)

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)
HEARTBEAT = "broker.heartbeat.interval.ms=500"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    member = Etcd(tmp_path_factory.mktemp("etcd"))
    yield member
    member.stop()


@pytest.fixture
def address(etcd: Etcd, tmp_path: Path) -> str:
    """Return the address of a cluster for this test."""
    return f"etcd://{etcd.endpoints[0].removeprefix('http://')}/{tmp_path.name}"


def node_of(address: str, directory: Path, node_id: int, *, session_seconds: int = 2) -> Server:
    options = ("--cluster", address, "--node-id", str(node_id))
    session = f"broker.session.timeout.ms={1000 * session_seconds}"
    return Server(directory / f"node-{node_id}", (HEARTBEAT, session), topics=(), options=options)


@contextmanager
def nodes_of(address: str, directory: Path) -> Iterator[dict[int, Server]]:
    nodes = {node_id: node_of(address, directory, node_id) for node_id in NODES}
    with ExitStack() as stack:
        for node in nodes.values():
            stack.callback(node.close)
            node.start()
        yield nodes


def serve_error_at(address: str, directory: Path, *arguments: str) -> str:
    session = ("-o", "broker.session.timeout.ms=2000")
    return serve_error("--cluster", address, "--data-dir", str(directory), *arguments, *session)


@pytest.mark.long
def test_killed_node_returns_and_replicates(address: str, tmp_path: Path) -> None:
    with nodes_of(address, tmp_path) as nodes:
        arguments = (
            "--partitions",
            "3",
            "--replication-factor",
            "3",
            "-c",
            "min.insync.replicas=2",
        )
        kbroker(nodes[1].bootstrap, "topic", "create", "orders", *arguments)
        produce(nodes[1].bootstrap, 0, 100)
        nodes[2].kill()
        produce(nodes[1].bootstrap, 100, 200)  # includes partitions that node 2 led
        assert "broker 2 is down" in kbroker(nodes[3].bootstrap, "cluster", "health", status=1)
        nodes[2].start()
        wait_until_healthy(nodes[2].bootstrap)
        produce(nodes[2].bootstrap, 200, 300)
        assert consume(nodes[3].bootstrap) == [*range(300)]


def test_stopped_node_hands_over_leaderships(address: str, tmp_path: Path) -> None:
    with nodes_of(address, tmp_path) as nodes:
        arguments = ("--partitions", "3", "--replication-factor", "3")
        kbroker(nodes[1].bootstrap, "topic", "create", "orders", *arguments)
        process = nodes[1].process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        nodes[1].process = None
        assert "node 1 is down" not in nodes[2].log_path.read_text()
        rows = kbroker(nodes[2].bootstrap, "topic", "describe", "orders").splitlines()[-3:]
        assert {row.split()[1] for row in rows} == {"2", "3"}
        nodes[1].start()
        wait_until(lambda: "ready in" in nodes[1].log_path.read_text())
        banner = nodes[1].log_path.read_text()
        assert "clean shutdown" in banner
        assert f"{address}  running nodes: 1, 2, 3" in banner


def test_killing_all_nodes_loses_no_records(address: str, tmp_path: Path) -> None:
    with nodes_of(address, tmp_path) as nodes:
        kbroker(nodes[1].bootstrap, "topic", "create", "orders", "--replication-factor", "3")
        produce(nodes[1].bootstrap, 0, 100)
        for node in nodes.values():
            node.kill()
        for node in nodes.values():
            node.start()
        wait_until_healthy(nodes[1].bootstrap)
        assert consume(nodes[2].bootstrap) == [*range(100)]


@pytest.mark.long
def test_mark_dead_ends_lease_immediately(address: str, tmp_path: Path) -> None:
    nodes = {each: node_of(address, tmp_path, each, session_seconds=3600) for each in NODES}
    with ExitStack() as stack:
        for node in nodes.values():
            stack.callback(node.close)
            node.start()
        kbroker(nodes[1].bootstrap, "topic", "create", "orders", "-p", "3", "-r", "3")
        done = mark_dead(address, nodes[2].data)
        assert done.returncode == 1
        assert "another broker uses this data directory" in done.stderr
        nodes[2].kill()
        done = mark_dead(address, nodes[2].data)
        assert done.stdout == "node 2 is marked dead\n"
        produce(nodes[1].bootstrap, 0, 100)  # its lease would last an hour
        assert mark_dead(address, nodes[2].data).stdout == "node 2 was already marked dead\n"
        nodes[2].start()
        wait_until_healthy(nodes[2].bootstrap)
        assert consume(nodes[2].bootstrap) == [*range(100)]
    assert "no node's data" in mark_dead(address, tmp_path).stderr


def mark_dead(address: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return run("cluster", "node", "mark-dead", "--cluster", address, str(directory))


@pytest.mark.long
def test_leader_without_etcd_acknowledges_replicated_records(
    etcd: Etcd, address: str, tmp_path: Path
) -> None:
    node = node_of(address, tmp_path, 1)
    try:
        node.start()
        kbroker(node.bootstrap, "topic", "create", "a", "-r", "1")
        assert error_of(node, acks=1) == 0
        etcd.pause(0)
        try:
            wait_until(lambda: error_of(node, acks=1) != 0)
            assert error_of(node, acks=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert error_of(node, acks=-1) == 0
        finally:
            etcd.resume(0)
        wait_until(lambda: error_of(node, acks=1) == 0)
    finally:
        node.close()


def error_of(node: Server, acks: int) -> int:
    """Return the error code of a Produce response."""

    async def ask() -> int:
        async with connected(node.address) as wire:
            row = await raw_produce(wire, Topic("a"), batch(), acks=acks)
        return int(row.error_code)

    return trio.run(ask)


@pytest.mark.long
def test_topic_with_ten_thousand_partitions_is_created_and_deleted(
    address: str, tmp_path: Path
) -> None:
    node = node_of(address, tmp_path, 1)
    try:
        node.start()
        arguments = ("--partitions", "10000", "--replication-factor", "1")
        kbroker(node.bootstrap, "topic", "create", "orders", *arguments)
        kbroker(node.bootstrap, "topic", "delete", "--yes", "orders")
        assert "orders" not in kbroker(node.bootstrap, "topic", "list")
    finally:
        node.close()


def test_second_process_with_same_node_id_is_rejected(address: str, tmp_path: Path) -> None:
    node = node_of(address, tmp_path, 1)
    try:
        node.start()
        output = serve_error_at(address, tmp_path / "other", "--node-id", "1", "--port", "0")
        assert "node 1 already runs" in output
        assert "--node-id" in output
        assert not (tmp_path / "other").exists()
    finally:
        node.close()


def test_second_node_with_same_address_is_rejected(address: str, tmp_path: Path) -> None:
    node = node_of(address, tmp_path, 1)
    try:
        node.start()
        taken = f"127.0.0.1:{node.port}"
        arguments = ("--node-id", "2", "--port", "0", "--advertise", taken)
        output = serve_error_at(address, tmp_path / "other", *arguments)
        assert f"node 1 already uses the address {taken}" in output
        assert "--advertise" in output
        assert not (tmp_path / "other").exists()
    finally:
        node.close()


def test_directory_of_another_cluster_is_rejected(etcd: Etcd, address: str, tmp_path: Path) -> None:
    for each in (address, f"{address}-2"):
        node = node_of(each, tmp_path / each[-2:], 1)
        try:
            node.start()
        finally:
            node.close()
    output = serve_error_at(f"{address}-2", tmp_path / address[-2:] / "node-1/data", "--port", "0")
    assert "the metadata belongs to cluster" in output


def test_directory_with_own_metadata_is_rejected(address: str, tmp_path: Path) -> None:
    node = Server(tmp_path, topics=("a:1",))
    try:
        node.start()
    finally:
        node.close()
    output = serve_error_at(address, node.data, "--port", "0")
    assert "cluster.journal" in output
    assert "without --cluster" in output


def test_wildcard_advertised_address_is_rejected(address: str, tmp_path: Path) -> None:
    output = serve_error_at(address, tmp_path / "data", "--host", "0.0.0.0", "--port", "0")
    assert "--advertise HOST:PORT" in output


def test_invalid_cluster_address_gives_clear_error(tmp_path: Path) -> None:
    output = serve_error_at("etcd://one", tmp_path / "data")
    assert output.startswith("kbroker: cluster address: expected etcd://HOST:2379")
    assert not (tmp_path / "data").exists()


def test_start_without_etcd_gives_clear_error(tmp_path: Path) -> None:
    nobody = f"etcd://127.0.0.1:{free_ports(1)}/test"
    output = serve_error_at(nobody, tmp_path / "data", "--port", "0")
    assert nobody in output
    assert "refused" in output
    assert not (tmp_path / "data").exists()
