"""Command, environment and start script that Testcontainers for Python uses for Kafka, as JSON.

No container engine is needed.

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
    """Replacement of the client of a container engine."""

    def __init__(self, *_: object, **__: object) -> None:
        pass


class RecordedWait:
    """Replacement of the strategy that waits for a log line; records the pattern."""

    def __init__(self, pattern: Any) -> None:
        found["until"] = pattern.pattern

    def with_startup_timeout(self, _seconds: int) -> None:
        pass

    def wait_until_ready(self, _container: object) -> None:
        pass


class DescribedContainer(kafka.KafkaContainer):
    """Kafka container that records its start script instead of copying it."""

    def get_container_host_ip(self) -> str:
        return "localhost"

    def get_exposed_port(self, port: int) -> int:
        return port

    def create_file(self, content: bytes, path: str) -> None:
        found["script"] = [path, content.decode()]


def main(kind: str) -> None:
    """Print the description of a container with ZooKeeper or with KRaft."""
    container.DockerClient = NoEngine
    container.DockerContainer.start = lambda self: self
    kafka.LogMessageWaitStrategy = RecordedWait
    described = DescribedContainer("confluentinc/cp-kafka:7.6.0")
    if kind == "kraft":
        described.with_kraft()
    described.start()
    found["command"] = shlex.split(described._command)
    found["environment"] = {name: str(value) for name, value in described.env.items()}
    print(json.dumps(found))


main(sys.argv[1])
