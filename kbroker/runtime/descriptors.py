"""How many files and sockets this process may have open, and what each use of them gets."""

from __future__ import annotations

import sys
from typing import NamedTuple

LOGS_MAX = 32_768
CONNECTIONS_ENOUGH = 8192
"""Beyond these, logs get what there is: to open a file for an append and to close another one costs ten
times as much as the append."""
WINDOWS_LOGS = 4096
"""Half of what its C library can have open."""
RESERVE = 128
"""For what is open for a moment: checkpoints, indexes, segments that are read; and the few files that
always are."""
ALWAYS_OPEN = 16
"""Of the reserve: the output, the journal, locks, what clients connect to."""
PER_HELPER = 7
"""Of what is left of the reserve; 15 helpers when there is no lack."""


class Shares(NamedTuple):
    """How many logs may keep a file open, how many clients may be connected, and how many threads
    may help with files that are open for a moment."""

    logs: int
    connections: int
    helpers: int


def raise_limit() -> None:
    """Let this process have as many descriptors as the system allows it.

    The limit that processes start with is kept low for programs that use select; this one does not.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS refuses more than its kernel's own limit
            return


def shares() -> Shares:
    """Divide the descriptors that this process may have."""
    if sys.platform == "win32":
        return Shares(WINDOWS_LOGS, sys.maxsize, _helpers(RESERVE))
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return divided(sys.maxsize if limit == resource.RLIM_INFINITY else limit)


def divided(limit: int) -> Shares:
    """Divide `limit` descriptors: a reserve, a quarter for logs, or more where connections have enough;
    they get the rest."""
    reserve = min(RESERVE, limit // 4)
    logs = min(LOGS_MAX, max(limit // 4, limit - reserve - CONNECTIONS_ENOUGH, 1))
    return Shares(logs, max(limit - logs - reserve, 1), _helpers(reserve))


def _helpers(reserve: int) -> int:
    return max(reserve - ALWAYS_OPEN, 0) // PER_HELPER
