"""Child processes of the demo, seen from the parent: start, events, commands, kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from . import StartError

_START_S = 30
_STOP_S = 10


class Event(NamedTuple):
    """Event from a worker; ``exit`` is added when its output ends."""

    sender: Worker
    name: str
    fields: dict[str, Any]


class Worker:
    """Python process of the demo that reports events and accepts commands.

    It has its own process group, so that `kill` also kills a JVM, and Ctrl+C in the terminal
    reaches only the demo.

    Args:
        module: Module to run with ``python -m``.
        arguments: Its command line arguments.
        events: Receives its events.
        log: File for its other output.
        directory: Its working directory.
        environment: Additional environment variables.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        events: SimpleQueue[Event],
        log: Path,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self.killed = False
        with log.open("a", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()

    def send_command(self, command: str) -> None:
        """Send a command; it is ignored if the worker has ended, which its exit event reports."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the worker and all processes that it has started (SIGKILL)."""
        self.killed = True
        _kill_group(self._process)

    def _listen(self, events: SimpleQueue[Event]) -> None:
        # Leaving the block closes the pipes, with unread data if any, and waits for the process.
        with contextlib.suppress(BrokenPipeError), self._process as process:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # output of a library
                    fields = json.loads(line)
                    events.put(Event(self, fields.pop("event"), fields))
        events.put(Event(self, "exit", {"code": self._process.returncode}))


class OwnBroker:
    """The demo's own ``kbroker serve``, on a free local port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "broker"
        self.log = directory / "broker.log"
        self.bootstrap = ""
        self._port = "0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start or restart the broker on the same port, and return the seconds until it was ready.

        Raises:
            StartError: The broker ended or was not ready in time.
        """
        port_file = self.directory / "broker.port"
        port_file.unlink(missing_ok=True)
        started = time.monotonic()
        options = ["--port", self._port, "--port-file", str(port_file), "--exit-with-parent"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kbroker", "serve", *options, "--data-dir", str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not port_file.exists():
            if self._process.poll() is not None or time.monotonic() - started > _START_S:
                self.kill()
                raise StartError(f"The broker did not start; see {self.log}.")
            time.sleep(0.01)
        self.bootstrap = port_file.read_text(encoding="utf-8").strip()
        self._port = self.bootstrap.rpartition(":")[2]
        return time.monotonic() - started

    @property
    def ended(self) -> bool:
        """True if the broker process has ended."""
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> None:
        """Wait until the broker ends by itself."""
        if self._process:
            self._process.wait()

    def kill(self) -> None:
        """Kill the broker (SIGKILL)."""
        if self._process:
            _kill_group(self._process)

    def stop(self) -> None:
        """Stop the broker with SIGTERM, or with SIGKILL after a timeout."""
        if not self._process:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


def _kill_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
