"""Measurement of how long a task of the broker occupies the event loop.

The measure is the CPU time of the loop's thread, so that other load does not count and tests can
use fixed bounds. CPU time that a hypervisor took away is subtracted: a guest attributes it to the
running thread, and 60 ms at once were observed. On a slow or busy CPU, the result is scaled to a
typical CPU. Steps of tasks that belong to tests do not count, because the clients of a test share
the loop with its broker.
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

# Prefixes of the broker's task names, also for methods of compiled classes; the last ones serve
# HTTP.
OF_BROKER = re.compile(
    r"(<bound method \S+ of <)?(kbroker|hypercorn)\.|trio\._highlevel_serve_listeners\."
)

# Maximum duration of one step of a task, much longer than a time slice.
STEP_SECONDS_MAX = 0.1
ROUNDS = 4000
# Duration of the rounds of `_work` on a typical CPU, for which the bounds of these tests are made.
USUAL_SECONDS = 0.0017
# Maximum age of the stolen-time reading when a measurement begins.
STOLEN_SECONDS = 0.005


def _work() -> None:
    """Run typical operations of a broker: calls, objects, tables."""
    rows: dict[int, tuple[int, str]] = {}
    for number in range(ROUNDS):
        rows[number % 512] = (number, f"{number}-{len(rows)}")


def slowness() -> float:
    """Return how many times slower than a typical CPU this thread runs now; at least 1."""
    took = []
    for _ in range(5):
        began = time.thread_time()
        _work()
        took.append(time.thread_time() - began)
    return max(1.0, median(took) / USUAL_SECONDS)


class ThreadTime:
    """CPU time of the thread, without time that a hypervisor took away."""

    def __init__(self) -> None:
        self._looked_at = -math.inf
        self.begin()

    def begin(self) -> None:
        """Start a measurement."""
        now = time.monotonic()
        if now - self._looked_at > STOLEN_SECONDS:
            self._looked_at, self._stolen = now, stolen_seconds()
        self._began = time.thread_time()

    def longer_than(self, seconds: float) -> float | None:
        """Return the elapsed seconds if they exceed `seconds`, or else None."""
        took = time.thread_time() - self._began
        if took > seconds:
            took -= stolen_seconds() - self._stolen
        return took if took > seconds else None


class LongestStep(trio.abc.Instrument):
    """The longest step of any task of the broker, from one checkpoint to the next.

    Attributes:
        seconds: Duration on a typical CPU.
        task: Name of the task.
        steps: Number of steps.
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

    Garbage of earlier tests is not collected during the block, because a server freezes its
    start-up objects.
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
