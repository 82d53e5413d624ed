"""Reports of commands that change several objects and end after some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .output import say

# Maximum number of objects that a report names.
NAMES_SHOWN_MAX = 20


@contextmanager
def reported_changes(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield a list for the names of the objects that are changed.

    If an error or Ctrl+C ends the changes, print which objects are changed: the error message names
    at most the object whose change failed.

    Args:
        names: Names of all objects to change. If there is only one, the error message is enough.
    """
    changed: list[str] = []
    try:
        yield changed
    except BaseException:
        if len(names) > 1:
            say(*_report(names, changed), err=True)
        raise


def _report(names: Sequence[str], changed: Sequence[str]) -> list[str]:
    rest = [name for name in names if name not in changed]
    return [
        f"kbroker: changed: {_shown(changed) if changed else 'nothing'}",
        f"kbroker: not confirmed as changed: {_shown(rest)}; repeat the command for these",
    ]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
