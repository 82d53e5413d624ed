"""A server process that can be killed and restarted on the same port and data directory."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from kbroker.client import check_round_trip
from kbroker.protocol.primitives import DecodeError
from kbroker.storage.checkpoints import offsets_from_bytes
from kbroker.storage.naming import LOCK, LOG, LOG_STARTS, RECOVERY_POINTS, parse_file_name

from ..machine import LOCAL, Machine

ROOT = Path(__file__).parents[2]
# Host and port.
Address = tuple[str, int]
START_SECONDS_MAX = 30

KEPT, TRIMMED = "kept", "trimmed"
GROUP, ALONE = "churn", "alone"
PARTITIONS = {KEPT: 3, TRIMMED: 2}

_SETTINGS = (
    "flush.policy=fsync",
    "log.retention.check.interval.ms=400",
    "offsets.topic.num.partitions=4",
)
_TOPICS = (
    f"{KEPT}:{PARTITIONS[KEPT]}:internal.segment.bytes=32768",
    f"{TRIMMED}:{PARTITIONS[TRIMMED]}:internal.segment.bytes=16384,retention.bytes=65536",
)


def _python_path() -> str:
    """Return a PYTHONPATH with this project and its tests."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(filter(None, paths))


class Restart(NamedTuple):
    """Seconds from exec to the first Metadata response.

    `waited` is the part in which the process was runnable but other programs had the CPU; 0 if the
    system does not report it.
    """

    seconds: float
    waited: float

    @property
    def own(self) -> float:
        """Return the restart time without the wait for a CPU."""
        return self.seconds - self.waited


class Server:
    """`kbroker serve` with its files in `directory`: `data`, and one log file per start.

    Args:
        directory: Directory of its files.
        settings: `KEY=VALUE` each.
        topics: Topics to create at startup, in the format of `--topic`.
        module: The Python module to run instead of kbroker, with arguments.
        options: Further options of `kbroker serve`.
        machine: Machine to run on.
    """

    def __init__(
        self,
        directory: Path,
        settings: Sequence[str] = _SETTINGS,
        topics: Sequence[str] = _TOPICS,
        module: Sequence[str] = ("kbroker",),
        options: Sequence[str] = (),
        machine: Machine = LOCAL,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.machine = machine
        self._module = module
        self._options = options
        self._settings = settings
        self._topics = topics
        self.data = directory / "data"
        self.lives = 0
        self.process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])

    @property
    def address(self) -> Address:
        """Return the address for clients."""
        return self.machine.address, self.port

    @property
    def bootstrap(self) -> str:
        """Return the address as `host:port`."""
        return f"{self.machine.address}:{self.port}"

    @property
    def log_path(self) -> Path:
        """Return the log file of the current process."""
        return self.directory / f"server-{self.lives}.log"

    def launch(self) -> float:
        """Start a process without waiting for it and return its start time (perf_counter)."""
        assert self.process is None
        self.lives += 1
        command = [*self.machine.within, sys.executable, "-m", *self._module, "serve"]
        command.append("--exit-with-parent")
        command += ["--host", self.machine.address, "--port", str(self.port)]
        command += ["--data-dir", str(self.data)]
        command += [
            "--log-level",
            "kbroker.coordinator_runtime.groups=debug",
            "--log-level",
            "kbroker.partitions.log_manager_tasks=debug",
        ]
        command += self._options
        command += [word for setting in self._settings for word in ("-o", setting)]
        command += [word for topic in self._topics for word in ("--topic", topic)]
        with self.log_path.open("wb") as log:
            started = time.perf_counter()
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        return started

    def start(self) -> Restart:
        """Start the server and wait for the first Metadata response."""
        started = self.launch()
        assert self.process is not None
        while True:
            assert self.process.poll() is None, self.log_path.read_text()
            try:
                trio.run(check_round_trip, *self.address)
            except (OSError, DecodeError):
                waited = time.perf_counter() - started
                assert waited < START_SECONDS_MAX, self.log_path.read_text()
                time.sleep(0.005)
            else:
                return Restart(time.perf_counter() - started, self._processor_wait())

    def _processor_wait(self) -> float:
        """Return the seconds that the main thread has waited for a CPU."""
        assert self.process is not None
        try:
            fields = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()
        except FileNotFoundError:
            return 0.0
        return int(fields[1]) / 1e9

    def kill(self) -> None:
        """Kill the process with SIGKILL; it must be running."""
        assert self.process is not None
        assert self.process.poll() is None, self.log_path.read_text()
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL
        self.process = None

    def close(self) -> None:
        """Kill the process if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    # -- observation

    def segments(self, topic: str) -> dict[int, list[int]]:
        """Return the base offsets of the segment files of each partition of a topic."""
        found = {}
        for partition in range(PARTITIONS[topic]):
            directory = self.data / f"{topic}-{partition}"
            names = os.listdir(directory) if directory.exists() else []
            parsed = sorted(filter(None, map(parse_file_name, names)))
            found[partition] = [offset for offset, suffix in parsed if suffix == LOG]
        return found

    def recovery_points(self, topic: str) -> dict[int, int]:
        return self._checkpoint(RECOVERY_POINTS, topic)

    def log_starts(self, topic: str) -> dict[int, int]:
        return self._checkpoint(LOG_STARTS, topic)

    def _checkpoint(self, name: str, topic: str) -> dict[int, int]:
        try:
            offsets = offsets_from_bytes((self.data / name).read_bytes(), name) or {}
        except FileNotFoundError:
            offsets = {}
        return {index: offsets.get((topic, index), 0) for index in range(PARTITIONS[topic])}

    def retention_starts(self) -> dict[int, int]:
        """Return the log starts of the trimmed partitions that the current process logged."""
        pattern = rf"{TRIMMED}-(\d+): retention moved the log start to (\d+)"
        found = re.findall(pattern, self.log_path.read_text())
        return {int(partition): int(start) for partition, start in found}

    def group_states(self) -> list[str]:
        """Return the states of the group that the current process logged."""
        pattern = rf"group {GROUP}\b.*(?:; now |\()(\w+), generation \d"
        return re.findall(pattern, self.log_path.read_text())

    def open_files(self) -> tuple[bool, int]:
        """Return whether the process has locked its data directory, and how many logs are open."""
        assert self.process is not None
        claimed, logs = False, 0
        directory = f"/proc/{self.process.pid}/fd"
        for number in os.listdir(directory):
            try:
                path = os.readlink(f"{directory}/{number}")
            except FileNotFoundError:
                continue
            claimed = claimed or path == str(self.data / LOCK)
            logs += path.startswith(str(self.data)) and path.endswith(LOG)
        return claimed, logs
