"""Spark jobs as processes that are killed, and their progress from their checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 60


class Checkpoint:
    """The checkpoint directory of a query: its planned and its completed batches."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def planned(self) -> int:
        """Return the last batch with planned offsets, or -1."""
        return self._last("offsets")

    def done(self) -> int:
        """Return the last completed batch, or -1."""
        return self._last("commits")

    def is_at_work(self) -> bool:
        """Return True if a batch is planned but not completed."""
        return self.planned() > self.done()

    def read(self) -> int:
        """Return the sum of the topic's offsets after the last completed batch."""
        done = self.done()
        if done < 0:
            return 0
        text = (self._directory / "offsets" / str(done)).read_text(encoding="utf-8")
        topics = json.loads(text.splitlines()[-1])
        return sum(sum(partitions.values()) for partitions in topics.values())

    def _last(self, name: str) -> int:
        try:
            names = os.listdir(self._directory / name)
        except FileNotFoundError:
            return -1
        return max((int(each) for each in names if each.isdecimal()), default=-1)


class Job:
    """A Spark job in its own process.

    Args:
        name: Name of the job and of its log files.
        command: Command that the job runs in `directory`.
        checkpoint: Checkpoint directory of the query.
        directory: Working directory, where the logs are.
        environ: Additional environment variables.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        checkpoint: Path,
        directory: Path,
        environ: Mapping[str, str],
    ) -> None:
        self.name = name
        self.checkpoint = Checkpoint(checkpoint)
        self._command = command
        self._directory = directory
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._done_at_start = -1
        self.starts = 0

    @property
    def log_path(self) -> Path:
        """The log of the current run."""
        return self._directory / f"{self.name}-{self.starts}.log"

    def start(self) -> None:
        assert self._process is None
        self.starts += 1
        self._done_at_start = self.checkpoint.done()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._directory,
                env={**os.environ, **self._environ},
                start_new_session=True,
            )

    def check(self) -> None:
        """Check that the process runs: only a kill may end it."""
        assert self._process is not None
        assert self._process.poll() is None, self.log_tail()

    def log_tail(self) -> str:
        """Return the end of the log."""
        return f"{self.name}: {self.log_path.read_text(errors='replace')[-4000:]}"

    def is_at_work(self) -> bool:
        """Return True if this run has completed a batch and is in the next one."""
        return self.checkpoint.is_at_work() and self.checkpoint.done() > self._done_at_start

    def kill(self) -> None:
        """Send SIGKILL to Python, the JVM and its workers at the same moment."""
        self.check()
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Terminate the process and check that its exit status is 0."""
        self.check()
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(STOP_SECONDS) == 0, self.log_tail()
        self._process = None

    def close(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self._process.wait()
        self._process = None


def descendants(pid: int) -> list[int]:
    """Return the direct and indirect child processes of a process."""
    parents: dict[int, list[int]] = {}
    for number, parent in _processes():
        parents.setdefault(parent, []).append(number)
    found = []
    left = [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Yield each process of this machine and its parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                yield int(name), int(text.rpartition(")")[2].split()[1])
