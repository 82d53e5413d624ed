"""Shares of clients in the CPU time of one worker thread.

CPU time beyond the share is a debt, which decreases as time passes. While the debt of a connection
is large, its work counts as heavy: `HeavyWork` runs one piece of heavy work at a time, and light
work of other connections in between.

A client cannot avoid its debt with new connections. Its identity (principal and host) is charged
for all of its connections, and a new connection starts with the debt of its identity.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from .rates import Meters

# Fraction of the thread's CPU time that a client may use before its work counts as heavy.
SHARE = 0.5
# CPU seconds that a client may use beyond its share before its work counts as heavy.
HEAVY_SECONDS = 0.1
# Maximum debt, as seconds until it is paid off.
DEBT_SECONDS_MAX = 10.0
MS_PER_SECOND = 1000


class CpuDebt:
    """CPU time that a connection or an identity has used beyond its share."""

    __slots__ = ("paid_at",)

    def __init__(self) -> None:
        # Time in seconds at which the debt is paid off.
        self.paid_at = -math.inf

    def charge(self, seconds: float, now: float) -> None:
        """Add used CPU time, in seconds."""
        paid_at = max(self.paid_at, now) + seconds / SHARE
        self.paid_at = min(paid_at, now + DEBT_SECONDS_MAX)

    def is_heavy(self, now: float) -> bool:
        """Return True if the debt exceeds `HEAVY_SECONDS`."""
        return self.paid_at > now + HEAVY_SECONDS / SHARE

    def is_expired(self, now_ms: int) -> bool:
        """Return True if the debt is paid off."""
        return self.paid_at * MS_PER_SECOND <= now_ms


class CpuAccount:
    """Account of the CPU time that the worker thread has used for one connection.

    Args:
        identity: Client that the connection belongs to. If it is None, the connection is charged
            alone.
    """

    __slots__ = ("debt", "identity", "seconds")

    def __init__(self, identity: Hashable | None = None) -> None:
        self.identity: Hashable = object() if identity is None else identity
        # Debt of the connection; None before its first work.
        self.debt: CpuDebt | None = None
        # CPU seconds that were used for the connection.
        self.seconds = 0.0


class CpuShares:
    """CPU time that clients have used of one worker thread.

    Times (`now`) are in seconds of a monotonic clock; use the same clock in all calls.
    """

    __slots__ = ("_identities",)

    def __init__(self) -> None:
        self._identities: Meters[CpuDebt] = Meters(CpuDebt)

    def __len__(self) -> int:
        """Return the number of identities that have a debt."""
        return len(self._identities)

    def charge(self, client: CpuAccount, seconds: float, now: float) -> None:
        """Charge CPU time in seconds to a connection and its identity."""
        client.seconds += seconds
        self._debt(client, now).charge(seconds, now)
        self._identity(client, now).charge(seconds, now)

    def is_heavy(self, client: CpuAccount, now: float) -> bool:
        """Return True if the work of a connection counts as heavy."""
        return self._debt(client, now).is_heavy(now)

    def sort_key(self, client: CpuAccount, now: float) -> tuple[float, float]:
        """Return a sort key by debt, smallest first: of the identity, then of the connection."""
        identity = self._identity(client, now).paid_at
        own = identity if client.debt is None else client.debt.paid_at
        return max(identity, now), max(own, now)

    def _debt(self, client: CpuAccount, now: float) -> CpuDebt:
        """Return the debt of a connection; it starts with the debt of the identity."""
        if client.debt is None:
            client.debt = CpuDebt()
            client.debt.paid_at = self._identity(client, now).paid_at
        return client.debt

    def _identity(self, client: CpuAccount, now: float) -> CpuDebt:
        return self._identities.of(client.identity, int(now * MS_PER_SECOND))
