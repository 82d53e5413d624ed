"""A real etcd with members in processes, and a faulty network to its clients."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
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
import trustme

from ..machine import Machine
from ..ports import free_ports

START_SECONDS = 60
RECEIVE_BYTES = 65536


def check_there() -> None:
    """Raise RuntimeError if etcd is not installed."""
    if shutil.which("etcd") is None:
        raise RuntimeError("etcd is missing: 'python tests/prerequisites.py unit' installs it")


class Certificates:
    """A CA with certificate files of a member and a client."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.member = self._issue(authority, directory / "member")
        self.client = self._issue(authority, directory / "client")

    def _issue(self, authority: trustme.CA, path: Path) -> tuple[str, str]:
        """Return the files of a new certificate and its key."""
        issued = authority.issue_cert("127.0.0.1", "localhost")
        files = f"{path}.pem", f"{path}.key"
        issued.cert_chain_pems[0].write_to_path(files[0])
        issued.private_key_pem.write_to_path(files[1])
        return files


class Etcd:
    """An etcd cluster. Call `stop` at the end.

    Args:
        directory: Directory of the members' files.
        members: Number of members.
        certificates: Certificates for mutual TLS; None disables TLS.
        machines: Machine of each member; None runs all members locally.
    """

    def __init__(
        self,
        directory: Path,
        members: int = 1,
        certificates: Certificates | None = None,
        machines: Sequence[Machine] = (),
    ) -> None:
        check_there()
        first = free_ports(2 * members)
        machines = machines or [Machine("127.0.0.1")] * members
        hosts = [machine.address for machine in machines]
        scheme, tls = "http", []
        self._context: ssl.SSLContext | None = None
        if certificates is not None:
            (cert, key), (own_cert, own_key) = certificates.member, certificates.client
            scheme, tls = "https", ["--client-cert-auth", "--cert-file", cert, "--key-file", key]
            tls += ["--trusted-ca-file", certificates.ca]
            self._context = ssl.create_default_context(cafile=certificates.ca)
            self._context.load_cert_chain(own_cert, own_key)
        self.endpoints = [f"{scheme}://{host}:{first + n}" for n, host in enumerate(hosts)]
        peers = [f"http://{host}:{first + members + n}" for n, host in enumerate(hosts)]
        cluster = ",".join(f"m{number}={url}" for number, url in enumerate(peers))
        self._commands = [
            [
                *(
                    *machine.within,
                    "etcd",
                    "--name",
                    f"m{number}",
                    "--data-dir",
                    str(directory / f"m{number}"),
                ),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", cluster, "--log-level", "error", *tls),
            ]
            for number, (machine, client, peer) in enumerate(
                zip(machines, self.endpoints, peers, strict=True)
            )
        ]
        self._directory = directory
        self._peers = peers
        self._log = (directory / "etcd.log").open("wb")
        self._processes = [self._launch(command) for command in self._commands]
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def wait(self) -> None:
        """Wait until each running member responds."""
        ends_at = time.monotonic() + START_SECONDS
        for endpoint, process in zip(self.endpoints, self._processes, strict=True):
            while process.poll() is None:
                try:
                    self._ask(endpoint, "kv/range", {"key": "YQ=="})
                except OSError:
                    assert time.monotonic() < ends_at, "etcd does not answer"
                    time.sleep(0.1)
                else:
                    break

    def ask(self, path: str, message: Any) -> Any:
        """Send a request to the first member, without kbroker's client."""
        return self._ask(self.endpoints[0], path, message)

    def _ask(self, endpoint: str, path: str, message: Any) -> Any:
        data, url = json.dumps(message).encode(), f"{endpoint}/v3/{path}"
        with urllib.request.urlopen(url, data, timeout=10, context=self._context) as response:
            return json.load(response)

    def compact(self, keep: int = 10) -> None:
        """Compact all changes except the last ones."""
        key = b64encode(b"a").decode()
        revision = int(self.ask("kv/range", {"key": key})["header"]["revision"])
        if revision > keep:
            try:
                self.ask("kv/compaction", {"revision": str(revision - keep)})
            except urllib.error.HTTPError as already_compacted:
                already_compacted.close()

    def alarm(self, is_raised: bool) -> None:
        """Raise or clear the NOSPACE alarm of all members."""
        action = "ACTIVATE" if is_raised else "DEACTIVATE"
        self.ask("maintenance/alarm", {"action": action, "alarm": "NOSPACE"})

    @property
    def pids(self) -> list[int]:
        """Process IDs of the running members."""
        return [each.pid for each in self._processes]

    def leader(self) -> int:
        """Return the number of the leading member."""
        responses = [self._ask(each, "maintenance/status", {}) for each in self.endpoints]
        return next(
            number
            for number, response in enumerate(responses)
            if response["leader"] == response["header"]["member_id"]
        )

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def pause(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def restart(self, number: int, *options: str) -> None:
        self._processes[number] = self._launch([*self._commands[number], *options])

    def replace(self, number: int) -> None:
        """Replace a member that lost its disk by a new, empty member."""
        self.kill(number)
        shutil.rmtree(self._directory / f"m{number}")
        other = self.endpoints[number - 1]
        peer = self._peers[number]
        members = self._ask(other, "cluster/member/list", {})["members"]
        (lost,) = (each["ID"] for each in members if each["peerURLs"] == [peer])
        self._change(other, "cluster/member/remove", {"ID": lost})
        self._change(other, "cluster/member/add", {"peerURLs": [peer]})
        self.restart(number, "--initial-cluster-state", "existing")

    def _change(self, endpoint: str, path: str, message: Any) -> None:
        """Change the members; retries while a new leader does not know its followers."""
        ends_at = time.monotonic() + START_SECONDS
        while True:
            try:
                self._ask(endpoint, path, message)
            except OSError:
                assert time.monotonic() < ends_at, f"etcd refuses {path}"
                time.sleep(0.1)
            else:
                return

    def copy(self) -> Path:
        """Copy the files of the only member while it is paused, as a snapshot."""
        self.kill(0)
        copied = self._directory / f"copy-{len(list(self._directory.glob('copy-*')))}"
        shutil.copytree(self._directory / "m0", copied)
        self.restart(0)
        self.wait()
        return copied

    def restore(self, copied: Path) -> None:
        """Restart the only member with the files of `copy`."""
        self.kill(0)
        shutil.rmtree(self._directory / "m0")
        shutil.copytree(copied, self._directory / "m0")
        self.restart(0)
        self.wait()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()


class Network:
    """A proxy between one client and a member."""

    def __init__(self, port: int, member: str) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.is_up = True
        """True while connections are accepted."""
        self._port = port
        self._member = int(member.rpartition(":")[2])
        self._clients: set[trio.SocketStream] = set()
        self._deaf: set[trio.SocketStream] = set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, self._serve, self._port)
            task_status.started()

    def drop_answers(self) -> None:
        """Drop all responses on open connections; new connections work."""
        self._deaf |= self._clients

    async def cut(self) -> None:
        """Close all connections and reject new ones until `heal`."""
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
        self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(RECEIVE_BYTES):
                if target not in self._deaf:
                    await target.send_all(data)
        scope.cancel()


@asynccontextmanager
async def network_to(member: str) -> AsyncIterator[Network]:
    """Run a proxy to a member for one client."""
    network = Network(free_ports(1), member)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        yield network
        nursery.cancel_scope.cancel()
