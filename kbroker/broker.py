"""The handle that a program embeds: one cluster and its local nodes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from kbroker.cluster import Cluster, LocalStore
from kbroker.cluster.model import random_cluster_id
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files, MemFiles, OsFiles
from kbroker.storage.folders import LogFolders
from kbroker.storage.manager import LogManager
from kbroker.storage.naming import META_PROPERTIES

from .clock import Clock, SystemClock
from .config import BrokerConfig
from .connection import Connection
from .descriptors import shares
from .endpoint import Endpoint
from .flusher import Flusher
from .node import Node
from .registry import load_apis
from .server import ConnectionClass, Listener, Server, bind_all, close_all
from .topics import DEFAULT, NewTopic, create_topic

METADATA_JOURNAL = "cluster.journal"
MEMORY_FOLDER = "memory"
ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean "every interface" cannot be dialled everywhere."""


@dataclass(slots=True)
class Broker:
    """A running broker. Get one from `open_broker`."""

    node: Node
    server: Server

    @property
    def endpoint(self) -> Endpoint:
        """Where a client on this machine connects."""
        endpoint = self.server.endpoint()
        return endpoint._replace(host=ON_THIS_MACHINE.get(endpoint.host, endpoint.host))

    async def create_topic(
        self, name: str, partitions: int = DEFAULT, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises KafkaError."""
        node = self.node
        new = NewTopic(name, partitions, configs=dict(configs or {}))
        await create_topic(node.cluster, node.config, new, cause="declared by the program")

    @property
    def bootstrap_servers(self) -> str:
        return str(self.endpoint)


@asynccontextmanager
async def open_broker(
    config: BrokerConfig,
    *,
    data_dir: str | Sequence[str] | None,
    listeners: list[Listener],
    files: Files | None = None,
    clock: Clock | None = None,
    grace_seconds: float = 5,
    cluster_id: str | None = None,
    connection_class: ConnectionClass = Connection,
) -> AsyncIterator[Broker]:
    """Start a broker, yield it ready, stop it gracefully at the end.

    Parameters: `data_dir` is the data folder, or several over which partitions are spread (one
    of them has the metadata too); None keeps everything in memory; `files` is where
    that folder is, to be handed in when it must outlive a broker in memory; `grace_seconds` bounds
    the stop; `cluster_id` is the id of a cluster that does not exist yet, by default a random one;
    `connection_class` serves each client. Several brokers can run in one process.

    Error handling: raises CannotListen or StorageError when it cannot start.
    """
    # First of all: a port that is taken must not leave a data folder behind.
    bound = await bind_all(listeners, config.listen_backlog)
    try:
        store, node = await _open_node(
            config, _folders(data_dir), files, clock or SystemClock(), cluster_id
        )
        server = Server(node, load_apis(), bound, connection_class)
    except BaseException:
        close_all(bound)
        raise
    # Shielded: when the caller is cancelled, clients still get their answers in `_stop`.
    work = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        try:
            services: trio.Nursery = await nursery.start(_services, work)
            services.start_soon(store.run)
            await node.start()
            services.start_soon(node.run)
            services.start_soon(server.run)
            yield Broker(node, server)
        finally:
            try:
                with trio.CancelScope(shield=True):
                    await _stop(node, server, grace_seconds)
                    await store.aclose()
            finally:
                close_all(bound)  # also when the server did not come to that
                work.cancel()


def _folders(data_dir: str | Sequence[str] | None) -> Sequence[str]:
    if data_dir is None:
        return ()
    given = (data_dir,) if isinstance(data_dir, str) else data_dir
    # In full: clients are told these paths, and name them when they move replicas.
    return list(dict.fromkeys(Path(each).absolute().as_posix() for each in given))


async def _services(work: trio.CancelScope, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Give a nursery whose tasks run until `work` is cancelled."""
    with work:
        async with trio.open_nursery() as services:
            task_status.started(services)
            await trio.sleep_forever()


async def _open_node(
    config: BrokerConfig,
    data_dirs: Sequence[str],
    files: Files | None,
    clock: Clock,
    cluster_id: str | None,
) -> tuple[LocalStore, Node]:
    if files is None:
        files = OsFiles() if data_dirs else MemFiles(limit=config.memory_limit_bytes)
    paths = data_dirs or [MEMORY_FOLDER]
    logs = _open_folders(files, paths, config.node_id, cluster_id or random_cluster_id())
    try:
        store = _open_store(files, paths, logs)
        cluster = await Cluster.open(store, cluster_id=logs.meta.cluster_id)
        _check_none_missing(logs, cluster, config)
        flusher = Flusher(
            config.flush_policy if data_dirs else "os",
            logs.sync,
            interval_ms=config.flush_interval_ms,
        )
        return store, Node(cluster, logs, flusher, config, clock, in_memory=not data_dirs)
    except BaseException:
        logs.close(clean=logs.clean)
        raise


def _open_store(files: Files, paths: Sequence[str], logs: LogFolders) -> LocalStore:
    """Open the journal of the folder that has one, whatever their order; else in the first one.

    Raises StorageError: it is damaged, there are two, or there is none but partitions. Those would
    belong to no topic then, and a node removes what belongs to none.
    """
    journals = [f"{path}/{METADATA_JOURNAL}" for path in paths]
    there = [path for path in journals if files.exists(path) and files.size(path)]
    if len(there) > 1:
        raise StorageError(
            f"metadata is in {' and in '.join(there)}; move all but one of them away"
        )
    if not there and logs.folders():
        raise StorageError(
            f"{' and '.join(paths)}: there are {len(logs.folders())} partitions, but no "
            f"{METADATA_JOURNAL} that knows their topics; add the folder that has it to log.dirs, "
            "or restore it from a copy"
        )
    return LocalStore(files, there[0] if there else journals[0])


def _check_none_missing(logs: LogFolders, cluster: Cluster, config: BrokerConfig) -> None:
    """Refuse to start when partitions would silently begin empty. Raises StorageError."""
    there = [manager.meta.directory_id for manager in logs.managers]
    for directory_id, path in cluster.directories.get(config.node_id, {}).items():
        if directory_id not in there and directory_id not in config.lost_log_dirs:
            raise StorageError(
                f"the data folder {path} (id {directory_id}) is missing; its partitions would "
                "begin empty. Add it to log.dirs again, or give up what was in it with "
                f"-o log.dirs.lost={directory_id}"
            )


def _open_folders(files: Files, paths: Sequence[str], node_id: int, cluster_id: str) -> LogFolders:
    """Open data folders; new ones become part of the cluster that the others belong to."""
    metas = [f"{path}/{META_PROPERTIES}" for path in paths]
    known = next((meta for meta in metas if files.exists(meta)), None)
    if known is not None:
        cluster_id = MetaProperties.from_bytes(files.read_bytes(known), known).cluster_id
    managers: list[LogManager] = []
    try:
        for path in paths:
            fresh = MetaProperties(
                node_id=node_id,
                cluster_id=cluster_id,
                directory_id=random_cluster_id(),
            )
            manager = LogManager(
                files,
                path,
                fresh,
                guard=threading.Lock(),  # checkpoint jobs run in a worker thread
                open_files_max=shares().logs // len(paths) if files.durable else None,
            )
            managers.append(manager)
        return LogFolders(files, managers)
    except BaseException:
        for manager in managers:
            manager.close(clean=False)
        raise


async def _stop(node: Node, server: Server, grace_seconds: float) -> None:
    """No new work, parked waits answered, everything synced, clean marker written."""
    server.stop_accepting()
    with trio.move_on_after(grace_seconds):
        await node.release_waits()
        await server.drain()
    server.close_connections()
    await node.close()
