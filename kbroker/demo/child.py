"""The child's side of the demo's pipes: events go out as JSON lines, commands come in as words."""

from __future__ import annotations

import json
import os
import sys
import threading
from queue import Empty, SimpleQueue
from typing import TextIO


class Parent:
    """What a child process of the demo says to its parent, and hears from it.

    The child ends at once when its parent is gone (standard input at its end), so that nothing
    lives on after a killed demo.
    """

    def __init__(self) -> None:
        # Libraries and the JVM may print: from now on that lands in the log, not among the events.
        self._events: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._commands: SimpleQueue[str] = SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def emit(self, event: str, **fields: object) -> None:
        """Send one event; safe from any thread."""
        with self._lock:
            self._events.write(json.dumps({"event": event, **fields}) + "\n")
            self._events.flush()

    def wait_for(self, command: str) -> None:
        """Block until the parent has sent `command`."""
        while self._commands.get() != command:
            pass

    def heard(self, command: str) -> bool:
        """Whether the parent has sent `command` and nobody took note of it yet."""
        try:
            return self._commands.get_nowait() == command
        except Empty:
            return False

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.strip())
        os._exit(1)
