"""What goes wrong in one node: how often, and whether it was said before."""

from __future__ import annotations

from .memory_errors import MemoryErrors

SAID_MAX = 1000
"""Messages that are remembered."""


class ErrorLog:
    """The troubles of one node. `unhandled_errors` counts defects of ours that were survived."""

    def __init__(self) -> None:
        self.unhandled_errors = 0
        self.memory_errors = MemoryErrors()
        self._said: set[str] = set()

    def is_new(self, message: str) -> bool:
        """True for a message that was not logged before; remembers a bounded number of them."""
        if message in self._said or len(self._said) >= SAID_MAX:
            return False
        self._said.add(message)
        return True
