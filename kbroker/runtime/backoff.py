"""Exponential backoff between attempts."""

from __future__ import annotations

# First pause in seconds.
FIRST_SECONDS = 0.02


class Backoff:
    """Pauses that double with each attempt, up to a maximum.

    Args:
        longest_seconds: Maximum pause.
        first_seconds: First pause.
    """

    __slots__ = ("_first", "_longest", "_next")

    def __init__(self, longest_seconds: float, first_seconds: float = FIRST_SECONDS) -> None:
        self._longest = longest_seconds
        self._first = self._next = min(first_seconds, longest_seconds)

    def next(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """Start again with the first pause, after a successful attempt."""
        self._next = self._first
