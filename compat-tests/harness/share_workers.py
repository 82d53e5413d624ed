"""Members of a share group that are killed, and what a checker makes of all that they say (KIP-932).

A member says what it got, with the count of its deliveries, before it acknowledges that, and afterwards
whether the acknowledgement was taken. What a killed one has said still comes. Each says when that was, because
what two of them say may be heard in another order than it took place, on a machine with much else to do.
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
NOT_HELD = "InvalidRecordStateException"
"""The member does not hold the record any more."""
END = 2**63 - 1
"""Beyond every offset."""
Place = tuple[int, int]
"""Partition and offset."""


@dataclass
class _Fate:
    """What is known of one record.

    Attributes:
      floor: The deliveries that were stored: those of the last release that was taken.
      top: The most deliveries that a member was told of.
      kills: How many members had been killed by then. Who is killed later may have the record, and not say so.
      settled: What was taken and lets nobody have it again.
      unsure: How many times it was accepted or rejected without an answer that says whether that was taken.
    """

    floor: int = 0
    top: int = 0
    kills: int = 0
    settled: str = ""
    unsure: int = 0


@dataclass
class ShareChecker:
    """All that members say, in the order in which it took place; `wrong` counts what must never be.

    Attributes:
      limit: How often a record is delivered at most.
      kills: For each member that was killed, where the partitions ended then: it may have had what there was.
    """

    limit: int
    fates: dict[Place, _Fate] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    kills: list[dict[int, int]] = field(default_factory=list)
    first_wrong: str = ""

    def got(self, place: Place, deliveries: int, deed: str) -> None:
        """A member was given a record."""
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
        """What a member said of a record was taken."""
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
        """It was not taken, or (with most errors) nobody knows."""
        self.done[f"refused, {why}"] += 1
        if why == NOT_HELD:
            self.fates[place].unsure -= deed != RELEASE

    def ends(self, ends: dict[int, int]) -> dict[str, int]:
        """The group is done with everything: how each record of the topic ended."""
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
        # Members that were killed may have had it as well, as often as it takes.
        most = fate.top + self._unseen(place, fate)
        return "exhausted by kills" if most >= self.limit else "lost"

    def _unseen(self, place: Place, fate: _Fate) -> int:
        """How many killed members may have had a record since then."""
        partition, offset = place
        return sum(offset < ends.get(partition, END) for ends in self.kills[fate.kills :])

    def _note(self, what: str, place: Place, deliveries: int) -> None:
        self.wrong[what] += 1
        self.first_wrong = self.first_wrong or f"{what}: {place}, delivery {deliveries}"


class ShareWorkers:
    """Members in processes of their own, and one checker of what they say."""

    def __init__(
        self, broker: Broker, group: str, topic: str, checker: ShareChecker, log: Path
    ) -> None:
        self.checker = checker
        self.lock = threading.Lock()
        self._heard: list[tuple[int, int, Callable[[], None]]] = []
        """By time, and by when it was heard where that is the same."""
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
        """One more member."""
        self._running.append(_Worker(self._command, self._log, self))

    def taken(self) -> int:
        """How many acknowledgements were taken by now."""
        return self._taken

    def hear(self, at: int, deed: Callable[[], None], *, is_taken: bool = False) -> None:
        """Take note of something for the checker; `at` in ns of the machine's monotonic clock."""
        with self.lock:
            self._heard.append((at, len(self._heard), deed))
            self._taken += is_taken

    def tell(self) -> None:
        """Let the checker know of everything, in its order."""
        for _, _, deed in sorted(self._heard, key=lambda heard: heard[:2]):
            deed()
        self._heard.clear()

    def check(self) -> None:
        """No member has ended by itself."""
        for worker in self._running:
            assert worker.process.poll() is None, self._log.read_text(errors="replace")[-3_000:]

    def kill_oldest(self) -> int:
        """SIGKILL for the member that has worked longest; returns how many records it had at hand."""
        worker = self._running.pop(0)
        ends: dict[int, int] = {}
        self.hear(time.monotonic_ns(), lambda: self.checker.kills.append(ends))
        worker.process.send_signal(signal.SIGKILL)
        worker.join()
        ends.update(self._reader.ends(self._topic))
        return len(worker.open)

    def leave(self) -> None:
        """All go in good order."""
        for worker in self._running:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for worker in self._running:
            worker.process.wait(LEAVE_SECONDS)
            worker.join()
            assert worker.has_left, self._log.read_text(errors="replace")[-3_000:]
        self._running.clear()


class _Worker:
    """One of them. `open` is what it got and has not heard of."""

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
        """Wait until all is heard that it has said."""
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
