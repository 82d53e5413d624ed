"""Who hears of changes, and the newest changes for those who come later: of every store alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

from .store import Change, Compacted, Watcher


class Watchers:
    """The watchers of one client of a store, and what they may still be told."""

    def __init__(self) -> None:
        self._forgotten = 0
        self._history: deque[Change] = deque()
        self._entries = 0
        self._watchers: dict[Watcher, int] = {}
        """After which revision each of them wants to hear."""

    def add(self, watcher: Watcher, *, after: int) -> None:
        """As `MetadataStore.watch`. Raises Compacted."""
        if after < self._forgotten:
            raise Compacted(
                f"changes of metadata up to revision {self._forgotten} are forgotten, those after "
                f"{after} were wanted; read everything again"
            )
        for change in self._history:
            if change.revision > after:
                watcher(change)
        self._watchers[watcher] = after

    def remove(self, watcher: Watcher) -> None:
        """As `MetadataStore.unwatch`."""
        del self._watchers[watcher]

    def tell(self, change: Change, *, keep: int) -> None:
        """Tell everybody; what goes wrong in one of them is raised when all have heard of it.

        Parameters: `keep` is how many entries of the newest changes are kept for who comes later.
        """
        self._history.append(change)
        self._entries += len(change.entries)
        while self._entries > keep:
            oldest = self._history.popleft()
            self._entries -= len(oldest.entries)
            self._forgotten = oldest.revision
        with ExitStack() as stack:
            for watcher, after in reversed(self._watchers.items()):  # the last one in comes first
                if change.revision > after:
                    stack.callback(watcher, change)

    def forget(self, revision: int) -> None:
        """Nobody can be told any more what was changed up to a revision, the newest that there is."""
        self._history.clear()
        self._entries = 0
        self._forgotten = revision

    def deleted_after(self, revision: int) -> Iterator[str]:
        """The keys that were deleted by later changes, as far as they are kept."""
        for change in self._history:
            if change.revision > revision:
                yield from (key for key, entry in change.entries.items() if entry is None)
