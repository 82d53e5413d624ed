"""Errors of one node: their number, and the messages that were logged before."""

from __future__ import annotations

from .memory_errors import MemoryErrors

# Maximum number of messages to remember.
MESSAGES_MAX = 1000


class ErrorLog:
    """The errors of one node.

    Attributes:
        unhandled_errors: Number of unexpected exceptions (bugs) that the node survived.
        memory_errors: Requests that failed because memory was exhausted.
    """

    def __init__(self) -> None:
        self.unhandled_errors = 0
        self.memory_errors = MemoryErrors()
        self._messages: set[str] = set()

    def is_new(self, message: str) -> bool:
        """Return True if a message was not logged before; at most `MESSAGES_MAX` are remembered."""
        if message in self._messages or len(self._messages) >= MESSAGES_MAX:
            return False
        self._messages.add(message)
        return True
