"""Shares of clients in the CPU time of one worker thread.

A connection that stays within its share does light work. A client cannot regain its share by
connecting again, or by many connections at once: its identity (principal and host) is charged for
all of its connections, and a new connection begins with that debt.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from .rates import Meters

# Fraction of the thread's CPU time that a client may use before its work counts as heavy.
SHARE = 0.5
# CPU seconds that a client may use beyond its share before its work counts as heavy.
HEAVY_SECONDS = 0.1
# Maximum seconds until a client is within its share again.
DEBT_SECONDS_MAX = 10.0
MS_PER_SECOND = 1000


class CpuDebt:
    """CPU time that was used beyond a share."""

    __slots__ = ("paid_at",)

    def __init__(self) -> None:
        # Time in seconds from which on the used CPU time is within the share.
        self.paid_at = -math.inf

    def charge(self, seconds: float, now: float) -> None:
        """Add CPU time in seconds."""
        paid_at = max(self.paid_at, now) + seconds / SHARE
        self.paid_at = min(paid_at, now + DEBT_SECONDS_MAX)

    def is_heavy(self, now: float) -> bool:
        """Return True if the debt exceeds `HEAVY_SECONDS`."""
        return self.paid_at > now + HEAVY_SECONDS / SHARE

    def is_over(self, now_ms: int) -> bool:
        """Return True if nothing is owed."""
        return self.paid_at * MS_PER_SECOND <= now_ms


class HeavyClient:
    """CPU time that was used for one connection.

    Args:
        identity: Key of the client that the connection belongs to, None if it has no other one.
    """

    __slots__ = ("debt", "identity", "seconds")

    def __init__(self, identity: Hashable | None = None) -> None:
        self.identity: Hashable = object() if identity is None else identity
        # Debt of the connection; None before its first work.
        self.debt: CpuDebt | None = None
        # CPU seconds that were used for the connection.
        self.seconds = 0.0


class CpuShares:
    """CPU time of one thread that clients have used. Times are in seconds of any one clock."""

    __slots__ = ("_identities",)

    def __init__(self) -> None:
        self._identities: Meters[CpuDebt] = Meters(CpuDebt)

    def __len__(self) -> int:
        """Return the number of identities that are known."""
        return len(self._identities)

    def charge(self, client: HeavyClient, seconds: float, now: float) -> None:
        """Charge CPU time in seconds to a connection and its identity."""
        client.seconds += seconds
        self._debt(client, now).charge(seconds, now)
        self._identity(client, now).charge(seconds, now)

    def is_heavy(self, client: HeavyClient, now: float) -> bool:
        """Return True if the work of a connection counts as heavy."""
        return self._debt(client, now).is_heavy(now)

    def order(self, client: HeavyClient, now: float) -> tuple[float, float]:
        """Return the sort key of a waiting connection: that with the least CPU time goes first."""
        identity = self._identity(client, now).paid_at
        own = identity if client.debt is None else client.debt.paid_at
        return max(identity, now), max(own, now)

    def _debt(self, client: HeavyClient, now: float) -> CpuDebt:
        """Return the debt of a connection. A new connection has that of its identity."""
        if client.debt is None:
            client.debt = CpuDebt()
            client.debt.paid_at = self._identity(client, now).paid_at
        return client.debt

    def _identity(self, client: HeavyClient, now: float) -> CpuDebt:
        return self._identities.of(client.identity, int(now * MS_PER_SECOND))
