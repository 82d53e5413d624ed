"""`kbroker serve --processes`: a supervisor with the metadata, and its nodes."""

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

from ..kill.server import Server
from ..ports import free_ports
from .commands import (
    WAIT_SECONDS,
    ailments,
    children_of,
    consume,
    kbroker,
    produce,
    refused,
    wait_until,
    wait_until_healthy,
)

pytestmark = pytest.mark.slow

NODES = 3
READY = "ready.json"


class Supervised(Server):
    """A server with several processes."""

    def __init__(self, directory: Path, *words: str) -> None:
        options = ("--processes", str(NODES), "--port-file", str(directory / READY), *words)
        super().__init__(directory, (), topics=("orders:6:min.insync.replicas=2",), options=options)
        self._settings = ("default.replication.factor=3",)
        self.port = free_ports(NODES)

    def ready(self) -> dict[str, object]:
        """Start, and wait until all nodes serve; returns the event."""
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
        """That of a node's process."""
        assert self.process is not None
        for pid, words in children_of(self.process.pid).items():
            if words[-1].endswith(f"/node-{node_id}"):
                return pid
        raise AssertionError(f"node {node_id} does not run")

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_SECONDS) == 0
        self.process = None


@contextmanager
def supervised(directory: Path, *words: str) -> Iterator[Supervised]:
    server = Supervised(directory, *words)
    try:
        yield server
    finally:
        server.close()


def test_a_node_that_is_killed_is_started_again_and_nobody_waits_for_its_lease(
    tmp_path: Path,
) -> None:
    with supervised(tmp_path) as server:
        ready = server.ready()
        nodes = str(ready["bootstrap_servers"]).split(",")
        assert len(nodes) == NODES
        produce(nodes[0], 0, 100)
        os.kill(server.pid_of(2), signal.SIGKILL)
        produce(nodes[0], 100, 200)  # within seconds, and the lease is one of nine
        wait_until_healthy(nodes[1])
        assert "node 2 ended with status -9; it is started again" in server.log
        produce(nodes[1], 200, 300)
        assert consume(nodes[2]) == [*range(300)]
        server.stop()
        assert "ERROR" not in server.log.partition("it is started again")[2]


def test_the_directory_is_that_of_as_many_nodes_in_one_process(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        server.ready()
        produce(server.bootstrap, 0, 100)
        before = kbroker(server.bootstrap, "topic", "describe", "orders")
        server.stop()
        server._options = ("--nodes", str(NODES))
        server.start()
        wait_until(lambda: "ready in" in server.log)
        assert "clean shutdown" in server.log
        assert consume(server.bootstrap) == [*range(100)]
        assert kbroker(server.bootstrap, "topic", "describe", "orders") == before


def test_when_the_supervisor_is_killed_its_nodes_end_and_nothing_is_lost(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        server.ready()
        produce(server.bootstrap, 0, 100)
        assert server.process is not None
        children = children_of(server.process.pid)
        assert len(children) == NODES
        server.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        server.ready()
        wait_until_healthy(server.bootstrap)
        assert consume(server.bootstrap) == [*range(100)]


def test_when_the_supervisor_is_killed_in_its_start_its_nodes_end_quietly(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        server.launch()
        assert server.process is not None
        supervisor = server.process.pid
        wait_until(lambda: len(children_of(supervisor)) == NODES)
        children = children_of(supervisor)
        server.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        assert "Traceback" not in server.log


def test_all_nodes_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        server.ready()
        produce(server.bootstrap, 0, 100)
        for node_id in range(1, NODES + 1):
            os.kill(server.pid_of(node_id), signal.SIGKILL)
        wait_until_healthy(server.bootstrap)
        assert consume(server.bootstrap) == [*range(100)]


def test_one_node_is_stopped_in_order_and_comes_back(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        server.ready()
        os.kill(server.pid_of(3), signal.SIGTERM)
        wait_until(lambda: "node 3 ended with status 0" in server.log)
        assert "node 3 is leaving" in server.log
        wait_until_healthy(server.bootstrap)


def test_the_ready_event_and_the_banner_name_all_nodes(tmp_path: Path) -> None:
    with supervised(tmp_path, "--racks", "a,b,c") as server:
        ready = server.ready()
        assert [each["node_id"] for each in ready["nodes"]] == [1, 2, 3]  # type: ignore[attr-defined]
        assert re.search(r"nodes 1, 2, 3 · cluster", server.log)
        assert "1 topic," in server.log
        assert server.log.count("  Kafka    ") == NODES
        rows = json.loads(kbroker(server.bootstrap, "cluster", "info", "-o", "json"))
        assert [each["rack"] for each in rows["brokers"]] == ["a", "b", "c"]


def test_a_port_that_is_taken_refuses_the_whole_start(tmp_path: Path) -> None:
    first = free_ports(NODES)
    with socket.create_server(("127.0.0.1", first + 2)):
        said = refused("--processes", "3", "--port", str(first), "--data-dir", str(tmp_path / "d"))
    assert f"port {first + 2}" in said


def test_a_second_server_on_the_directory_is_refused(tmp_path: Path) -> None:
    with supervised(tmp_path) as server:
        server.ready()
        for words in (["--processes", "3"], ["--nodes", "3"]):
            said = refused(*words, "--port", "0", "--data-dir", str(server.data))
            assert "another broker uses this data directory" in said
        assert not ailments(server.bootstrap)


def test_a_directory_of_one_node_has_to_grow_first(tmp_path: Path) -> None:
    server = Server(tmp_path, topics=("a:1",))
    try:
        server.start()
    finally:
        server.close()
    said = refused("--processes", "2", "--port", "0", "--data-dir", str(server.data))
    assert "kbroker cluster resize --nodes 2" in said
