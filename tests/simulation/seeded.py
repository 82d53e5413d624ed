"""Deterministic runs: scheduler, clock, IDs and random numbers all derive from one seed.

Trio shuffles runnable tasks. Like Hypothesis, this module makes the order deterministic through
two private names of trio. A simulation must not use threads, sockets or the wall clock.
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

# The log time in ms at which every simulation begins.
EPOCH_MS = 1_700_000_000_000


class Source:
    """The source of all random numbers of a run.

    Each part has its own generator: an additional draw in one part does not affect the others.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def of(self, *name: object) -> random.Random:
        """Return the random number generator of one part."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, name))}")


class SimulatedClock:
    """A node's clock, based on trio's virtual time."""

    def log_ms(self) -> int:
        return EPOCH_MS + int(trio.current_time() * 1000)

    def coordinator_ms(self) -> int:
        return int(trio.current_time() * 1000)

    def monotonic_ms(self) -> int:
        return self.coordinator_ms()

    async def run(self) -> None:
        """Detect no stalls, because virtual time has none."""


class Events:
    """A digest of all events of a run; with `trace`, each event is also printed."""

    def __init__(self, trace: TextIO | None = None) -> None:
        self.digest = 0
        self.count = 0
        self._trace = trace

    def note(self, event: str, data: bytes = b"") -> None:
        """Add an event at the current time; `data` enters the digest but is not printed."""
        line = f"{trio.current_time():.6f} {event}"
        self.digest = zlib.crc32(data, zlib.crc32(line.encode(), self.digest))
        self.count += 1
        if self._trace is not None:
            print(line, file=self._trace)


def run(main: Callable[[], Awaitable[Result]], seed: int) -> Result:
    """Run `main` in virtual time; equal seeds give equal runs."""
    with _seeded_randomness(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0), strict_exception_groups=True)


@contextmanager
def _seeded_randomness(seed: int) -> Iterator[None]:
    source = Source(seed)
    before = scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING, os.urandom
    bytes_of_ids = source.of("ids").randbytes
    scheduler._r = source.of("scheduler")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    os.urandom = bytes_of_ids  # uuid4 uses it
    try:
        yield
    finally:
        scheduler._r = before[0]
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[1]  # type: ignore[misc]
        os.urandom = before[2]
