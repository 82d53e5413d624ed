"""Tests of the requests that read and write the state of share groups (KIP-932)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.cluster import SHARE_STATE_TOPIC
from kbroker.coordinator_runtime import share_coordinator
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import request_class
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.share_state_log import SharePartitionKey

from ..brokers import started
from ..commands import invoke
from ..wire import Wire, connected, create_topic, delete_topic, request

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
INITIALIZE, READ = ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE
WRITE, DELETE = ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE
SUMMARY = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
APIS = (INITIALIZE, READ, WRITE, DELETE, SUMMARY)
SHARE_KEY = 2


async def request_state(
    wire: Wire, key: ApiKey, topic_id: uuid.UUID, *indexes: int, group: str = "queue", **fields: Any
) -> dict[int, Any]:
    """Send a request and return the rows by partition."""
    cls: Any = request_class(key)
    rows = [cls.Partition(partition=index, **fields) for index in indexes]
    topic = cls.Topic(topic_id=topic_id, partitions=rows)
    response = await wire.ask(key, max_version(key), request(key, group_id=group, topics=[topic]))
    return {row.partition: row for each in response.results for row in each.partitions}


def max_version(key: ApiKey) -> int:
    return 1 if key in (WRITE, SUMMARY) else 0


async def find(wire: Wire, key: str, version: int = 6) -> Any:
    message = FindCoordinatorRequest(key_type=SHARE_KEY, coordinator_keys=[key])
    response = await wire.ask(ApiKey.FIND_COORDINATOR, version, message)
    return response.coordinators[0]


async def create_topics(broker: Broker, wire: Wire, partitions: int = 2) -> uuid.UUID:
    """Create a topic, and the topic of the share states."""
    await create_topic(wire, "orders", partitions)
    topic_id = broker.node.cluster.topics["orders"].id
    assert (await find(wire, SharePartitionKey("queue", topic_id, 0).name)).error_code == NONE
    return topic_id


def ranges(row: Any) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in row.state_batches]


def change(*offsets: tuple[int, int], **fields: Any) -> dict[str, Any]:
    cls: Any = request_class(WRITE)
    rows = [
        cls.StateBatch(first_offset=first, last_offset=last, delivery_state=2, delivery_count=1)
        for first, last in offsets
    ]
    return {"state_batches": rows, "start_offset": -1} | fields


async def test_share_states_survive_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic_id = await create_topics(broker, wire)
        for row in (await request_state(wire, INITIALIZE, topic_id, 0, 1, start_offset=5)).values():
            assert row.error_code == NONE
        written = await request_state(wire, WRITE, topic_id, 1, **change((5, 9), (20, 29)))
        assert written[1].error_code == NONE
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        rows = await request_state(wire, READ, topic_id, 0, 1)
        assert ranges(rows[0]) == []
        assert ranges(rows[1]) == [(5, 9), (20, 29)]
        assert (await request_state(wire, DELETE, topic_id, 1))[1].error_code == NONE
        assert (await request_state(wire, READ, topic_id, 1))[1].error_code == INVALID
        assert (await request_state(wire, SUMMARY, topic_id, 0))[0].start_offset == 5


@pytest.mark.parametrize("key", ["queue", "queue:nothing:0", f":{'A' * 22}:1", "a:b"])
async def test_invalid_share_partition_key_is_rejected(key: str) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert (await find(wire, key)).error_code == INVALID
        assert SHARE_STATE_TOPIC not in broker.node.cluster.topics


async def test_old_find_coordinator_rejects_share_key_type() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        name = SharePartitionKey("queue", uuid.uuid4(), 0).name
        assert (await find(wire, name, version=5)).error_code == INVALID


async def test_request_without_group_or_partitions_returns_no_rows() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic_id = await create_topics(broker, wire)
        for key in APIS:
            assert await request_state(wire, key, topic_id, 0, group="") == {}
            assert await request_state(wire, key, topic_id) == {}


def dumped(data: Path) -> list[dict[str, Any]]:
    directories = [str(each) for each in data.glob("__share_group_state-*")]
    lines = invoke("log", "dump", "-r", "--json", *directories).stdout.splitlines()
    return [row for row in map(json.loads, lines) if "group" in row]


async def test_log_dump_decodes_share_states(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic_id = await create_topics(broker, wire)
        await request_state(wire, INITIALIZE, topic_id, 0, start_offset=5)
        await request_state(wire, WRITE, topic_id, 0, **change((5, 9)))
        await request_state(wire, DELETE, topic_id, 0)
    rows = dumped(tmp_path)
    assert [row.get("state") for row in rows] == ["snapshot", "update", None]
    assert {(row["group"], row["topic_id"], row["partition"]) for row in rows} == {
        ("queue", str(topic_id), 0)
    }
    assert rows[0]["start_offset"] == 5
    assert rows[1]["state_batches"][0]["last_offset"] == 9
    assert rows[2]["tombstone"]


async def test_last_row_of_duplicate_partition_wins() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic_id = await create_topics(broker, wire)
        cls: Any = request_class(INITIALIZE)
        rows = [cls.Partition(partition=0, start_offset=offset) for offset in (1, 2, 3)]
        topic = cls.Topic(topic_id=topic_id, partitions=rows)
        message = request(INITIALIZE, group_id="queue", topics=[topic])
        response = await wire.ask(INITIALIZE, 0, message)
        assert len(response.results[0].partitions) == 1
        assert (await request_state(wire, SUMMARY, topic_id, 0))[0].start_offset == 3


async def test_share_states_are_deleted_with_topic() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic_id = await create_topics(broker, wire)
        await request_state(wire, INITIALIZE, topic_id, 0)
        await delete_topic(wire, "orders")
        (shard,) = broker.node.share.states.shards()
        assert not shard.coordinator.states


async def test_share_state_log_is_compacted_by_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "REWRITE_RECORDS_MIN", 10)
    async with started() as broker, connected(broker.endpoint) as wire:
        topic_id = await create_topics(broker, wire)
        await request_state(wire, INITIALIZE, topic_id, 0, 1)
        for offset in range(20):
            await request_state(wire, WRITE, topic_id, 0, **change((3 * offset, 3 * offset)))
        await broker.node.share.states.expire()
        (shard,) = broker.node.share.states.shards()
        log = shard.replica.log
        assert log.log_end_offset - log.log_start_offset == 2
        before = ranges((await request_state(wire, READ, topic_id, 0))[0])
        broker.node.share.states.reload(SharePartitionKey("queue", topic_id, 0).name)
        assert ranges((await request_state(wire, READ, topic_id, 0))[0]) == before
        assert len(before) == 20
        await broker.node.share.states.expire()
        assert log.log_end_offset - log.log_start_offset == 2, "a second run rewrites nothing"
