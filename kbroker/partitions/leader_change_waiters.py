"""Error responses that wait until the node knows the new leader of a partition.

If the process of a node was paused, the node learns first that its lease expired, and some
milliseconds later which nodes lead its partitions now. A client that gets an error in between would
ask for the leader while no node knows it, and back off before it tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import trio

from kbroker.cluster import TopicsChanged

# Maximum delay of an error response.
SECONDS_MAX = 1.0
# Maximum number of waiters, because each metadata change calls all of them.
WAITING_MAX = 1000

# Checks for a new leader after a metadata change; returns True if the wait is over.
LeaderCheck: TypeAlias = Callable[[], bool]
# Called after the maximum delay.
OnTimeout: TypeAlias = Callable[[], None]


class LeaderChangeWaiters:
    """The waiters of one node. Start `run` in a task."""

    def __init__(self) -> None:
        # In the order of their deadlines.
        self._waiting: dict[LeaderCheck, tuple[float, OnTimeout]] = {}
        self._begun = trio.Event()

    def wait(self, check: LeaderCheck, on_timeout: OnTimeout) -> None:
        """Call `check` after each change until it is True, or `on_timeout` after the timeout."""
        if len(self._waiting) >= WAITING_MAX:
            on_timeout()
            return
        self._waiting[check] = trio.current_time() + SECONDS_MAX, on_timeout
        self._begun.set()

    def topics_changed(self, _: TopicsChanged) -> None:
        """Call all waiters, because partitions may have new leaders."""
        for check in list(self._waiting):
            if check():
                del self._waiting[check]

    async def run(self) -> None:
        """Time out waiters until cancelled."""
        while True:
            await self._begun.wait()
            while self._waiting:
                check, (deadline, on_timeout) = next(iter(self._waiting.items()))
                if deadline <= trio.current_time():
                    del self._waiting[check]
                    on_timeout()
                else:
                    await trio.sleep_until(deadline)
            self._begun = trio.Event()
