"""Standard streams that are closed or cannot be written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Errors of writes to a file or device; a closed pipe (EPIPE) is no error worth a message.
_WRITE_ERRORS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}
)


def open_missing_streams() -> None:
    """Open the null device for standard streams that the caller has closed.

    Otherwise Python sets them to None, and a file or socket gets their file descriptor.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_output() -> None:
    """Discard all further standard output, also what the interpreter flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_write_error(error: BaseException) -> bool:
    """Return True if standard output cannot be written; errors of files have their names."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS


@contextmanager
def reported_write_errors() -> Iterator[None]:
    """Flush standard output at the end, and exit with a message if it cannot be written."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not is_write_error(error):
            raise
        discard_output()
        failed = error.__context__
        is_reported = isinstance(failed, SystemExit) and bool(failed.code)
        if error.errno != errno.EPIPE and not is_reported:
            from .output import problem, say

            say(problem("kbroker: ", f"cannot write the output: {error.strerror}"), err=True)
        raise SystemExit(1) from None
