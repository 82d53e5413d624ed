"""Leases of remote stores, whose holders measure the remaining time themselves."""

from __future__ import annotations

import trio

from kbroker.runtime import clock


def lease_time() -> float:
    """Return the seconds of the clock of leases.

    Leases also expire while this machine is suspended, which trio's clock does not count.
    """
    return trio.current_time() + clock.suspended_seconds()


class TimedLease:
    """The common part of leases of remote stores; see `Lease`.

    Args:
        number: ID of the lease.
        ttl_seconds: Duration.
        granted_at: Time at which the lease was requested (`lease_time`).
    """

    def __init__(self, number: int, ttl_seconds: float, granted_at: float) -> None:
        self.id = number
        self.ttl_seconds = ttl_seconds
        self._lives_until = granted_at + ttl_seconds

    def may_be_over(self) -> bool:
        return lease_time() > self._lives_until

    async def keep_alive(self) -> bool:
        requested_at = lease_time()
        lives = await self._renew()
        if lives:
            self._lives_until = requested_at + self.ttl_seconds
        return lives

    async def _renew(self) -> bool:
        """Renew the lease in the store; return False if it has expired."""
        raise NotImplementedError
