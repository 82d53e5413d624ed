"""Client processes as the tests see them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .places import CLIENTS, environment_python

VERB_SECONDS = 60.0
COORDINATOR_MOVES = frozenset({14, 15, 16})
"""Loading, not available, not coordinator: an application asks again."""
UNKNOWN_TOPIC = frozenset({3})
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Library:
    """One pinned client and what it cannot do by itself (whatever the broker)."""

    name: str
    module: str
    codecs: tuple[str, ...] = ALL_CODECS
    static: bool = True
    fencing: bool = True
    """Notices that another member took its instance id."""
    cooperative: bool = True
    idempotent: bool = True
    transactional: bool = True
    null_headers: bool = True
    deletes_groups: bool = True
    deletes_records: bool = True


LIBRARIES = {
    one.name: one
    for one in (
        Library("kafka-python-3", "kafka_python", null_headers=False),
        Library(
            "kafka-python-2",
            "kafka_python",
            static=False,
            fencing=False,
            cooperative=False,
            idempotent=False,
            transactional=False,
            null_headers=False,
            deletes_records=False,
        ),
        Library("confluent-kafka", "confluent"),
        Library(
            "aiokafka",
            "aio",
            fencing=False,
            cooperative=False,
            deletes_groups=False,
        ),
    )
}


class ClientError(Exception):
    """A verb failed in the client; code is Kafka's error number or None."""

    def __init__(self, verb: str, error: dict[str, Any], stderr: str) -> None:
        super().__init__(
            f"{verb}: {error['type']}({error['code']}): {error['message']}\n"
            f"{error['trace']}\n--- client stderr ---\n{stderr}"
        )
        self.code: int | None = error["code"]
        self.message: str = error["message"]


class ClientDied(Exception):
    """The process ended, or did not answer in time."""


class ScriptProcess:
    """A process that answers verbs as JSON lines (clients/driver.py or spark/driver.py).

    name: for messages; python and command: what runs; log: where its stderr goes.
    """

    def __init__(self, name: str, python: Path, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [str(python), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def __call__(
        self, verb: str, *, seconds_allowed: float = VERB_SECONDS, **arguments: Any
    ) -> Any:
        """Ask and wait; raises ClientError or ClientDied."""
        self.send(verb, **arguments)
        return self.receive(verb, seconds_allowed)

    def send(self, verb: str, **arguments: Any) -> None:
        """Ask without waiting."""
        assert self._process.stdin is not None
        line = json.dumps({"verb": verb, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientDied(f"{self.name} is gone\n{self.stderr_tail()}") from None

    def receive(self, verb: str = "answer", seconds: float = VERB_SECONDS) -> Any:
        """The answer to what was sent before."""
        answer = json.loads(self._line(verb, seconds))
        if "error" in answer:
            raise ClientError(verb, answer["error"], self.stderr_tail())
        return answer["result"]

    def kill(self) -> None:
        """SIGKILL: the application's machine lost its power."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._release()

    def wait_for_crash(self, seconds: float = VERB_SECONDS) -> int:
        """Wait until the process has ended by itself; returns its status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """End the process (stdin closed), by force if need be."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
        self._release()

    def _release(self) -> None:
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def stderr_tail(self, lines: int = 15) -> str:
        """The last lines of stderr; the many about refused connections left out."""
        said = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in said if "onnect" not in line][-lines:])

    def _stacks(self) -> str:
        """What its threads are doing (clients/driver.py dumps them on SIGUSR1)."""
        if self.name in LIBRARIES:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        return self.stderr_tail(60)

    def _line(self, verb: str, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ClientDied(
                    f"{self.name} did not answer {verb!r} within {seconds} s\n{self._stacks()}"
                )
            if self._selector.select(left):
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise ClientDied(f"{self.name} ended in {verb!r}\n{self.stderr_tail()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class ClientProcess(ScriptProcess):
    """One process with one client library; bootstrap: "host:port"."""

    def __init__(self, library: Library, bootstrap: str, log: Path) -> None:
        command = [str(CLIENTS / "driver.py"), library.module, bootstrap]
        super().__init__(library.name, environment_python(library.name), command, log)

    def admin(self, call: str, **arguments: Any) -> Any:
        """An admin call of base.Client."""
        return self("admin", call=call, **arguments)


def eventually(
    look: Callable[[], Any],
    holds: Callable[[Any], bool],
    what: str,
    seconds: float = 30.0,
    not_yet: frozenset[int] = COORDINATOR_MOVES,
) -> Any:
    """Look again and again until `holds`; fails with the last thing seen.

    Returns what was seen. seconds: how long to try. not_yet: errors that count as not holding;
    all others are raised.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            seen = look()
            if holds(seen):
                return seen
        except ClientError as error:
            if error.code not in not_yet:
                raise
            seen = error
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s, last seen {seen}"
        time.sleep(0.1)
