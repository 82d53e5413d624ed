"""An application of Kafka Streams that is started, killed, and loses what it kept on disk."""

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
END_SECONDS = 0.5
"""How long the end of a transaction may take that was asked for before a kill."""

SETTINGS = {
    "commit.interval.ms": "500",
    "statestore.cache.max.bytes": "0",
    "num.stream.threads": "2",
    "consumer.auto.offset.reset": "earliest",
    "producer.transaction.timeout.ms": "4000",
}
OF_PROTOCOL = {
    "classic": {
        "consumer.session.timeout.ms": "4000",
        "consumer.heartbeat.interval.ms": "500",
    },
    "streams": {"group.protocol": "streams"},
}
"""Each update comes out, and what a dead application holds is free soon."""

SHORT_SESSIONS = {
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "4000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
}
"""The same for streams groups (KIP-1071), whose times are settings of the broker."""


class StreamsApplication(JavaProcess):
    """One process of java/StreamsApplication.java.

    topology: "words" or "payments". bootstrap: "host:port". directory: for its state and its log.
    guarantee: of its processing. settings: more of them. protocol: of its group.
    """

    def __init__(
        self,
        topology: str,
        bootstrap: str,
        directory: Path,
        guarantee: str = "exactly_once_v2",
        settings: Mapping[str, str] | None = None,
        protocol: str = "classic",
    ) -> None:
        self._state = directory / "state"
        settings = {
            "application.id": topology,
            "bootstrap.servers": bootstrap,
            "state.dir": str(self._state),
            "processing.guarantee": guarantee,
            **SETTINGS,
            **OF_PROTOCOL[protocol],
            **(settings or {}),
        }
        source = str(COMPAT / "java" / "StreamsApplication.java")
        arguments = [topology, *(f"{key}={value}" for key, value in settings.items())]
        super().__init__(command_line("streams-4.3", source, *arguments), directory / "streams.log")

    def wipe(self) -> None:
        """Remove what it kept on disk."""
        shutil.rmtree(self._state)


class Work:
    """Input that flows, an application that works on it, and the broker of both.

    output: the topic of the results. The feeder and the application must not have started.
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
        """Kill in an open transaction, start again; the seconds until results came again.

        wipe: with the application its state on disk goes.
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
        """Wait until more results are committed."""
        before = self._done()
        self._wait_for(self._done, lambda done: done > before, "more results")

    def results(self, expected: int) -> tuple[list[Record], int]:
        """Wait until all that was fed is worked off, and end.

        Returns the committed results and how many were aborted.
        """
        self._wait_for(self._done, lambda done: done >= expected, "all results")
        self.application.stop()
        committed = self._committed.read(self._output)
        return committed, len(self._all.read(self._output)) - len(committed)

    def _kill_in_a_transaction(self, application: bool) -> None:
        """A transaction is open when this returns, for good if its application was killed."""
        self._wait_for(self._is_open, bool, "an open transaction")
        while application:
            self.application.kill()
            time.sleep(END_SECONDS)
            if self._is_open():
                return
            self.application.start()
            self._wait_for(self._is_open, bool, "an open transaction")

    def _done(self) -> int:
        """How many results are committed."""
        return len(self._committed.read(self._output))

    def _is_open(self) -> bool:
        """Results are there that nobody has committed."""
        return self._all.end(self._output) > self._committed.end(self._output)

    def _wait_for(self, look: Callable[[], Any], holds: Callable[[Any], bool], what: str) -> None:
        def look_twice() -> Any:
            self.application.check()
            return look()

        eventually(look_twice, holds, what, WORK_SECONDS)
