"""Audit log of a node, which logs summaries of repeated decisions."""

from __future__ import annotations

import time

import trio

from kbroker.security.audit import WINDOW_SECONDS, Audit


class NodeAudit(Audit):
    """Audit log with a clock. `run` is its background work."""

    def __init__(self) -> None:
        super().__init__(time.monotonic, self._on_counted)
        self._has_counted = trio.Event()

    def _on_counted(self) -> None:
        self._has_counted.set()

    async def run(self) -> None:
        """Log summaries of repeated decisions, at most once per second, until cancelled."""
        while True:
            await self._has_counted.wait()
            await trio.sleep(WINDOW_SECONDS)
            self._has_counted = trio.Event()
            self.log_counts()
