"""A real etcd: members in processes, and a network between them and their clients that fails."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from ..ports import free_ports

START_SECONDS = 60
RECEIVE_BYTES = 65536


class Etcd:
    """A cluster of members. Call `stop` at the end."""

    def __init__(self, folder: Path, members: int = 1) -> None:
        if shutil.which("etcd") is None:
            raise RuntimeError("etcd is missing: 'python tests/needs.py unit' brings it")
        first = free_ports(2 * members)
        ports = range(first, first + members)
        self.endpoints = [f"http://127.0.0.1:{port}" for port in ports]
        peers = [f"http://127.0.0.1:{port + members}" for port in ports]
        cluster = ",".join(f"m{number}={url}" for number, url in enumerate(peers))
        self._commands = [
            [
                *("etcd", "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", cluster, "--log-level", "error"),
            ]
            for number, (client, peer) in enumerate(zip(self.endpoints, peers, strict=True))
        ]
        self._log = (folder / "etcd.log").open("wb")
        self._processes = [self._launch(command) for command in self._commands]
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def wait(self) -> None:
        """Wait until each member that runs answers."""
        ends_at = time.monotonic() + START_SECONDS
        for endpoint, process in zip(self.endpoints, self._processes, strict=True):
            while process.poll() is None:
                try:
                    _ask(endpoint, "kv/range", {"key": "YQ=="})
                except OSError:
                    assert time.monotonic() < ends_at, "etcd does not answer"
                    time.sleep(0.1)
                else:
                    break

    def ask(self, path: str, message: Any) -> Any:
        """Ask the first member, without a client of kbroker."""
        return _ask(self.endpoints[0], path, message)

    def compact(self, keep: int = 10) -> None:
        """Forget all changes but the last ones."""
        key = b64encode(b"a").decode()
        revision = int(self.ask("kv/range", {"key": key})["header"]["revision"])
        if revision > keep:
            with suppress(urllib.error.HTTPError):  # they are forgotten already
                self.ask("kv/compaction", {"revision": str(revision - keep)})

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def pause(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def restart(self, number: int) -> None:
        self._processes[number] = self._launch(self._commands[number])

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()


def _ask(endpoint: str, path: str, message: Any) -> Any:
    data = json.dumps(message).encode()
    with urllib.request.urlopen(f"{endpoint}/v3/{path}", data, timeout=10) as answer:
        return json.load(answer)


class Network:
    """What lies between one client and a member."""

    def __init__(self, port: int, member: str) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.is_up = True
        """Connections are taken."""
        self._port = port
        self._member = int(member.rpartition(":")[2])
        self._clients: set[trio.SocketStream] = set()
        self._deaf: set[trio.SocketStream] = set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, self._serve, self._port)
            task_status.started()

    def drop_answers(self) -> None:
        """From now on nothing comes back on connections that are open; new ones work."""
        self._deaf |= self._clients

    async def cut(self) -> None:
        """Close all connections, and take none until `heal`."""
        self.is_up = False
        for stream in tuple(self._clients):
            await trio.aclose_forcefully(stream)

    def heal(self) -> None:
        self.is_up = True

    async def _serve(self, client: trio.SocketStream) -> None:
        if not self.is_up:
            return
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            member = await trio.open_tcp_stream("127.0.0.1", self._member)
            self._clients.add(client)
            async with trio.open_nursery() as nursery, client, member:
                nursery.start_soon(self._carry, member, client, nursery.cancel_scope)
                await self._carry(client, member, nursery.cancel_scope)
        self._clients.discard(client)

    async def _carry(
        self, source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(RECEIVE_BYTES):
                if target not in self._deaf:
                    await target.send_all(data)
        both.cancel()


@asynccontextmanager
async def network_to(member: str) -> AsyncIterator[Network]:
    """A network of which one client gets the endpoint."""
    network = Network(free_ports(1), member)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        yield network
        nursery.cancel_scope.cancel()
