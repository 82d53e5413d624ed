"""A node of this process, which can be stopped, crashed and started again."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

import trio

from kbroker.client.connection import Connection, encrypted
from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.cluster import Cluster, MetadataStore
from kbroker.cluster.cluster import check_cluster_id, create_or_load_cluster, known_node
from kbroker.cluster.links import Links
from kbroker.cluster.node_checks import check_addresses, wait_for_node_id
from kbroker.cluster.peers import PeerTransport, find_inter_broker_listener_name
from kbroker.cluster.registrations import KnownNode
from kbroker.config import BrokerConfig
from kbroker.data_dirs.data_directories import DataDirectories
from kbroker.data_dirs.found_directories import FoundDirectory
from kbroker.handlers.context import Api
from kbroker.net.connection import Intercept
from kbroker.net.server import (
    Bound,
    CannotListen,
    Listener,
    Server,
    bind_all,
    close_all,
    listen_all,
)
from kbroker.node.listener_security import ListenerSecurity
from kbroker.node.node import Node
from kbroker.partitions.flusher import Flusher
from kbroker.runtime.changes import Changes
from kbroker.runtime.clock import Clock
from kbroker.runtime.log_output import logged_as
from kbroker.security.acls import Client
from kbroker.security.errors import BadSettings
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.directories import LogDirectories
from kbroker.storage.errors import StorageError
from kbroker.storage.naming import META_PROPERTIES

logger = logging.getLogger(__name__)


class NodeState(Enum):
    """State of a node."""

    STARTING = "starting"
    STOPPED = "stopped"
    RUNNING = "running"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class DistributedNodeOptions:
    """Options of a node whose cluster has nodes in other processes.

    Attributes:
        store: Metadata store. The code that opened it also runs it.
        node_id: ID of the node that runs in this process.
        nodes: Number of nodes if processes of this machine share the data directory, otherwise None.
        others_joined: Waits until all nodes that share the data directory have joined the cluster.
        bootstrap: Listening sockets by listener name that all nodes accept on. If there are any,
            the first node uses the port after that of the listener.
    """

    store: MetadataStore
    node_id: int
    nodes: int | None = None
    others_joined: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    bootstrap: Mapping[str, Sequence[socket.socket]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects and options that the nodes of one process share.

    Attributes:
        directories: Data directories.
        in_memory: True if the data is in memory.
        clock: Clock.
        apis: Supported APIs by key.
        intercept: Creates the interceptor of each connection's requests.
        grace_seconds: Maximum seconds of each phase of a graceful stop.
        nodes: Number of nodes that share the file descriptors of the process.
        distributed: Options of a node whose cluster has nodes in other processes.
        links: Network links between the nodes.
        changes: Notified of changes in any node of this process.
    """

    directories: DataDirectories
    in_memory: bool
    clock: Clock
    apis: Mapping[int, Api]
    intercept: Intercept | None
    grace_seconds: float
    nodes: int
    distributed: DistributedNodeOptions | None = None
    links: Links = field(default_factory=Links)
    changes: Changes = field(default_factory=Changes)

    @property
    def bootstrap(self) -> Mapping[str, Sequence[socket.socket]]:
        """Listening sockets by listener name that nodes of other processes accept on as well."""
        return {} if self.distributed is None else self.distributed.bootstrap

    @property
    def has_unknown_nodes(self) -> bool:
        """True if this process does not know the other nodes of the cluster."""
        return self.distributed is not None and self.distributed.nodes is None

    @property
    def logs_node_ids(self) -> bool:
        """True if log lines have a node ID, because several nodes write the log."""
        shared = self.distributed is not None and self.distributed.nodes is not None
        return shared or self.nodes > 1


class LocalNode:
    """One node, over several runs.

    The ID, ports and directories are the same in all runs. The first run is started in phases, so
    that all nodes of a process have bound their ports and opened their directories before the first
    one writes anything: `find_directories`, `check`, `bind`, `open_logs`, `create_node`, `listen`,
    `join`, `begin`. Nothing is written before `open_logs`, and no client can connect before
    `listen`. `start` runs all phases of a later run; `stop` and `crash` end a run. `close` releases
    all resources.

    Attributes:
        node: The node of the latest run.
        server: The server of the latest run.
        state: State of the node.
        stops_with_cluster: True if `close` stops the whole cluster, so that no other node takes
            over.
        listeners: Listeners, with the ports that the system has chosen.
    """

    node: Node
    server: Server

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Sequence[Listener],
        shared: Shared,
    ) -> None:
        self.id = config.node_id
        self.state = NodeState.STARTING
        self.stops_with_cluster = shared.distributed is None
        self.listeners = list(listeners)
        self._config = config
        self._shared = shared
        self._nursery: trio.Nursery | None = None
        self._store: MetadataStore | None = None
        self._bound: Bound = []
        self._logs: LogDirectories | None = None
        self._cluster: Cluster | None = None
        self._work = trio.CancelScope()
        self._ended = trio.Event()
        # Held while a run is started or stopped.
        self._run_lock = trio.Lock()

    @property
    def is_running(self) -> bool:
        return self.state is NodeState.RUNNING

    @property
    def data_dirs(self) -> list[str]:
        """Data directories; empty if the data is in memory."""
        return [] if self._shared.in_memory else self._shared.directories.of_node(self.id)

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the advertised address of each listener by name, also if the node is down."""
        return {
            each.name: each.advertised or Endpoint(each.host, each.port) for each in self.listeners
        }

    @property
    def endpoint(self) -> Endpoint:
        """Address of the first listener for clients on this machine."""
        return _local_endpoint(self.listeners[0])

    def connect_in_process(self, endpoint: Endpoint) -> trio.SocketStream | None:
        """Open an in-process connection if this node runs and has the address, else return None.

        Raises:
            OSError: The connection cannot be opened.
        """
        if not self.is_running:
            return None
        is_here = endpoint == self.endpoint or endpoint in self.server.advertised().values()
        return self.server.connect_in_process(self.endpoint) if is_here else None

    def connect_in_process_for(
        self, client: Client, endpoint: Endpoint, name: str
    ) -> trio.SocketStream:
        """Open an in-process connection on behalf of an authenticated client.

        Args:
            client: Client whose ACLs and quotas apply, with its own address.
            endpoint: Address that the connection is treated as connected to.
            name: Name of the listener that the connection is treated as connected to.

        Raises:
            OSError: The node is down.
        """
        if not self.is_running:
            raise ConnectionRefusedError(f"node {self.id} is down; start it")
        return self.server.connect_in_process(endpoint, name, client)

    @property
    def inter_broker_endpoint(self) -> Endpoint:
        """Address of the inter-broker listener for nodes on this machine."""
        return _local_endpoint(self._inter_broker_listener)

    def is_at(self, endpoint: Endpoint) -> bool:
        """Return True if this node has the address."""
        advertised = self.endpoints().values()
        return endpoint in advertised or endpoint in map(_local_endpoint, self.listeners)

    def connect_in_process_inter_broker(self) -> trio.SocketStream:
        """Open an in-process connection to the inter-broker listener.

        Raises:
            OSError: The node is down.
        """
        if not self.is_running:
            raise ConnectionRefusedError(f"node {self.id} is down; start it")
        return self.server.connect_in_process(
            self.inter_broker_endpoint, self._inter_broker_listener.name
        )

    @property
    def _logging_context(self) -> AbstractContextManager[None]:
        """Context in which log lines have the ID of this node."""
        return logged_as(self.id if self._shared.logs_node_ids else None)

    # -- a run

    def find_directories(self) -> list[FoundDirectory]:
        """Return the data directories that are not new.

        Raises:
            StorageError: This node cannot use a directory.
        """
        return self._shared.directories.inspect(self.id)

    async def check(self, store: MetadataStore, found: Sequence[FoundDirectory]) -> None:
        """Check that directories belong to the metadata.

        Args:
            store: Metadata store.
            found: Data directories that are not new.

        Raises:
            StorageError: A directory belongs to another cluster, or one is missing.
            ValueError: Another process runs the node.
        """
        if found:
            await check_cluster_id(store, found[0].meta.cluster_id)
        known = await known_node(store, self.id)
        directories = [each.meta.directory_id for each in found]
        if self._shared.has_unknown_nodes and known.directories.keys().isdisjoint(directories):
            # If the directories are known, their locks exclude another process with this ID.
            await wait_for_node_id(store, self.id, seconds=self._session_expiry_seconds)
        await self._check_no_identity_missing(store, directories, known)
        _check_none_missing(directories, known, self._config)

    async def _check_no_identity_missing(
        self, store: MetadataStore, present: Sequence[str], known: KnownNode
    ) -> None:
        """Check that no directory with data has lost its `meta.properties`.

        Raises:
            StorageError: A file is missing.
        """
        for directory_id, path in known.directories.items():
            if directory_id in present or directory_id in self._config.discarded_log_dir_ids:
                continue
            if path in self.data_dirs and self._shared.directories.is_in_use(path):
                meta = MetaProperties(
                    await create_or_load_cluster(store, None), self.id, directory_id
                )
                raise StorageError(
                    f"{path}/{META_PROPERTIES} is missing, but the directory has data of this node; "
                    f"restore the file from a backup, or create it with these lines: {meta.lines()}"
                )

    @property
    def _session_expiry_seconds(self) -> float:
        """Maximum seconds until the session of a crashed process expires."""
        return 2 * self._config.broker_session_timeout_ms / 1000

    async def bind(self) -> None:
        """Bind the ports. Later runs use the ports that the system has chosen.

        Raises:
            CannotListen: A port cannot be bound.
        """
        self._bound = await bind_all(self.listeners)
        addresses: dict[str, Endpoint] = {}
        for listener, each in self._bound:
            addresses.setdefault(listener.name, Endpoint(*each.getsockname()[:2]))
        self.listeners = [replace(each, port=addresses[each.name].port) for each in self.listeners]

    async def check_addresses(self, store: MetadataStore) -> None:
        """Check that other nodes can use the advertised addresses.

        Raises:
            StorageError: An address cannot be used.
        """
        if self._shared.has_unknown_nodes:
            await check_addresses(store, self.id, self.endpoints())

    def open_logs(self, cluster_id: str | None) -> LogDirectories:
        """Open the directories and their logs.

        Args:
            cluster_id: Cluster ID for new directories.

        Raises:
            StorageError: A directory cannot be used.
        """
        shared = self._shared
        with self._logging_context:
            self._logs = shared.directories.open_logs(self.id, cluster_id, shared.nodes)
        return self._logs

    def listen(self) -> None:
        """Accept connections.

        Raises:
            CannotListen: A port cannot be used.
        """
        listen_all(self._bound, self._config.listen_backlog)

    async def begin(self, nursery: trio.Nursery) -> None:
        """Start the tasks of the node in a nursery, and return when it serves clients.

        Raises:
            StorageError: A log cannot be used.
        """
        self._nursery = nursery
        with self._logging_context:
            await self.node.lead()
            # Shielded: a cancelled caller must still be able to call `stop`.
            with trio.CancelScope(shield=True):
                await nursery.start(self._run)
        self.state = NodeState.RUNNING

    async def join(self) -> None:
        """Register the node in the cluster.

        Raises:
            StorageError: The registration is rejected.
        """
        with self._logging_context:
            await self.node.join(self.server.advertised())

    async def create_node(self, store: MetadataStore) -> None:
        """Create the node and its server from the opened resources.

        Raises:
            StorageError: The metadata cannot be used.
            ValueError: The settings are invalid.
        """
        self._store = store
        logs, shared, config = self._logs, self._shared, self._config
        assert logs is not None
        cluster = await Cluster.open(store, cluster_id=logs.meta.cluster_id)
        self._cluster = cluster
        flusher = Flusher(
            "os" if shared.in_memory else config.flush_policy,
            logs.sync,
            interval_ms=config.flush_interval_ms,
            changes=shared.changes,
        )
        self.node = Node(
            cluster,
            logs,
            flusher,
            config,
            shared.clock,
            in_memory=shared.in_memory,
            transport=PeerTransport(self.dial_other, self.log_in),
            listener_security=[
                each.security for each in self.listeners if each.security is not None
            ],
        )
        self.server = Server(
            self.node,
            shared.apis,
            self._bound,
            shared.intercept,
            nodes=shared.nodes,
            bootstrap=[
                (each, shared_socket)
                for each in self.listeners
                for shared_socket in shared.bootstrap.get(each.name, ())
            ],
        )
        advertised = self.server.advertised()
        for each in self.listeners:
            shared.links.register(self.id, advertised[each.name], _local_endpoint(each))

    async def dial_other(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Connect to another node, with TLS if the inter-broker listener uses it.

        Raises:
            OSError: The node cannot be reached, or TLS fails.
        """
        stream = await self._shared.links.dial(self.id, endpoint)
        security = self._inter_broker_security
        if security is None or security.certificates is None:
            return stream
        try:
            tls = security.certificates.peer_client_context()
        except BadSettings as error:
            await trio.aclose_forcefully(stream)
            raise OSError(str(error)) from None
        return await encrypted(stream, endpoint, tls)

    async def log_in(self, connection: Connection) -> None:
        """Authenticate at another node, if the inter-broker listener requires it.

        Raises:
            OSError: The authentication fails.
        """
        security = self._inter_broker_security
        if security is None or security.users is None:
            return
        from kbroker.client.credentials import BadSecurity  # only needed with SASL
        from kbroker.client.security import log_in

        try:
            credentials = security.credentials()
        except BadSecurity as error:
            raise OSError(str(error)) from None
        assert credentials is not None  # the listener uses SASL
        await log_in(connection, credentials)

    @property
    def _inter_broker_security(self) -> ListenerSecurity | None:
        """Security of the inter-broker listener."""
        return self._inter_broker_listener.security

    @property
    def _inter_broker_listener(self) -> Listener:
        """Listener that nodes use to reach each other."""
        by_name = {each.name: each for each in self.listeners}
        return by_name[find_inter_broker_listener_name(self._config, by_name)]

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        # Shielded: if the caller is cancelled, `stop` still sends pending responses.
        self._work, self._ended = trio.CancelScope(shield=True), trio.Event()
        try:
            with self._work:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.node.run)
                    await nursery.start(self.server.run)
                    task_status.started()
        finally:
            self._ended.set()

    async def start(self) -> None:
        """Start another run with the ports and directories of the previous one.

        Raises:
            CannotListen: A port cannot be bound.
            StorageError: A directory or the metadata cannot be used.
            ValueError: The settings are invalid.
        """
        async with self._run_lock:
            if self.is_running:
                return
            assert self._store is not None
            assert self._nursery is not None
            await self._start(self._store, self._nursery, None)

    async def start_first(
        self, store: MetadataStore, nursery: trio.Nursery, *, cluster_id: str
    ) -> None:
        """Start the first run of a node that joins an existing cluster.

        Args:
            store: Metadata store.
            nursery: Nursery for the tasks of the node.
            cluster_id: Cluster ID.

        Raises:
            CannotListen: A port cannot be bound.
            StorageError: A directory or the metadata cannot be used.
            ValueError: The settings are invalid.
        """
        async with self._run_lock:
            await self._start(store, nursery, cluster_id)

    async def _start(
        self, store: MetadataStore, nursery: trio.Nursery, cluster_id: str | None
    ) -> None:
        self.state = NodeState.STARTING
        try:
            await self.check(store, self.find_directories())
            await self.bind()
            self.open_logs(cluster_id)
            await self.create_node(store)
            self.listen()
            await self.join()
            await self.begin(nursery)
        except BaseException:
            self.state = NodeState.STOPPED
            with trio.CancelScope(shield=True):
                await self._release()
            raise
        logger.info("node %d started", self.id)

    async def stop(self, *, grace_seconds: float | None = None) -> None:
        """Stop gracefully: hand over leaderships, answer pending requests, sync, mark as clean.

        Args:
            grace_seconds: Maximum seconds of each of the first two phases; None for the default.
        """
        grace = self._shared.grace_seconds if grace_seconds is None else grace_seconds
        async with self._run_lock:
            if self.is_running:
                self.state = NodeState.STOPPED
                with self._logging_context, trio.CancelScope(shield=True):
                    with trio.move_on_after(grace):
                        await self.node.membership.leave()
                    await self._end(partial(self._end_gracefully, grace))

    async def _end_gracefully(self, grace_seconds: float) -> None:
        self.server.stop_accepting()
        with trio.move_on_after(grace_seconds):
            await self.node.release_waits()
            await self.server.drain()
        self.server.close_connections()
        await self.node.close()

    async def crash(self) -> None:
        """End like a killed process: reset connections and write nothing more.

        Files are left as they are, without a clean-shutdown marker. Other nodes detect the crash
        when the session expires.
        """
        async with self._run_lock:
            if self.is_running:
                self.state = NodeState.CRASHED
                with trio.CancelScope(shield=True):
                    close_all(self._bound)  # together with connections, as the kernel does
                    self.server.reset_connections()
                    await self.node.cluster.aclose()  # stops metadata updates
                    await self._revoke_endless_lease()
                    await self._end()
                    await self.node.peers.aclose()
                    await self.node.share.persister.aclose()
                    self.node.partitions.logs.close(clean=False)
                logger.warning("node %d crashed on request", self.id)

    async def _revoke_endless_lease(self) -> None:
        """Revoke the lease of a node that was alone when it started, because it never expires."""
        lease = self.node.membership.lease
        if lease.ttl_seconds == math.inf:
            await lease.revoke()

    def forget(self) -> None:
        """Delete the data of a removed node.

        Raises:
            StorageError: A directory cannot be deleted.
        """
        kept = self._shared.directories.forget(self.id)
        if kept:
            logger.warning(
                "node %d was removed, but %s has records of partitions that the cluster does not "
                "have; delete the directory if you do not need them",
                self.id,
                " and ".join(kept),
            )

    async def _end(self, gracefully: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the tasks of a run."""
        try:
            if gracefully is not None:
                await gracefully()
        finally:
            close_all(self._bound)  # in case the server has not closed the sockets
            self.server.close_connections()
            self._work.cancel()
            await self._ended.wait()
            self._logs = self._cluster = None

    async def close(self) -> None:
        """Stop the node if it runs, and release all resources."""
        if self.is_running and self.stops_with_cluster:
            # Before the first node stops, so that the ISRs stay complete for the next start.
            self.node.controller.retire()
            self.node.membership.disable_handover()
        await self.stop()
        async with self._run_lock:
            await self._release()

    async def _release(self) -> None:
        """Release resources that were opened for a run that did not start."""
        close_all(self._bound)
        if self._cluster is not None:
            await self._cluster.aclose()
        if self._logs is not None:
            self._logs.close(clean=self._logs.clean)
        self._logs = self._cluster = None


def _local_endpoint(listener: Listener) -> Endpoint:
    """Return the address of a listener for connections from this machine."""
    return Endpoint(listener.host, listener.port).as_seen_locally


class NodeFactory:
    """Factory of the nodes of one process, from the settings of the first node.

    Args:
        config: Settings of the first node.
        listeners: Listeners of the first node.
        listeners_of: Listeners of nodes by node ID, from an earlier run.
        shared: Objects and options that all nodes share.
    """

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Sequence[Listener],
        listeners_of: Mapping[int, Sequence[Listener]],
        shared: Shared,
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._listeners_of = listeners_of
        self._shared = shared

    def check_can_add(self) -> None:
        """Check that a node can be added.

        Raises:
            StorageError: The data directory was created for one node.
        """
        directories = self._shared.directories
        if directories.single_node is not None and not self._shared.in_memory:
            raise StorageError(
                f"{' and '.join(directories.paths)}: the data directory was created for one node; "
                f"stop it and run `kbroker cluster resize --nodes 2 {' '.join(directories.paths)}`"
            )

    def create(self, node_id: int, nodes: int, *, rack: str | None = None) -> LocalNode:
        """Create a node that is not started.

        Args:
            node_id: Node ID.
            nodes: Number of nodes of the cluster, including this one.
            rack: Rack; None for `broker.rack`.

        Raises:
            CannotListen: The port of the node would be out of range.
        """
        config = self._config
        listeners = self._listeners_of.get(node_id)
        if listeners is None:
            distance = node_id - config.node_id + bool(self._shared.bootstrap)
            listeners = [shifted_listener(each, distance) for each in self._listeners]
        if nodes > 1 or node_id != config.node_id or rack is not None:
            config = config.for_node(node_id, nodes, rack=rack)
        own = [_with_own_security(each, config) for each in listeners]
        return LocalNode(config, own, self._shared)


def _with_own_security(listener: Listener, config: BrokerConfig) -> Listener:
    """Return the listener with the security settings of its node.

    Raises:
        ConfigError: The settings are invalid.
    """
    return (
        listener
        if listener.security is None
        else replace(listener, security=listener.security.of_node(config))
    )


def shifted_listener(listener: Listener, distance: int) -> Listener:
    """Return a listener with its ports increased by `distance`.

    Raises:
        CannotListen: A port is out of range.
    """
    advertised = listener.advertised
    if advertised is not None:
        advertised = advertised._replace(port=_shifted_port(advertised.port, distance))
    return replace(listener, port=_shifted_port(listener.port, distance), advertised=advertised)


def _shifted_port(port: int, distance: int) -> int:
    if not port:
        return port  # the system chooses a free port
    if not 0 < port + distance <= PORT_MAX:
        raise CannotListen(
            f"port {port + distance} is out of range; use a lower first port than {port}"
        )
    return port + distance


def _check_none_missing(present: Sequence[str], known: KnownNode, config: BrokerConfig) -> None:
    """Check that no data directory is missing, so that no partition silently starts empty.

    Raises:
        StorageError: A directory is missing.
    """
    for directory_id, path in known.directories.items():
        if directory_id not in present and directory_id not in config.discarded_log_dir_ids:
            raise StorageError(
                f"the data directory {path} (ID {directory_id}) is missing; its partitions would "
                "start empty. Add it to log.dirs again, or discard its data with "
                f"-o log.dirs.discarded.ids={directory_id}"
            )
