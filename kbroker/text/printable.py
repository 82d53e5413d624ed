"""Text that others have chosen, made safe for a terminal, a log and whatever reads lines."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def printable(text: str, *, keep: str = "") -> str:
    """The text with everything but what can be seen written as Python writes it: \\n, \\x1b, \\u2028.

    So names that clients choose move no cursor, hide nothing and begin no line. `keep` are
    characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def accept_all_characters() -> None:
    """Let standard output and error write characters that their encoding lacks as escapes, \\u2014.

    Where the locale is not one of UTF-8 they would raise UnicodeEncodeError.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
