"""Log output of the command line on stderr, as text or JSON.

Embedded brokers install no log handler.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from io import TextIOWrapper
from typing import Any

from kbroker.text.printable import printable

# Minimum seconds between two log lines about failed accepts.
ACCEPT_ERROR_LOG_SECONDS = 60
logger = logging.getLogger(__name__)

# Logger of denied requests and of authentications.
AUDIT = "kbroker.audit"
# Size in bytes at which the audit file is rotated.
AUDIT_FILE_BYTES = 10 << 20
# Number of rotated audit files to keep.
AUDIT_FILES = 9
LEVELS = {"debug", "info", "warning", "error", "critical"}

# ID of the node that logs, if a process has several. Tasks and worker threads inherit the context
# variable.
_node: ContextVar[int | None] = ContextVar("node", default=None)


@contextlib.contextmanager
def logged_as(node_id: int | None) -> Iterator[None]:
    """Log with a node ID in the block, and in tasks that it starts.

    Args:
        node_id: Node ID; None if it is the only node of the process.
    """
    before = _node.set(node_id)
    try:
        yield
    finally:
        _node.reset(before)


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line, with the items of a record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        node_id = _node.get()
        if node_id is not None:
            event["node"] = node_id
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)


class TextFormatter(logging.Formatter):
    """Formatter of one line per message. Names that clients choose cannot forge a line.

    The lines of a traceback are indented, because it may quote line breaks.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        node_id = _node.get()
        record.node = "" if node_id is None else f" [node {node_id}]"
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indent(super().formatStack(stack_info))


def _indent(text: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


class RateLimitFilter(logging.Filter):
    """Filter that passes one record of a logger per `seconds`, without its traceback.

    It is for messages that are logged ten times a second while a condition lasts.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._last = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created - self._last < self._seconds:
            return False
        self._last = record.created
        record.exc_info = record.exc_text = None
        return True


def set_up_logging(levels: Iterable[str], form: str, audit_file: str | None = None) -> None:
    """Install the log handlers of the command line.

    Args:
        levels: LEVEL or LOGGER=LEVEL.
        form: "text" or "json".
        audit_file: File for the output of ``kbroker.audit``, which then goes nowhere else; None for
            stderr.

    Raises:
        ValueError: A level does not exist.
        OSError: The audit file cannot be written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(form, "%H:%M:%S"))
    audit = logging.getLogger(AUDIT)
    for each in audit.handlers[:]:
        audit.removeHandler(each)
        each.close()
    audit.propagate = audit_file is None
    if audit_file is not None:
        audit.addHandler(_audit_handler(audit_file, form))
    # trio logs each failed accept while the process is out of file descriptors.
    logging.getLogger("trio.serve_listeners").filters[:] = [
        RateLimitFilter(ACCEPT_ERROR_LOG_SECONDS)
    ]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("kbroker").setLevel(logging.INFO)
    for text in levels:
        name, _, level = text.rpartition("=")
        if level.lower() not in LEVELS:
            raise ValueError(f"invalid log level {level!r} (valid: {', '.join(sorted(LEVELS))})")
        if name and not _is_known(name):
            logger.warning(
                "--log-level %s: there is no logger %s; use the name of a module, for example "
                "kbroker.protocol",
                text,
                name,
            )
        logging.getLogger(name or "kbroker").setLevel(level.upper())


def _formatter(form: str, time_format: str) -> logging.Formatter:
    if form == "json":
        return JsonFormatter()
    line = "%(asctime)s %(levelname)-7s %(name)s%(node)s: %(message)s"
    return TextFormatter(line, time_format)


def _audit_handler(path: str, form: str) -> logging.Handler:
    """Return a handler that writes to a file, and rotates the file when it is full."""
    from logging.handlers import RotatingFileHandler  # only needed with an audit file

    class OwnFileHandler(RotatingFileHandler):
        """Handler whose files only their owner can read: they name principals and resources."""

        def _open(self) -> TextIOWrapper:
            return open(self.baseFilename, "a", encoding="utf-8", opener=_open_own_file)

    handler = OwnFileHandler(
        path, maxBytes=AUDIT_FILE_BYTES, backupCount=AUDIT_FILES, encoding="utf-8"
    )
    handler.setFormatter(_formatter(form, "%Y-%m-%dT%H:%M:%S%z"))
    return handler


def _open_own_file(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_known(name: str) -> bool:
    """Return True if a logger or a module has this name.

    Most loggers are created when their module is imported.
    """
    from importlib.util import find_spec

    try:
        return name in logging.root.manager.loggerDict or find_spec(name) is not None
    except (ImportError, ValueError):
        return False
