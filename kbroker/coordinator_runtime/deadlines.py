"""Timers of the coordinators of one type on one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Generic

import trio

from kbroker.coordinator import Now, Result
from kbroker.runtime.clock import Clock

from .shard import C, Shard

# Expired timers to process per event-loop iteration. A member that is removed takes up to 1 ms.
EXPIRED_AT_ONCE = 10


class Deadlines(Generic[C]):
    """Waits for the deadlines of coordinators and processes their expired timers.

    Args:
        clock: Clock of the node.
        shards: Returns the coordinators that serve.
        run: Processes the results of a coordinator one after another.
    """

    def __init__(
        self,
        clock: Clock,
        shards: Callable[[], Collection[Shard[C]]],
        run: Callable[[Shard[C], Iterator[Result[None]]], object],
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._run = run
        self._armed_ms: float = math.inf
        self._rearm = trio.Event()

    def arm(self, shard: Shard[C]) -> None:
        """Wake the task if a coordinator has an earlier deadline than the task waits for."""
        deadline = shard.coordinator.next_deadline()
        if deadline is not None and deadline < self._armed_ms:
            self._rearm.set()

    async def run(self) -> None:
        """Process expired timers until cancelled."""
        while True:
            self._rearm = trio.Event()
            await self._run_due_in_slices()
            deadline = self.next()
            self._armed_ms = math.inf if deadline is None else deadline
            wait_seconds = max(self._armed_ms - self._clock.coordinator_ms(), 0) / 1000
            with trio.move_on_after(wait_seconds):
                await self._rearm.wait()

    def next(self) -> int | None:
        """Return the time of the next deadline (ms, monotonic clock), or None if there is none."""
        deadlines = [shard.coordinator.next_deadline() for shard in self._shards()]
        return min((each for each in deadlines if each is not None), default=None)

    async def _run_due_in_slices(self) -> None:
        """Process the timers that have expired, a few per event-loop iteration.

        The members of all groups may expire together.
        """
        now = Now(self._clock.log_ms(), self._clock.coordinator_ms())
        for shard in tuple(self._shards()):
            due = shard.coordinator.due(now)
            while shard in self._shards() and self._run_some(shard, due):
                await trio.lowlevel.checkpoint()

    def _run_some(self, shard: Shard[C], due: Iterator[Result[None]]) -> bool:
        """Process the next expired timers, and return True if more may follow."""
        for _ in range(EXPIRED_AT_ONCE):
            result = next(due, None)
            if result is None:
                return False
            self._run(shard, iter((result,)))
        return True

    def run_due(self) -> None:
        """Process all timers that have expired."""
        now = Now(self._clock.log_ms(), self._clock.coordinator_ms())
        for shard in self._shards():
            self._run(shard, shard.coordinator.due(now))

    def clock_moved(self) -> None:
        """Process expired timers and reschedule, after the coordinator clock has jumped."""
        self.run_due()
        self._rearm.set()
