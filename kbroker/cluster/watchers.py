"""Watchers of metadata changes, with a history for watchers that are added later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

from .store import Change, Compacted, Watcher


class Watchers:
    """The watchers of one store client, and the newest changes."""

    def __init__(self) -> None:
        self._forgotten = 0
        self._history: deque[Change] = deque()
        self._entries = 0
        # Revision after which each watcher wants changes.
        self._watchers: dict[Watcher, int] = {}

    def add(self, watcher: Watcher, *, after: int) -> None:
        """Add a watcher; see `MetadataStore.watch`. Raises Compacted."""
        if after < self._forgotten:
            raise Compacted(
                f"metadata changes up to revision {self._forgotten} are no longer available, those after "
                f"{after} were requested; read all entries again"
            )
        for change in self._history:
            if change.revision > after:
                watcher(change)
        self._watchers[watcher] = after

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher; see `MetadataStore.unwatch`."""
        del self._watchers[watcher]

    def notify(self, change: Change, *, keep: int) -> None:
        """Call all watchers; an error of a watcher is raised after all others were called.

        Args:
            change: The change.
            keep: Changed entries to keep for later watchers.
        """
        self._history.append(change)
        self._entries += len(change.entries)
        while self._entries > keep:
            oldest = self._history.popleft()
            self._entries -= len(oldest.entries)
            self._forgotten = oldest.revision
        with ExitStack() as stack:
            # The stack calls the watchers in reverse order.
            for watcher, after in reversed(self._watchers.items()):
                if change.revision > after:
                    stack.callback(watcher, change)

    def forget(self, revision: int) -> None:
        """Forget all changes up to `revision`, the newest revision."""
        self._history.clear()
        self._entries = 0
        self._forgotten = revision

    def deleted_after(self, revision: int) -> Iterator[str]:
        """Yield the keys that later changes deleted, as far as they are kept."""
        for change in self._history:
            if change.revision > revision:
                yield from (key for key, entry in change.entries.items() if entry is None)
