"""Text of events: causes that are fit for a log."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_MAX = 8
TEXT_LENGTH_MAX = 4096
"""Characters of a cause that is kept, in which clients may write names of 32 kB."""


def printable(text: str) -> str:
    """A text that is fit for a log: ids and reasons in it are the client's."""
    text = text[:TEXT_LENGTH_MAX]
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def some_of(names: Sequence[str]) -> str:
    """Names for a cause: the first ones, and how many there are."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")
