"""Helpers that format the causes of group events for logs."""

from __future__ import annotations

from collections.abc import Sequence

# Maximum number of names listed in a cause.
NAMES_MAX = 8
# Maximum length of a cause, in characters: clients may send names of up to 32 kB.
TEXT_LENGTH_MAX = 4096


def printable(text: str) -> str:
    """Truncate client-supplied text and escape it if it contains unprintable characters."""
    text = text[:TEXT_LENGTH_MAX]
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def some_of(names: Sequence[str]) -> str:
    """Return the first names as a list for a cause, with the number of omitted names."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")
