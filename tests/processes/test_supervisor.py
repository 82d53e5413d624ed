"""`kbroker serve --processes`: a supervisor with the metadata store, and its nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from kbroker.protocol.api_keys import ApiKey

from ..kill.server import Server
from ..ports import free_ports
from ..wire import connected, request
from .commands import (
    WAIT_SECONDS,
    children_of,
    consume,
    health_problems,
    kbroker,
    produce,
    serve_error,
    wait_until,
    wait_until_healthy,
)

pytestmark = pytest.mark.slow

NODES = 3
READY = "ready.json"


class Supervised(Server):
    """A server with several node processes."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        options = ("--processes", str(NODES), "--port-file", str(directory / READY), *arguments)
        super().__init__(directory, (), topics=("orders:6:min.insync.replicas=2",), options=options)
        self._settings = ("default.replication.factor=3",)
        self.port = free_ports(NODES + 1)

    def start_and_wait(self) -> dict[str, object]:
        """Start, wait until all nodes serve, and return the ready event."""
        path = self.directory / READY
        path.unlink(missing_ok=True)
        self.launch()
        process = self.process
        assert process is not None
        wait_until(lambda: path.exists() or process.poll() is not None)
        assert path.exists(), self.log
        event: dict[str, object] = json.loads(path.read_text())
        return event

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def pid_of(self, node_id: int) -> int:
        """Return the process ID of a node."""
        assert self.process is not None
        for pid, arguments in children_of(self.process.pid).items():
            if arguments[-1].endswith(f"/node-{node_id}"):
                return pid
        raise AssertionError(f"node {node_id} does not run")

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_SECONDS) == 0
        self.process = None


def addresses_of_nodes(ready: dict[str, object]) -> list[str]:
    """Return the own address of each node in the ready event."""
    nodes = ready["nodes"]
    assert isinstance(nodes, list)
    return [each["listeners"]["PLAINTEXT"] for each in nodes]


@contextmanager
def running_supervisor(directory: Path, *arguments: str) -> Iterator[Supervised]:
    server = Supervised(directory, *arguments)
    try:
        yield server
    finally:
        server.close()


def test_killed_node_is_restarted_without_lease_timeout(
    tmp_path: Path,
) -> None:
    with running_supervisor(tmp_path) as server:
        ready = server.start_and_wait()
        nodes = addresses_of_nodes(ready)
        assert len(nodes) == NODES
        produce(nodes[0], 0, 100)
        os.kill(server.pid_of(2), signal.SIGKILL)
        produce(nodes[0], 100, 200)  # within seconds, although the lease lasts nine
        wait_until_healthy(nodes[1])
        assert "node 2 exited with status -9; restarting it" in server.log
        produce(nodes[1], 200, 300)
        assert consume(nodes[2]) == [*range(300)]
        server.stop()
        assert "ERROR" not in server.log.partition("restarting it")[2]


@pytest.mark.long
def test_directory_layout_matches_single_process_nodes(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        produce(server.bootstrap, 0, 100)
        before = kbroker(server.bootstrap, "topic", "describe", "orders")
        server.stop()
        server._options = ("--nodes", str(NODES))
        server.start()
        wait_until(lambda: "ready in" in server.log)
        assert "clean shutdown" in server.log
        assert consume(server.bootstrap) == [*range(100)]
        assert kbroker(server.bootstrap, "topic", "describe", "orders") == before


def test_nodes_end_when_supervisor_is_killed(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        produce(server.bootstrap, 0, 100)
        assert server.process is not None
        children = children_of(server.process.pid)
        assert len(children) == NODES
        server.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        server.start_and_wait()
        wait_until_healthy(server.bootstrap)
        assert consume(server.bootstrap) == [*range(100)]


def test_nodes_end_quietly_when_supervisor_is_killed_during_start(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.launch()
        assert server.process is not None
        supervisor = server.process.pid
        wait_until(lambda: len(children_of(supervisor)) == NODES)
        children = children_of(supervisor)
        server.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        assert "Traceback" not in server.log


@pytest.mark.long
def test_killing_all_nodes_loses_no_records(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        produce(server.bootstrap, 0, 100)
        for node_id in range(1, NODES + 1):
            os.kill(server.pid_of(node_id), signal.SIGKILL)
        wait_until_healthy(server.bootstrap)
        assert consume(server.bootstrap) == [*range(100)]


def test_stopped_node_is_restarted(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        os.kill(server.pid_of(3), signal.SIGTERM)
        wait_until(lambda: "node 3 exited with status 0" in server.log)
        assert "node 3 is leaving" in server.log
        wait_until_healthy(server.bootstrap)


def test_ready_event_and_banner_list_all_nodes(tmp_path: Path) -> None:
    with running_supervisor(tmp_path, "--racks", "a,b,c") as server:
        ready = server.start_and_wait()
        assert [each["node_id"] for each in ready["nodes"]] == [1, 2, 3]  # type: ignore[attr-defined]
        assert re.search(r"nodes 1, 2, 3 · cluster", server.log)
        assert "1 topic," in server.log
        ports = ", ".join(str(server.port + node) for node in (1, 2, 3))
        line = f"  Kafka    localhost:{server.port}  (PLAINTEXT, nodes on ports {ports})\n"
        assert line in server.log
        assert server.log.count("  Kafka    ") == 1
        assert ready["bootstrap_servers"] == f"127.0.0.1:{server.port}"
        assert ready["listeners"] == {"PLAINTEXT": f"127.0.0.1:{server.port}"}
        rows = json.loads(kbroker(server.bootstrap, "cluster", "info", "-o", "json"))
        assert [each["rack"] for each in rows["brokers"]] == ["a", "b", "c"]


def test_every_node_announces_versions_of_older_release(tmp_path: Path) -> None:
    with running_supervisor(tmp_path, "--as-version", "2.8") as server:
        ready = server.start_and_wait()
        for endpoint in addresses_of_nodes(ready):
            host, _, port = endpoint.rpartition(":")
            assert trio.run(newest_fetch_version, (host, int(port))) == 12
        # Nodes use the newest versions among themselves, so records are replicated.
        produce(server.bootstrap, 0, 100)
        assert consume(server.bootstrap) == [*range(100)]


async def newest_fetch_version(endpoint: tuple[str, int]) -> int:
    """Return the newest announced version of Fetch."""
    async with connected(endpoint) as wire:
        answer = await wire.ask(ApiKey.API_VERSIONS, 2, request(ApiKey.API_VERSIONS))
    (version,) = (row.max_version for row in answer.api_keys if row.api_key == ApiKey.FETCH)
    return int(version)


def test_port_in_use_rejects_start(tmp_path: Path) -> None:
    first = free_ports(NODES + 1)
    for used in (first, first + NODES):
        with socket.create_server(("127.0.0.1", used)):
            output = serve_error(
                "--processes", "3", "--port", str(first), "--data-dir", str(tmp_path / "d")
            )
        assert f"port {used} is in use; stop the process that uses it" in output


def test_second_server_on_directory_is_rejected(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        for arguments in (["--processes", "3"], ["--nodes", "3"]):
            output = serve_error(*arguments, "--port", "0", "--data-dir", str(server.data))
            assert "another broker uses this data directory" in output
        assert not health_problems(server.bootstrap)


def test_directory_of_single_node_must_be_resized_first(tmp_path: Path) -> None:
    server = Server(tmp_path, topics=("a:1",))
    try:
        server.start()
    finally:
        server.close()
    output = serve_error("--processes", "2", "--port", "0", "--data-dir", str(server.data))
    assert "kbroker cluster resize --nodes 2" in output
