"""FindCoordinator, and what groups need of a node around their coordinator."""

from __future__ import annotations

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
    """Coordinators as version 4+ lists them."""
    ask = request(
        ApiKey.FIND_COORDINATOR,
        key=keys[0] if keys else "",
        key_type=kind,
        coordinator_keys=list(keys),
    )
    answer = await wire.ask(ApiKey.FIND_COORDINATOR, version, ask)
    return list(answer.coordinators) if version >= 4 else [answer]


@pytest.mark.parametrize("version", range(7))
async def test_a_group(broker: Broker, wire: Wire, version: int) -> None:
    """This node, for every group, also for the empty id; the topic is there afterwards."""
    for key in ("g", "", "ä" * 100):
        (row,) = await find(wire, version, key)
        assert (row.error_code, row.node_id) == (0, 1)
        assert (row.host, row.port) == broker.endpoint
        if version >= 4:
            assert row.key == key
    assert "__consumer_offsets" in broker.node.cluster.topics


@pytest.mark.parametrize("version", range(4, 7))
async def test_several_keys(wire: Wire, version: int) -> None:
    rows = await find(wire, version, "a", "b", "c")
    assert [(row.key, row.error_code) for row in rows] == [("a", 0), ("b", 0), ("c", 0)]
    assert await find(wire, version) == []


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_transactional_id(broker: Broker, wire: Wire, version: int) -> None:
    """This node as well; their topic is there afterwards."""
    (row,) = await find(wire, version, "tx", kind=TRANSACTION)
    assert (row.error_code, row.node_id) == (0, 1)
    assert (row.host, row.port) == broker.endpoint
    assert "__transaction_state" in broker.node.cluster.topics


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("kind", [SHARE, 3, -1, 127])
async def test_other_types(wire: Wire, version: int, kind: int) -> None:
    (row,) = await find(wire, version, "key", kind=kind)
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert (row.node_id, row.host, row.port) == (-1, "", -1)


async def test_the_offsets_topic(start: Start) -> None:
    """As many partitions as configured; one in memory, where nobody asked for more."""
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


async def test_groups_on_all_partitions(start: Start) -> None:
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


async def test_offsets_of_a_deleted_topic_go(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        for name in ("t", "other"):
            await create_topic(wire, name)
            await commit(wire, "g", name, 5)
        await delete_topic(wire, "t")
        await create_topic(wire, "t")
        assert await committed(wire, "g", "t") == -1
        assert await committed(wire, "g", "other") == 5


async def test_a_group_before_any_coordinator_was_asked_for(wire: Wire) -> None:
    """A client that skips FindCoordinator is told to ask for it."""
    beat = request(ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id="m")
    answer = await wire.ask(ApiKey.HEARTBEAT, 3, beat)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert ErrorCode(answer.error_code).retriable


async def test_deleting_groups(start: Start) -> None:
    """The answer waits for the disk."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        for group in ("a", "b"):
            await commit(wire, group, "t", 1)
        for version in range(3):
            ask = request(ApiKey.DELETE_GROUPS, groups_names=["a", "missing"])
            answer = await wire.ask(ApiKey.DELETE_GROUPS, version, ask)
            found = {row.group_id: row.error_code for row in answer.results}
            code = 0 if version == 0 else ErrorCode.GROUP_ID_NOT_FOUND
            assert found == {"a": code, "missing": ErrorCode.GROUP_ID_NOT_FOUND}
        assert await committed(wire, "a", "t") == -1
        assert await committed(wire, "b", "t") == 1


async def test_a_topic_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    """The operator is told why, once; clients ask again and again."""
    async with (
        started(transaction_state_log_segment_bytes=10) as broker,
        connected(broker.endpoint) as wire,
    ):
        for _ in range(3):
            (row,) = await find(wire, 4, "tx", kind=TRANSACTION)
            assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "segment.bytes" in row.error_message
    told = [record for record in caplog.records if "segment.bytes" in record.getMessage()]
    assert len(told) == 1
