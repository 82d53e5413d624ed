"""Measurement of how long a task of the broker occupies the event loop.

Measured in the processor time of the loop's thread: what else the machine does is not counted, so a
test may hold it against a bound also beside heavy load. Nor is what the host of a virtual machine
took away meanwhile, which a guest counts as time of whoever was running: 60 ms at once were seen. And a
processor that is slow for all, or shares its caches with busy ones, is allowed as much more: what counts
is the time that a usual one would have taken. The steps of tasks that belong to tests are left out,
because the clients of a test share the loop with its broker.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import trio

from .processors import stolen_seconds

OF_BROKER = re.compile(r"(<bound method \S+ of <)?(kbroker|hypercorn)\.")
"""How the names of its tasks begin, also where they are methods of compiled classes; the last ones
answer by HTTP."""

STEP_SECONDS_MAX = 0.1
"""The longest that others may wait for one step of a task; much more than a time slice."""
ROUNDS = 4000
USUAL_SECONDS = 0.0017
"""How long that many rounds of `_work` take a processor such as the bounds of these tests are made for."""
STOLEN_SECONDS = 0.005
"""How old what is known of the time taken by the host may be when something begins."""


def _work() -> None:
    """What a step of a broker is made of: calls, objects, tables."""
    rows: dict[int, tuple[int, str]] = {}
    for number in range(ROUNDS):
        rows[number % 512] = (number, f"{number}-{len(rows)}")


def slowness() -> float:
    """How many times longer than a usual processor that of this thread takes now; at least 1."""
    took = []
    for _ in range(5):
        began = time.thread_time()
        _work()
        took.append(time.thread_time() - began)
    return max(1.0, median(took) / USUAL_SECONDS)


class ThreadTime:
    """Processor time of the thread, without what the host took away meanwhile."""

    def __init__(self) -> None:
        self._looked_at = -math.inf
        self.begin()

    def begin(self) -> None:
        """What is measured begins now."""
        now = time.monotonic()
        if now - self._looked_at > STOLEN_SECONDS:
            self._looked_at, self._stolen = now, stolen_seconds()
        self._began = time.thread_time()

    def longer_than(self, seconds: float) -> float | None:
        """How much went by since, in seconds, if it was more than these."""
        took = time.thread_time() - self._began
        if took > seconds:
            took -= stolen_seconds() - self._stolen
        return took if took > seconds else None


class LongestStep(trio.abc.Instrument):
    """The longest step of any task of the broker, from one wait to the next.

    `seconds` is how long a usual processor takes for it, `task` whose it was, `steps` how many there
    were.
    """

    def __init__(self) -> None:
        self._slowness = slowness()
        self.seconds = 0.0
        self.task = ""
        self.steps = 0
        self._time = ThreadTime()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._time.begin()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not OF_BROKER.match(task.name):
            return
        self.steps += 1
        if took := self._time.longer_than(self.seconds * self._slowness):
            self.seconds, self.task = took / self._slowness, task.name

    def __str__(self) -> str:
        return f"{self.seconds * 1000:.0f} ms at a stretch in {self.task} ({self.steps} steps)"


@contextmanager
def longest_step() -> Iterator[LongestStep]:
    """Measure the steps of the broker's tasks while the block runs.

    The garbage of the tests before is not collected meanwhile: a server freezes what it starts with.
    """
    measured = LongestStep()
    gc.collect()
    gc.freeze()
    trio.lowlevel.add_instrument(measured)
    try:
        yield measured
    finally:
        trio.lowlevel.remove_instrument(measured)
        gc.unfreeze()
