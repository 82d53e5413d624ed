"""Events recorded by transactional clients, and their NDJSON format.

Every client writes its own file, event by event, so that the events of a killed client survive.
`load` merges the files by time: all processes use the same monotonic clock.

A request is recorded before it is sent (`INVOKED`) and again after its response: `OK`, `FAIL` (it
surely had no effect) or `UNKNOWN` (it may have had an effect). Reads (`POLL`, `READ`, `STABLE`,
`END`, `COMMITTED`) are one event, recorded with the response; `since` is the time of the request.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

# A topic and a partition.
Place = tuple[str, int]

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


class Operation(StrEnum):
    """The operation of an event."""

    # A process initialises a transactional ID and fences the previous process.
    INIT = "init"
    BEGIN = "begin"
    # `value` is sent to `place`; `source` is the input of a transformer.
    SEND = "send"
    # The transaction commits `offset` of `place` for `group`.
    OFFSETS = "offsets"
    COMMIT = "commit"
    ABORT = "abort"
    # A consumer moved from offset `begin` to `end` of `place` and received `records`.
    POLL = "poll"
    # A final read of a whole partition, after all clients have stopped.
    READ = "read"
    # The last stable offset of `place`.
    STABLE = "stable"
    # The high watermark of `place`, as read_uncommitted consumers see it.
    END = "end"
    # The committed offset of `group` in `place`, or -1.
    COMMITTED = "committed"
    # The process is paused; for `BROKER`, one of its nodes.
    PAUSE = "pause"
    # The process is resumed; for `BROKER`, the node is in sync again.
    RESUME = "resume"
    # The process is killed; `BROKER` is the broker process.
    KILL = "kill"


class Phase(StrEnum):
    """The state of an operation."""

    INVOKED = "invoked"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


BROKER = "broker"


class Event(NamedTuple):
    """An event. Fields that do not apply to its operation keep their default.

    Attributes:
        time: Monotonic time in ns.
        process: Name and number of a client process.
        timeout_ms: Transaction timeout of the process.
        transaction: Unique name of a transaction.
        since: Monotonic time of the request in ns, for reads.
    """

    time: int
    process: str
    operation: Operation
    phase: Phase = Phase.OK
    transactional_id: str = ""
    timeout_ms: int = -1
    transaction: str = ""
    place: Place = ("", -1)
    value: int = -1
    source: int = -1
    group: str = ""
    offset: int = -1
    isolation: str = ""
    begin: int = -1
    end: int = -1
    records: tuple[tuple[int, int], ...] = ()
    since: int = -1
    error: str = ""


def to_json(event: Event) -> str:
    """Return the event as a JSON line without fields that have their default."""
    defaults = Event._field_defaults
    fields = event._asdict().items()
    return json.dumps({name: each for name, each in fields if each != defaults.get(name)})


def from_json(line: str) -> Event:
    """Parse a line. Raises ValueError or TypeError if it is not an event."""
    fields: dict[str, Any] = json.loads(line)
    fields["operation"] = Operation(fields["operation"])
    fields["phase"] = Phase(fields.get("phase", Phase.OK))
    if "place" in fields:
        topic, partition = fields["place"]
        fields["place"] = (topic, partition)
    if "records" in fields:
        fields["records"] = tuple((offset, value) for offset, value in fields["records"])
    return Event(**fields)


class Recorder:
    """A writer of the events of one process to a file that survives the process.

    Each event is one append, so a killed process leaves whole lines.
    """

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, operation: Operation, phase: Phase = Phase.OK, **fields: Any) -> int:
        """Append an event with the current time and return this time."""
        fields.setdefault("process", self.process)
        event = Event(time.monotonic_ns(), operation=operation, phase=phase, **fields)
        os.write(self._file, to_json(event).encode() + b"\n")
        return event.time

    def close(self) -> None:
        os.close(self._file)


def load(paths: Iterable[Path]) -> list[Event]:
    """Return the events of all files, ordered by time."""
    events = [event for path in paths for event in _lines(path)]
    return sorted(events, key=lambda event: event.time)


def _lines(path: Path) -> Iterator[Event]:
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield from_json(line)
