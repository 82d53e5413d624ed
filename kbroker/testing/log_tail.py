"""The last log lines of one broker, among several in one process."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar

from kbroker.runtime.log_output import TextFormatter

LINES_KEPT = 50

_current: ContextVar[LogTail] = ContextVar("log tail")
"""Whose lines are written here: a broker's tasks and worker threads inherit it."""


class LogTail(logging.Handler):
    """Keeps what one broker logs, as far as loggers let it pass: warnings, unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        if _current.get(None) is self:
            self.lines.append(self.format(record))

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep what this context logs, and what it starts."""
        logger = logging.getLogger("kbroker")
        logger.addHandler(self)
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)
            logger.removeHandler(self)
