"""Clusters of three nodes with a common interface.

The nodes are kbroker in one process, kbroker in three processes, or Apache Kafka.
"""

from __future__ import annotations

import random
import socket
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kbroker.cli.control import Control, ask
from kbroker.net.server import FIRST_PORT
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import request_class

from .brokers import ApacheBroker, Broker, KbrokerBroker, free_port
from .raw import NoAnswer, RawConnection

NODES = (1, 2, 3)
IN_SYNC_SECONDS = 60.0
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class Nodes(Protocol):
    """Three nodes, each of which can be stopped and started again."""

    name: str

    @property
    def address(self) -> str:
        """Bootstrap servers: the addresses of all nodes."""
        ...

    def start(self) -> None: ...

    def stop_node(self, node: int) -> None:
        """Stop a node gracefully."""
        ...

    def start_node(self, node: int) -> None: ...

    def kill(self) -> None: ...


class KbrokerNodes(KbrokerBroker):
    """`kbroker serve --nodes 3`, in one process."""

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        super().__init__(directory, {**REPLICATED, **properties})
        self.port = _consecutive_ports(len(NODES))
        self._control_port = free_port()
        self._control_token = directory / "control.token"

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + number}" for number in range(len(NODES)))

    def _command(self) -> list[str]:
        nodes = ["--nodes", str(len(NODES)), "--control-port", str(self._control_port)]
        token = ["--control-token-file", str(self._control_token)]
        return [*super()._command(), *nodes, *token]

    def _is_ready(self) -> bool:
        return self._port_file.exists()  # the ports were chosen before

    def stop_node(self, node: int) -> None:
        self._send_command("stop_node", node)

    def start_node(self, node: int) -> None:
        self._send_command("start_node", node)

    def _send_command(self, verb: str, node: int) -> None:
        control = Control(f"127.0.0.1:{self._control_port}", str(self._control_token))
        ask(control, do=verb, node=node)


class _QuorumNode(ApacheBroker):
    """A node of Apache Kafka that is a broker and a voter of a three-node quorum."""

    format_options = ()

    def __init__(
        self, directory: Path, properties: Mapping[str, str], node: int, first_port: int
    ) -> None:
        super().__init__(directory, {"node.id": str(node), **properties})
        self.listener_port = first_port + node - 1
        controllers = {each: first_port + len(NODES) + each - 1 for each in NODES}
        self.controller_port = controllers[node]
        self._voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in controllers.items())

    def _quorum(self, controller: int) -> dict[str, str]:
        return {"controller.quorum.voters": self._voters}


class Processes:
    """Nodes in one process each.

    Args:
        name: Name of the kind of broker.
        nodes: The nodes by ID.
    """

    def __init__(self, name: str, nodes: Mapping[int, Broker]) -> None:
        self.name = name
        self._nodes = nodes

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self._nodes.values())

    def start(self) -> None:
        for node in self._nodes.values():
            node.launch()
        for node in self._nodes.values():
            node.wait_until_ready()

    def stop_node(self, node: int) -> None:
        self._nodes[node].stop()

    def kill_node(self, node: int) -> None:
        """Kill a node with SIGKILL."""
        self._nodes[node].kill()

    def start_node(self, node: int) -> None:
        self._nodes[node].start()

    def kill(self) -> None:
        for node in self._nodes.values():
            node.kill()

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(node.log_tail(lines) for node in self._nodes.values())


class ApacheNodes(Processes):
    """Three processes of Apache Kafka."""

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        first = _consecutive_ports(2 * len(NODES))
        settings = {**REPLICATED, **properties}
        nodes = {n: _QuorumNode(directory / f"{n}", settings, n, first) for n in NODES}
        super().__init__(ApacheBroker.name, nodes)


class _Etcd(Broker):
    """Single-member etcd."""

    name = "etcd"

    def _prepare(self) -> None:
        self.port = _consecutive_ports(2)

    def _command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self.port + 1))
        return [
            *("etcd", "--data-dir", str(self.data_dir), "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.address}/health", timeout=2).close()
        except OSError:
            return False
        return True


class _ClusterNode(KbrokerBroker):
    """A node of `kbroker serve --cluster`."""

    def __init__(
        self, directory: Path, properties: Mapping[str, str], node: int, port: int, etcd: Broker
    ) -> None:
        super().__init__(directory, properties)
        self.port = port
        self._node = node
        self._etcd = etcd

    def _command(self) -> list[str]:
        cluster = f"etcd://{self._etcd.address}/rolled"
        return [*super()._command(), "--cluster", cluster, "--node-id", str(self._node)]


class KbrokerProcesses(Processes):
    """Three processes of kbroker that store their metadata in etcd."""

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        self._etcd = _Etcd(directory / "etcd")
        first = _consecutive_ports(len(NODES))
        settings = {**REPLICATED, **properties}
        nodes = {
            n: _ClusterNode(directory / f"{n}", settings, n, first + n - 1, self._etcd)
            for n in NODES
        }
        super().__init__(KbrokerBroker.name, nodes)

    def start(self) -> None:
        self._etcd.start()
        super().start()

    def kill(self) -> None:
        super().kill()
        self._etcd.kill()


CLUSTERS = {"kbroker": KbrokerNodes, "kbroker-apart": KbrokerProcesses, "apache": ApacheNodes}


def wait_until_in_sync(nodes: Nodes) -> None:
    """Wait until each partition has a leader and all of its replicas are in sync."""
    deadline = time.monotonic() + IN_SYNC_SECONDS
    while (lagging := _lagging(nodes.address)) != []:
        assert time.monotonic() < deadline, f"not in sync: {lagging}"
        time.sleep(0.1)


def _lagging(address: str) -> list[Any] | None:
    """Return the partitions without a leader or with replicas out of sync.

    Returns None if no node responds.
    """
    for each in address.split(","):
        try:
            connection = RawConnection(each)
        except OSError:
            continue
        try:
            ask = request_class(ApiKey.METADATA)(topics=None)
            answer = connection.ask(ApiKey.METADATA, 9, ask)
        except (OSError, NoAnswer):
            continue
        finally:
            connection.close()
        if len(answer.brokers) < len(NODES):
            return [f"{len(answer.brokers)} nodes"]
        return [
            (topic.name, row.partition_index, row.leader_id, row.isr_nodes)
            for topic in answer.topics
            for row in topic.partitions
            if row.leader_id < 0 or len(row.isr_nodes) < len(row.replica_nodes)
        ]
    return None


def _consecutive_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports.

    They are below the ephemeral port range and below the ports that brokers choose themselves, so
    no process takes the port of a node while it is down.
    """
    while True:
        first = random.randrange(9500, FIRST_PORT - count)
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
