"""Long work beside clients who want their turn."""

from __future__ import annotations

import trio

SLICE_SECONDS = 0.0005
REST = 4
"""How many times as long as a slice of work took the event loop is left to others."""
TURN_SECONDS = 0.005
"""How long one client may keep the event loop; each turn costs those who wait at most this long."""


class Slices:
    """Divides long work in the event loop into slices with rests between them."""

    def __init__(self) -> None:
        self._began = trio.current_time()

    async def pause(self) -> None:
        """Rest, if the work since the last rest was worth one."""
        worked = trio.current_time() - self._began
        if worked > SLICE_SECONDS:
            await trio.sleep(worked * REST)
            self._began = trio.current_time()


class Turn:
    """What one client does before the others have theirs: a number of requests, or a part of a
    large one."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = trio.current_time() + TURN_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the others are to have theirs."""
        return trio.current_time() >= self._ends_at

    async def pause(self) -> None:
        """Let the others have their turn, if this one is over. Work that was begun is not cancelled."""
        if self.is_over:
            await trio.lowlevel.cancel_shielded_checkpoint()
            self.begin()

    def begin(self) -> None:
        """Another turn begins."""
        self._ends_at = trio.current_time() + TURN_SECONDS
