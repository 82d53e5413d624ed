"""The pending disk work of a log.

There are three queues. The first holds data that acks wait for; the next sync pass takes it. The
second holds data that must be durable before a checkpoint may record higher offsets. The third
holds segments before the log start, which are deleted after a checkpoint has recorded the log
start.
"""

from __future__ import annotations

from collections.abc import Iterable

from .log_start_marks import LogStartMark
from .segment import Segment
from .sync import SyncItem, sync_in_order


class Pending:
    """The queues of one log.

    `durable` is True if synced files survive a power failure. `is_bare` is True if there are no
    index files and no checkpoint has written anything since the log was opened.
    """

    __slots__ = ("_dirty", "_durable", "_for_checkpoint", "_taken", "_to_remove", "is_bare")

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        # The owner appends and the syncing thread removes: both are atomic. A list, because an
        # empty deque would be a tenth of the memory of a partition.
        self._dirty: list[SyncItem] = []
        self._for_checkpoint: list[SyncItem] = []
        self._to_remove: list[Segment | LogStartMark] = []
        self._taken: tuple[list[SyncItem], list[Segment | LogStartMark]] = ([], [])
        self.is_bare = True

    def must_sync(self, item: SyncItem) -> None:
        """Queue an item for the next sync pass."""
        if self._durable:
            self._dirty.append(item)

    @property
    def dirty(self) -> bool:
        """True if an item waits for a sync."""
        return bool(self._dirty)

    def take_dirty(self) -> list[SyncItem]:
        """Remove and return the items for the next sync pass."""
        items = []
        dirty = self._dirty
        while dirty:
            items.append(dirty.pop(0))
        return items

    def queue_for_checkpoint(self, items: Iterable[SyncItem]) -> None:
        """Queue ordered items that the next checkpoint runs before it records offsets."""
        self._for_checkpoint += items
        self.is_bare = self.is_bare and not self._for_checkpoint

    def run_checkpoint_writes(self) -> None:
        """Run the items that wait for a checkpoint; blocks.

        Raises StorageError; the remaining items stay queued.
        """
        while self._for_checkpoint:
            sync_in_order(self._for_checkpoint[:1])
            del self._for_checkpoint[0]

    def schedule_removal(self, item: Segment | LogStartMark) -> None:
        """Queue files for deletion after the next checkpoint has recorded the log start."""
        self._to_remove.append(item)

    @property
    def needs_checkpoint(self) -> bool:
        """True if the log has work for a checkpoint, or a running checkpoint has work left."""
        return bool(self._for_checkpoint or self._to_remove or any(self._taken))

    def take(self) -> tuple[list[SyncItem], list[Segment | LogStartMark]]:
        """Return the work of a checkpoint before and after it records the offsets of the log.

        The checkpoint removes finished items from the lists.
        """
        self.requeue()
        items, self._for_checkpoint = self._for_checkpoint, []
        to_remove, self._to_remove = self._to_remove, []
        self._taken = items, to_remove
        return items, to_remove

    def requeue(self) -> None:
        """Requeue the unfinished work of a failed checkpoint."""
        items, to_remove = self._taken
        self._for_checkpoint[:0] = items
        self._to_remove[:0] = to_remove
        items.clear()
        to_remove.clear()
