"""Kafka Connect and MirrorMaker 2 as processes, and the workers' REST interface."""

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

JAR_SET = "connect-4.3"
ANSWER_SECONDS = 60.0
PLAIN = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "1000",
}


def write_properties(path: Path, properties: Mapping[str, str]) -> str:
    """A file of properties; returns its name."""
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(path)


class Worker(JavaProcess):
    """A worker of Kafka Connect.

    main: the class that runs. more: files for its command line, after that of its properties.
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
        """Make a connector, as soon as the worker takes it, and wait until its task runs."""
        self._until(lambda: self._ask("PUT", f"/connectors/{name}/config", connector), bool)
        self._until(lambda: self._ask("GET", f"/connectors/{name}/status"), _runs)

    def _until(self, ask: Callable[[], Any], holds: Callable[[Any], bool]) -> None:
        """Ask again while the worker starts or rebalances."""

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
    """A connector has one task, and it runs."""
    return [task["state"] for task in status["tasks"]] == ["RUNNING"]


def mirror_maker(directory: Path, properties: Mapping[str, str]) -> JavaProcess:
    """MirrorMaker 2 by itself, in all directions that its properties name."""
    file = write_properties(directory / "mirror.properties", properties)
    command = command_line(JAR_SET, "org.apache.kafka.connect.mirror.MirrorMaker", file)
    return JavaProcess(command, directory / "mirror.log")
