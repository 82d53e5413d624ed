"""Spark jobs as processes that are killed: what their checkpoints say about them."""

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
    """A query's directory: which batches it has planned, and which it has done."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def planned(self) -> int:
        """The last batch whose offsets are decided; -1 before the first."""
        return self._last("offsets")

    def done(self) -> int:
        """The last batch that is done; -1 before the first."""
        return self._last("commits")

    def is_at_work(self) -> bool:
        """Whether a batch has been begun and is not done."""
        return self.planned() > self.done()

    def read(self) -> int:
        """How many offsets of the topic the batches that are done go through."""
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
    """A Spark job in a process of its own.

    Parameters: `command` is what Python runs, in `directory`, where its log is too.
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
        self.lives = 0

    @property
    def log_path(self) -> Path:
        """What its present life has said."""
        return self._directory / f"{self.name}-{self.lives}.log"

    def start(self) -> None:
        assert self._process is None
        self.lives += 1
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
        """It must be running: nothing but a kill ends it."""
        assert self._process is not None
        assert self._process.poll() is None, self.said()

    def said(self) -> str:
        """The end of its log."""
        return f"{self.name}: {self.log_path.read_text(errors='replace')[-4000:]}"

    def is_at_work(self) -> bool:
        """Whether this life has done a batch, and is at the next one."""
        return self.checkpoint.is_at_work() and self.checkpoint.done() > self._done_at_start

    def kill(self) -> None:
        """SIGKILL for Python, the JVM and its workers, at the same moment."""
        self.check()
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end; it must, with status 0."""
        self.check()
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(STOP_SECONDS) == 0, self.said()
        self._process = None

    def close(self) -> None:
        """It is gone afterwards."""
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
    """The processes that a process has started, and those that they have."""
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
    """Each process of this machine and its parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                yield int(name), int(text.rpartition(")")[2].split()[1])
