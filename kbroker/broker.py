"""The handle that a program embeds: one cluster and its local nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from kbroker.cluster import Cluster, LocalStore
from kbroker.storage.files import Files, MemFiles, OsFiles
from kbroker.storage.manager import LogManager

from .clock import Clock, SystemClock
from .config import BrokerConfig
from .context import Endpoint
from .node import Node
from .registry import load_apis
from .server import Listener, Server

METADATA_JOURNAL = "cluster.journal"
MEMORY_FOLDER = "memory"


@dataclass(slots=True)
class Broker:
    """A running broker. Get one from `open_broker`."""

    node: Node
    server: Server

    @property
    def endpoint(self) -> Endpoint:
        """Where clients connect."""
        return self.server.endpoint()

    @property
    def bootstrap_servers(self) -> str:
        host, port = self.endpoint
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def open_broker(
    config: BrokerConfig,
    *,
    data_dir: str | None,
    listeners: list[Listener],
    clock: Clock | None = None,
    grace_seconds: float = 5,
) -> AsyncIterator[Broker]:
    """Start a broker, yield it ready, stop it gracefully at the end.

    Parameters: `data_dir` is the data folder, None keeps everything in memory; `grace_seconds`
    bounds the stop. Several brokers can run in one process.

    Error handling: raises DataFolderLocked, RecoveryError or PortInUse when it cannot start.
    """
    clock = clock or SystemClock()
    node = await _open_node(config, data_dir, clock)
    server = Server(node, load_apis(), listeners)
    try:
        await server.open()
    except BaseException:
        with trio.CancelScope(shield=True):
            await node.stop()
        raise
    async with trio.open_nursery() as nursery:
        try:
            await node.start()
            nursery.start_soon(node.run)
            nursery.start_soon(server.run)
            yield Broker(node, server)
        finally:
            with trio.move_on_after(grace_seconds) as scope:
                scope.shield = True
                await _stop(node, server)
            nursery.cancel_scope.cancel()


async def _open_node(config: BrokerConfig, data_dir: str | None, clock: Clock) -> Node:
    files: Files
    if data_dir is None:
        files = MemFiles(limit_bytes=config.integer("memory.limit.bytes"))
        data_dir = MEMORY_FOLDER
    else:
        files = OsFiles()
    node_id = config.integer("node.id")
    logs = LogManager.open(files, data_dir, node_id=node_id)
    store = LocalStore(files, f"{data_dir}/{METADATA_JOURNAL}")
    cluster = await Cluster.open(store, cluster_id=logs.cluster_id)
    logs.join_cluster(cluster.id)
    return Node(node_id, cluster, logs, config, clock)


async def _stop(node: Node, server: Server) -> None:
    """No new work, parked waits answered, everything synced, clean marker written."""
    server.stop_accepting()
    await node.stop()
    server.stop()
