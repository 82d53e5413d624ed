"""Sync passes of a node, with group commit: one sync serves all batches that wait for it.

With `flush.policy=fsync` each append registers its replica here. A pass syncs the waiting logs
together and advances their high watermarks, which releases the acks. Appends during a pass wait for
the next one. A pass takes a limited number of logs, round-robin over topics, and the next pass
follows at once. So a producer to one log does not wait for all logs of another producer. With the
other policies a batch is readable at once, and a pass runs later. `flush.messages` of a topic makes
batches wait anyway, and `flush.ms` advances the pass.

A pass runs in the event loop if the disk is fast, otherwise in a worker thread. It also runs in a
thread while another component syncs the same disk.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from kbroker.runtime.changes import Changes
from kbroker.runtime.disk_work import DiskWork
from kbroker.runtime.threads import InThread, run_in_thread
from kbroker.runtime.timings import Timings
from kbroker.storage.log import Log

from .replica import Replica

logger = logging.getLogger(__name__)

DIRECTORY_IS_OFFLINE = (
    "%s: the log directory is offline and acknowledges no more records; check the disk, then restart "
    "the server"
)

# Times of the next sync pass on trio's clock.
AT_ONCE, NEVER = -math.inf, math.inf
# Maximum finite delay of a sync. A longer delay is treated as infinite.
SECONDS_MAX = 10 * 365 * 86_400
# Logs per pass: some tens of ms on a slow disk. Releasing their acks takes less than an iteration
# of the event loop.
LOGS_AT_ONCE = 64


class Flusher:
    """Runs the sync passes of one node.

    Args:
        policy: "fsync", "interval" or "os"; only with "fsync" do acks wait for the disk.
        sync: Makes logs durable and returns their synced offsets, without the logs that failed.
        interval_ms: Maximum time in ms between two passes with "interval".
        in_thread: Runs a function in a worker thread.
        timer: Returns seconds; measures the passes.
        changes: Notified when records become readable; nodes of one process may share it.
    """

    def __init__(
        self,
        policy: str,
        sync: Callable[[list[Log]], list[tuple[Log, int]]],
        *,
        interval_ms: int = 1000,
        in_thread: InThread = run_in_thread,
        timer: Callable[[], float] = time.perf_counter,
        changes: Changes | None = None,
    ) -> None:
        self.changes = changes or Changes()
        self._sync = sync
        self._disk_work = DiskWork(in_thread, timer)
        self._timer = timer
        # Durations of the sync passes.
        self.passes = Timings()
        self.waits_for_disk = policy == "fsync"
        self._interval_seconds = interval_ms / 1000 if policy == "interval" else math.inf
        # Waiting replicas by topic, in the order in which they are synced (deterministic).
        self._dirty: OrderedDict[str, OrderedDict[Replica, None]] = OrderedDict()
        self._pass_at = NEVER
        # Appends since the last pass started.
        self._appends = 0
        self._sooner = trio.Event()
        # Called with each replica whose log went offline after a failed sync.
        self.on_sync_failed: Callable[[Replica], None] = lambda _: None
        # Held during a sync pass; other tasks hold it to prevent passes.
        self.sync_lock = trio.Lock()
        # Number of other components that are syncing the same disk.
        self._others = 0

    def appended(self, replica: Replica) -> None:
        """Register a new batch at the end of `replica`."""
        log = replica.log
        self._appends += 1
        if self.waits_for_disk or log.log_end_offset - log.synced_offset >= replica.flush_messages:
            self._sync_at(AT_ONCE, replica)
            return
        replica.synced(log.log_end_offset)
        # With "os" only complete segments are synced, so that recovery has less to check.
        if self._interval_seconds == math.inf and replica.has_rolled():
            self._sync_at(AT_ONCE, replica)
        elif replica.flush_seconds < SECONDS_MAX:
            self._sync_at(trio.current_time() + replica.flush_seconds, replica)

    def max_sync_delay(self, flush_ms: int) -> float:
        """Return the maximum delay of a sync after an append in seconds, for `flush.ms`."""
        return min(self._interval_seconds, flush_ms / 1000)

    def _sync_at(self, time_due: float, replica: Replica) -> None:
        """Schedule a sync of `replica` at `time_due` (trio clock) or earlier."""
        of_topic = self._dirty.get(replica.topic.name)
        if of_topic is None:
            of_topic = self._dirty[replica.topic.name] = OrderedDict()
        of_topic[replica] = None
        if time_due < self._pass_at:
            self._pass_at = time_due
            self._sooner.set()

    def opened(self, replica: Replica) -> None:
        """Register an opened replica: its records become readable once they are durable."""
        log = replica.log
        replica.synced(log.synced_offset if self.waits_for_disk else log.log_end_offset)
        if log.synced_offset < log.log_end_offset:
            wait = 0 if self._interval_seconds == math.inf else self._interval_seconds
            self._sync_at(trio.current_time() + wait, replica)

    def forget(self, replica: Replica) -> None:
        """Unregister a closed replica."""
        of_topic = self._dirty.get(replica.topic.name)
        if of_topic is not None:
            of_topic.pop(replica, None)
            if not of_topic:
                del self._dirty[replica.topic.name]

    async def run(self) -> None:
        """Run sync passes until cancelled."""
        while True:
            await self._wait_until_due()
            if self._appends == 1 and not self.sync_lock.locked():
                self.sync_lock.acquire_nowait()  # no other append can share this pass
            else:
                # This yields once: connections with pending bytes can still append and share the
                # pass.
                await self.sync_lock.acquire()
            try:
                some = [*self._take(LOGS_AT_ONCE)]
                self._appends = 0
                self._pass_at = AT_ONCE if self._dirty else NEVER
                await self._run_pass(some)
            finally:
                self.sync_lock.release()

    async def _wait_until_due(self) -> None:
        while self._pass_at == NEVER or self._pass_at > trio.current_time():
            self._sooner = trio.Event()
            with trio.move_on_at(self._pass_at):
                await self._sooner.wait()

    async def sync_now(self) -> None:
        """Sync all waiting replicas, after a running pass."""
        async with self.sync_lock:
            await self._run_pass([*self._take(math.inf)])

    def _take(self, count: float) -> Iterator[Replica]:
        """Yield up to `count` waiting replicas, round-robin over topics."""
        taken = 0
        while self._dirty and taken < count:
            name, of_topic = self._dirty.popitem(last=False)
            replica, _ = of_topic.popitem(last=False)
            if of_topic:
                self._dirty[name] = of_topic
            taken += 1
            yield replica

    @contextmanager
    def during_other_sync(self) -> Iterator[None]:
        """Run passes in a thread while another component syncs the same disk.

        The disk serializes syncs, so a pass may take long and must not block the event loop.
        """
        self._others += 1
        try:
            yield
        finally:
            self._others -= 1

    async def _run_pass(self, some: Collection[Replica]) -> None:
        """Sync some waiting replicas. A failed sync takes their logs offline.

        A sync is never retried: after a failed fsync the kernel may have dropped the pages and
        report success the next time.
        """
        replicas = {replica.log: replica for replica in some}
        if not replicas:
            return
        began = self._timer()
        ends = await self._disk_work.run(
            partial(self._sync, list(replicas)),
            in_thread=not self.waits_for_disk or self._others > 0,
        )
        self.passes.record(self._timer() - began)
        for log, end in ends:
            log.synced(end)
            replicas.pop(log).synced(end)
        if replicas:
            self._fail(replicas.values())

    def _fail(self, replicas: Collection[Replica]) -> None:
        for replica in replicas:
            replica.commits.fail()
            replica.writes.fail()
            self.on_sync_failed(replica)
        for reason in {replica.log.offline for replica in replicas}:
            logger.error(DIRECTORY_IS_OFFLINE, reason)
