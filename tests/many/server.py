"""A server process with measurements of its start, memory, CPU time and file descriptors."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import trio

from kbroker.client import check_round_trip
from kbroker.protocol.primitives import DecodeError

HOST = "127.0.0.1"
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 120
GRACE_SECONDS = 30
_SETTINGS = ("max.connection.creation.rate=100000", "max.connections.per.ip=100000")


class Server:
    """`kbroker serve` with its data and its log in `directory`.

    Args:
        directory: A new directory.
        descriptors_max: Hard limit of its open files.
    """

    def __init__(self, directory: Path, *, descriptors_max: int) -> None:
        self.directory = directory
        self._descriptors_max = descriptors_max
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        with socket.create_server((HOST, 0)) as free:
            self.endpoint = (HOST, int(free.getsockname()[1]))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start the server and return the seconds from exec to the first Metadata response."""
        command = [sys.executable, "-m", "kbroker", "serve", "--exit-with-parent"]
        command += ["--host", HOST, "--port", str(self.endpoint[1])]
        command += ["--data-dir", str(self.directory / "data"), "--grace", f"{GRACE_SECONDS}s"]
        command += [word for setting in _SETTINGS for word in ("-o", setting)]
        with (self.directory / "log").open("ab") as log:
            began = time.perf_counter()
            self._process = subprocess.Popen(  # noqa: ASYNC220  # returns at once
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._limit_descriptors,  # noqa: PLW1509  # no threads here
            )
        while True:
            assert self._process.poll() is None, self.log_text()
            try:
                await check_round_trip(*self.endpoint)
            except (OSError, DecodeError):
                assert time.perf_counter() - began < START_SECONDS_MAX, self.log_text()
                await trio.sleep(0.005)
            else:
                return time.perf_counter() - began

    def _limit_descriptors(self) -> None:
        limit = self._descriptors_max
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 1024), limit))

    async def stop(self, how: int = signal.SIGTERM) -> float:
        """Stop the server and return the seconds it took; a clean stop must exit with 0."""
        assert self._process is not None
        began = time.perf_counter()
        self._process.send_signal(how)
        with trio.fail_after(STOP_SECONDS_MAX):
            while self._process.poll() is None:  # noqa: ASYNC110  # a process, not an event
                await trio.sleep(0.005)
        assert self._process.returncode == (0 if how == signal.SIGTERM else -how), self.log_text()
        self._process = None
        return time.perf_counter() - began

    def kill_if_running(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log_text(self) -> str:
        return (self.directory / "log").read_text()

    # -- resources

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads so far."""
        text = Path(f"/proc/{self.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Return the number of open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))
