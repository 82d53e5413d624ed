"""A simulated machine: a disk that survives its node, and the node while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.cluster import Cluster
from kbroker.cluster.peers import PeerTransport
from kbroker.cluster.store import MetadataStore
from kbroker.config import BrokerConfig
from kbroker.handlers.context import Peer
from kbroker.handlers.registry import load_apis
from kbroker.net.server import Server
from kbroker.node.fetch_sessions import FetchSessions
from kbroker.node.node import Node
from kbroker.partitions.flusher import Flusher
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.crash_files import NO_LIMIT, CrashFiles, Mode, Operation
from kbroker.storage.directories import LogDirectories
from kbroker.storage.errors import StorageError, WriteRefusedError
from kbroker.storage.manager import LogManager

from .network import MemoryTransport, Network, Socket
from .seeded import Events, SimulatedClock, Source

Result = TypeVar("Result")

DIRECTORY = "/data"
PORT = 9092
LISTENER = "PLAINTEXT"
CLUSTER_ID = "simulated-cluster-idAA"
GRACE_SECONDS = 2.0
# Seconds until the supervisor restarts a node that failed to start.
RESTART_SECONDS = 0.2


class Truth(Protocol):
    """The source of metadata store clients."""

    def client(self, name: str) -> MetadataStore:
        """Return a store client for one run of a node."""
        ...


SYNCS = ("sync", "syncdir", "syncfs")


class Disk:
    """A disk that loses unsynced data, can refuse writes, and has a sync latency."""

    def __init__(self, hook: Callable[[Operation], None]) -> None:
        self.files = CrashFiles(hook)
        self.number = 1
        self.sync_seconds = 0.0
        self.is_read_only = False
        # Probability that a write or sync fails with EIO.
        self.failing_share = 0.0
        self._clock = 0.0

    def lose(self, mode: Mode | None, seed: int) -> None:
        """Continue as after a power cut or, without a mode, after the end of a process.

        The stopped process may still use its old file objects: they no longer affect this disk.
        """
        before = self.files
        self.files = before.crashed(mode, seed) if mode else before.killed()
        self.files.hook, before.hook = before.hook, None

    def fill(self, free: int) -> None:
        """Limit the free space to `free` bytes."""
        self.files.capacity = self.files.used() + free

    def heal(self) -> None:
        """Remove all limits and failures."""
        self.files.capacity = NO_LIMIT
        self.is_read_only = False
        self.failing_share = 0.0

    def replace(self) -> None:
        """Replace the disk by an empty one."""
        before = self.files
        self.files, before.hook = CrashFiles(before.hook), None
        self.number += 1

    def timer(self) -> float:
        """Return the time in seconds of a clock on which each sync takes `sync_seconds`."""
        self._clock += self.sync_seconds
        return self._clock

    async def in_thread(self, work: Callable[[], Result], /) -> Result:
        """Run thread work in the event loop, after the latency of the disk."""
        await trio.sleep(self.sync_seconds)
        return work()


class Machine:
    """A host with one node; `node` is None while the node is down or starting."""

    def __init__(
        self,
        node_id: int,
        network: Network,
        truth: Truth,
        source: Source,
        events: Events,
        options: dict[str, str],
        nodes: int,
    ) -> None:
        self.id = node_id
        self.name = f"node-{node_id}"
        self.endpoint = Endpoint(self.name, PORT)
        self.disk = Disk(self._note_operation)
        self.node: Node | None = None
        self.starts = 0
        self.truncations = self.failures = 0
        self._chance = source.of("disk", node_id)
        self._server: Server | None = None
        self._network = network
        self._truth = truth
        self._source = source
        self._events = events
        self._config = BrokerConfig.load(options=options, nodes=nodes).for_node(node_id, nodes)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def _note_operation(self, operation: Operation) -> None:
        self._events.note(f"disk {self.id} {operation.kind} {operation.path}")
        if self.disk.is_read_only and operation.kind not in SYNCS:
            raise WriteRefusedError(f"cannot {operation.kind} {operation.path}: it is read-only")
        if self.disk.failing_share and self._chance.random() < self.disk.failing_share:
            self.failures += 1
            raise StorageError(f"cannot {operation.kind} {operation.path}: input/output error")
        if operation.kind == "truncate" and operation.path.endswith(".log"):
            self.truncations += self.node is not None

    # -- life

    def start(self, nursery: trio.Nursery) -> None:
        """Start the node, and restart it until it succeeds."""
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        nursery.start_soon(self._live)

    async def _live(self) -> None:
        try:
            with self._scope:
                while True:
                    try:
                        await self._run()
                    except* StorageError as group:
                        self._events.note(f"node {self.id} ended: {group.exceptions[0]}")
                    self.disk.lose(None, 0)
                    await trio.sleep(RESTART_SECONDS)
        finally:
            self.node = self._server = None
            self._ended.set()

    async def _run(self) -> None:
        self.starts += 1
        self._events.note(f"start {self.id}")
        store = self._truth.client(self.name)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.run)
                node = await self._open_node(store)
                server = self._server = Server(node, load_apis(), [])
                accept = partial(self._accept, server)
                self._network.listen(self.endpoint, nursery, accept)
                await node.start({LISTENER: self.endpoint})
                nursery.start_soon(node.run)
                nursery.start_soon(server.run)
                self.node = node
                self._events.note(f"started {self.id}")
        finally:
            self.node = self._server = None
            self._network.kill(self.name, quietly=False)

    async def _accept(self, server: Server, socket: Socket, host: str) -> None:
        peer = Peer(host, self.endpoint, LISTENER, None)

        async def transport() -> MemoryTransport:
            return MemoryTransport(socket)

        await server.serve(peer, transport)

    async def _open_node(self, store: MetadataStore) -> Node:
        config = self._config
        logs = self._open_directories()
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
            transport=PeerTransport(partial(self._network.dial, self.name)),
        )
        node.fetch_sessions = FetchSessions(
            node.config.fetch_sessions_max,
            cluster.count_partitions,
            random_=self._source.of("node", self.id, self.starts),
        )
        return node

    def _open_directories(self) -> LogDirectories:
        fresh = MetaProperties(
            node_id=self.id,
            cluster_id=CLUSTER_ID,
            directory_id=f"disk-{self.disk.number:04}-of-node-{self.id:04}",
        )
        files = self.disk.files
        return LogDirectories(files, [LogManager(files, DIRECTORY, fresh, guard=threading.Lock())])

    async def crash(self, mode: Mode | None, seed: int) -> None:
        """Crash the node; `mode` selects what the disk loses (None: nothing, a killed process)."""
        self._events.note(f"crash {self.id} {mode}")
        self.disk.lose(mode, seed)
        self._network.kill(self.name, quietly=mode is not None)
        await self._end()

    async def lose_disk(self) -> None:
        """Crash the node and give it an empty disk for its next start."""
        self._events.note(f"disk of {self.id} is lost")
        self.disk.replace()
        self._network.kill(self.name, quietly=True)
        await self._end()

    async def stop(self) -> None:
        """Stop the node as SIGTERM does."""
        self._events.note(f"stop {self.id}")
        node, server = self.node, self._server
        if node is not None and server is not None:
            with trio.move_on_after(GRACE_SECONDS):
                await node.membership.leave()
            self._network.refuse(self.endpoint)
            with trio.move_on_after(GRACE_SECONDS):
                await node.release_waits()
                await server.drain()
            server.close_connections()
            with trio.move_on_after(GRACE_SECONDS):
                await node.close()
        self.disk.lose(None, 0)
        self._network.kill(self.name, quietly=False)
        await self._end()

    async def _end(self) -> None:
        self._scope.cancel()
        await self._ended.wait()
