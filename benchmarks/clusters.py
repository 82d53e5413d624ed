"""Clusters of three nodes, each a process that can be killed and restarted."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.cluster.etcd import Etcd
from tests.ports import free_ports
from tests.processes.commands import children_of

from .brokers import HERE, BenchmarkFailed, Broker, Kbroker, cpu_seconds_of, resident_bytes_of

NODES = (1, 2, 3)
NAME = b"scale"
# Metadata request of version 1 for all topics.
ALL_TOPICS = struct.pack(">ihhih5si", 19, 3, 1, 7, 5, NAME, -1)
STOP_SECONDS = 300
# Settings whose value is 1 with one node.
ONE_REPLICA = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
)


class Placement(NamedTuple):
    """Leader of a partition, and the size of its ISR."""

    leader: int
    in_sync: int


class Processes(Broker):
    """Nodes with one process each, and operations on these processes."""

    def kill(self, node: int) -> None:
        """Kill the process of a node."""
        self._process_of(node).kill()
        self._process_of(node).wait()

    def pause(self, node: int) -> None:
        """Suspend the process of a node until `resume`."""
        self._process_of(node).send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Resume the process of a node."""
        self._process_of(node).send_signal(signal.SIGCONT)

    def stop_node(self, node: int) -> None:
        """Stop a node gracefully, and wait until its process exits."""
        self._process_of(node).send_signal(signal.SIGTERM)
        self._process_of(node).wait(STOP_SECONDS)

    def revive(self, node: int) -> None:
        """Start a process for a stopped node."""
        self._processes[node - 1] = self._launch(self._command_lines[node - 1])

    def _process_of(self, node: int) -> subprocess.Popen[bytes]:
        return self._processes[node - 1]


class Cluster(Kbroker):
    """A cluster of three nodes, one process each."""

    nodes = len(NODES)

    def pid_of(self, node: int) -> int:
        """Return the process ID of a node."""
        raise NotImplementedError

    def port_of(self, node: int) -> int:
        """Return the port of a node."""
        return self.ports[node - 1]

    def placements(self, node: int, topic: str) -> list[Placement]:
        """Return leader and ISR size of each partition of a topic, as one node reports them.

        Raises:
            BenchmarkFailed: The node does not respond.
        """
        try:
            with socket.create_connection(("127.0.0.1", self.port_of(node)), timeout=60) as stream:
                stream.sendall(ALL_TOPICS)
                answer = stream.makefile("rb")
                (size,) = struct.unpack(">i", answer.read(4))
                topics = MetadataAnswer(answer.read(size)).topics()
                return next((placements for name, placements in topics if name == topic), [])
        except (OSError, struct.error) as error:
            raise BenchmarkFailed(f"node {node} does not describe {topic}: {error}") from error

    def controller(self, node: int) -> int:
        """Return the node ID of the controller, as one node reports it."""
        with socket.create_connection(("127.0.0.1", self.port_of(node)), timeout=60) as stream:
            stream.sendall(ALL_TOPICS)
            answer = stream.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            return MetadataAnswer(answer.read(size)).controller

    def node_resident_bytes(self) -> float:
        """Return the average resident memory of a node in bytes."""
        return sum(resident_bytes_of(self.pid_of(node)) for node in NODES) / len(NODES)

    def node_cpu_seconds(self) -> float:
        """Return the average CPU time of a node so far in seconds."""
        return sum(cpu_seconds_of(self.pid_of(node)) for node in NODES) / len(NODES)

    def store_pids(self) -> list[int]:
        """Return the process IDs of the metadata store."""
        raise NotImplementedError

    def store_resident_bytes(self) -> float:
        """Return the average resident memory of the metadata store's processes in bytes."""
        pids = self.store_pids()
        return sum(map(resident_bytes_of, pids)) / len(pids)

    def store_cpu_seconds(self) -> float:
        """Return the average CPU time of the metadata store's processes so far in seconds."""
        pids = self.store_pids()
        return sum(map(cpu_seconds_of, pids)) / len(pids)


class OnEtcd(Processes, Cluster):
    """Nodes whose only common component is an etcd cluster."""

    def __init__(
        self,
        directory: Path,
        members: int = len(NODES),
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._members = members
        super().__init__(directory, durable=durable, settings=settings)

    def _commands(self) -> list[list[str]]:
        self.etcd = Etcd(self.directory, self._members)
        members = ",".join(each.removeprefix("http://") for each in self.etcd.endpoints)
        self.cluster_address = f"etcd://{members}/scale"
        common = (*HERE, "--exit-with-parent", "--cluster", self.cluster_address)
        return [
            self._command(
                *common,
                *("--node-id", str(node), "--port", str(self.port_of(node))),
                data=self.data_of(node),
            )
            for node in NODES
        ]

    def data_of(self, node: int) -> Path:
        """Return the data directory of a node."""
        return self.directory / f"node-{node}"

    def pid_of(self, node: int) -> int:
        return self._process_of(node).pid

    def store_pids(self) -> list[int]:
        return self.etcd.pids

    def mark_dead(self, node: int) -> subprocess.Popen[bytes]:
        """Start the command that a systemd unit runs after the process has exited (ExecStopPost)."""
        words = ["cluster", "node", "mark-dead", "--cluster", self.cluster_address]
        command = [sys.executable, "-m", "kbroker", *words, str(self.data_of(node))]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def revision(self) -> int:
        """Return etcd's revision, the number of its writes."""
        return int(self.etcd.ask("maintenance/status", {})["header"]["revision"])

    def database_bytes(self) -> int:
        """Return the size of a member's database."""
        return int(self.etcd.ask("maintenance/status", {})["dbSize"])

    def stop(self) -> None:
        self.shut_down()
        self.etcd.stop()
        super().stop()


class Supervised(Cluster):
    """`kbroker serve --processes 3`: a supervisor that stores the metadata and restarts nodes."""

    def __init__(
        self, directory: Path, *, durable: bool = True, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(directory, durable=durable, settings=settings)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._bootstrap_port}"

    def _choose_ports(self) -> range:
        self._bootstrap_port = free_ports(1 + self.nodes)
        return range(self._bootstrap_port + 1, self._bootstrap_port + 1 + self.nodes)

    def _commands(self) -> list[list[str]]:
        count, port = str(self.nodes), str(self._bootstrap_port)
        return [self._command(*HERE, "--exit-with-parent", "--processes", count, "--port", port)]

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + sum(map(cpu_seconds_of, self._node_pids()))

    def resident_bytes(self) -> int:
        return super().resident_bytes() + sum(map(resident_bytes_of, self._node_pids()))

    def _node_pids(self) -> list[int]:
        return [self.pid_of(node) for node in range(1, self.nodes + 1)]

    def store_pids(self) -> list[int]:
        return [self._processes[0].pid]

    def pid_of(self, node: int) -> int:
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            for pid, words in children_of(self._processes[0].pid).items():
                if words[-1].endswith(f"/node-{node}"):
                    return pid
            time.sleep(0.01)
        raise BenchmarkFailed(f"node {node} is not running")

    def kill(self, node: int) -> None:
        """Kill the process of a node; the supervisor restarts it."""
        os.kill(self.pid_of(node), signal.SIGKILL)


def kbroker_with(processes: int, kind: type[Kbroker] = Kbroker) -> type[Supervised]:
    """Return the broker `kbroker serve --processes N`, comparable with a single node of Kafka.

    Args:
        processes: Number of nodes.
        kind: Broker of whose checkout the processes run.
    """

    class WithProcesses(Supervised):
        """Internal topics have one replica, as those of the other brokers."""

        name = kind.name
        root = kind.root
        nodes = processes

        def _command(self, *options: str, data: Path | None = None) -> list[str]:
            settings = (word for name in ONE_REPLICA for word in ("-o", f"{name}=1"))
            return super()._command(*options, *settings, data=data)

    return WithProcesses


class MetadataAnswer:
    """A Metadata response of version 1, parsed by hand because client libraries are slower."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 4
        for _ in range(self._number()):
            self._number()
            self._text()
            self._number()
            self._text()
        self.controller = self._number()

    def topics(self) -> Iterator[tuple[str, list[Placement]]]:
        """Yield each topic with its partitions, in their order. Can be called once."""
        for _ in range(self._number()):
            self._at += 2
            name = self._text()
            self._at += 1
            yield name, [self._placement() for _ in range(self._number())]

    def _placement(self) -> Placement:
        _error, _index, leader, replicas = struct.unpack_from(">hiii", self._data, self._at)
        self._at += 14 + 4 * replicas
        in_sync = self._number()
        self._at += 4 * in_sync
        return Placement(leader, in_sync)

    def _number(self) -> int:
        (number,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(number)

    def _text(self) -> str:
        (size,) = struct.unpack_from(">h", self._data, self._at)
        self._at += 2 + max(size, 0)
        return self._data[self._at - max(size, 0) : self._at].decode()
