"""The last log lines of one broker of a process."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar

from kbroker.runtime.log_output import TextFormatter

# Number of log lines to keep.
LINES_KEPT = 50

# Log tail of the current broker. Its tasks and worker threads inherit the context variable.
_current: ContextVar[LogTail] = ContextVar("log tail")


class LogTail(logging.Handler):
    """Log handler that keeps the last log lines of one broker, by default warnings and errors."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        if _current.get(None) is self:
            self.lines.append(self.format(record))

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the log lines of this context and of the tasks that it starts."""
        logger = logging.getLogger("kbroker")
        logger.addHandler(self)
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)
            logger.removeHandler(self)
