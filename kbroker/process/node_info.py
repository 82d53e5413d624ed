"""Startup output of a server that is ready: its banner and its `ready` event."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kbroker import __version__
from kbroker.broker import Broker
from kbroker.broker.local_node import LocalNode
from kbroker.client.endpoint import EVERY_INTERFACE, Endpoint
from kbroker.config import BrokerConfig
from kbroker.storage.naming import LOG

if TYPE_CHECKING:
    from kbroker.net.server import Listener

    from .http import HttpServices

# Maximum number of partitions for which the banner shows the data size; a scan of more takes too long.
SIZED_PARTITIONS_MAX = 1000


class Address(NamedTuple):
    """A listener with its configured host, its bound address, and its advertised address if set."""

    listener: str
    host: str
    endpoint: Endpoint
    advertised: Endpoint | None

    @classmethod
    def of(cls, listener: Listener, bound: Sequence[str | int]) -> Address:
        """Return the address of a listener that is bound to a host and a port."""
        host, port, *_ = bound
        return cls(
            listener.name, listener.host, Endpoint(str(host), int(port)), listener.advertised
        )

    @property
    def local(self) -> Endpoint:
        """Address for clients on this machine."""
        return Endpoint(self.host, self.endpoint.port).as_seen_locally

    @property
    def shown(self) -> Endpoint:
        """Address as configured, with the actual port."""
        return Endpoint(self.host or self.endpoint.host, self.endpoint.port)

    @property
    def bootstrap(self) -> Endpoint:
        """Address to show to users for their clients: the advertised one if there is one."""
        if self.advertised is not None:
            if self.advertised.port:
                return self.advertised
            return self.advertised._replace(port=self.endpoint.port)
        is_here = self.host in ("localhost", *EVERY_INTERFACE)
        return self.endpoint._replace(host="localhost") if is_here else self.endpoint


class SharedAddresses(NamedTuple):
    """Addresses that all nodes of a multi-process server serve.

    Attributes:
        listeners: Bootstrap address of each listener.
        http: Address of the console, metrics and probes.
        registry: Address of the schema registry.
    """

    listeners: Sequence[Address]
    http: Endpoint | None
    registry: Endpoint | None


class NodeInfo(NamedTuple):
    """Information about one node in the startup output.

    Attributes:
        node_id: Node ID.
        cluster_id: Cluster ID.
        addresses: Listeners.
        endpoint: Address at which this machine reaches the node.
        data_dirs: Log directories.
        topics: Number of topics of the cluster.
        partitions: Number of partitions on the node.
        has_crashed: True if the last run of the node did not shut down cleanly.
        loss: Description of the records that a crash may lose, or None for none.
        nodes: IDs of the registered nodes of the cluster.
        http: Address of metrics and probes.
        registry: Address of the schema registry.
    """

    node_id: int
    cluster_id: str
    addresses: Sequence[Address]
    endpoint: Endpoint
    data_dirs: Sequence[str]
    topics: int
    partitions: int
    has_crashed: bool
    loss: str | None
    nodes: Sequence[int]
    http: Endpoint | None = None
    registry: Endpoint | None = None


def info_of(local: LocalNode, http: HttpServices | None = None) -> NodeInfo:
    """Return the information about a running node; `http` has its HTTP endpoints."""
    node = local.node
    addresses = [Address.of(*each) for each in local.server.endpoints()]
    logs = node.partitions.logs
    return NodeInfo(
        node_id=local.id,
        cluster_id=node.cluster.id,
        addresses=addresses,
        endpoint=local.endpoint,
        data_dirs=local.data_dirs,
        topics=len(node.cluster.topics),
        partitions=len(logs.directories()),
        has_crashed=logs.crashed,
        loss=_loss_window(node.config, in_memory=node.context.in_memory),
        nodes=sorted(node.cluster.nodes),
        http=None if http is None else http.http_at(local.id),
        registry=None if http is None else http.registry_at(local.id),
    )


def info_of_all(broker: Broker, http: HttpServices | None) -> list[NodeInfo]:
    """Return the information about all nodes of a process."""
    return [info_of(each, http) for each in broker.nodes]


def bootstrap_addresses(nodes: Sequence[NodeInfo], shared: SharedAddresses | None) -> str:
    """Return the bootstrap addresses to show to users, with commas.

    Args:
        nodes: Information about all nodes.
        shared: Addresses that all nodes serve; None if each node has its own.
    """
    first = [shared.listeners[0]] if shared else [each.addresses[0] for each in nodes]
    return ",".join(str(each.bootstrap) for each in first)


def ready_event(
    nodes: Sequence[NodeInfo], data_dirs: Sequence[str], shared: SharedAddresses | None = None
) -> dict[str, object]:
    """Return the `ready` event for programs.

    Args:
        nodes: Information about all nodes.
        data_dirs: Log directories; empty for in-memory storage.
        shared: Addresses that all nodes serve; None if each node has its own.
    """
    bootstrap = [shared.listeners[0].local] if shared else [each.endpoint for each in nodes]
    first = shared or nodes[0]
    rows = [
        {
            "node_id": each.node_id,
            "listeners": _listeners(each.addresses),
            "data_dirs": each.data_dirs,
            "http": _url(each.http),
            "schema_registry": _url(each.registry),
        }
        for each in nodes
    ]
    return {
        "bootstrap_servers": ",".join(map(str, bootstrap)),
        "listeners": _listeners(shared.listeners if shared else nodes[0].addresses),
        "pid": os.getpid(),
        "cluster_id": nodes[0].cluster_id,
        "node_id": nodes[0].node_id,
        "nodes": rows,
        "http": _url(first.http),
        "schema_registry": _url(first.registry),
        "data_dir": os.path.abspath(data_dirs[0]) if data_dirs else None,
        "version": __version__,
    }


def _listeners(addresses: Sequence[Address]) -> dict[str, str]:
    return {each.listener: str(each.endpoint) for each in addresses}


def banner_lines(
    nodes: Sequence[NodeInfo],
    shared: SharedAddresses | None = None,
    *,
    data_dirs: Sequence[str],
    is_new: bool,
    more: Sequence[tuple[str, str]] = (),
) -> Iterator[str]:
    """Yield the lines of the startup banner.

    Args:
        nodes: Information about all nodes.
        shared: Addresses that all nodes serve; None if each node has its own.
        data_dirs: Log directories; empty for in-memory storage.
        is_new: The log directories were empty.
        more: Names and texts of additional lines.
    """
    ids = ", ".join(str(each.node_id) for each in nodes)
    head = f"nodes {ids}" if len(nodes) > 1 else f"node {ids}"
    yield f"kbroker {__version__} · {head} · cluster {nodes[0].cluster_id}"
    yield from _shared_kafka_lines(nodes, shared) if shared else _kafka_lines(nodes)
    if shared:
        yield from _http_lines(shared.http, shared.registry, "")
    else:
        for each in nodes:
            whose = f"  (node {each.node_id})" if len(nodes) > 1 else ""
            yield from _http_lines(each.http, each.registry, whose)
    yield f"  Data     {_data_line(nodes, data_dirs, is_new=is_new)}"
    for name, text in more:
        yield f"  {name:<9}{text}"
    if nodes[0].loss:
        yield f"  Loss     {nodes[0].loss}"


def _kafka_lines(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    for each in nodes:
        for address in each.addresses:
            whose = f"node {each.node_id}, " if len(nodes) > 1 else ""
            yield _kafka_line(address, f"{whose}{address.listener}")


def _shared_kafka_lines(nodes: Sequence[NodeInfo], shared: SharedAddresses) -> Iterator[str]:
    """Yield one line per listener, with the ports of the nodes, which clients must reach too."""
    for number, address in enumerate(shared.listeners):
        ports = ", ".join(str(each.addresses[number].endpoint.port) for each in nodes)
        yield _kafka_line(address, f"{address.listener}, nodes on ports {ports}")


def _kafka_line(address: Address, text: str) -> str:
    note = f"; advertised: {address.advertised}" if address.advertised else ""
    return f"  Kafka    {address.shown}  ({text}{note})"


def _http_lines(http: Endpoint | None, registry: Endpoint | None, whose: str) -> Iterator[str]:
    if http is not None:
        yield f"  Console  {_url(http)}/console/{whose}"
        yield f"  HTTP     {_url(http)}/metrics{whose}"
    if registry is not None:
        yield f"  Schemas  {_url(registry)}{whose}"


def _url(http: Endpoint | None) -> str | None:
    """Return the URL at which this machine reaches an HTTP address."""
    if http is None:
        return None
    return f"http://{http.as_seen_locally}"


def kafka_log_lines(nodes: Sequence[NodeInfo], now: float) -> Iterator[str]:
    """Yield the startup lines of Kafka's log, which health checks of other programs look for.

    Args:
        nodes: Information about all nodes.
        now: Current time in seconds since the epoch.
    """
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    for each in nodes:
        for text, whose in (
            (f"[KafkaRaftServer nodeId={each.node_id}] Kafka Server started", "KafkaRaftServer"),
            (
                f"[BrokerServer id={each.node_id}] Transitioning from RECOVERY to RUNNING",
                "BrokerServer",
            ),
            (f"[KafkaServer id={each.node_id}] started", "KafkaServer"),
        ):
            yield f"[{moment},{int(now * 1000) % 1000:03}] INFO {text} (kafka.server.{whose})"


def _data_line(nodes: Sequence[NodeInfo], data_dirs: Sequence[str], *, is_new: bool) -> str:
    topics = nodes[0].topics
    count = f"{topics} topic{'' if topics == 1 else 's'}"
    if not data_dirs:
        return f"in memory, {count}"
    crashed = [each.node_id for each in nodes if each.has_crashed]
    state = "clean shutdown"
    if is_new:
        state = "new"
    elif crashed:
        state = "recovered after a crash"
        if len(crashed) < len(nodes):
            state += f" of node {', '.join(map(str, crashed))}"
    if sum(each.partitions for each in nodes) <= SIZED_PARTITIONS_MAX:
        paths = [path for each in nodes for path in each.data_dirs]
        count += f", {sum(map(_segment_bytes, paths)) / 1e6:.1f} MB"
    return f"{', '.join(data_dirs)}  {count}, {state}"


def _loss_window(config: BrokerConfig, *, in_memory: bool) -> str | None:
    """Describe the records that a crash may lose; None for durable settings."""
    if in_memory:
        return "all data is lost when this process ends"
    policy = config.flush_policy
    if policy == "interval":
        return f"power loss: up to {config.flush_interval_ms} ms (flush.policy=interval)"
    if policy == "os":
        return "power loss: whatever the kernel has not written back (flush.policy=os)"
    return None


def _segment_bytes(directory: str) -> int:
    """Return the size of all segments in a log directory. Unreadable directories count as empty."""
    total = 0
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # An unreadable directory is offline, and is reported when its partition is opened.
            with suppress(OSError):
                if entry.is_dir():
                    total += _partition_bytes(entry.path)
    return total


def _partition_bytes(path: str) -> int:
    with os.scandir(path) as files:
        return sum(file.stat().st_size for file in files if file.name.endswith(LOG))
