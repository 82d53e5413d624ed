"""Client quotas that every node stores and restores."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cluster import quota_changes
from kbroker.handlers import quotas as handlers

from ..brokers import started
from ..handlers.quota_requests import (
    POLICY,
    USER,
    alter,
    quotas_by_entity,
    row_of,
    set_quota,
)
from ..wire import (
    connected,
)


async def test_number_of_quota_entities_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert quota_changes.QUOTAS_MAX == 10_000
    monkeypatch.setattr(quota_changes, "QUOTAS_MAX", 3)
    monkeypatch.setattr(handlers, "AT_ONCE", 2)
    async with started() as broker, connected(broker.endpoint) as wire:
        good = {"producer_byte_rate": 1.0}
        rows = [row_of({"user": f"user{number}"}, good) for number in range(4)]
        assert await alter(wire, *rows, validate_only=True) == [0] * 4, "each by itself"
        assert await alter(wire, *rows) == [0, 0, POLICY, POLICY]
        assert await alter(wire, rows[2]) == [0]
        assert await alter(wire, rows[3]) == [POLICY]
        await set_quota(wire, {"user": "user0"}, producer_byte_rate=2)
        await set_quota(wire, {"user": "user0"}, producer_byte_rate=None)
        assert await alter(wire, rows[3]) == [0]


async def test_quotas_survive_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, {"user": "al"}, producer_byte_rate=1024)
        before = await quotas_by_entity(wire)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await quotas_by_entity(wire) == before
        assert broker.node.cluster.client_quotas.of_clients is not None


async def test_quotas_are_known_to_all_nodes() -> None:
    async with started(nodes=2) as broker, connected(broker.local_node(2).endpoint) as wire:
        async with connected(broker.local_node(1).endpoint) as first:
            await set_quota(first, USER, producer_byte_rate=10)
        assert len(await quotas_by_entity(wire)) == 1
        assert broker.local_node(2).node.cluster.client_quotas.of_clients is not None
