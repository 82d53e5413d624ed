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
Heard: TypeAlias = Callable[[], bool]
# Called after the maximum delay.
GivenUp: TypeAlias = Callable[[], None]


class LeaderChangeWaiters:
    """The waiters of one node. Start `run` in a task."""

    def __init__(self) -> None:
        # In the order of their deadlines.
        self._waiting: dict[Heard, tuple[float, GivenUp]] = {}
        self._begun = trio.Event()

    def wait(self, heard: Heard, given_up: GivenUp) -> None:
        """Call `heard` after each change until it returns True, or `given_up` after the timeout."""
        if len(self._waiting) >= WAITING_MAX:
            given_up()
            return
        self._waiting[heard] = trio.current_time() + SECONDS_MAX, given_up
        self._begun.set()

    def topics_changed(self, _: TopicsChanged) -> None:
        """Call all waiters, because partitions may have new leaders."""
        for heard in list(self._waiting):
            if heard():
                del self._waiting[heard]

    async def run(self) -> None:
        """Time out waiters until cancelled."""
        while True:
            await self._begun.wait()
            while self._waiting:
                heard, (deadline, given_up) = next(iter(self._waiting.items()))
                if deadline <= trio.current_time():
                    del self._waiting[heard]
                    given_up()
                else:
                    await trio.sleep_until(deadline)
            self._begun = trio.Event()
