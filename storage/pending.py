"""What a log has still to do on the disk, for somebody who has time to block.

Three queues: what an ack waits for, which the next sync pass takes; what no ack waits for, but has to
be durable before a checkpoint may name more of the log; and segments below the log start, which are
removed after a checkpoint says that they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from .log_start_marks import LogStartMark
from .segment import Segment
from .sync import SyncItem, sync_in_order


class Pending:
    """The queues of one log.

    `durable`: its files survive a power cut once they are synced. `is_bare`: there are no indexes
    beside the records, and no checkpoint has written anything there since the log was opened.
    """

    __slots__ = ("_dirty", "_durable", "_taken", "_to_remove", "_unsettled", "is_bare")

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        # Appended to by the owner, emptied by whoever syncs: append and pop are atomic. An empty deque
        # would be a tenth of what a partition takes.
        self._dirty: list[SyncItem] = []
        self._unsettled: list[SyncItem] = []
        self._to_remove: list[Segment | LogStartMark] = []
        self._taken: tuple[list[SyncItem], list[Segment | LogStartMark]] = ([], [])
        self.is_bare = True

    def must_sync(self, item: SyncItem) -> None:
        """Let the next sync pass make something durable."""
        if self._durable:
            self._dirty.append(item)

    @property
    def dirty(self) -> bool:
        """Whether something waits for a sync."""
        return bool(self._dirty)

    def take_dirty(self) -> list[SyncItem]:
        """What the next sync pass must make durable; nothing of it is dirty any more."""
        items = []
        dirty = self._dirty
        while dirty:
            items.append(dirty.pop(0))
        return items

    def settle(self, items: Iterable[SyncItem]) -> None:
        """Let the next checkpoint do something, in this order, before it names more of the log."""
        self._unsettled += items
        self.is_bare = self.is_bare and not self._unsettled

    def settle_now(self) -> None:
        """Do what waits for a checkpoint; blocks. Raises StorageError, and the rest waits on."""
        while self._unsettled:
            sync_in_order(self._unsettled[:1])
            del self._unsettled[0]

    def schedule_removal(self, item: Segment | LogStartMark) -> None:
        """Let the next checkpoint remove the files of `item`, after it has stored the log start."""
        self._to_remove.append(item)

    @property
    def wants_checkpoint(self) -> bool:
        """Return True if the log has work that waits for a checkpoint, or for a running one to end."""
        return bool(self._unsettled or self._to_remove or any(self._taken))

    def take(self) -> tuple[list[SyncItem], list[Segment | LogStartMark]]:
        """Return what a checkpoint does before and after it names offsets of the log.

        The checkpoint removes from the lists what it has done.
        """
        self.put_back()
        items, self._unsettled = self._unsettled, []
        to_remove, self._to_remove = self._to_remove, []
        self._taken = items, to_remove
        return items, to_remove

    def put_back(self) -> None:
        """Take back what the last checkpoint did not do, because it failed."""
        items, to_remove = self._taken
        self._unsettled[:0] = items
        self._to_remove[:0] = to_remove
        items.clear()
        to_remove.clear()
