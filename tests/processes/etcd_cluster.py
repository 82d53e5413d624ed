"""Three node processes on an etcd, with the interface of the crash tests."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from ..kill.server import Restart, Server
from ..machine import LOCAL, Machine
from ..replication.cluster import NODES, PARTITIONS, SETTINGS, TOPICS, Cluster
from .commands import WAIT_SECONDS, kbroker

SESSION_SECONDS = 2
SESSION = (
    f"broker.session.timeout.ms={1000 * SESSION_SECONDS}",
    "broker.heartbeat.interval.ms=500",
)


class EtcdCluster(Cluster):
    """Three nodes in processes; a crash is a kill -9.

    Every second crash is a pause instead: the process resumes when others lead its partitions.

    Args:
        directory: Directory of the nodes' files.
        address: Address of the cluster on etcd.
        settings: Additional settings of all nodes.
        machines: Machine of each node.
        topics: Values of `--topic` at the first start.
        names: Topics that `look` describes.
    """

    def __init__(
        self,
        directory: Path,
        address: str,
        settings: Sequence[str] = SESSION,
        machines: Sequence[Machine] = (LOCAL,) * len(NODES),
        topics: Sequence[str] = TOPICS,
        names: Collection[str] = tuple(PARTITIONS),
    ) -> None:
        super().__init__(directory, topics=topics, names=names)
        self._nodes = {
            node: Server(
                directory / f"process-{node}",
                (*SETTINGS, *settings),
                topics=(),
                options=("--cluster", address, "--node-id", str(node)),
                machine=machine,
            )
            for node, machine in zip(NODES, machines, strict=True)
        }
        self.addresses = [
            (machine.address, port)
            for machine, (_, port) in zip(machines, self.addresses, strict=True)
        ]
        self._extra_settings = settings
        for node, server in self._nodes.items():
            _, server.port = self.addresses[node - 1]
            server.data = self.data / f"node-{node}"
        self._is_new = True
        self._paused: set[int] = set()
        self._pauses_next = True

    @property
    def log_path(self) -> Path:
        return self._nodes[1].log_path

    @property
    def log_paths(self) -> list[Path]:
        return [server.log_path for server in self._nodes.values()]

    def server(self, node: int) -> Server:
        """Return the server process of a node."""
        return self._nodes[node]

    def start(self) -> Restart:
        began = time.perf_counter()
        for server in self._nodes.values():
            server.start()
        if self._is_new:
            for topic in self._topics:
                name, partitions, configs = topic.split(":")
                arguments = [word for each in configs.split(",") for word in ("-c", each)]
                kbroker(self.bootstrap, "topic", "create", name, "-p", partitions, *arguments)
            self._is_new = False
        return Restart(time.perf_counter() - began, 0.0)

    def kill(self) -> None:
        for server in self._nodes.values():
            server.kill()

    def close(self) -> None:
        for server in self._nodes.values():
            server.close()

    def crash(self, node: int) -> None:
        if self._pauses_next:
            self.pause_node(node)
        else:
            self.kill_node(node)
        self._pauses_next = not self._pauses_next

    def kill_node(self, node: int) -> None:
        self._nodes[node].kill()

    def pause_node(self, node: int) -> None:
        self._signal(node, signal.SIGSTOP)
        self._paused.add(node)

    def _signal(self, node: int, number: signal.Signals) -> None:
        process = self._nodes[node].process
        assert process is not None
        process.send_signal(number)

    def stop(self, node: int) -> None:
        self._signal(node, signal.SIGTERM)
        process = self._nodes[node].process
        assert process is not None
        assert process.wait(WAIT_SECONDS) == 0
        self._nodes[node].process = None

    def revive(self, node: int) -> None:
        if node in self._paused:
            self._paused.remove(node)
            self._signal(node, signal.SIGCONT)
        else:
            self._nodes[node].start()

    def lose_directory(self, node: int) -> None:
        """Replace a disk after the node's lease expired; see docs/explanation/replication.md."""
        super().lose_directory(node)
        time.sleep(SESSION_SECONDS)
        lost = self._settings[-1]
        for server in self._nodes.values():
            server._settings = (*SETTINGS, *self._extra_settings, lost)
