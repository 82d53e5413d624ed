"""When memory runs out: once it costs a connection, again and again it ends the process.

A broker without memory resets every connection for ever. It is better gone: whoever watches it
starts it again, and other nodes lead meanwhile.
"""

from __future__ import annotations

from collections import deque

import trio

ERRORS_MAX = 10
WINDOW_SECONDS = 60

NO_THREAD = "can't start new thread"
"""What Python says when there is no memory for a thread's stack, or no thread allowed any more."""
NEXT_ACTION = (
    "let it take less (memory.limit.bytes with --memory, queued.max.request.bytes, "
    "max.connections), or give the process more (ulimit -v and -u, the limits of its container or "
    "service), and start it again"
)


class OutOfMemory(MemoryError):
    """Memory ran out so often that the process is of no use; the message says what to do."""


class MemoryErrors:
    """Counts the connections of a node that ended because there was no memory."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=ERRORS_MAX)

    def happened(self) -> None:
        """Take note of one more. Raises OutOfMemory when there were too many in a short time."""
        now = trio.current_time()
        self._last.append(now)
        if len(self._last) == ERRORS_MAX and now - self._last[0] <= WINDOW_SECONDS:
            raise OutOfMemory(
                f"memory ran out {ERRORS_MAX} times in {now - self._last[0]:.0f} s: {NEXT_ACTION}"
            )


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that the system gives the process no more memory, or no threads."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) == NO_THREAD
    )
