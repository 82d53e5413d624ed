"""A Kafka cluster to embed in a program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations, cycle, product
from types import MappingProxyType

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.cluster import MetadataStore
from kbroker.cluster.cluster import check_cluster_id, create_or_load_cluster
from kbroker.cluster.links import Links
from kbroker.cluster.model import random_cluster_id
from kbroker.cluster.running import running
from kbroker.cluster.topics import DEFAULT, NewTopic, create_topic
from kbroker.config import BrokerConfig
from kbroker.data_dirs.data_directories import (
    DataDirectories,
    absolute_paths,
    find_data_directories,
    known_cluster,
)
from kbroker.data_dirs.resize import finish
from kbroker.handlers.registry import load_apis
from kbroker.net.connection import Intercept
from kbroker.net.server import CannotListen, Listener, Server
from kbroker.node.node import Node
from kbroker.runtime.clock import Clock, SystemClock
from kbroker.runtime.closing import close_concurrently
from kbroker.runtime.disk_work import DiskWork
from kbroker.runtime.threads import InThread, at_once, run_in_thread
from kbroker.storage.files import Files, MemFiles, OsFiles

from .decommission import POLL_SECONDS, decommission
from .local_node import DistributedNodeOptions, LocalNode, NodeFactory, Shared
from .service import Service

# Name of the data directory of a broker in memory.
MEMORY_DIRECTORY = "memory"
# Cluster size that default settings assume if a node does not know the size of its cluster.
ASSUMED_CLUSTER_SIZE = 3


@dataclass(slots=True)
class Broker:
    """A running cluster and its nodes in this process. Create one with `open_broker`.

    Attributes:
        store: Metadata store.
        nodes: Nodes of this process.
        links: Network links between the nodes.
    """

    store: MetadataStore
    nodes: list[LocalNode]
    links: Links
    _factory: NodeFactory
    _nursery: trio.Nursery
    _adding: trio.Lock = field(default_factory=trio.Lock)

    @property
    def node(self) -> Node:
        """The first node, even if it is down."""
        return self.nodes[0].node

    @property
    def server(self) -> Server:
        """The server of the first node."""
        return self.nodes[0].server

    @property
    def endpoint(self) -> Endpoint:
        """Address of the first node for clients on this machine."""
        return self.nodes[0].endpoint

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all nodes, including those that are down: HOST:PORT with commas."""
        return ",".join(str(each.endpoint) for each in self.nodes)

    def connections(self) -> int:
        """Return the number of client connections."""
        return sum(len(each.server.connections) for each in self.nodes)

    def local_node(self, node_id: int) -> LocalNode:
        """Return a node of this process by its ID.

        Args:
            node_id: Node ID.

        Raises:
            ValueError: There is no such node; the message lists the IDs.
        """
        for each in self.nodes:
            if each.id == node_id:
                return each
        known = ", ".join(str(each.id) for each in self.nodes)
        raise ValueError(f"there is no node {node_id} in this process (valid: {known})")

    @property
    def running_nodes(self) -> list[Node]:
        """Nodes that run."""
        return [each.node for each in self.nodes if each.is_running]

    def running(self) -> Node:
        """Return the first node that runs.

        Raises:
            RuntimeError: All nodes are down.
        """
        for each in self.running_nodes:
            return each
        raise RuntimeError("all nodes are down; start one of them")

    async def dial_inside(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Open an in-process connection to the node with an address.

        The connection uses neither TLS nor authentication, and no ACL applies.

        Args:
            endpoint: Address of a node of this process.

        Returns:
            The connection.

        Raises:
            OSError: No running node of this process has the address.
        """
        for each in self.nodes:
            stream = each.connect_in_process(endpoint)
            if stream is not None:
                return stream
        raise ConnectionRefusedError(f"no running node of this process has address {endpoint}")

    async def add_node(self, *, rack: str | None = None) -> LocalNode:
        """Start an additional node. It has no partitions until some are reassigned to it.

        Args:
            rack: Rack of the node; None for `broker.rack`.

        Returns:
            The node.

        Raises:
            CannotListen: The port of the node cannot be bound.
            StorageError: The data directory was created for one node.
        """
        self._factory.check_can_add()
        async with self._adding:
            known = {each.id for each in self.nodes} | set(self.running().cluster.node_ids)
            local = self._factory.create(max(known) + 1, len(known) + 1, rack=rack)
            await local.start_first(self.store, self._nursery, cluster_id=self.node.cluster.id)
            self.nodes.append(local)
        return local

    async def remove_node(self, node_id: int) -> None:
        """Move all partitions away from a node, stop it, unregister it and delete its directory.

        Returns when the other nodes have all of its records.

        Args:
            node_id: Node ID.

        Raises:
            ValueError: There is no such node, no other node runs, or the node is down and has the
                only in-sync replica of a partition.
        """
        local = self.local_node(node_id)
        await decommission(self.other_running_node(node_id), local)
        await local.stop()
        cluster = self.other_running_node(node_id).cluster
        # If the node has crashed, its session may not have expired yet.
        while node_id in cluster.nodes:  # noqa: ASYNC110  # too short to be worth an event
            await trio.sleep(POLL_SECONDS)
        await cluster.unregister(node_id, cause=f"node {node_id} was removed")
        self.nodes.remove(local)
        local.forget()

    def stop_with_cluster(self) -> None:
        """Make nodes keep their leaderships when they stop, because the whole cluster stops."""
        for each in self.nodes:
            each.stops_with_cluster = True

    def other_running_node(self, node_id: int) -> Node:
        """Return the first running node other than the given one.

        Raises:
            ValueError: No other node runs.
        """
        for each in self.nodes:
            if each.is_running and each.id != node_id:
                return each.node
        raise ValueError(f"all nodes except {node_id} are down; start one of them")

    async def create_topic(
        self, name: str, partitions: int = DEFAULT, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic.

        Args:
            name: Topic name.
            partitions: Number of partitions; by default `num.partitions`.
            configs: Topic configs.

        Raises:
            KafkaError: The topic is rejected, for example because it exists.
        """
        node = self.running()
        new = NewTopic(name, partitions, configs=dict(configs or {}))
        await create_topic(node.cluster, node.config, new, cause="declared by the program")


@asynccontextmanager
async def open_broker(
    config: BrokerConfig,
    *,
    data_dir: str | Sequence[str] | None,
    listeners: list[Listener],
    nodes: int | None = None,
    racks: Sequence[str] = (),
    listeners_of: Mapping[int, Sequence[Listener]] = MappingProxyType({}),
    files: Files | None = None,
    clock: Clock | None = None,
    grace_seconds: float = 5,
    cluster_id: str | None = None,
    distributed: DistributedNodeOptions | None = None,
    intercept: Intercept | None = None,
    service: Service | None = None,
) -> AsyncIterator[Broker]:
    """Start a broker, yield it when it is ready, and stop it gracefully at the end.

    Several brokers can run in one process.

    Args:
        config: Broker settings.
        data_dir: Data directory, or several to spread partitions over; None for memory.
        listeners: Listeners of the first node; each further node uses the next ports.
        nodes: Number of nodes; None for the number that the data directory has, or one.
        racks: Racks of the nodes, used in turn; empty for `broker.rack`.
        listeners_of: Listeners of nodes by node ID, from an earlier run.
        files: File system of the data directories, for example one in memory for several runs.
        clock: Clock; None for the system clock.
        grace_seconds: Maximum seconds of each phase of a graceful stop.
        cluster_id: Cluster ID of a new cluster; None for a random one.
        distributed: Options of a node whose cluster has nodes in other processes.
        intercept: Creates the interceptor of each connection's requests.
        service: Service to run together with the broker.

    Yields:
        The running broker.

    Raises:
        CannotListen: A listener cannot be opened.
        StorageError: The data or the metadata cannot be used.
    """
    own = _local_nodes(config, data_dir, files, nodes, distributed)
    shared = Shared(
        directories=own.directories,
        in_memory=data_dir is None,
        clock=clock or SystemClock(),
        apis=load_apis(),
        intercept=intercept,
        grace_seconds=grace_seconds,
        nodes=len(own.ids),
        distributed=distributed,
    )
    factory = NodeFactory(own.config, listeners, listeners_of, shared)
    rack_cycle = cycle(racks or (None,))
    local = [factory.create(each, own.total, rack=next(rack_cycle)) for each in own.ids]
    in_thread = _metadata_syncs(own.config, data_dir, files)
    store = await _open_all(local, own.directories, cluster_id, distributed, in_thread, service)
    async with _running_nodes(store, local, distributed, service) as nursery:
        yield Broker(store, local, shared.links, factory, nursery)


@asynccontextmanager
async def _running_nodes(
    store: MetadataStore,
    local: Sequence[LocalNode],
    distributed: DistributedNodeOptions | None,
    service: Service | None,
) -> AsyncIterator[trio.Nursery]:
    """Run the nodes and the service, and close them at the end. Yields the nursery of the nodes."""
    running_store = running(store) if distributed is None else nullcontext()
    async with running_store, trio.open_nursery() as nursery:
        try:
            if service is not None:
                nursery.start_soon(service.run)
            await _run_for_each(local, lambda node: node.join())
            if distributed is not None:
                await distributed.others_joined()
            await _run_for_each(local, lambda node: node.begin(nursery))
            yield nursery
        finally:
            await _close(local, service)


async def _close(nodes: Sequence[LocalNode], service: Service | None) -> None:
    """Stop the nodes, then the service, even if this task is cancelled or a node fails to stop."""
    with trio.CancelScope(shield=True):
        try:
            await close_concurrently(node.close for node in nodes)
        finally:
            if service is not None:
                await service.close()


@dataclass(frozen=True, slots=True)
class _Local:
    """The nodes that run in this process.

    Attributes:
        config: Settings of the nodes.
        directories: Data directories of the nodes.
        ids: IDs of the nodes.
        total: Number of nodes of the cluster.
    """

    config: BrokerConfig
    directories: DataDirectories
    ids: list[int]
    total: int


def _local_nodes(
    config: BrokerConfig,
    data_dir: str | Sequence[str] | None,
    files: Files | None,
    nodes: int | None,
    distributed: DistributedNodeOptions | None,
) -> _Local:
    """Return the nodes that run here: the whole cluster, or the node that `distributed` names."""
    if distributed is None:
        directories = _data_directories(config, data_dir, files, nodes)
        ids = directories.node_ids(config.node_id, nodes)
        return _Local(config, directories, ids, len(ids))
    config = config.for_separate_processes()
    directories = _data_directories(config, data_dir, files, distributed.nodes or 1)
    return _Local(
        config, directories, [distributed.node_id], distributed.nodes or ASSUMED_CLUSTER_SIZE
    )


def _metadata_syncs(
    config: BrokerConfig, data_dir: str | Sequence[str] | None, files: Files | None
) -> InThread | None:
    """Return the function that runs syncs of the metadata journal, or None to run them at once.

    Syncs run at once if the data is in memory, or if the caller passes `files`, whose speed is then
    up to the caller. Otherwise a sync may take seconds, until all earlier writes are on the disk.
    With `flush.policy=fsync`, records are synced as they arrive, so a sync of the journal is short.
    """
    if data_dir is None or files is not None:
        return None
    return DiskWork().run if config.flush_policy == "fsync" else run_in_thread


def _data_directories(
    config: BrokerConfig,
    data_dir: str | Sequence[str] | None,
    files: Files | None,
    nodes: int | None,
) -> DataDirectories:
    if data_dir is None:
        file_system = files or MemFiles(limit=config.memory_limit_bytes)
        return find_data_directories(file_system, [MEMORY_DIRECTORY], nodes, first=config.node_id)
    file_system, paths = files or OsFiles(at_once=at_once), absolute_paths(data_dir)
    finish(file_system, paths)
    return find_data_directories(file_system, paths, nodes, first=config.node_id)


async def _open_all(
    local: Sequence[LocalNode],
    directories: DataDirectories,
    cluster_id: str | None,
    distributed: DistributedNodeOptions | None,
    in_thread: InThread | None,
    service: Service | None,
) -> MetadataStore:
    """Bind the ports, open the directories of all nodes, and open the metadata store if needed.

    A failed start leaves no changes: first the existing data is checked, then ports are bound, and
    only then is anything written. No client can connect before all of this has succeeded.
    """
    own: MetadataStore | None = None
    store: MetadataStore
    try:
        _check_ports(local)
        found = {node.id: node.find_directories() for node in local}
        if distributed is None:
            every = (each for some in found.values() for each in some)
            store = own = directories.open_store(every, in_thread=in_thread)
        else:
            store = distributed.store
            if distributed.nodes is None:
                directories.check_has_no_store()
        for node in local:
            await node.check(store, found[node.id])
        for node in local:
            await node.bind()
        if service is not None:
            await service.bind(local)
        for node in local:
            await node.check_addresses(store)
        paths = [path for node in local for path in directories.of_node(node.id)]
        cluster_id = known_cluster(directories.files, paths) or cluster_id or random_cluster_id()
        if distributed is None:  # an incomplete import has written the ID to the store only
            await check_cluster_id(store, cluster_id)
        else:  # the store may already have the ID of another process
            cluster_id = await create_or_load_cluster(store, cluster_id)
        for node in local:
            node.open_logs(cluster_id)
        for node in local:
            await node.create_node(store)
        for node in local:
            node.listen()
        return store
    except BaseException:
        try:
            await _close(local, service)
        finally:
            if own is not None:
                with trio.CancelScope(shield=True):
                    await own.aclose()
        raise


def _check_ports(local: Sequence[LocalNode]) -> None:
    """Check that no two nodes have the same address.

    Raises:
        CannotListen: Two nodes have the same address.
    """
    for one, other in combinations(local, 2):
        for mine, theirs in product(one.listeners, other.listeners):
            if mine.overlaps(theirs):
                raise CannotListen(
                    f"nodes {one.id} and {other.id} would both listen on port {mine.port}: each "
                    f"node uses the next port, so set listeners at least {len(local)} ports apart"
                )


async def _run_for_each(
    local: Sequence[LocalNode], action: Callable[[LocalNode], Awaitable[None]]
) -> None:
    """Run an action for all nodes concurrently."""
    if len(local) == 1:  # raises errors without an exception group
        await action(local[0])
        return
    async with trio.open_nursery() as nursery:
        for each in local:
            nursery.start_soon(action, each)
