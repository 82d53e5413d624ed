"""A connection of the client before its first request."""

from __future__ import annotations

import time

import pytest
import trio

from kbroker.client import check_round_trip, connection

from ..brokers import started


async def test_health_check_of_busy_broker_succeeds_within_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that starts on a slow disk blocks the event loop that also runs the health check."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.05)

    async def block_loop() -> None:
        time.sleep(0.3)  # noqa: ASYNC251  # blocks on purpose

    async with started() as broker, trio.open_nursery() as nursery:
        nursery.start_soon(block_loop)
        response = await check_round_trip(*broker.endpoint, 30)
    assert response.brokers
