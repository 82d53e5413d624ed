"""One machine of a simulation: a disk that outlives its node, and the node while it runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from kbroker.cluster import Cluster
from kbroker.cluster.store import MetadataStore
from kbroker.config import BrokerConfig
from kbroker.context import Peer
from kbroker.endpoint import Endpoint
from kbroker.fetch_sessions import FetchSessions
from kbroker.flusher import Flusher
from kbroker.node import Node
from kbroker.registry import load_apis
from kbroker.server import Server
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.crash_files import CrashFiles, Mode
from kbroker.storage.folders import LogFolders
from kbroker.storage.manager import LogManager

from .network import MemoryTransport, Network, Socket
from .seeded import Events, SimulatedClock, Source

Result = TypeVar("Result")

FOLDER = "/data"
PORT = 9092
CLUSTER_ID = "simulated-cluster-idAA"
GRACE_SECONDS = 2.0


class Disk:
    """Files that lose what was not synced, and how long a sync takes."""

    def __init__(self) -> None:
        self.files = CrashFiles()
        self.sync_seconds = 0.0
        self._clock = 0.0

    def timer(self) -> float:
        """Seconds, by which a sync takes as long as it should take here."""
        self._clock += self.sync_seconds
        return self._clock

    async def in_thread(self, work: Callable[[], Result], /) -> Result:
        """Do work that others do in a thread: as late as the disk is slow, and then at once."""
        await trio.sleep(self.sync_seconds)
        return work()


class Machine:
    """A host with one node; `node` and `server` are None while it is down."""

    def __init__(
        self,
        node_id: int,
        network: Network,
        source: Source,
        events: Events,
        options: dict[str, str],
        connect_store: Callable[[int], Awaitable[MetadataStore]],
    ) -> None:
        self.id = node_id
        self.endpoint = Endpoint(f"node-{node_id}", PORT)
        self.disk = Disk()
        self.node: Node | None = None
        self.server: Server | None = None
        self.starts = 0
        self._network = network
        self._source = source
        self._events = events
        self._options = options
        self._connect_store = connect_store
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()
        self._store: MetadataStore | None = None

    # -- life

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the node; returns when it serves."""
        self.starts += 1
        self._events.note(f"start {self.id}")
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        await nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._scope:
                self._store = await self._connect_store(self.id)
                node = await self._open_node(self._store)
                server = Server(node, load_apis(), [])
                async with trio.open_nursery() as nursery:
                    await node.start()
                    nursery.start_soon(node.run)
                    nursery.start_soon(server.run)
                    accept = partial(self._accept, server)
                    self._network.listen(self.endpoint, nursery, accept)
                    self.node, self.server = node, server
                    task_status.started()
        finally:
            self.node = self.server = None
            self._ended.set()

    async def _accept(self, server: Server, socket: Socket, host: str) -> None:
        peer = Peer(host, self.endpoint, "PLAINTEXT", None)
        await server.serve(peer, partial(MemoryTransport, socket))

    async def _open_node(self, store: MetadataStore) -> Node:
        config = BrokerConfig.load(options={"node.id": str(self.id), **self._options})
        logs = self._open_folders()
        cluster = await Cluster.open(store, cluster_id=CLUSTER_ID)
        flusher = Flusher(
            config.flush_policy,
            logs.sync,
            interval_ms=config.flush_interval_ms,
            in_thread=self.disk.in_thread,
            timer=self.disk.timer,
        )
        node = Node(
            cluster,
            logs,
            flusher,
            config,
            SimulatedClock(),
            in_memory=False,
            in_thread=self.disk.in_thread,
        )
        chance = self._source.of("node", self.id, self.starts)
        node.fetch_sessions = FetchSessions(random_=chance)
        return node

    def _open_folders(self) -> LogFolders:
        fresh = MetaProperties(
            node_id=self.id, cluster_id=CLUSTER_ID, directory_id=f"directory-of-node-{self.id:04}"
        )
        files = self.disk.files
        return LogFolders(files, [LogManager(files, FOLDER, fresh, guard=threading.Lock())])

    async def crash(self, mode: Mode | None, seed: int) -> None:
        """End at once; `mode` is what the disk loses, None for nothing (the process was killed)."""
        self._events.note(f"crash {self.id} {mode}")
        files = self.disk.files
        self.disk.files = files.crashed(mode, seed) if mode else files.killed()
        self._network.kill(self.endpoint.host, quietly=mode is not None)
        self._scope.cancel()
        await self._ended.wait()

    async def stop(self) -> None:
        """End as after SIGTERM."""
        self._events.note(f"stop {self.id}")
        node, server = self.node, self.server
        if node is None or server is None:
            return
        self._network.refuse(self.endpoint)
        with trio.move_on_after(GRACE_SECONDS):
            await node.release_waits()
            await server.drain()
        server.close_connections()
        await node.close()
        self._network.kill(self.endpoint.host, quietly=False)
        self._scope.cancel()
        await self._ended.wait()
