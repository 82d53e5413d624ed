"""Java's client 4.4 learns that another cluster or node answers at an address (KIP-1242).

The client names the cluster and the node that it expects. Another node answers
REBOOTSTRAP_REQUIRED, and the client starts again at its bootstrap servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Self

import pytest
from harness.admin_calls import of, request
from harness.brokers import ApacheBroker, Broker, KbrokerBroker, free_port
from harness.clients import eventually
from harness.java import JavaProcess, command_line
from harness.nodes import CLUSTERS, NODES
from harness.places import COMPAT
from harness.proxy import LossyProxy
from harness.raw import RawConnection

from kbroker.client.endpoint import Endpoint
from kbroker.net.server import Listener
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.testing import LocalBroker

CLIENT = "java"
SECONDS = 60.0
NO_RECOVERY = ("metadata.recovery.strategy=none",)
REQUESTED = "Rebootstrap requested by server"


class OtherApacheBroker(ApacheBroker):
    """Apache Kafka with another cluster ID."""

    cluster_id = "kBrokerCompatTests0002"


class ProcessesBroker(KbrokerBroker):
    """`kbroker serve --processes 2`."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--processes", "2"]


@contextmanager
def running(broker: Broker) -> Iterator[int]:
    broker.start()
    try:
        yield broker.port
    finally:
        broker.stop()


Started = Callable[[Path, str, int], AbstractContextManager[int]]


def kbroker(directory: Path, address: str, port: int) -> AbstractContextManager[int]:
    broker = KbrokerBroker(directory, advertise=address)
    broker.port = port
    return running(broker)


def processes(directory: Path, _address: str, port: int) -> AbstractContextManager[int]:
    broker = ProcessesBroker(directory)
    broker.port = port
    return running(broker)


@contextmanager
def kit(_directory: Path, address: str, port: int) -> Iterator[int]:
    host, _, advertised = address.rpartition(":")
    listener = Listener("PLAINTEXT", "127.0.0.1", port, Endpoint(host, int(advertised)))
    with LocalBroker(listeners=[listener]):
        yield port


def apache(directory: Path, address: str, port: int) -> AbstractContextManager[int]:
    broker = (ApacheBroker, OtherApacheBroker)[int(directory.name)](directory, advertise=address)
    broker.listener_port = port
    return running(broker)


def create_topic(address: str, name: str, partitions: int = 1) -> None:
    """Create a topic through a connection to one node."""
    connection = RawConnection(address)
    key = ApiKey.CREATE_TOPICS
    row = of(key, "Topic", name=name, num_partitions=partitions, replication_factor=1)
    (made,) = connection.ask(key, 7, request(key, topics=[row], timeout_ms=30_000)).topics
    connection.close()
    assert not made.error_code, made


class Watcher:
    """A Java client that prints the topics at an address whenever they change."""

    def __init__(self, address: str, log: Path, *settings: str) -> None:
        source = str(COMPAT / "java" / "ClusterWatcher.java")
        command = command_line(
            "kafka-4.4", source, address, *settings, logs="log4j2-clients.properties"
        )
        self._log = log
        self._process = JavaProcess(command, log)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def wait_for(self, topic: str) -> None:
        """Wait until the client has found a topic and no other one."""
        eventually(
            lambda: [line for line in self.text.splitlines() if line.startswith("topics ")],
            lambda found: found[-1:] == [f"topics {topic}"],
            f"topic {topic}",
            SECONDS,
        )


@pytest.mark.parametrize("started", [kbroker, processes, kit, apache])
def test_client_finds_new_cluster_at_port_of_stopped_one(started: Started, tmp_path: Path) -> None:
    """Without any node, the client starts again by itself."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with Watcher(address, tmp_path / "watcher.log") as watcher:
        for number in range(2):
            with started(tmp_path / str(number), address, port):
                create_topic(address, f"topic-{number}")
                watcher.wait_for(f"topic-{number}")


@pytest.mark.parametrize("started", [kbroker, kit, apache])
def test_client_that_reaches_another_cluster_must_rebootstrap(
    started: Started, tmp_path: Path
) -> None:
    proxy = LossyProxy()
    ports = [free_port() for _ in range(2)]
    try:
        with (
            started(tmp_path / "0", proxy.address, ports[0]),
            started(tmp_path / "1", proxy.address, ports[1]),
        ):
            for number, port in enumerate(ports):
                create_topic(f"127.0.0.1:{port}", f"topic-{number}")
            for settings, is_requested in (((), True), (NO_RECOVERY, False)):
                proxy.upstream = ("127.0.0.1", ports[0])
                log = tmp_path / f"{is_requested}.log"
                with Watcher(proxy.address, log, *settings) as watcher:
                    watcher.wait_for("topic-0")
                    assert REQUESTED not in watcher.text
                    proxy.upstream = ("127.0.0.1", ports[1])
                    # Close the connection to the node, and that of the bootstrap.
                    proxy.drop(ApiKey.METADATA, 2)
                    watcher.wait_for("topic-1")
                    # Without recovery, a client does not name the cluster that it expects.
                    assert (REQUESTED in watcher.text) is is_requested
    finally:
        proxy.close()


@pytest.mark.parametrize("kind", CLUSTERS)
def test_clients_of_all_nodes_are_not_rejected(kind: str, tmp_path: Path) -> None:
    nodes = CLUSTERS[kind](tmp_path / "nodes", {})
    nodes.start()
    try:
        create_topic(nodes.address.split(",")[0], "topic", len(NODES))
        with Watcher(nodes.address, tmp_path / "watcher.log") as watcher:
            connected = [f"Completed connection to node {node}." for node in NODES]
            eventually(
                lambda: [each for each in connected if each in watcher.text],
                lambda found: found == connected,
                "connections to all nodes",
                SECONDS,
            )
        assert REQUESTED not in watcher.text
        codes = [_codes(address, nodes.address) for address in nodes.address.split(",")]
        # Each node accepts its own ID only.
        assert sorted(chain(*codes)) == [0] * 3 + [ErrorCode.REBOOTSTRAP_REQUIRED] * 6
    finally:
        nodes.kill()


def _codes(address: str, bootstrap: str) -> list[int]:
    """Return the answers of one node to clients that expect each node of its cluster."""
    first = RawConnection(bootstrap.split(",")[0])
    cluster = first.ask(ApiKey.METADATA, 12, request(ApiKey.METADATA, topics=[])).cluster_id
    first.close()
    found = []
    for node in NODES:
        connection = RawConnection(address)
        hello = request(
            ApiKey.API_VERSIONS,
            client_software_name="compat",
            client_software_version="1",
            cluster_id=cluster,
            node_id=node,
        )
        found.append(connection.ask(ApiKey.API_VERSIONS, 5, hello).error_code)
        connection.close()
    return found
