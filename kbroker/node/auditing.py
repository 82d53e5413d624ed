"""The audit log of a node, which tells in time what it has counted."""

from __future__ import annotations

import time

import trio

from kbroker.security.audit import WINDOW_SECONDS, Audit


class NodeAudit(Audit):
    """An audit log with a clock. `run` is its background work."""

    def __init__(self) -> None:
        super().__init__(time.monotonic, self._counts)
        self._has_counted = trio.Event()

    def _counts(self) -> None:
        self._has_counted.set()

    async def run(self) -> None:
        """Tell what clients asked for again and again, at most once a second, until cancelled."""
        while True:
            await self._has_counted.wait()
            await trio.sleep(WINDOW_SECONDS)
            self._has_counted = trio.Event()
            self.log_counts()
