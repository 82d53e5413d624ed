"""Child side of the demo's pipes: events are written as NDJSON, commands are read as words."""

from __future__ import annotations

import json
import os
import sys
import threading
from queue import Empty, SimpleQueue
from typing import TextIO


class Parent:
    """Connection of a child process to its parent.

    The child exits when its standard input ends, so that no process outlives a killed demo.
    """

    def __init__(self) -> None:
        # Redirect the output of libraries and the JVM to the log, away from the events.
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
        """Block until the parent has sent `command`."""
        while self._commands.get() != command:
            pass

    def received(self, command: str) -> bool:
        """Return True if the next unprocessed command is `command`."""
        try:
            return self._commands.get_nowait() == command
        except Empty:
            return False

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.strip())
        os._exit(1)
