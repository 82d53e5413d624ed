"""How the command line writes logs: on stderr, as text or JSON. Embedding installs no handler."""

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

ACCEPT_COMPLAINT_SECONDS = 60
logger = logging.getLogger(__name__)

AUDIT = "kbroker.audit"
"""The logger of what clients are denied, and of who comes in."""
AUDIT_FILE_BYTES = 10 << 20
AUDIT_FILES = 9
"""How many that are full are kept beside the one that is written."""
LEVELS = {"debug", "info", "warning", "error", "critical"}

_node: ContextVar[int | None] = ContextVar("node", default=None)
"""Which of several nodes does what is logged: its tasks and worker threads inherit it."""


@contextlib.contextmanager
def logged_as(node_id: int | None) -> Iterator[None]:
    """What is logged within, and by tasks that begin within, is of that node; None: the only one."""
    before = _node.set(node_id)
    try:
        yield
    finally:
        _node.reset(before)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with what a record has in `fields`."""

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
    """One line a message, whatever is in it: names that clients choose cannot forge a line.

    The lines of a traceback are indented, because what it quotes may have line ends.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        node_id = _node.get()
        record.node = "" if node_id is None else f" [node {node_id}]"
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


class RateLimitFilter(logging.Filter):
    """Passes one record of a logger per `seconds`, without its traceback.

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
    """Install the handlers of the command line.

    Parameters: `levels` are LEVEL or LOGGER=LEVEL; `form` is "text" or "json"; what
    ``kbroker.audit`` logs goes to `audit_file`, if there is one, and nowhere else.
    Raises ValueError for a level that does not exist, and OSError for a file that cannot be written.
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
    # What accepts connections says each time that the process is out of descriptors.
    logging.getLogger("trio.serve_listeners").filters[:] = [
        RateLimitFilter(ACCEPT_COMPLAINT_SECONDS)
    ]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("kbroker").setLevel(logging.INFO)
    for text in levels:
        name, _, level = text.rpartition("=")
        if level.lower() not in LEVELS:
            raise ValueError(f"{level!r} is no log level; there are {', '.join(sorted(LEVELS))}")
        if name and not _is_known(name):
            logger.warning(
                "--log-level %s: nothing logs under %s; names are those of modules, such as "
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
    """Writes to a file, which is set aside when it is full; the oldest of those goes."""
    from logging.handlers import RotatingFileHandler  # most servers have no such file

    class OwnFileHandler(RotatingFileHandler):
        """Makes files that only their owner can read: they name principals, hosts and resources."""

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
    """Whether a logger or a module has this name: most loggers come with their module."""
    from importlib.util import find_spec

    try:
        return name in logging.root.manager.loggerDict or find_spec(name) is not None
    except (ImportError, ValueError):
        return False
