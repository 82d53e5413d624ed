"""What transactional clients saw of a broker: events, and their form in a file of JSON lines.

Every client writes its own file, event by event as they happen, so that what a client knew when it
was killed is there. `load` puts the files together by time: all clocks are one steady clock.

A question is written down before it is sent (`INVOKED`) and its answer after it came: `OK`, `FAIL`
(it has surely not happened) or `UNKNOWN` (it may have happened). What only looks (`POLL`, `READ`,
`STABLE`, `END`, `COMMITTED`) is one event, written when the answer is there; `since` is the time
of the question.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


class Operation(StrEnum):
    """What an event tells of."""

    INIT = "init"
    """A process takes over a transactional id, and fences whoever had it."""
    BEGIN = "begin"
    SEND = "send"
    """`value` to `place`; `source` is the value from which a transformer made it."""
    OFFSETS = "offsets"
    """The transaction carries the next `offset` that `group` has to read of `place`."""
    COMMIT = "commit"
    ABORT = "abort"
    POLL = "poll"
    """A consumer moved from offset `begin` to `end` of `place` and was given `records`."""
    READ = "read"
    """The same, of a whole partition after all clients have stopped: the last word on it."""
    STABLE = "stable"
    """The last stable offset of `place`."""
    END = "end"
    """The end offset of `place` for readers of uncommitted records."""
    COMMITTED = "committed"
    """The committed offset of `group` in `place`; -1 is none."""
    PAUSE = "pause"
    """The process stands still; one of `BROKER` is a node that stands still."""
    RESUME = "resume"
    """The process goes on; a node of `BROKER` is in sync again."""
    KILL = "kill"
    """The process is killed; `BROKER` is the process of the broker."""


class Phase(StrEnum):
    """How far an operation has come."""

    INVOKED = "invoked"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


BROKER = "broker"


class Event(NamedTuple):
    """One event. Fields that say nothing about an operation keep their default.

    `time` and `since` are nanoseconds of a steady clock. `process` is a client in one of its lives;
    `transaction` is the name of a transaction, which nobody uses twice; `timeout_ms` is when those
    of a process are aborted that nobody ends.
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
    """One line; fields that have their default are left out."""
    defaults = Event._field_defaults
    fields = event._asdict().items()
    return json.dumps({name: each for name, each in fields if each != defaults.get(name)})


def from_json(line: str) -> Event:
    """Raises ValueError or TypeError when the line is not an event."""
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
    """Writes the events of one process to a file that outlives it.

    Each event is one write to the end of the file: a process that is killed leaves whole lines.
    """

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, operation: Operation, phase: Phase = Phase.OK, **fields: Any) -> int:
        """Add an event that happens now; returns its time."""
        fields.setdefault("process", self.process)
        event = Event(time.monotonic_ns(), operation=operation, phase=phase, **fields)
        os.write(self._file, to_json(event).encode() + b"\n")
        return event.time

    def close(self) -> None:
        os.close(self._file)


def load(paths: Iterable[Path]) -> list[Event]:
    """The history of all processes, in the order of time."""
    events = [event for path in paths for event in _lines(path)]
    return sorted(events, key=lambda event: event.time)


def _lines(path: Path) -> Iterator[Event]:
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield from_json(line)
