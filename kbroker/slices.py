"""Work on every partition of a node, beside clients who want one of them."""

from __future__ import annotations

import trio

SLICE_SECONDS = 0.0005
REST = 4
"""How many times as long as a slice of work took the event loop is left to others."""


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
