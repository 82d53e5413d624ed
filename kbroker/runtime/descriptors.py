"""Limits of file descriptors: how many logs, connections and helper threads may use."""

from __future__ import annotations

import sys
from typing import NamedTuple

# Maximum number of logs that keep a file open.
LOGS_MAX = 32_768
# Number of connections above which logs get all further descriptors. Opening a file for an append,
# and closing another one, costs ten times as much as the append.
CONNECTIONS_ENOUGH = 8192
# Maximum number of logs that keep a file open on Windows: half of the C library's limit.
WINDOWS_LOGS = 4096
# Descriptors for files that are open for a short time (checkpoints, indexes, segments that are
# read) and for the few that are always open.
RESERVE = 128
# Descriptors of the reserve that are always in use: output, metadata journal, locks, listeners.
ALWAYS_OPEN = 16
# Descriptors of the remaining reserve per helper thread. A full reserve allows 15 threads.
PER_HELPER = 7


class Shares(NamedTuple):
    """Division of the file descriptors.

    Attributes:
        logs: Maximum number of logs that keep a file open.
        connections: Maximum number of client connections.
        helpers: Maximum number of threads that open files for a short time.
    """

    logs: int
    connections: int
    helpers: int


def raise_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit.

    The default soft limit is low for programs that use select; kbroker does not use it.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS rejects more than the limit of its kernel
            return


def shares() -> Shares:
    """Return the division of the descriptors that this process may use."""
    if sys.platform == "win32":
        return Shares(WINDOWS_LOGS, sys.maxsize, _helpers(RESERVE))
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return divide(sys.maxsize if limit == resource.RLIM_INFINITY else limit)


def divide(limit: int) -> Shares:
    """Divide `limit` descriptors.

    Logs get a quarter, or all but the reserve and `CONNECTIONS_ENOUGH` if that is more. Connections
    get the rest.
    """
    reserve = min(RESERVE, limit // 4)
    logs = min(LOGS_MAX, max(limit // 4, limit - reserve - CONNECTIONS_ENOUGH, 1))
    return Shares(logs, max(limit - logs - reserve, 1), _helpers(reserve))


def _helpers(reserve: int) -> int:
    return max(reserve - ALWAYS_OPEN, 0) // PER_HELPER
