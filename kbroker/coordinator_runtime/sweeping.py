"""Work over all that coordinators have, done beside clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.coordinator import Pieces
from kbroker.runtime.time_slices import DutyCycle, TimeSlice

from .loading import RECORDS_AT_ONCE, REST
from .partition_writer import PartitionWriter
from .shard import C, Shard
from .shards import Shards


class SweepingShards(Shards[C]):
    """Coordinators that have work over all that they have: it is begun at once, and goes on behind."""

    def __init__(self, context: NodeContext, partitions: PartitionWriter, topic: str) -> None:
        super().__init__(context, partitions, topic)
        self._sweeps: deque[Iterator[int]] = deque()
        self._more_sweeps = trio.Event()

    def _run_in_background(self, shard: Shard[C], work: Pieces) -> None:
        self._begin([self.sweep(shard, work)])

    def _begin(self, sweeps: Iterable[Iterator[int]]) -> None:
        """Do what fits in a turn at once, and have the rest done by `run_sweeps`.

        A little is done at once however slow the machine is.
        """
        time_slice = TimeSlice(self._context.fair_queue)
        done = 0
        for sweep in sweeps:
            for records in sweep:
                done += max(records, 1)
                if done >= RECORDS_AT_ONCE and time_slice.is_over:
                    self._sweeps.append(sweep)
                    self._more_sweeps.set()
                    break

    async def work(self) -> None:
        """As of all coordinators, and what did not fit in a turn."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().work)
            nursery.start_soon(self.run_sweeps)

    async def run_sweeps(self) -> None:
        """Do beside clients what did not fit in a turn, until cancelled."""
        while True:
            await self._more_sweeps.wait()
            self._more_sweeps = trio.Event()
            duty_cycle = DutyCycle(rest=REST)
            while self._sweeps:
                sweep = self._sweeps.popleft()
                if next(sweep, None) is not None:
                    self._sweeps.append(sweep)  # none of them waits for the others
                await duty_cycle.pause()
