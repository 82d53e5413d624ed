"""A node that shares its process with others: it stops, crashes and starts again by itself."""

from __future__ import annotations

import logging
import math
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
from kbroker.cluster.peers import PeerTransport, listener_of_nodes
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
    """What became of a node."""

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
    """

    store: MetadataStore
    node_id: int
    nodes: int | None = None
    others_joined: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint


@dataclass(frozen=True, slots=True)
class Shared:
    """What the nodes of one process have in common.

    `grace_seconds` bounds a stop; `nodes` is how many share the process's descriptors; `distributed` is there
    when the cluster has nodes in other processes; `changes` hears of what happens in any of those here.
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
    def others_are_anywhere(self) -> bool:
        """Whether nothing is known here of the cluster's other nodes."""
        return self.distributed is not None and self.distributed.nodes is None

    @property
    def names_nodes(self) -> bool:
        """Whether lines of the log say whose they are: several nodes write it."""
        shared = self.distributed is not None and self.distributed.nodes is not None
        return shared or self.nodes > 1


class LocalNode:
    """One node, over as many runs as it has.

    `node` and `server` are those of its newest run. Its id, its ports and its directories stay.

    Resource handling: the first run is taken apart, so that all nodes of a process have their ports
    and directories before the first one does anything, and all are there before leaders are elected:
    `look`, `check`, `bind`, `open_logs`, `make`, `listen`, `join`, `begin`. Nothing is written before
    `open_logs`, and nobody can connect before `listen`. `start` does the same for the next one; `stop`
    and `crash` end a run. `close` lets go of everything.
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
        self.ends_with_others = shared.distributed is None
        """When it is closed the whole cluster stops, and nobody takes over."""
        self.listeners = list(listeners)
        """With the ports that the system chose, as soon as it did."""
        self._config = config
        self._shared = shared
        self._nursery: trio.Nursery | None = None
        self._store: MetadataStore | None = None
        self._bound: Bound = []
        self._logs: LogDirectories | None = None
        self._cluster: Cluster | None = None
        self._work = trio.CancelScope()
        self._ended = trio.Event()
        self._turn = trio.Lock()
        """Held by whoever starts or ends a run."""

    @property
    def is_running(self) -> bool:
        return self.state is NodeState.RUNNING

    @property
    def data_dirs(self) -> list[str]:
        """Where its logs are; empty in memory."""
        return [] if self._shared.in_memory else self._shared.directories.of_node(self.id)

    def endpoints(self) -> dict[str, Endpoint]:
        """By the name of each listener, where clients connect; kept while it is down."""
        return {
            each.name: each.advertised or Endpoint(each.host, each.port) for each in self.listeners
        }

    @property
    def endpoint(self) -> Endpoint:
        """Where a client on this machine connects."""
        return _here(self.listeners[0])

    def connect_in_process(self, endpoint: Endpoint) -> trio.SocketStream | None:
        """Return an in-process connection, see `Server.connect_in_process`; None if this node is not the one
        that clients reach at that address, or is down. Raises OSError."""
        if not self.is_running:
            return None
        is_here = endpoint == self.endpoint or endpoint in self.server.advertised().values()
        return self.server.connect_in_process(self.endpoint) if is_here else None

    def connect_in_process_for(
        self, client: Client, endpoint: Endpoint, name: str
    ) -> trio.SocketStream:
        """Connect from inside this process on behalf of an authenticated client.

        Args:
            client: Client whose ACLs and quotas apply, with its own address.
            endpoint: Address that the connection counts as having dialled.
            name: Listener by which it counts as having come in.

        Raises:
            OSError: The node is down.
        """
        if not self.is_running:
            raise ConnectionRefusedError(f"node {self.id} does not run now")
        return self.server.connect_in_process(endpoint, name, client)

    @property
    def endpoint_of_nodes(self) -> Endpoint:
        """Where another node on this machine connects."""
        return _here(self._listener_of_nodes)

    def is_at(self, endpoint: Endpoint) -> bool:
        """Whether that is an address of this node."""
        told = self.endpoints().values()
        return endpoint in told or endpoint in map(_here, self.listeners)

    def connect_in_process_inter_broker(self) -> trio.SocketStream:
        """Return an in-process connection to the inter-broker listener. Raises OSError."""
        if not self.is_running:
            raise ConnectionRefusedError(f"node {self.id} does not run now")
        return self.server.connect_in_process(self.endpoint_of_nodes, self._listener_of_nodes.name)

    @property
    def _marked(self) -> AbstractContextManager[None]:
        """Where lines of the log say that they are of this node."""
        return logged_as(self.id if self._shared.names_nodes else None)

    # -- a run

    def look(self) -> list[FoundDirectory]:
        """What is in the directories that are not new. Raises StorageError: this node cannot use them."""
        return self._shared.directories.inspect(self.id)

    async def check(self, store: MetadataStore, found: Sequence[FoundDirectory]) -> None:
        """Refuse directories that do not go with the metadata. Raises StorageError or ValueError."""
        if found:
            await check_cluster_id(store, found[0].meta.cluster_id)
        known = await known_node(store, self.id)
        directories = [each.meta.directory_id for each in found]
        if self._shared.others_are_anywhere and known.directories.keys().isdisjoint(directories):
            # On its directories no other process can run: they are locked.
            await wait_for_node_id(store, self.id, seconds=self._seconds_to_be_missed)
        await self._check_no_identity_missing(store, directories, known)
        _check_none_missing(directories, known, self._config)

    async def _check_no_identity_missing(
        self, store: MetadataStore, there: Sequence[str], known: KnownNode
    ) -> None:
        """Refuse a directory that was in use and lost its `meta.properties`. Raises StorageError."""
        for directory_id, path in known.directories.items():
            if directory_id in there or directory_id in self._config.discarded_log_dir_ids:
                continue
            if path in self.data_dirs and self._shared.directories.is_in_use(path):
                meta = MetaProperties(
                    await create_or_load_cluster(store, None), self.id, directory_id
                )
                raise StorageError(
                    f"{path}/{META_PROPERTIES} is missing, and the directory has data of this node; "
                    f"restore the file from a copy, or write it with these lines: {meta.lines()}"
                )

    @property
    def _seconds_to_be_missed(self) -> float:
        """How long another process that crashed may seem to run."""
        return 2 * self._config.broker_session_timeout_ms / 1000

    async def bind(self) -> None:
        """Take the ports; those that the system chooses are kept for later runs.

        Raises CannotListen.
        """
        self._bound = await bind_all(self.listeners)
        addresses: dict[str, Endpoint] = {}
        for listener, each in self._bound:
            addresses.setdefault(listener.name, Endpoint(*each.getsockname()[:2]))
        self.listeners = [replace(each, port=addresses[each.name].port) for each in self.listeners]

    async def check_addresses(self, store: MetadataStore) -> None:
        """Refuse addresses that do not lead other nodes here. Raises StorageError."""
        if self._shared.others_are_anywhere:
            await check_addresses(store, self.id, self.endpoints())

    def open_logs(self, cluster_id: str | None) -> LogDirectories:
        """Take the directories; `cluster_id` is that of new ones. Raises StorageError."""
        shared = self._shared
        with self._marked:
            self._logs = shared.directories.open_logs(self.id, cluster_id, shared.nodes)
        return self._logs

    def listen(self) -> None:
        """Let clients connect. Raises CannotListen."""
        listen_all(self._bound, self._config.listen_backlog)

    async def begin(self, nursery: trio.Nursery) -> None:
        """Take part in the cluster, in a nursery; returns when this node serves.

        Raises StorageError.
        """
        self._nursery = nursery
        with self._marked:
            await self.node.lead()
            # The tasks of a run do not end with the caller: a cancelled caller must still get to `stop`.
            with trio.CancelScope(shield=True):
                await nursery.start(self._run)
        self.state = NodeState.RUNNING

    async def join(self) -> None:
        """Let the others know of the node. Raises StorageError."""
        with self._marked:
            await self.node.join(self.server.advertised())

    async def make(self, store: MetadataStore) -> None:
        """Make the node from what was opened. Raises StorageError or ValueError."""
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
            self.node, shared.apis, self._bound, shared.intercept, nodes=shared.nodes
        )
        told = self.server.advertised()
        for each in self.listeners:
            shared.links.register(self.id, told[each.name], _here(each))

    async def dial_other(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Reach another node: with TLS where nodes listen so to each other. Raises OSError."""
        stream = await self._shared.links.dial(self.id, endpoint)
        security = self._security_between_nodes
        if security is None or security.certificates is None:
            return stream
        try:
            tls = security.certificates.peer_client_context()
        except BadSettings as error:
            await trio.aclose_forcefully(stream)
            raise OSError(str(error)) from None
        return await encrypted(stream, endpoint, tls)

    async def log_in(self, connection: Connection) -> None:
        """Show another node who this one is, where nodes ask each other. Raises OSError."""
        security = self._security_between_nodes
        if security is None or security.users is None:
            return
        from kbroker.client.security import BadSecurity, log_in  # most nodes never need it

        try:
            credentials = security.credentials()
        except BadSecurity as error:
            raise OSError(str(error)) from None
        assert credentials is not None  # it is a listener with logins
        await log_in(connection, credentials)

    @property
    def _security_between_nodes(self) -> ListenerSecurity | None:
        """That of `_listener_of_nodes`."""
        return self._listener_of_nodes.security

    @property
    def _listener_of_nodes(self) -> Listener:
        """By which nodes reach each other."""
        by_name = {each.name: each for each in self.listeners}
        return by_name[listener_of_nodes(self._config, by_name)]

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        # Shielded: when the caller is cancelled, clients still get their answers in `stop`.
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
        """Begin another run, on the ports and the directories of the one before.

        Raises CannotListen, StorageError or ValueError.
        """
        async with self._turn:
            if self.is_running:
                return
            assert self._store is not None
            assert self._nursery is not None
            await self._start(self._store, self._nursery, None)

    async def start_first(
        self, store: MetadataStore, nursery: trio.Nursery, *, cluster_id: str
    ) -> None:
        """Begin the first run of a node that comes to a cluster which is there already.

        Raises as `start`.
        """
        async with self._turn:
            await self._start(store, nursery, cluster_id)

    async def _start(
        self, store: MetadataStore, nursery: trio.Nursery, cluster_id: str | None
    ) -> None:
        self.state = NodeState.STARTING
        try:
            await self.check(store, self.look())
            await self.bind()
            self.open_logs(cluster_id)
            await self.make(store)
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
        """Others take over, parked waits answered, everything synced, clean marker written.

        `grace_seconds` bounds each of the first two, None is as for all nodes.
        """
        grace = self._shared.grace_seconds if grace_seconds is None else grace_seconds
        async with self._turn:
            if self.is_running:
                self.state = NodeState.STOPPED
                with self._marked, trio.CancelScope(shield=True):
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
        """End as a process that is killed does: connections are reset, nothing more is written.

        The files hold what they hold, and no marker says that they are complete. Other nodes hear
        of it when they miss this one.
        """
        async with self._turn:
            if self.is_running:
                self.state = NodeState.CRASHED
                with trio.CancelScope(shield=True):
                    close_all(self._bound)  # at the same moment, as the system does
                    self.server.reset_connections()
                    await self.node.cluster.aclose()  # it hears of nothing more
                    await self._end_endless_lease()
                    await self._end()
                    await self.node.peers.aclose()
                    await self.node.share.persister.aclose()
                    self.node.partitions.logs.close(clean=False)
                logger.warning("node %d crashed, as it was asked to", self.id)

    async def _end_endless_lease(self) -> None:
        """Let the others miss a node that was alone when it started, and so has no time-out."""
        lease = self.node.membership.lease
        if lease.ttl_seconds == math.inf:
            await lease.revoke()

    def forget(self) -> None:
        """Remove what a node that is gone for good has stored. Raises StorageError."""
        kept = self._shared.directories.forget(self.id)
        if kept:
            logger.warning(
                "node %d was removed, but %s holds records of partitions that the cluster does not "
                "know; remove the directory if they are not needed",
                self.id,
                " and ".join(kept),
            )

    async def _end(self, gracefully: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the tasks of a run."""
        try:
            if gracefully is not None:
                await gracefully()
        finally:
            close_all(self._bound)  # also when the server did not come to that
            self.server.close_connections()
            self._work.cancel()
            await self._ended.wait()
            self._logs = self._cluster = None

    async def close(self) -> None:
        """Stop for good, whatever there is to be stopped."""
        if self.is_running and self.ends_with_others:
            # Before the first node is gone: all are to be in sync as they are when they come back.
            self.node.controller.retire()
            self.node.membership.disable_handover()
        await self.stop()
        async with self._turn:
            await self._release()

    async def _release(self) -> None:
        """Let go of what was opened for a run that did not come about."""
        close_all(self._bound)
        if self._cluster is not None:
            await self._cluster.aclose()
        if self._logs is not None:
            self._logs.close(clean=self._logs.clean)
        self._logs = self._cluster = None


def _here(listener: Listener) -> Endpoint:
    """Where this machine reaches a listener."""
    return Endpoint(listener.host, listener.port).as_seen_locally


class NodeMaker:
    """Makes the nodes of one process from what its operator said about the first one.

    Parameters: `listeners` are those of the first node; `listeners_of` are those of nodes, by id,
    that have them already.
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

    def check_room(self) -> None:
        """Raise StorageError when there can be no more nodes."""
        directories = self._shared.directories
        if directories.alone is not None and not self._shared.in_memory:
            raise StorageError(
                f"{' and '.join(directories.paths)}: the node here has its data directory for itself; stop "
                f"it, and use `kbroker cluster resize --nodes 2 {' '.join(directories.paths)}`"
            )

    def make(self, node_id: int, nodes: int, *, rack: str | None = None) -> LocalNode:
        """A node that is down.

        Parameters: `nodes` is how many the cluster has with it; `rack` None is that of all. Raises
        CannotListen: it would have a port that does not exist.
        """
        config = self._config
        listeners = self._listeners_of.get(node_id)
        if listeners is None:
            distance = node_id - config.node_id
            listeners = [_behind(each, distance) for each in self._listeners]
        if nodes > 1 or node_id != config.node_id or rack is not None:
            config = config.for_node(node_id, nodes, rack=rack)
        own = [_with_own_security(each, config) for each in listeners]
        return LocalNode(config, own, self._shared)


def _with_own_security(listener: Listener, config: BrokerConfig) -> Listener:
    """Return the same listener with the security settings of its node. Raises ConfigError."""
    return (
        listener
        if listener.security is None
        else replace(listener, security=listener.security.of_node(config))
    )


def _behind(listener: Listener, distance: int) -> Listener:
    """The listener of the node that is so many behind the one that has `listener`.

    Raises CannotListen.
    """
    told = listener.advertised
    if told is not None:
        told = told._replace(port=_port_behind(told.port, distance))
    return replace(listener, port=_port_behind(listener.port, distance), advertised=told)


def _port_behind(port: int, distance: int) -> int:
    if not port:
        return port  # a free one for each
    if not 0 < port + distance <= PORT_MAX:
        raise CannotListen(
            f"there is no port {port + distance}; begin with a lower one than {port}"
        )
    return port + distance


def _check_none_missing(there: Sequence[str], known: KnownNode, config: BrokerConfig) -> None:
    """Refuse to start when partitions would silently begin empty. Raises StorageError."""
    for directory_id, path in known.directories.items():
        if directory_id not in there and directory_id not in config.discarded_log_dir_ids:
            raise StorageError(
                f"the data directory {path} (id {directory_id}) is missing; its partitions would "
                "begin empty. Add it to log.dirs again, or give up what was in it with "
                f"-o log.dirs.discarded.ids={directory_id}"
            )
