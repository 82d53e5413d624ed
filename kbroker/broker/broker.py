"""The handle that a program embeds: one cluster and its local nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations, cycle, product
from types import MappingProxyType

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.cluster import MetadataStore
from kbroker.cluster.cluster import create_or_load_cluster
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
from kbroker.runtime.disk_work import DiskWork
from kbroker.runtime.threads import InThread, at_once, run_in_thread
from kbroker.storage.files import Files, MemFiles, OsFiles

from .decommission import LOOK_SECONDS, decommission
from .local_node import DistributedNodeOptions, LocalNode, NodeMaker, Shared
from .service import Service

MEMORY_DIRECTORY = "memory"
NODES_APART = 3
"""How many nodes a cluster is taken to have, for defaults, where none of them can know."""


@dataclass(slots=True)
class Broker:
    """A running cluster: those of its nodes that live in this process. Get it from `open_broker`."""

    store: MetadataStore
    nodes: list[LocalNode]
    links: Links
    """Between the nodes."""
    _maker: NodeMaker
    _nursery: trio.Nursery
    _adding: trio.Lock = field(default_factory=trio.Lock)

    @property
    def node(self) -> Node:
        """The first node, also while it is down."""
        return self.nodes[0].node

    @property
    def server(self) -> Server:
        """That of the first node."""
        return self.nodes[0].server

    @property
    def endpoint(self) -> Endpoint:
        """Where a client on this machine connects to the first node."""
        return self.nodes[0].endpoint

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, also of those that are down, as clients take them."""
        return ",".join(str(each.endpoint) for each in self.nodes)

    def connections(self) -> int:
        """How many clients are connected; nobody is to a node that is down."""
        return sum(len(each.server.connections) for each in self.nodes)

    def local_node(self, node_id: int) -> LocalNode:
        """A node by its id. Raises ValueError, with the ids that there are."""
        for each in self.nodes:
            if each.id == node_id:
                return each
        known = ", ".join(str(each.id) for each in self.nodes)
        raise ValueError(f"there is no node {node_id} in this process; there are {known}")

    @property
    def running_nodes(self) -> list[Node]:
        """Those that are not down."""
        return [each.node for each in self.nodes if each.is_running]

    def running(self) -> Node:
        """The first node that runs. Raises RuntimeError when all are down."""
        for each in self.running_nodes:
            return each
        raise RuntimeError("all nodes are down; start one of them")

    async def dial_inside(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Connect to the node of this process that clients reach at an address, as nobody else can.

        Neither TLS nor a login is asked for, and no ACL: for what a program does with a broker of its
        own. Raises OSError.
        """
        for each in self.nodes:
            stream = each.connect_in_process(endpoint)
            if stream is not None:
                return stream
        raise ConnectionRefusedError(f"no node of this process is at {endpoint}")

    async def add_node(self, *, rack: str | None = None) -> LocalNode:
        """Start one more node: it has no partitions until some are moved to it.

        Parameters: `rack` is its place, None for that of all. Raises CannotListen, or StorageError:
        the node that is there has its data directory for itself.
        """
        self._maker.check_room()
        async with self._adding:
            known = {each.id for each in self.nodes} | set(self.running().cluster.node_ids)
            local = self._maker.make(max(known) + 1, len(known) + 1, rack=rack)
            await local.start_first(self.store, self._nursery, cluster_id=self.node.cluster.id)
            self.nodes.append(local)
        return local

    async def remove_node(self, node_id: int) -> None:
        """Move everything away from a node, stop it and forget it; its directory is removed.

        Waits until the other nodes have copied what it has. Raises ValueError: there is no such
        node, no other one that runs, or partitions of which only this one, which is down, has all
        records.
        """
        local = self.local_node(node_id)
        await decommission(self.running_beside(node_id), local)
        await local.stop()
        cluster = self.running_beside(node_id).cluster
        # It may have crashed, and nobody missed it yet.
        while node_id in cluster.nodes:  # noqa: ASYNC110  # a moment, not worth an event
            await trio.sleep(LOOK_SECONDS)
        await cluster.unregister(node_id, cause=f"node {node_id} was removed")
        self.nodes.remove(local)
        local.forget()

    def end_with_others(self) -> None:
        """All processes of the cluster stop: nodes hand nothing over, to be as they were when they
        come back."""
        for each in self.nodes:
            each.ends_with_others = True

    def running_beside(self, node_id: int) -> Node:
        """The first node that runs, but for one. Raises ValueError when there is none."""
        for each in self.nodes:
            if each.is_running and each.id != node_id:
                return each.node
        raise ValueError(f"no other node than {node_id} runs; start one of them")

    async def create_topic(
        self, name: str, partitions: int = DEFAULT, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises KafkaError."""
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
    """Start a broker, yield it ready, stop it gracefully at the end.

    Parameters: `data_dir` is the data directory, or several over which partitions are spread (one
    of them has the metadata too); None keeps everything in memory; `listeners` are those of the
    first node, the next nodes have the ports behind; `nodes` is how many there are, None for as
    many as the data directory has, or one; `racks` are their places in turn, none for `broker.rack` of
    all; `listeners_of` are those of nodes, by id, that have them already from an earlier run;
    `files` is where the data directory is, to be handed in when it must outlive a broker in memory;
    `grace_seconds` bounds the stop; `cluster_id` is the id of a cluster that does not exist yet, by
    default a random one; `distributed` says which node runs here of a cluster that has others in other
    processes; `intercept` makes the interceptor of each connection's requests; `service` is served beside them. Several brokers can run in one process.

    Error handling: raises CannotListen or StorageError when it cannot start.
    """
    here = _local_nodes(config, data_dir, files, nodes, distributed)
    shared = Shared(
        directories=here.directories,
        in_memory=data_dir is None,
        clock=clock or SystemClock(),
        apis=load_apis(),
        intercept=intercept,
        grace_seconds=grace_seconds,
        nodes=len(here.ids),
        distributed=distributed,
    )
    maker = NodeMaker(here.config, listeners, listeners_of, shared)
    places = cycle(racks or (None,))
    local = [maker.make(each, here.total, rack=next(places)) for each in here.ids]
    # Files that are handed in are as fast as whoever made them wants.
    in_thread = None if data_dir is None or files is not None else _metadata_syncs(here.config)
    store = await _open_all(local, here.directories, cluster_id, distributed, in_thread, service)
    at_work = running(store) if distributed is None else nullcontext()
    async with at_work, trio.open_nursery() as nursery:
        try:
            if service is not None:
                nursery.start_soon(service.run)
            await _each(local, lambda node: node.join())
            if distributed is not None:
                await distributed.others_joined()
            await _each(local, lambda node: node.begin(nursery))
            yield Broker(store, local, shared.links, maker, nursery)
        finally:
            await _close(local, service)


async def _close(nodes: Sequence[LocalNode], service: Service | None) -> None:
    """Stop nodes and what is served beside them, also if this is cancelled."""
    with trio.CancelScope(shield=True):
        await _each(nodes, lambda node: node.close())
        if service is not None:
            await service.close()


@dataclass(frozen=True, slots=True)
class _Local:
    """The nodes that run in this process.

    Attributes:
        config: Their settings.
        directories: Their data directories.
        ids: Their IDs.
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
    return _Local(config, directories, [distributed.node_id], distributed.nodes or NODES_APART)


def _metadata_syncs(config: BrokerConfig) -> InThread:
    """Where the journal of the metadata is synced.

    Its sync may have to wait for seconds until all that was written before is on the disk. Where
    records are synced as they come that is little.
    """
    return DiskWork().run if config.flush_policy == "fsync" else run_in_thread


def _data_directories(
    config: BrokerConfig,
    data_dir: str | Sequence[str] | None,
    files: Files | None,
    nodes: int | None,
) -> DataDirectories:
    if data_dir is None:
        there = files or MemFiles(limit=config.memory_limit_bytes)
        return find_data_directories(there, [MEMORY_DIRECTORY], nodes, first=config.node_id)
    there, paths = files or OsFiles(at_once=at_once), absolute_paths(data_dir)
    finish(there, paths)
    return find_data_directories(there, paths, nodes, first=config.node_id)


async def _open_all(
    local: Sequence[LocalNode],
    directories: DataDirectories,
    cluster_id: str | None,
    distributed: DistributedNodeOptions | None,
    in_thread: InThread | None,
    service: Service | None,
) -> MetadataStore:
    """Take the ports and the directories of all nodes, and open what they share, unless it is open.

    A start that is refused leaves no trace: what is there is looked at first, then the ports are
    taken, and only then something is written. Nobody can connect before all of that is good.
    """
    own: MetadataStore | None = None
    store: MetadataStore
    try:
        _check_ports(local)
        found = {node.id: node.look() for node in local}
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
        if distributed is not None:  # it may have an id already, and directories have to be of that
            cluster_id = await create_or_load_cluster(store, cluster_id)
        for node in local:
            node.open_logs(cluster_id)
        for node in local:
            await node.make(store)
        for node in local:
            node.listen()
        return store
    except BaseException:
        with trio.CancelScope(shield=True):
            await _each(local, lambda node: node.close())
            if service is not None:
                await service.close()
            if own is not None:
                await own.aclose()
        raise


def _check_ports(local: Sequence[LocalNode]) -> None:
    """Raise CannotListen when two nodes are to have the same address."""
    for one, other in combinations(local, 2):
        for mine, theirs in product(one.listeners, other.listeners):
            if mine.overlaps(theirs):
                raise CannotListen(
                    f"nodes {one.id} and {other.id} would both listen on port {mine.port}: the next "
                    f"nodes have the ports behind, so let listeners be {len(local)} ports apart"
                )


async def _each(local: Sequence[LocalNode], deed: Callable[[LocalNode], Awaitable[None]]) -> None:
    """Do something with all nodes at the same time."""
    if len(local) == 1:  # its errors come as they are
        await deed(local[0])
        return
    async with trio.open_nursery() as nursery:
        for each in local:
            nursery.start_soon(deed, each)
