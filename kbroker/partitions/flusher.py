"""When what was appended counts as durable: one sync serves every batch that waits for one.

With `flush.policy=fsync` an append makes its replica wait here; a pass then syncs all waiting logs
together and moves their high watermarks, which releases the acks (group commit). While a pass runs,
the next appends gather for the next one. Of many logs it takes some, of each topic in turn, and the
next pass follows at once: who appends to one does not wait for all that another one appends to. With
the other policies a batch is readable at once, and a pass comes after a time; a topic's
`flush.messages` makes a batch wait all the same, its `flush.ms` brings the pass forward.

A pass runs in the event loop while the disk is fast and in a worker thread when it is not, or when
somebody else has the disk sync just then.
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
    "%s: the data directory is offline, nothing in it is acknowledged any more; check the disk, then "
    "restart the server"
)

AT_ONCE, NEVER = -math.inf, math.inf
SECONDS_MAX = 10 * 365 * 86_400
"""A longer wait is none."""
LOGS_AT_ONCE = 64
"""Of one pass: on a slow disk some tens of milliseconds. To release their acks takes less than a
turn of the event loop as well."""


class Flusher:
    """Owns the sync passes of one node.

    Parameters: `policy` is "fsync", "interval" or "os"; only with the first do acks wait for the
    disk; `sync` makes logs durable and returns how far, leaving out those that it could not;
    `interval_ms` is the longest time between two passes with "interval". `changes` hears of
    everything that becomes readable; nodes of one process may share it. `timer` returns seconds:
    passes are timed with it.
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
        self.passes = Timings()
        """How long those who wait for one of them waited for it."""
        self.waits_for_disk = policy == "fsync"
        self._interval_seconds = interval_ms / 1000 if policy == "interval" else math.inf
        self._dirty: OrderedDict[str, OrderedDict[Replica, None]] = OrderedDict()
        """By topic, in order, so that one run is as the other; those whose turn is next stand first."""
        self._pass_at = NEVER
        self._appends = 0
        """How many since the last pass began."""
        self._sooner = trio.Event()
        self.when_failed: Callable[[Replica], None] = lambda _: None
        """Told of each replica whose log went offline because it could not be synced."""
        self.no_pass = trio.Lock()
        """Held by whoever syncs; while another one holds it, nothing becomes durable."""
        self._others = 0

    def appended(self, replica: Replica) -> None:
        """`replica` has a new batch at its end."""
        log = replica.log
        self._appends += 1
        if self.waits_for_disk or log.log_end_offset - log.synced_offset >= replica.flush_messages:
            self._sync_at(AT_ONCE, replica)
            return
        replica.synced(log.log_end_offset)
        # With "os" whole segments are synced, so that a crash leaves little to check.
        if self._interval_seconds == math.inf and replica.has_rolled():
            self._sync_at(AT_ONCE, replica)
        elif replica.flush_seconds < SECONDS_MAX:
            self._sync_at(trio.current_time() + replica.flush_seconds, replica)

    def longest_wait(self, flush_ms: int) -> float:
        """After how many seconds an append is synced at the latest, in a topic with `flush.ms`."""
        return min(self._interval_seconds, flush_ms / 1000)

    def _sync_at(self, time_due: float, replica: Replica) -> None:
        """Have `replica` synced by a pass that begins at this time of trio's clock, or before."""
        of_topic = self._dirty.get(replica.topic.name)
        if of_topic is None:
            of_topic = self._dirty[replica.topic.name] = OrderedDict()
        of_topic[replica] = None
        if time_due < self._pass_at:
            self._pass_at = time_due
            self._sooner.set()

    def opened(self, replica: Replica) -> None:
        """`replica` was opened: what its log holds is readable as soon as it is durable."""
        log = replica.log
        replica.synced(log.synced_offset if self.waits_for_disk else log.log_end_offset)
        if log.synced_offset < log.log_end_offset:
            wait = 0 if self._interval_seconds == math.inf else self._interval_seconds
            self._sync_at(trio.current_time() + wait, replica)

    def forget(self, replica: Replica) -> None:
        """The replica is gone; nothing of it needs a sync."""
        of_topic = self._dirty.get(replica.topic.name)
        if of_topic is not None:
            of_topic.pop(replica, None)
            if not of_topic:
                del self._dirty[replica.topic.name]

    async def run(self) -> None:
        """Sync what waits, for ever."""
        while True:
            await self._pass_is_due()
            if self._appends == 1 and not self.no_pass.locked():
                self.no_pass.acquire_nowait()  # nobody is there to share this pass
            else:
                # This yields once: connections that have bytes now still append and share it.
                await self.no_pass.acquire()
            try:
                some = [*self._take(LOGS_AT_ONCE)]
                self._appends = 0
                self._pass_at = AT_ONCE if self._dirty else NEVER
                await self._pass(some)
            finally:
                self.no_pass.release()

    async def _pass_is_due(self) -> None:
        while self._pass_at == NEVER or self._pass_at > trio.current_time():
            self._sooner = trio.Event()
            with trio.move_on_at(self._pass_at):
                await self._sooner.wait()

    async def sync_now(self) -> None:
        """Sync what waits at once, after the pass that runs already."""
        async with self.no_pass:
            await self._pass([*self._take(math.inf)])

    def _take(self, count: float) -> Iterator[Replica]:
        """Up to so many of those that wait, one of each topic and then the next ones."""
        taken = 0
        while self._dirty and taken < count:
            name, of_topic = self._dirty.popitem(last=False)
            replica, _ = of_topic.popitem(last=False)
            if of_topic:
                self._dirty[name] = of_topic
            taken += 1
            yield replica

    @contextmanager
    def beside_another(self) -> Iterator[None]:
        """Somebody else syncs meanwhile, and the disk does one after the other: passes may be long
        and go to a thread, so that they hold up only those who wait for them."""
        self._others += 1
        try:
            yield
        finally:
            self._others -= 1

    async def _pass(self, some: Collection[Replica]) -> None:
        """Sync some of those that wait. A failed sync takes the logs offline for good.

        It is never tried again: after a failed fsync the kernel may have dropped the pages and
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
        self.passes.took(self._timer() - began)
        for log, end in ends:
            log.synced(end)
            replicas.pop(log).synced(end)
        if replicas:
            self._fail(replicas.values())

    def _fail(self, replicas: Collection[Replica]) -> None:
        for replica in replicas:
            replica.commits.fail()
            replica.writes.fail()
            self.when_failed(replica)
        for reason in {replica.log.offline for replica in replicas}:
            logger.error(DIRECTORY_IS_OFFLINE, reason)
