"""Tests of the time that holders of leases measure."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kbroker.cluster.timed_lease import TimedLease, lease_time


class StoredLease(TimedLease):
    """A lease that its store renews."""

    async def _renew(self) -> bool:
        return True


async def test_lease_expires_while_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The clock of trio does not advance in the meantime."""
    suspended = 100.0
    monkeypatch.setattr("kbroker.runtime.clock.suspended_seconds", lambda: suspended)
    lease = StoredLease(1, 9, lease_time())
    await trio.sleep(5)
    assert not lease.may_be_over()
    suspended += 5
    assert lease.may_be_over()
    assert await lease.keep_alive()
    assert not lease.may_be_over()
    suspended += 8
    assert not lease.may_be_over()
    suspended += 2
    assert lease.may_be_over()
