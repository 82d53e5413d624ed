"""A lease of a store elsewhere: its holder may be cut off, and counts the time itself."""

from __future__ import annotations

import trio


class TimedLease:
    """What stores elsewhere have in common; see `Lease`.

    Parameters: `granted_at` is when it was asked for, as `trio.current_time` says.
    """

    def __init__(self, number: int, ttl_seconds: float, granted_at: float) -> None:
        self.id = number
        self.ttl_seconds = ttl_seconds
        self._lives_until = granted_at + ttl_seconds

    def may_be_over(self) -> bool:
        return trio.current_time() > self._lives_until

    async def keep_alive(self) -> bool:
        asked_at = trio.current_time()
        lives = await self._renew()
        if lives:
            self._lives_until = asked_at + self.ttl_seconds
        return lives

    async def _renew(self) -> bool:
        """Ask the store for it; returns whether it lives."""
        raise NotImplementedError
