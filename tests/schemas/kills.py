"""Concurrent registration of schemas while the broker is killed repeatedly."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self

from kbroker.client.endpoint import Endpoint

from ..cli.test_serve import SECONDS, serving, wait_for
from ..ports import free_ports
from .client import record

CLIENTS = 4
SUBJECTS = 20
RETRY_BACKOFF_SECONDS = 0.02


class Registration(NamedTuple):
    """A schema and the subject to register it in."""

    subject: str
    number: int

    @property
    def text(self) -> str:
        """The schema."""
        return text_of(self.number)


def text_of(number: int) -> str:
    """Return the schema with the given number. All are different."""
    fields = ("id", "long"), (f"field_{number}", "string", ""), ("amount", ["null", "double"], None)
    return json.dumps(record(f"Order{number}", *fields))


def registrations(schemas: int) -> Iterator[Registration]:
    """Yield each schema once, and every fifth one also twice more, in two subjects."""
    for number in range(schemas):
        subject = number % SUBJECTS
        yield Registration(f"subject-{subject}", number)
        if not number % 5:
            yield Registration(f"subject-{subject}", number)
            yield Registration(f"subject-{(subject + 7) % SUBJECTS}", number)


class RegistryConnection:
    """A client that keeps its connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._http = http.client.HTTPConnection(*endpoint, timeout=SECONDS)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response. Raise OSError or HTTPException if the server does not respond."""
        data = None if body is None else json.dumps(body)
        try:
            self._http.request(method, path, data)
            response = self._http.getresponse()
            content = json.loads(response.read())
        except BaseException:
            self._http.close()
            raise
        if response.status >= http.client.INTERNAL_SERVER_ERROR:
            raise ConnectionError(f"{response.status}: {content}")
        assert response.status == http.client.OK, (method, path, content)
        return content

    def register(self, registration: Registration) -> int:
        """Register a schema and return its ID."""
        path = f"/subjects/{registration.subject}/versions"
        schema_id: int = self.ask("POST", path, {"schema": registration.text})["id"]
        return schema_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()


class RegistryServer:
    """A broker with a registry and a data directory, on the same ports at each start."""

    def __init__(self, directory: Path, *flags: str) -> None:
        first = free_ports(2)
        self.endpoint = Endpoint("127.0.0.1", first + 1)
        self._directory = directory
        ports = ("--port", str(first), "--registry-port", str(first + 1))
        self._flags = ("--data-dir", str(directory / "data"), *ports, *flags)
        self._starts = 0

    @property
    def data_dir(self) -> Path:
        """The broker's data directory."""
        return self._directory / "data"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Start the server, and kill it at the end of the block."""
        self._starts += 1
        port_file = self._directory / f"ready-{self._starts}.json"
        with serving(*self._flags, "--port-file", str(port_file)) as process:
            wait_for(port_file)
            yield process

    def connect(self) -> RegistryConnection:
        """Return a client of the registry."""
        return RegistryConnection(self.endpoint)


class Load:
    """Clients that register each schema until the server acknowledges it."""

    def __init__(self, server: RegistryServer, wanted: Sequence[Registration]) -> None:
        # Acknowledged registrations with their schema IDs, in order.
        self.acknowledged: list[tuple[Registration, int]] = []
        # Number of registrations with unknown outcome.
        self.interrupted = 0
        self._server = server
        self._left: SimpleQueue[Registration] = SimpleQueue()
        for each in wanted:
            self._left.put(each)
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CLIENTS)]

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def wait_for(self, count: int) -> None:
        """Wait until `count` registrations are acknowledged."""
        give_up = time.monotonic() + SECONDS
        while len(self.acknowledged) < count:
            assert not self._failures, self._failures
            assert time.monotonic() < give_up, (
                f"{len(self.acknowledged)} of {count} were acknowledged"
            )
            time.sleep(0.001)

    def join(self) -> None:
        """Wait until all registrations are acknowledged."""
        for each in self._threads:
            each.join(SECONDS)
        assert not self._failures, self._failures

    def _run(self) -> None:
        try:
            with self._server.connect() as client, suppress(Empty):
                while True:
                    registration = self._left.get_nowait()
                    self.acknowledged.append((registration, self._register(client, registration)))

        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self._failures.append(error)

    def _register(self, client: RegistryConnection, registration: Registration) -> int:
        give_up = time.monotonic() + SECONDS
        while True:
            try:
                return client.register(registration)
            except ConnectionRefusedError:
                pass
            except (OSError, http.client.HTTPException):
                self.interrupted += 1
            assert time.monotonic() < give_up, f"{registration} is not acknowledged"
            time.sleep(RETRY_BACKOFF_SECONDS)


def ids_of(acknowledged: Sequence[tuple[Registration, int]]) -> Mapping[int, int]:
    """Return the ID of each schema. Raise AssertionError unless IDs and schemas match one to one."""
    found: dict[int, int] = {}
    for registration, schema_id in acknowledged:
        assert found.setdefault(registration.number, schema_id) == schema_id, registration
    assert len(set(found.values())) == len(found)
    return found
