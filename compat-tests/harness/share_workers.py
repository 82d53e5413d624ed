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

from .brokers import Broker
from .java import command_line
from .places import COMPAT
from .traffic import Reader

LEAVE_SECONDS = 30.0
ACCEPT, REJECT, RELEASE = "accept", "reject", "release"
# Error if the member does not hold the record any more.
NOT_HELD = "InvalidRecordStateException"
# An offset above all others.
END = 2**63 - 1
# Partition and offset.
Place = tuple[int, int]


@dataclass
class _Fate:
    """State of one record.

    Attributes:
      floor: Delivery count of the last successful release. Later deliveries have higher counts.
      top: Highest delivery count that a member reported.
      kills: Number of members killed so far. Later ones may have received the record unreported.
      settled: Final acknowledgement that succeeded, or "exhausted".
      unsure: Number of accepts and rejects whose result is unknown.
    """

    floor: int = 0
    top: int = 0
    kills: int = 0
    settled: str = ""
    unsure: int = 0


@dataclass
class ShareChecker:
    """Checks the members' reports in the order of the events.

    Attributes:
      limit: Maximum number of deliveries of a record.
      fates: State of each record.
      wrong: Number of violations by description.
      done: Number of events by kind.
      kills: End offsets of the partitions when each member was killed. It may have received any
        record below them.
      first_wrong: The first violation.
    """

    limit: int
    fates: dict[Place, _Fate] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    kills: list[dict[int, int]] = field(default_factory=list)
    first_wrong: str = ""

    def got(self, place: Place, deliveries: int, deed: str) -> None:
        """Check a delivery to a member."""
        fate = self.fates.setdefault(place, _Fate())
        most = fate.top + 1 + self._unseen(place, fate)
        if fate.settled:
            self._note(f"delivered after it was settled: {fate.settled}", place, deliveries)
        if deliveries <= fate.floor:
            self._note("a delivery that is not counted", place, deliveries)
        if deliveries > min(most, self.limit):
            self._note("a count that is too high", place, deliveries)
        self.done["redelivered"] += fate.top > 0
        fate.top, fate.kills = max(fate.top, deliveries), len(self.kills)
        fate.unsure += deed != RELEASE

    def settled(self, place: Place, deliveries: int, deed: str) -> None:
        """Record a successful acknowledgement."""
        fate = self.fates[place]
        self.done[deed] += 1
        if fate.settled:
            self._note(f"settled after it was settled: {fate.settled}", place, deliveries)
        elif deed != RELEASE:
            fate.settled = deed
        else:
            fate.floor = max(fate.floor, deliveries)
            fate.settled = "exhausted" if deliveries >= self.limit else ""

    def refused(self, place: Place, deed: str, why: str) -> None:
        """Record a failed acknowledgement. For most errors the result is unknown."""
        self.done[f"refused, {why}"] += 1
        if why == NOT_HELD:
            self.fates[place].unsure -= deed != RELEASE

    def ends(self, ends: dict[int, int]) -> dict[str, int]:
        """Return how many records ended in which way, once the group has processed everything."""
        kinds: Counter[str] = Counter()
        for partition, end in ends.items():
            for offset in range(end):
                kind = self._end_of((partition, offset))
                kinds[kind] += 1
                if kind == "lost":
                    self._note("lost", (partition, offset), 0)
        return dict(kinds)

    def _end_of(self, place: Place) -> str:
        fate = self.fates.get(place, _Fate())
        if fate.settled:
            return {ACCEPT: "accepted", REJECT: "rejected"}.get(fate.settled, fate.settled)
        if fate.unsure:
            return "accepted or rejected as a kill came"
        # Killed members may have received the record without reporting it.
        most = fate.top + self._unseen(place, fate)
        return "exhausted by kills" if most >= self.limit else "lost"

    def _unseen(self, place: Place, fate: _Fate) -> int:
        """Return how many members killed since then may have received a record."""
        partition, offset = place
        return sum(offset < ends.get(partition, END) for ends in self.kills[fate.kills :])

    def _note(self, what: str, place: Place, deliveries: int) -> None:
        self.wrong[what] += 1
        self.first_wrong = self.first_wrong or f"{what}: {place}, delivery {deliveries}"


class ShareWorkers:
    """Members in processes of their own, and a checker of their reports."""

    def __init__(
        self, broker: Broker, group: str, topic: str, checker: ShareChecker, log: Path
    ) -> None:
        self.checker = checker
        self.lock = threading.Lock()
        # Time, sequence number and callback of each report.
        self._heard: list[tuple[int, int, Callable[[], None]]] = []
        self._taken = 0
        program = str(COMPAT / "java" / "ShareWorker.java")
        self._command = command_line("kafka-4.3", program, broker.address, group, topic)
        self._log = log
        self._topic = topic
        self._reader = Reader(broker.address)
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

    def taken(self) -> int:
        """Return the number of successful acknowledgements so far."""
        return self._taken

    def hear(self, at: int, deed: Callable[[], None], *, is_taken: bool = False) -> None:
        """Store a report for the checker. `at` is in ns of the machine's monotonic clock."""
        with self.lock:
            self._heard.append((at, len(self._heard), deed))
            self._taken += is_taken

    def tell(self) -> None:
        """Pass all stored reports to the checker, sorted by time."""
        for _, _, deed in sorted(self._heard, key=lambda heard: heard[:2]):
            deed()
        self._heard.clear()

    def check(self) -> None:
        """Fail if a member has ended by itself."""
        for worker in self._running:
            assert worker.process.poll() is None, self._log.read_text(errors="replace")[-3_000:]

    def kill_oldest(self) -> int:
        """Kill the oldest member and return the number of its unacknowledged records."""
        worker = self._running.pop(0)
        ends: dict[int, int] = {}
        self.hear(time.monotonic_ns(), lambda: self.checker.kills.append(ends))
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
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all reports are read."""
        self._thread.join()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self._hear(line.split())

    def _hear(self, words: list[str]) -> None:
        if words == ["left"]:
            self.has_left = True
            return
        what, at, partition, offset, *rest = words
        place, checker = (int(partition), int(offset)), self._workers.checker
        if what == "got":
            got = self.open[place] = int(rest[0]), rest[1]
            self._workers.hear(int(at), partial(checker.got, place, *got))
        elif what == "settled":
            settled = partial(checker.settled, place, *self.open.pop(place))
            self._workers.hear(int(at), settled, is_taken=True)
        else:
            _, deed = self.open.pop(place)
            self._workers.hear(int(at), partial(checker.refused, place, deed, rest[0]))
