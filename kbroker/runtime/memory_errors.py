"""Handling of exhausted memory: an error closes a connection, repeated errors end the process.

A broker without memory would reset every connection forever. If the process ends, its supervisor
restarts it, and other nodes take over in the meantime.
"""

from __future__ import annotations

from collections import deque

import trio

# Number of errors within `WINDOW_SECONDS` that end the process.
ERRORS_MAX = 10
WINDOW_SECONDS = 60

# Message of Python's error if a thread cannot be started for lack of memory or because of a limit.
NO_THREAD = "can't start new thread"
NEXT_ACTION = (
    "lower its limits (memory.limit.bytes with --memory, queued.max.request.bytes, "
    "max.connections), or give the process more memory (ulimit -v and -u, the limits of its "
    "container or service), and start it again"
)


class OutOfMemory(MemoryError):
    """Memory was exhausted too often; the message says what to do."""


class MemoryErrors:
    """Counter of the connections of a node that were closed because memory was exhausted."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=ERRORS_MAX)

    def record(self) -> None:
        """Count an error.

        Raises:
            OutOfMemory: There were `ERRORS_MAX` errors within `WINDOW_SECONDS`.
        """
        now = trio.current_time()
        self._last.append(now)
        if len(self._last) == ERRORS_MAX and now - self._last[0] <= WINDOW_SECONDS:
            raise OutOfMemory(
                f"memory ran out {ERRORS_MAX} times in {now - self._last[0]:.0f} s: {NEXT_ACTION}"
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that the process gets no more memory or threads."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) == NO_THREAD
    )
