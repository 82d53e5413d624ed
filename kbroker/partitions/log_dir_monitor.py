"""Detects log directories that reject appends, and moves leadership to other nodes.

If the operating system rejects one append (disk full, read-only, broken), the log directory becomes
read-only for all partitions. A probe then writes a few bytes there at intervals. When they are
durable, the directory accepts records again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from kbroker.cluster import Partition, Topic, TopicsChanged
from kbroker.cluster.node_context import NodeContext
from kbroker.storage.errors import StorageError, SyncFailedError
from kbroker.storage.manager import LogManager

from .partitions import Partitions
from .replica import Replica

logger = logging.getLogger(__name__)

# Time between two probes, and its maximum after repeated failures.
PROBE_SECONDS, PROBE_SECONDS_MAX = 0.5, 60.0
# Time after which a writable directory gets the minimum probe interval again.
STEADY_SECONDS = 60.0
# Interval of disk usage checks.
USAGE_CHECK_SECONDS = 10.0
# Used part of a disk: a warning is logged above the first value, and again only after the usage was
# below the second value.
USAGE_WARNING, USAGE_WARNING_RESET = 0.90, 0.88
FREE_SPACE_HINT = (
    "free space: delete records or topics (`kbroker topic trim`, `kbroker topic delete`), lower "
    "retention.bytes, or use a larger disk"
)


class _Directory:
    """The state of one log directory; times are in seconds of trio's clock."""

    def __init__(self, manager: LogManager) -> None:
        self.manager = manager
        self.is_nearly_full = False
        self.refused_at = self.accepted_at = -math.inf
        self._wait_seconds = PROBE_SECONDS

    @property
    def is_read_only(self) -> bool:
        return self.manager.read_only_reason is not None

    def became_read_only(self, now: float) -> None:
        """Start the probe interval, doubled after a recent failure to avoid leader changes."""
        steady = now - self.accepted_at >= STEADY_SECONDS
        longer = min(2 * self._wait_seconds, PROBE_SECONDS_MAX)
        self._wait_seconds = PROBE_SECONDS if steady else longer
        self.refused_at = now

    def is_probe_due(self, now: float) -> bool:
        return self.is_read_only and now >= self.refused_at + self._wait_seconds


class LogDirMonitor:
    """The monitor of the log directories of one node. Start `run` in a task."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions
        self._directories = {each.data_dir: _Directory(each) for each in partitions.logs.managers}
        self._refused = trio.Event()
        # Resigns the leadership of a partition that is read-only here.
        self.resign_leadership: Callable[[Topic, int], None] = lambda topic, index: None
        # Called when a directory becomes read-only.
        self.on_read_only: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Probe read-only directories and check disk usage until cancelled."""
        for directory in self._directories.values():
            if directory.is_read_only:  # read-only since it was opened
                self._handle_read_only(directory)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probe_regularly)
            nursery.start_soon(self._check_usage_regularly)

    # -- read-only directories

    def on_append_rejected(self, replica: Replica, error: StorageError) -> None:
        """Make the directory of a failed append read-only until a probe succeeds."""
        manager = self._partitions.logs.where(replica.topic.name, replica.index)
        if manager.read_only_reason is None and manager.failed is None:
            manager.make_read_only(error.message or str(error))
            self._handle_read_only(self._directories[manager.data_dir])

    def _handle_read_only(self, directory: _Directory) -> None:
        directory.became_read_only(trio.current_time())
        logger.error(
            "the log directory %s is read-only: %s; other nodes take over its partitions if they can, the "
            "other partitions can only be read until a probe succeeds; make the disk writable, or %s",
            directory.manager.data_dir,
            directory.manager.read_only_reason,
            FREE_SPACE_HINT,
        )
        self._record_event(directory, f"read-only because {directory.manager.read_only_reason}")
        self.resign_leaderships()
        self.on_read_only()
        self._refused.set()

    def _record_event(self, directory: _Directory, text: str) -> None:
        for topic, index in directory.manager.directories():
            self._partitions.record_event(topic, index, text)

    def resign_leaderships(self) -> None:
        """Resign the leadership of all partitions in read-only log directories."""
        if self._partitions.logs.has_read_only:
            for topic in self._context.cluster.topics.values():
                for partition in topic.partitions:
                    self._resign_if_read_only(topic, partition)

    def _resign_if_read_only(self, topic: Topic, partition: Partition) -> None:
        is_held = self._context.node_id in partition.isr and len(partition.isr) > 1
        if (
            is_held
            and self._partitions.logs.read_only_reason(topic.name, partition.index) is not None
        ):
            self.resign_leadership(topic, partition.index)

    def topics_changed(self, event: TopicsChanged) -> None:
        """Resign partitions that another node can lead now."""
        if self._partitions.logs.has_read_only:
            for change in event.partitions:
                self._resign_if_read_only(change.topic, change.after)

    async def _probe_regularly(self) -> None:
        while True:
            await self._refused.wait()
            self._refused = trio.Event()
            while self._partitions.logs.has_read_only:
                await trio.sleep(PROBE_SECONDS)
                for directory in self._directories.values():
                    if directory.is_probe_due(trio.current_time()):
                        await self._probe(directory)

    async def _probe(self, directory: _Directory) -> None:
        try:
            with self._partitions.flusher.during_other_sync():
                await self._context.in_thread(directory.manager.probe)
        except SyncFailedError as error:
            self._partitions.sync_failed(error)
            directory.manager.make_writable()  # the directory is offline now: stop the probes
            return
        except StorageError as error:
            logger.debug("%s: the probe failed: %s", directory.manager.data_dir, error.message)
            return
        directory.manager.make_writable()
        directory.accepted_at = trio.current_time()
        self._record_event(directory, "writable again")
        logger.warning(
            "the log directory %s is writable again, after %.1f s",
            directory.manager.data_dir,
            directory.accepted_at - directory.refused_at,
        )

    # -- disk usage

    async def _check_usage_regularly(self) -> None:
        while True:
            for directory in self._directories.values():
                self._check_usage(directory)
            await trio.sleep(USAGE_CHECK_SECONDS)

    def _check_usage(self, directory: _Directory) -> None:
        try:
            total, free = directory.manager.usage()
        except StorageError:
            return
        used = 1 - free / max(total, 1)
        if used < USAGE_WARNING_RESET:
            directory.is_nearly_full = False
        elif used >= USAGE_WARNING and not directory.is_nearly_full:
            directory.is_nearly_full = True
            logger.warning(
                "the disk of the log directory %s is nearly full: %.0f %% are used, %.0f MB are free; %s",
                directory.manager.data_dir,
                100 * used,
                free / 1e6,
                FREE_SPACE_HINT,
            )
