"""Prints as JSON what Testcontainers for Python would do with a container of Kafka, without an engine.

Usage: python start_scripts.py zookeeper|kraft
"""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

from testcontainers.community import kafka
from testcontainers.core import container

found: dict[str, Any] = {}


class NoEngine:
    """Takes the place of the client of an engine."""

    def __init__(self, *_: object, **__: object) -> None:
        pass


class Waiting:
    """Replacement of the strategy that waits for a line of the log."""

    def __init__(self, pattern: Any) -> None:
        found["until"] = pattern.pattern

    def with_startup_timeout(self, _seconds: int) -> None:
        pass

    def wait_until_ready(self, _container: object) -> None:
        pass


class Described(kafka.KafkaContainer):
    """Says what it would do."""

    def get_container_host_ip(self) -> str:
        return "localhost"

    def get_exposed_port(self, port: int) -> int:
        return port

    def create_file(self, content: bytes, path: str) -> None:
        found["script"] = [path, content.decode()]


def main(kind: str) -> None:
    """Describe a container that needs ZooKeeper, or one that does not."""
    container.DockerClient = NoEngine
    container.DockerContainer.start = lambda self: self
    kafka.LogMessageWaitStrategy = Waiting
    described = Described("confluentinc/cp-kafka:7.6.0")
    if kind == "kraft":
        described.with_kraft()
    described.start()
    found["command"] = shlex.split(described._command)
    found["environment"] = {name: str(value) for name, value in described.env.items()}
    print(json.dumps(found))


main(sys.argv[1])
