"""Tests of FindCoordinator and of the broker around the group coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from ..brokers import Start, started
from ..net.test_server import commit, committed
from ..wire import Wire, connected, create_topic, delete_topic, metadata, request

GROUP, TRANSACTION, SHARE = 0, 1, 2


async def find(wire: Wire, version: int, *keys: str, kind: int = GROUP) -> list[Any]:
    """Return the coordinators in the form of versions 4 and later."""
    ask = request(
        ApiKey.FIND_COORDINATOR,
        key=keys[0] if keys else "",
        key_type=kind,
        coordinator_keys=list(keys),
    )
    response = await wire.ask(ApiKey.FIND_COORDINATOR, version, ask)
    return list(response.coordinators) if version >= 4 else [response]


@pytest.mark.parametrize("version", range(7))
async def test_find_group_coordinator_returns_node_and_creates_topic(
    broker: Broker, wire: Wire, version: int
) -> None:
    """The empty group ID is valid."""
    for key in ("g", "", "ä" * 100):
        (row,) = await find(wire, version, key)
        assert (row.error_code, row.node_id) == (0, 1)
        assert (row.host, row.port) == broker.endpoint
        if version >= 4:
            assert row.key == key
    assert "__consumer_offsets" in broker.node.cluster.topics


@pytest.mark.parametrize("version", range(4, 7))
async def test_find_coordinator_accepts_several_keys(wire: Wire, version: int) -> None:
    rows = await find(wire, version, "a", "b", "c")
    assert [(row.key, row.error_code) for row in rows] == [("a", 0), ("b", 0), ("c", 0)]
    assert await find(wire, version) == []


@pytest.mark.parametrize("version", range(1, 7))
async def test_find_transaction_coordinator_returns_node_and_creates_topic(
    broker: Broker, wire: Wire, version: int
) -> None:
    (row,) = await find(wire, version, "tx", kind=TRANSACTION)
    assert (row.error_code, row.node_id) == (0, 1)
    assert (row.host, row.port) == broker.endpoint
    assert "__transaction_state" in broker.node.cluster.topics


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("kind", [SHARE, 3, -1, 127])
async def test_find_coordinator_rejects_other_key_types(
    wire: Wire, version: int, kind: int
) -> None:
    (row,) = await find(wire, version, "key", kind=kind)
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert (row.node_id, row.host, row.port) == (-1, "", -1)


async def test_offsets_topic_has_configured_partitions(start: Start) -> None:
    """An in-memory broker has one partition by default."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await find(wire, 4, "g")
        (topic,) = (await metadata(wire, ["__consumer_offsets"])).topics
        assert len(topic.partitions) == (1 if broker.node.context.in_memory else 50)
    async with (
        started(offsets_topic_num_partitions=7) as broker,
        connected(broker.endpoint) as wire,
    ):
        await find(wire, 4, "g")
        (topic,) = (await metadata(wire, ["__consumer_offsets"])).topics
        assert len(topic.partitions) == 7


async def test_groups_are_spread_over_offsets_partitions(start: Start) -> None:
    async with (
        start(offsets_topic_num_partitions=5) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t")
        for i in range(30):
            await commit(wire, f"group {i}", "t", i)
        for i in range(30):
            assert await committed(wire, f"group {i}", "t") == i
        listed = await wire.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert {row.group_id for row in listed.groups} == {f"group {i}" for i in range(30)}


async def test_offsets_of_deleted_topic_are_removed(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        for name in ("t", "other"):
            await create_topic(wire, name)
            await commit(wire, "g", name, 5)
        await delete_topic(wire, "t")
        await create_topic(wire, "t")
        assert await committed(wire, "g", "t") == -1
        assert await committed(wire, "g", "other") == 5


async def test_heartbeat_before_find_coordinator_is_rejected(wire: Wire) -> None:
    """The error makes the client send FindCoordinator."""
    beat = request(ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id="m")
    response = await wire.ask(ApiKey.HEARTBEAT, 3, beat)
    assert response.error_code == ErrorCode.NOT_COORDINATOR
    assert ErrorCode(response.error_code).retriable


async def test_group_deletion_fails_if_coordinator_is_lost_before_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader lacks the records, and commits others at their offsets."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        await commit(wire, "g", "t", 1)
        groups = broker.node.groups
        store = type(groups).store

        def store_and_lose(self: Any, shard: Any, result: Any) -> Any:
            stored = store(self, shard, result)
            shard.replica.become_follower(shard.replica.partition)
            groups._drop_lost(shard)
            shard.replica.synced(shard.replica.log.log_end_offset)
            shard.replica.update_high_watermark(shard.replica.log.log_end_offset)
            return stored

        monkeypatch.setattr(type(groups), "store", store_and_lose)
        async with broker.node.partitions.flusher.sync_lock:
            response = await wire.ask(
                ApiKey.DELETE_GROUPS, 2, request(ApiKey.DELETE_GROUPS, groups_names=["g"])
            )
        assert response.results[0].error_code == ErrorCode.NOT_COORDINATOR


async def test_deleted_groups_lose_their_offsets(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        for group in ("a", "b"):
            await commit(wire, group, "t", 1)
        for version in range(3):
            ask = request(ApiKey.DELETE_GROUPS, groups_names=["a", "missing"])
            response = await wire.ask(ApiKey.DELETE_GROUPS, version, ask)
            found = {row.group_id: row.error_code for row in response.results}
            code = 0 if version == 0 else ErrorCode.GROUP_ID_NOT_FOUND
            assert found == {"a": code, "missing": ErrorCode.GROUP_ID_NOT_FOUND}
        assert await committed(wire, "a", "t") == -1
        assert await committed(wire, "b", "t") == 1


async def test_failed_creation_of_coordinator_topic_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients repeat the request many times."""
    async with (
        started(transaction_state_log_segment_bytes=10) as broker,
        connected(broker.endpoint) as wire,
    ):
        for _ in range(3):
            (row,) = await find(wire, 4, "tx", kind=TRANSACTION)
            assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "segment.bytes" in row.error_message
    logged = [record for record in caplog.records if "segment.bytes" in record.getMessage()]
    assert len(logged) == 1
