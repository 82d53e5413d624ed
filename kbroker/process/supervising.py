"""A server whose nodes are processes: the supervisor has the metadata and keeps the nodes running.

Nodes share nothing but the metadata, so each uses a processor core of its own. One that dies is started
again; others lead what it led at once, because its lease ends with its process.
"""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle, islice
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
from kbroker.runtime.threads import at_once, run_in_thread
from kbroker.storage.files import OsFiles
from kbroker.storage.naming import LOCK
from kbroker.text.lines import Lines

from .errors import StartFailed
from .node_info import NodeInfo
from .node_words import BEGIN, DECLARE, Declared, Joined, NodeOrder, Refused, news_of
from .options import ServeOptions

logger = logging.getLogger(__name__)

News = TypeVar("News")

RECEIVE_BYTES = 64 * 1024
JOIN_SECONDS_MAX = 60
"""How long nodes that have joined wait for those that have not, when all start."""
RESTART_BACKOFF_SECONDS = 0.5, 30.0
"""Pause before a node is restarted: the first one, and the longest one."""
SOUND_SECONDS = 60
"""Who has run for so long starts again as if it were the first time."""
EXIT_SECONDS = 5
"""What a process has beyond the grace of its stop."""


@asynccontextmanager
async def supervised(
    options: ServeOptions, config: BrokerConfig
) -> AsyncIterator[Sequence[NodeInfo]]:
    """Start all nodes, yield what is told of them, stop them at the end.

    Raises StartFailed or StorageError.
    """
    files, paths = OsFiles(at_once=at_once), absolute_paths(config.log_dirs)
    finish(files, paths)
    directories = find_data_directories(files, paths, options.processes, first=config.node_id)
    ids = directories.node_ids(config.node_id, options.processes)
    store = _open_store(directories, ids)
    files.mkdir(paths[0])
    lock = files.lock(f"{paths[0]}/{LOCK}")
    try:
        with TemporaryDirectory(prefix="kbroker-") as directory:
            async with running(store), trio.open_nursery() as nursery:
                supervisor = _Supervisor(options, ids, Path(directory), nursery)
                # Nodes that stop have something to say to it.
                serving = trio.CancelScope(shield=True)
                nursery.start_soon(_serve, store, supervisor.socket, serving)
                try:
                    yield await supervisor.start()
                finally:
                    with trio.CancelScope(shield=True):
                        await supervisor.stop()
                    serving.cancel()
                    nursery.cancel_scope.cancel()
    finally:
        lock.release()


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
    """All nodes of a server."""

    def __init__(
        self, options: ServeOptions, ids: Sequence[int], directory: Path, nursery: trio.Nursery
    ) -> None:
        self.socket = str(directory / "metadata")
        self._nursery = nursery
        racks = islice(cycle(options.racks or (None,)), len(ids))
        self._nodes: list[_NodeProcess] = []
        for node_id, rack in zip(ids, racks, strict=True):
            order = NodeOrder(options, node_id, len(ids), rack, self.socket)
            path = directory / f"node-{node_id}"
            path.write_bytes(pickle.dumps(order))
            self._nodes.append(_NodeProcess(node_id, path, options.grace_seconds))
        self._declares = bool(options.topics or options.seeds)

    async def start(self) -> Sequence[NodeInfo]:
        """Start all nodes; returns when all serve. Raises StartFailed."""
        for each in self._nodes:
            await each.launch()
            self._nursery.start_soon(each.keep)
        with trio.move_on_after(JOIN_SECONDS_MAX):
            for each in self._nodes:
                await each.news(Joined)
        for each in self._nodes:
            await each.say(BEGIN)
        infos = [await each.news(NodeInfo) for each in self._nodes]
        if self._declares:
            await self._nodes[0].say(DECLARE)
            declared = await self._nodes[0].news(Declared)
            infos[0] = infos[0]._replace(topics=declared.topics)
        for each in self._nodes:
            each.is_supervised = True
        return infos

    async def stop(self) -> None:
        """Stop all nodes, at once: none takes over from another one."""
        async with trio.open_nursery() as nursery:
            for each in self._nodes:
                nursery.start_soon(each.stop)


class _NodeProcess:
    """One node, over as many processes as it has."""

    def __init__(self, node_id: int, order: Path, grace_seconds: float) -> None:
        self.id = node_id
        self.is_supervised = False
        """It has been started once, and is started again when it ends."""
        self._order = order
        self._grace_seconds = grace_seconds
        self._process: trio.Process | None = None
        self._news, self._told = trio.open_memory_channel[object](100)
        self._stops = False

    async def launch(self) -> None:
        """Start a process."""
        command = [sys.executable, "-m", "kbroker.process.node_process", str(self._order)]
        self._process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C on a terminal is for the supervisor
        )

    async def say(self, word: bytes) -> None:
        """Say something to the process; whether it hears it is seen otherwise."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._process.stdin.send_all(word + b"\n")

    async def news(self, kind: type[News]) -> News:
        """Wait until the process tells something of a kind. Raises StartFailed."""
        while True:
            told = await self._told.receive()
            if isinstance(told, kind):
                return told
            if isinstance(told, Refused):
                raise StartFailed(told.message)

    async def keep(self) -> None:
        """Hear what the process tells, and start it again when it ends, until `stop`."""
        wait_seconds, longest = RESTART_BACKOFF_SECONDS
        while not self._stops:
            began = trio.current_time()
            assert self._process is not None
            await self._hear(self._process)
            status = await self._process.wait()
            if self._stops:
                return
            if not self.is_supervised:
                self._news.send_nowait(Refused(f"node {self.id} ended with status {status}"))
                return
            if trio.current_time() - began > SOUND_SECONDS:
                wait_seconds = RESTART_BACKOFF_SECONDS[0]
            text = "node %d ended with status %d; it is started again in %g s"
            logger.error(text, self.id, status, wait_seconds)
            await trio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, longest)
            if not self._stops:
                await self.launch()
                await self.say(BEGIN)

    async def _hear(self, process: trio.Process) -> None:
        assert process.stdout is not None
        lines = Lines()
        while part := await process.stdout.receive_some(RECEIVE_BYTES):
            for line in lines.feed(part):
                self._on_message(news_of(line))

    def _on_message(self, news: object) -> None:
        if not self.is_supervised:
            self._news.send_nowait(news)
        elif isinstance(news, Refused):
            logger.error("node %d: %s", self.id, news.message)

    async def stop(self) -> None:
        """End the process, in order if it can."""
        self._stops = True
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        await process.stdin.aclose()
        with trio.move_on_after(2 * self._grace_seconds + EXIT_SECONDS) as patience:
            await process.wait()
        if patience.cancelled_caught:
            logger.error("node %d does not stop: its process is killed", self.id)
            process.kill()
            await process.wait()
