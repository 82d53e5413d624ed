"""How long to wait before the next attempt."""

from __future__ import annotations

FIRST_SECONDS = 0.02


class Backoff:
    """Pauses that double from one attempt to the next, up to `longest_seconds`."""

    __slots__ = ("_first", "_longest", "_next")

    def __init__(self, longest_seconds: float, first_seconds: float = FIRST_SECONDS) -> None:
        self._longest = longest_seconds
        self._first = self._next = min(first_seconds, longest_seconds)

    def next(self) -> float:
        """The pause before the next attempt, in seconds."""
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """An attempt went well."""
        self._next = self._first
