"""Killed members of a share group, and a checker of everything that they report (KIP-932).

A member reports each record and its delivery count before it acknowledges it, and then whether the
acknowledgement succeeded. Reports of a killed member still arrive. Each report has a timestamp,
because reports of two members may arrive in another order than the events.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from .java import command_line
from .places import COMPAT
from .traffic import Reader

LEAVE_SECONDS = 30.0
ACCEPT, REJECT, RELEASE = "accept", "reject", "release"
# Outcome of a record whose last acknowledgement was a successful accept.
ACCEPTED = "accepted"
# Error if the member does not hold the record any more.
NOT_HELD = "InvalidRecordStateException"
# An offset above all others.
END = 2**63 - 1
# Partition and offset.
Place = tuple[int, int]


@dataclass
class _RecordState:
    """State of one record.

    Attributes:
      floor: Delivery count of the last successful release. Later deliveries have higher counts.
      top: Highest delivery count that a member reported.
      kills: Number of members killed before the last report. Members killed later may have received
        the record without reporting it.
      settled: Final acknowledgement that succeeded, or "exhausted".
      unknown_results: Number of accepts and rejects whose result is unknown, by acknowledgement.
    """

    floor: int = 0
    top: int = 0
    kills: int = 0
    settled: str = ""
    unknown_results: Counter[str] = field(default_factory=Counter)


@dataclass
class ShareChecker:
    """Checks the members' reports in the order of the events.

    Attributes:
      limit: Maximum number of deliveries of a record.
      records: State of each record.
      wrong: Number of violations by description.
      done: Number of events by kind.
      kills: End offsets of the partitions at the kill of each member. The member may have received
        any record with a lower offset.
      first_wrong: The first violation.
    """

    limit: int
    records: dict[Place, _RecordState] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    kills: list[dict[int, int]] = field(default_factory=list)
    first_wrong: str = ""

    def check_delivery(self, place: Place, deliveries: int, acknowledgement: str) -> None:
        """Check a delivery to a member."""
        record = self.records.setdefault(place, _RecordState())
        most = record.top + 1 + self._possible_deliveries(place, record)
        if record.settled:
            self._record_violation(
                f"delivered after its final acknowledgement: {record.settled}", place, deliveries
            )
        if deliveries <= record.floor:
            self._record_violation("a delivery was not counted", place, deliveries)
        if deliveries > min(most, self.limit):
            self._record_violation("the delivery count is too high", place, deliveries)
        self.done["redelivered"] += record.top > 0
        record.top, record.kills = max(record.top, deliveries), len(self.kills)
        record.unknown_results[acknowledgement] += acknowledgement != RELEASE

    def record_success(self, place: Place, deliveries: int, acknowledgement: str) -> None:
        """Record a successful acknowledgement."""
        record = self.records[place]
        self.done[acknowledgement] += 1
        if record.settled:
            self._record_violation(
                f"acknowledged after its final acknowledgement: {record.settled}", place, deliveries
            )
        elif acknowledgement != RELEASE:
            record.settled = acknowledgement
        else:
            record.floor = max(record.floor, deliveries)
            record.settled = "exhausted" if deliveries >= self.limit else ""

    def record_failure(self, place: Place, acknowledgement: str, why: str) -> None:
        """Record a failed acknowledgement. For most errors the result is unknown."""
        self.done[f"rejected, {why}"] += 1
        if why == NOT_HELD:
            self.records[place].unknown_results[acknowledgement] -= acknowledgement != RELEASE

    def count_outcomes(self, ends: dict[int, int]) -> dict[str, int]:
        """Return the number of records by final state, after the group has processed all records."""
        kinds: Counter[str] = Counter()
        for partition, end in ends.items():
            for offset in range(end):
                kind = self.outcome_of((partition, offset))
                kinds[kind] += 1
                if kind == "lost":
                    self._record_violation("lost", (partition, offset), 0)
        return dict(kinds)

    def may_be_accepted(self, place: Place) -> bool:
        """Return True if the group may have accepted a record."""
        record = self.records.get(place, _RecordState())
        return record.settled == ACCEPT or (
            not record.settled and record.unknown_results[ACCEPT] > 0
        )

    def outcome_of(self, place: Place) -> str:
        """Return the final state of a record, after the group has processed all records."""
        record = self.records.get(place, _RecordState())
        if record.settled:
            return {ACCEPT: ACCEPTED, REJECT: "rejected"}.get(record.settled, record.settled)
        if record.unknown_results.total():
            return "accepted or rejected during a kill"
        # Killed members may have received the record without reporting it.
        most = record.top + self._possible_deliveries(place, record)
        return "exhausted by kills" if most >= self.limit else "lost"

    def _possible_deliveries(self, place: Place, record: _RecordState) -> int:
        """Return how many members that were killed after the last report may have received a record."""
        partition, offset = place
        return sum(offset < ends.get(partition, END) for ends in self.kills[record.kills :])

    def _record_violation(self, what: str, place: Place, deliveries: int) -> None:
        self.wrong[what] += 1
        self.first_wrong = self.first_wrong or f"{what}: {place}, delivery {deliveries}"


class ShareWorkers:
    """Members in processes of their own, and a checker of their reports."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, checker: ShareChecker, log: Path
    ) -> None:
        self.checker = checker
        self.lock = threading.Lock()
        # Time, sequence number and callback of each report.
        self._reports: list[tuple[int, int, Callable[[], None]]] = []
        self._succeeded = 0
        program = str(COMPAT / "java" / "ShareWorker.java")
        self._command = command_line("kafka-4.4", program, bootstrap, group, topic)
        self._log = log
        self._topic = topic
        self._reader = Reader(bootstrap)
        self._running: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running:
            worker.process.kill()
            worker.join()

    def __len__(self) -> int:
        return len(self._running)

    def start(self) -> None:
        """Start another member."""
        self._running.append(_Worker(self._command, self._log, self))

    def count_acknowledged(self) -> int:
        """Return the number of successful acknowledgements so far."""
        return self._succeeded

    def add_report(
        self, at: int, callback: Callable[[], None], *, has_succeeded: bool = False
    ) -> None:
        """Store a report for the checker. `at` is in ns of the machine's monotonic clock."""
        with self.lock:
            self._reports.append((at, len(self._reports), callback))
            self._succeeded += has_succeeded

    def check_reports(self) -> None:
        """Pass all stored reports to the checker, sorted by time."""
        for _, _, callback in sorted(self._reports, key=lambda report: report[:2]):
            callback()
        self._reports.clear()

    def check(self) -> None:
        """Fail if a member has ended by itself."""
        for worker in self._running:
            assert worker.process.poll() is None, self._log.read_text(errors="replace")[-3_000:]

    def kill_oldest(self) -> int:
        """Kill the oldest member and return the number of its unacknowledged records."""
        worker = self._running.pop(0)
        ends: dict[int, int] = {}
        self.add_report(time.monotonic_ns(), lambda: self.checker.kills.append(ends))
        worker.process.send_signal(signal.SIGKILL)
        worker.join()
        ends.update(self._reader.ends(self._topic))
        return len(worker.open)

    def leave(self) -> None:
        """Stop all members gracefully."""
        for worker in self._running:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for worker in self._running:
            worker.process.wait(LEAVE_SECONDS)
            worker.join()
            assert worker.has_left, self._log.read_text(errors="replace")[-3_000:]
        self._running.clear()


class _Worker:
    """A member. `open` contains delivered records whose acknowledgement was not reported yet."""

    def __init__(self, command: list[str], log: Path, workers: ShareWorkers) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.open: dict[Place, tuple[int, str]] = {}
        self.has_left = False
        self._workers = workers
        self._thread = threading.Thread(target=self._read_lines, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all reports are read."""
        self._thread.join()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self._handle_line(line.split())

    def _handle_line(self, words: list[str]) -> None:
        if words == ["left"]:
            self.has_left = True
            return
        what, at, partition, offset, *rest = words
        place, checker = (int(partition), int(offset)), self._workers.checker
        if what == "got":
            got = self.open[place] = int(rest[0]), rest[1]
            self._workers.add_report(int(at), partial(checker.check_delivery, place, *got))
        elif what == "settled":
            settled = partial(checker.record_success, place, *self.open.pop(place))
            self._workers.add_report(int(at), settled, has_succeeded=True)
        else:
            _, acknowledgement = self.open.pop(place)
            self._workers.add_report(
                int(at), partial(checker.record_failure, place, acknowledgement, rest[0])
            )
