"""A client's connection, before there is anything to talk about."""

from __future__ import annotations

import time

import pytest
import trio

from kbroker.client import check_round_trip, connection

from ..brokers import started


async def test_health_check_of_busy_broker_succeeds_within_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start on a slow disk holds up the loop in which the question waits as well."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.05)

    async def hold_up() -> None:
        time.sleep(0.3)  # noqa: ASYNC251  # it is to block

    async with started() as broker, trio.open_nursery() as nursery:
        nursery.start_soon(hold_up)
        answer = await check_round_trip(*broker.endpoint, 30)
    assert answer.brokers
