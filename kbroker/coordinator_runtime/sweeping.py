"""Coordinators with long-running work, which is done in the background in small pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.coordinator import Pieces
from kbroker.runtime.time_slices import DutyCycle, TimeSlice

from .loading import IDLE_FACTOR, RECORDS_AT_ONCE
from .partition_writer import PartitionWriter
from .shard import C, Shard
from .shards import Shards

# Pieces without records to process immediately. Each may take some milliseconds.
EMPTY_AT_ONCE = 2


class SweepingShards(Shards[C]):
    """Coordinators with long-running work, which continues in the background."""

    def __init__(self, context: NodeContext, partitions: PartitionWriter, topic: str) -> None:
        super().__init__(context, partitions, topic)
        self._sweeps: deque[Iterator[int]] = deque()
        self._more_sweeps = trio.Event()

    def _run_in_background(self, shard: Shard[C], work: Pieces) -> None:
        self._begin([self.sweep(shard, work)])

    def _begin(self, sweeps: Iterable[Iterator[int]]) -> None:
        """Do as much work as fits into a time slice, and queue the rest for `run_sweeps`.

        At least `RECORDS_AT_ONCE` records, or `EMPTY_AT_ONCE` pieces without records, are processed
        immediately, however slow the machine is.
        """
        time_slice = TimeSlice(self._context.fair_queue)
        done = 0
        for sweep in sweeps:
            for records in sweep:
                done += records or RECORDS_AT_ONCE // EMPTY_AT_ONCE
                if done >= RECORDS_AT_ONCE and time_slice.is_over:
                    self._sweeps.append(sweep)
                    self._more_sweeps.set()
                    break

    async def work(self) -> None:
        """Run the base coordinator tasks and the queued work, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().work)
            nursery.start_soon(self.run_sweeps)

    async def run_sweeps(self) -> None:
        """Continue queued work in the background, until cancelled."""
        while True:
            await self._more_sweeps.wait()
            self._more_sweeps = trio.Event()
            duty_cycle = DutyCycle(rest=IDLE_FACTOR)
            while self._sweeps:
                sweep = self._sweeps.popleft()
                if next(sweep, None) is not None:
                    # Round-robin: no sweep waits until the others are finished.
                    self._sweeps.append(sweep)
                await duty_cycle.pause()
