"""Escaping of untrusted text for terminals, logs and line-based output."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def printable(text: str, *, keep: str = "") -> str:
    """Escape non-printable characters like Python does: \\n, \\x1b, \\u2028.

    Names that clients choose then cannot move the cursor, hide text or start a new line.

    Args:
        text: Untrusted text.
        keep: Characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def accept_all_characters() -> None:
    """Make stdout and stderr escape characters that their encoding lacks, as in \\u2014.

    Without this, they raise UnicodeEncodeError if the locale is not UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
