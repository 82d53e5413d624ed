"""Kafka Connect and MirrorMaker 2 processes, and the REST interface of the workers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .brokers import free_port
from .clients import eventually
from .java import JavaProcess, command_line

JAR_SET = "connect-4.4"
ANSWER_SECONDS = 60.0
PLAIN = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "1000",
}


def write_properties(path: Path, properties: Mapping[str, str]) -> str:
    """Write a properties file and return its path."""
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(path)


class Worker(JavaProcess):
    """A Kafka Connect worker.

    Args:
        main: Name of the main class.
        directory: Directory of its files.
        properties: Settings of the worker.
        more: Further files for the command line.
    """

    def __init__(
        self, main: str, directory: Path, properties: Mapping[str, str], *more: str
    ) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        file = write_properties(
            directory / "worker.properties", {**PLAIN, "listeners": self._url, **properties}
        )
        command = command_line(JAR_SET, f"org.apache.kafka.connect.cli.{main}", file, *more)
        super().__init__(command, directory / "connect.log")

    def configure(self, name: str, connector: Mapping[str, str]) -> None:
        """Create a connector once the worker accepts it, and wait until its task runs."""
        self._until(lambda: self._ask("PUT", f"/connectors/{name}/config", connector), bool)
        self._until(lambda: self._ask("GET", f"/connectors/{name}/status"), _runs)

    def _until(self, ask: Callable[[], Any], holds: Callable[[Any], bool]) -> None:
        """Retry while the worker starts or rebalances."""

        def answer() -> Any:
            self.check()
            try:
                return ask()
            except urllib.error.URLError:
                return None

        eventually(answer, lambda seen: seen is not None and holds(seen), "a worker", 60)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)


def _runs(status: Any) -> bool:
    """Return True if the connector has exactly one task and it runs."""
    return [task["state"] for task in status["tasks"]] == ["RUNNING"]


def mirror_maker(directory: Path, properties: Mapping[str, str]) -> JavaProcess:
    """Start a dedicated MirrorMaker 2 for all replication flows in its properties."""
    file = write_properties(directory / "mirror.properties", properties)
    command = command_line(JAR_SET, "org.apache.kafka.connect.mirror.MirrorMaker", file)
    return JavaProcess(command, directory / "mirror.log")
