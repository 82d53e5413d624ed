"""Background scrubbing: slowly re-reads stored records to find bit rot before clients do."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from functools import partial

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files
from kbroker.storage.scrubbing import next_to_scrub, scrub, scrub_again

from .partitions import Partitions
from .replica import Replica

logger = logging.getLogger(__name__)

SLICE_BYTES = 256 * 1024
# Delay of the first round, because a starting node has more urgent work.
FIRST_ROUND_SECONDS = 60


class Scrubber:
    """Checks the CRCs of the records in closed segments of one node, in rounds."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions
        self._changed = trio.Event()

    async def run(self) -> None:
        """Start a round every `log.scrub.interval.ms` until cancelled."""
        await self._wait(trio.current_time(), FIRST_ROUND_SECONDS)
        while True:
            began = trio.current_time()
            await self.scrub_all()
            await self._wait(began)

    async def _wait(self, since: float, seconds_max: float = math.inf) -> None:
        """Wait for the interval between rounds, which may change in the meantime."""
        while True:
            interval_seconds = self._context.config.log_scrub_interval_ms / 1000
            deadline = since + min(interval_seconds, seconds_max)
            self._changed = trio.Event()
            with trio.move_on_at(deadline):
                await self._changed.wait()
            if trio.current_time() >= deadline:
                return

    def wake(self) -> None:
        """Apply changed settings now, also to a running round."""
        self._changed.set()

    async def scrub_all(self) -> int:
        """Check every log once; return the number of checked bytes."""
        duty_cycle = DutyCycle()
        checked = 0
        for name, index in self._partitions.logs.directories():
            with suppress(KafkaError):
                checked += await self._scrub(self._partitions.named_hosted(name, index))
            await duty_cycle.pause()
        return checked

    async def _scrub(self, replica: Replica) -> int:
        log = replica.log
        scrub_again(log)
        checked = 0
        with suppress(StorageError), self._partitions.storage_errors_reported(replica):
            while log.offline is None and (place := next_to_scrub(log)) is not None:
                rate = self._context.config.log_scrub_bytes_per_second
                if not rate:
                    break
                # Load the bytes into the page cache, so that the event loop does not block.
                await self._context.in_thread(partial(_read, self._partitions.logs.files, *place))
                if log.offline is None:
                    size = scrub(log, SLICE_BYTES)
                    checked += size
                    await trio.sleep(size / rate)
        return checked


def _read(files: Files, path: str, position: int) -> None:
    try:
        file = files.open(path)
    except FileNotFoundError:  # retention or compaction deleted the file
        return
    try:
        file.read(position, SLICE_BYTES)
    finally:
        file.close()
