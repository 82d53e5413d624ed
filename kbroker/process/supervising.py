"""Supervisor of a multi-process server: it serves the metadata and restarts node processes.

Nodes share only the metadata, so each can use its own CPU core. A node process that exits is
restarted. Other nodes take over its leaderships at once, because its lease ends with its process.
"""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import chain, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import trio

from kbroker.cluster import LocalStore
from kbroker.cluster.running import running
from kbroker.cluster.store_server import serve_store
from kbroker.config import BrokerConfig
from kbroker.data_dirs.data_directories import (
    DataDirectories,
    absolute_paths,
    find_data_directories,
)
from kbroker.data_dirs.resize import finish
from kbroker.net.server import Listener
from kbroker.runtime.closing import close_concurrently
from kbroker.runtime.threads import at_once, run_in_thread
from kbroker.storage.files import OsFiles
from kbroker.storage.naming import LOCK
from kbroker.text.lines import Lines

from .bootstrap_listeners import (
    BootstrapListeners,
    bind_bootstrap_listeners,
    listeners_of_nodes,
)
from .errors import StartFailed
from .http import check_ports
from .node_info import NodeInfo, SharedAddresses
from .node_messages import (
    BEGIN,
    CREATE_TOPICS,
    SERVE_HTTP,
    Joined,
    NodeError,
    NodeParameters,
    TopicsCreated,
    parse_message,
)
from .options import ServeOptions
from .shared_http import SharedHttp, listen_for_http

logger = logging.getLogger(__name__)

Message = TypeVar("Message")

RECEIVE_BYTES = 64 * 1024
# Maximum time in seconds that joined nodes wait for the other nodes at startup.
JOIN_SECONDS_MAX = 60
# First and maximum pause in seconds before a node is restarted.
RESTART_BACKOFF_SECONDS = 0.5, 30.0
# Uptime in seconds after which the restart pause is reset.
STABLE_SECONDS = 60
# Seconds that a stopping process gets in addition to its grace period.
EXIT_SECONDS = 5


@asynccontextmanager
async def supervised(
    options: ServeOptions, config: BrokerConfig, listeners: Sequence[Listener]
) -> AsyncIterator[tuple[Sequence[NodeInfo], SharedAddresses]]:
    """Start all nodes, yield information about them and their addresses, and stop them at the end.

    Args:
        options: Command-line options.
        config: Settings.
        listeners: Configured listeners, at the bootstrap addresses.

    Raises:
        CannotListen: An address cannot be used.
        StartFailed: A node cannot start.
        StorageError: The metadata cannot be read.
    """
    files, paths = OsFiles(at_once=at_once), absolute_paths(config.log_dirs)
    finish(files, paths)
    directories = find_data_directories(files, paths, options.processes, first=config.node_id)
    ids = directories.node_ids(config.node_id, options.processes)
    bootstrap = await bind_bootstrap_listeners(listeners, ids, config.node_id)
    with ExitStack() as stack:
        stack.callback(bootstrap.close)
        check_ports(config, listeners_of_nodes(listeners, ids, config.node_id))
        http = await listen_for_http(config, ids)
        stack.callback(http.close)
        store = _open_store(directories, ids)
        files.mkdir(paths[0])
        stack.callback(files.lock(f"{paths[0]}/{LOCK}").release)
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="kbroker-")))
        async with running(store), trio.open_nursery() as nursery:
            supervisor = _Supervisor(
                options, ids, bootstrap, http, config.listen_backlog, directory, nursery
            )
            # Serve until all nodes have stopped: stopping nodes change the metadata.
            serving = trio.CancelScope(shield=True)
            nursery.start_soon(_serve, store, supervisor.socket, serving)
            try:
                nodes = await supervisor.start()
                yield nodes, SharedAddresses(bootstrap.addresses, http.http, http.registry)
            finally:
                with trio.CancelScope(shield=True):
                    await supervisor.stop()
                serving.cancel()
                nursery.cancel_scope.cancel()


def _open_store(directories: DataDirectories, ids: Sequence[int]) -> LocalStore:
    found = (each for node_id in ids for each in directories.inspect(node_id))
    return directories.open_store(found, in_thread=run_in_thread)


async def _serve(store: LocalStore, path: str, serving: trio.CancelScope) -> None:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(path)
    bound.listen()
    with serving:
        await serve_store(store, trio.SocketListener(trio.socket.from_stdlib_socket(bound)))


class _Supervisor:
    """Supervisor of all nodes of a server."""

    def __init__(
        self,
        options: ServeOptions,
        ids: Sequence[int],
        bootstrap: BootstrapListeners,
        http: SharedHttp,
        backlog: int,
        directory: Path,
        nursery: trio.Nursery,
    ) -> None:
        self.socket = str(directory / "metadata")
        self._bootstrap = bootstrap
        self._http = http
        # Node that accepts connections at the HTTP addresses.
        self._http_node: _NodeProcess | None = None
        self._backlog = backlog
        self._nursery = nursery
        racks = islice(cycle(options.racks or (None,)), len(ids))
        self._nodes: list[_NodeProcess] = []
        for node_id, rack in zip(ids, racks, strict=True):
            parameters = NodeParameters(
                options,
                node_id,
                len(ids),
                rack,
                self.socket,
                bootstrap.descriptors,
                http.descriptors_of(node_id),
            )
            path = directory / f"node-{node_id}"
            path.write_bytes(pickle.dumps(parameters))
            inherited = [*chain.from_iterable(bootstrap.descriptors.values()), *parameters.http.all]
            self._nodes.append(
                _NodeProcess(
                    node_id, path, options.grace_seconds, inherited, self._choose_http_node
                )
            )
        self._has_bootstrap_topics = bool(options.topics or options.seeds)

    async def start(self) -> Sequence[NodeInfo]:
        """Start all nodes, and return their information when all are ready.

        Raises:
            CannotListen: A bootstrap address cannot be used.
            StartFailed: A node cannot start.
        """
        for each in self._nodes:
            await each.launch()
            await self._choose_http_node()
            self._nursery.start_soon(each.supervise)
        with trio.move_on_after(JOIN_SECONDS_MAX):
            for each in self._nodes:
                await each.next_message(Joined)
        self._bootstrap.listen(self._backlog)
        for each in self._nodes:
            await each.send_command(BEGIN)
        infos = [await each.next_message(NodeInfo) for each in self._nodes]
        if self._has_bootstrap_topics:
            await self._nodes[0].send_command(CREATE_TOPICS)
            created = await self._nodes[0].next_message(TopicsCreated)
            infos[0] = infos[0]._replace(topics=created.topics)
        for each in self._nodes:
            each.begin_restarts()
        return infos

    async def _choose_http_node(self) -> None:
        """Let a running node accept connections at the HTTP addresses, if none does."""
        if self._http_node is not None and self._http_node.is_running:
            return
        self._http_node = next((each for each in self._nodes if each.is_running), None)
        if self._http_node is not None:
            await self._http_node.send_command(SERVE_HTTP)

    async def stop(self) -> None:
        """Stop all nodes concurrently, without moving leaderships."""
        for each in self._nodes:
            each.prepare_stop()
        self._bootstrap.close()
        self._http.close()
        await close_concurrently(each.stop for each in self._nodes)


class _NodeProcess:
    """One node, across restarts of its process."""

    def __init__(
        self,
        node_id: int,
        parameters_path: Path,
        grace_seconds: float,
        inherited: Sequence[int],
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = node_id
        # The server has started, so the node is restarted when its process ends.
        self._is_restarted = False
        self._parameters_path = parameters_path
        self._grace_seconds = grace_seconds
        self._inherited = inherited
        # Called when the process has ended or was started again.
        self._on_change = on_change
        self._process: trio.Process | None = None
        self._messages, self._received = trio.open_memory_channel[object](100)
        self._is_stopping = False
        # Held while a process is started again, and while a command is sent.
        self._launching, self._sending = trio.Lock(), trio.Lock()

    @property
    def is_running(self) -> bool:
        """True if a process runs."""
        return self._process is not None and self._process.returncode is None

    async def launch(self) -> None:
        """Start a process."""
        command = [sys.executable, "-m", "kbroker.process.node_process", str(self._parameters_path)]
        self._process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=self._inherited,
            start_new_session=True,  # only the supervisor gets Ctrl+C of the terminal
        )

    async def send_command(self, word: bytes) -> None:
        """Send a command to the process. Ignore an ended process, because `supervise` restarts it."""
        async with self._sending:
            assert self._process is not None
            assert self._process.stdin is not None
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._process.stdin.send_all(word + b"\n")

    async def next_message(self, type_: type[Message]) -> Message:
        """Wait for a message of a type from the process.

        Raises:
            StartFailed: The process reported an error.
        """
        while True:
            message = await self._received.receive()
            if isinstance(message, type_):
                return message
            if isinstance(message, NodeError):
                raise StartFailed(message.message)

    def begin_restarts(self) -> None:
        """Restart the process from now on when it ends.

        Raises:
            StartFailed: It has ended already, or reported an error.
        """
        with suppress(trio.WouldBlock):
            while True:
                message = self._received.receive_nowait()
                if isinstance(message, NodeError):
                    raise StartFailed(message.message)
        self._is_restarted = True

    async def supervise(self) -> None:
        """Receive messages, and restart the process when it ends, until `stop`."""
        wait_seconds, longest = RESTART_BACKOFF_SECONDS
        while not self._is_stopping:
            began = trio.current_time()
            assert self._process is not None
            await self._receive_messages(self._process)
            status = await self._process.wait()
            if self._is_stopping:
                return
            if not self._is_restarted:
                self._messages.send_nowait(NodeError(f"node {self.id} exited with status {status}"))
                return
            await self._on_change()
            if trio.current_time() - began > STABLE_SECONDS:
                wait_seconds = RESTART_BACKOFF_SECONDS[0]
            text = "node %d exited with status %d; restarting it in %g s"
            logger.error(text, self.id, status, wait_seconds)
            await trio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, longest)
            async with self._launching:
                if self._is_stopping:
                    return
                await self.launch()
            await self._on_change()
            await self.send_command(BEGIN)

    async def _receive_messages(self, process: trio.Process) -> None:
        assert process.stdout is not None
        lines = Lines()
        while part := await process.stdout.receive_some(RECEIVE_BYTES):
            for line in lines.feed(part):
                self._on_message(parse_message(line))

    def _on_message(self, next_message: object) -> None:
        if not self._is_restarted:
            self._messages.send_nowait(next_message)
        elif isinstance(next_message, NodeError):
            logger.error("node %d: %s", self.id, next_message.message)

    def prepare_stop(self) -> None:
        """Start no process any more."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Stop the process gracefully, or kill it after a timeout; call `prepare_stop` before."""
        async with self._launching:
            process = self._process
        if process is None:
            return
        assert process.stdin is not None
        await process.stdin.aclose()
        with trio.move_on_after(2 * self._grace_seconds + EXIT_SECONDS) as timeout:
            await process.wait()
        if timeout.cancelled_caught:
            logger.error("node %d did not stop in time; killing its process", self.id)
            process.kill()
            await process.wait()
