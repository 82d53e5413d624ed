"""Errors of one node: their number, and the messages that were logged before."""

from __future__ import annotations

from .memory_errors import MemoryErrors

SAID_MAX = 1000
"""Maximum number of messages to remember."""


class ErrorLog:
    """The errors of one node.

    Attributes:
        unhandled_errors: Number of unexpected exceptions (bugs) that the node survived.
        memory_errors: Requests that failed because memory was exhausted.
    """

    def __init__(self) -> None:
        self.unhandled_errors = 0
        self.memory_errors = MemoryErrors()
        self._said: set[str] = set()

    def is_new(self, message: str) -> bool:
        """Return True if a message was not logged before. Remembers at most `SAID_MAX` messages."""
        if message in self._said or len(self._said) >= SAID_MAX:
            return False
        self._said.add(message)
        return True
