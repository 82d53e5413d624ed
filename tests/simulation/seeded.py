"""One seed, one run: the scheduler, the clock, ids and all other chance come from it.

Trio shuffles the tasks that are ready; Hypothesis makes that deterministic through two names of
trio's, and so does this module. Nothing in a simulation may use a thread, a socket or the time of
day.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

import trio
from trio._core import _run as scheduler
from trio.testing import MockClock

Result = TypeVar("Result")

EPOCH_MS = 1_700_000_000_000
"""The log time at which every simulation begins."""


class Source:
    """Where all chance of a run comes from.

    Each part of a simulation has random numbers of its own, so that one of them that asks once more
    does not change what all others do.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def of(self, *name: object) -> random.Random:
        """The random numbers of one part."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, name))}")


class SimulatedClock:
    """The clock of a node: trio's."""

    def log_ms(self) -> int:
        return EPOCH_MS + int(trio.current_time() * 1000)

    def coordinator_ms(self) -> int:
        return int(trio.current_time() * 1000)


class Events:
    """Everything that happened in a run, as a number; with `trace` every event is printed."""

    def __init__(self, trace: TextIO | None = None) -> None:
        self.digest = 0
        self.count = 0
        self._trace = trace

    def note(self, what: str, data: bytes = b"") -> None:
        """Something happened now; `data` counts and is not printed."""
        line = f"{trio.current_time():.6f} {what}"
        self.digest = zlib.crc32(data, zlib.crc32(line.encode(), self.digest))
        self.count += 1
        if self._trace is not None:
            print(line, file=self._trace)


def run(main: Callable[[], Awaitable[Result]], seed: int) -> Result:
    """Run `main` in virtual time; the same seed gives the same run."""
    with _chance_from(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0), strict_exception_groups=True)


@contextmanager
def _chance_from(seed: int) -> Iterator[None]:
    source = Source(seed)
    before = scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING, os.urandom
    bytes_of_ids = source.of("ids").randbytes
    scheduler._r = source.of("scheduler")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    os.urandom = bytes_of_ids  # what uuid4 is made of
    try:
        yield
    finally:
        scheduler._r = before[0]
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[1]  # type: ignore[misc]
        os.urandom = before[2]
