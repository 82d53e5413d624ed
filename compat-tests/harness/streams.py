"""A Kafka Streams application that is started and killed, and may lose its local state."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from .brokers import Broker
from .clients import eventually
from .java import JavaProcess, command_line
from .nodes import Nodes
from .places import COMPAT
from .traffic import Feeder, Reader, Record

WORK_SECONDS = 60.0
# Maximum time to finish a commit that was requested before the kill, in seconds.
END_SECONDS = 0.5

SETTINGS = {
    "commit.interval.ms": "500",
    "statestore.cache.max.bytes": "0",
    "num.stream.threads": "2",
    "consumer.auto.offset.reset": "earliest",
    "producer.transaction.timeout.ms": "4000",
}
# Settings by group protocol. Together with SETTINGS, every update is emitted, and the tasks of a
# killed application are reassigned soon.
PROTOCOL_SETTINGS = {
    "classic": {
        "consumer.session.timeout.ms": "4000",
        "consumer.heartbeat.interval.ms": "500",
    },
    "streams": {"group.protocol": "streams"},
}

# Timeouts of streams groups (KIP-1071), which are broker settings.
SHORT_SESSIONS = {
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "4000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
}


class StreamsApplication(JavaProcess):
    """A process of java/StreamsApplication.java.

    Args:
        topology: "words" or "payments".
        bootstrap: "host:port".
        directory: Directory of its state and its log.
        guarantee: Value of `processing.guarantee`.
        settings: Additional settings.
        protocol: Group protocol, "classic" or "streams".
        logs: Configuration of its logs, see `command_line`.
    """

    def __init__(
        self,
        topology: str,
        bootstrap: str,
        directory: Path,
        guarantee: str = "exactly_once_v2",
        settings: Mapping[str, str] | None = None,
        protocol: str = "classic",
        logs: str = "log4j2.properties",
    ) -> None:
        self._state = directory / "state"
        settings = {
            "application.id": topology,
            "bootstrap.servers": bootstrap,
            "state.dir": str(self._state),
            "processing.guarantee": guarantee,
            **SETTINGS,
            **PROTOCOL_SETTINGS[protocol],
            **(settings or {}),
        }
        source = str(COMPAT / "java" / "StreamsApplication.java")
        arguments = [topology, *(f"{key}={value}" for key, value in settings.items())]
        command = command_line("streams-4.4", source, *arguments, logs=logs)
        super().__init__(command, directory / "streams.log")

    def wipe(self) -> None:
        """Delete its local state."""
        shutil.rmtree(self._state)


class Work:
    """A continuous input, an application that processes it, and the broker of both.

    Args:
        broker: The broker.
        application: The application, not started yet.
        feeder: The source of the input, not started yet.
        output: Topic of the results.
    """

    def __init__(
        self, broker: Broker | Nodes, application: StreamsApplication, feeder: Feeder, output: str
    ) -> None:
        self.application = application
        self._broker = broker
        self._feeder = feeder
        self._output = output
        self._committed = Reader(broker.address)
        self._all = Reader(broker.address, "read_uncommitted")

    def __enter__(self) -> Self:
        self._feeder.start()
        self.application.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._feeder.stop()
        self.application.kill()

    def kill(self, *, application: bool, broker: bool, wipe: bool = False) -> float:
        """Kill during an open transaction, restart, and return the seconds until the next results.

        Args:
            application: Kill the application.
            broker: Kill the broker.
            wipe: Delete the local state of the application.
        """
        self._kill_in_a_transaction(application)
        if broker:
            self._broker.kill()
        if wipe:
            self.application.wipe()
        started = time.monotonic()
        if broker:
            self._broker.start()
        if application:
            self.application.start()
        self.wait_for_more()
        return time.monotonic() - started

    def wait_for_more(self) -> None:
        """Wait until further results are committed."""
        before = self._done()
        self._wait_for(self._done, lambda done: done > before, "more results")

    def results(self, expected: int) -> tuple[list[Record], int]:
        """Wait until all input is processed, and stop the application.

        Returns:
            The committed results, and the number of aborted ones.
        """
        self._wait_for(self._done, lambda done: done >= expected, "all results")
        self.application.stop()
        committed = self._committed.read(self._output)
        return committed, len(self._all.read(self._output)) - len(committed)

    def _kill_in_a_transaction(self, application: bool) -> None:
        """Wait for an open transaction, and kill the application if requested.

        A killed application leaves the transaction open.
        """
        self._wait_for(self._is_open, bool, "an open transaction")
        while application:
            self.application.kill()
            time.sleep(END_SECONDS)
            if self._is_open():
                return
            self.application.start()
            self._wait_for(self._is_open, bool, "an open transaction")

    def _done(self) -> int:
        """Return the number of committed results."""
        return len(self._committed.read(self._output))

    def _is_open(self) -> bool:
        """Return True if there are uncommitted results."""
        return self._all.end(self._output) > self._committed.end(self._output)

    def _wait_for(
        self, observe: Callable[[], Any], holds: Callable[[Any], bool], what: str
    ) -> None:
        def check_and_look() -> Any:
            self.application.check()
            return observe()

        eventually(check_and_look, holds, what, WORK_SECONDS)
