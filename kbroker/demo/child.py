"""Child side of the demo's pipes: write events as NDJSON, and read one command per line."""

from __future__ import annotations

import json
import os
import sys
import threading
from queue import Empty, SimpleQueue
from typing import TextIO


class ParentConnection:
    """Connection of a child process to its parent.

    The child exits when its standard input ends, so that no process outlives a killed demo.
    """

    def __init__(self) -> None:
        # Redirect the output of libraries and the JVM to stderr, away from the events.
        self._events: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._commands: SimpleQueue[str] = SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def emit(self, event: str, **fields: object) -> None:
        """Send one event. Thread-safe."""
        with self._lock:
            self._events.write(json.dumps({"event": event, **fields}) + "\n")
            self._events.flush()

    def wait_for(self, command: str) -> None:
        """Block until the parent has sent `command`, and discard all commands before it."""
        while self._commands.get() != command:
            pass

    def received(self, command: str) -> bool:
        """Remove the next command, if any, and return True if it is `command`."""
        try:
            return self._commands.get_nowait() == command
        except Empty:
            return False

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.strip())
        os._exit(1)
