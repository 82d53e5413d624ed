"""Tests of CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from kbroker.protocol.schema import ZERO_UUID

from ..brokers import Start, started
from ..wire import (
    EARLIEST,
    LATEST,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    list_offset,
    metadata,
    produce,
    values_of,
)

New = CreateTopicsRequest.Topic


def new_topic(name: str = "t", partitions: int = 1, factor: int = 1, **fields: Any) -> New:
    return New(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def assigned(*brokers: list[int], first: int = 0) -> list[CreateTopicsRequest.Assignment]:
    return [
        CreateTopicsRequest.Assignment(partition_index=first + i, broker_ids=each)
        for i, each in enumerate(brokers)
    ]


def setting(name: str, value: str | None) -> list[CreateTopicsRequest.Config]:
    return [CreateTopicsRequest.Config(name=name, value=value)]


async def create(wire: Wire, version: int, *topics: New, **fields: Any) -> list[Any]:
    ask = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, **fields)
    rows = (await wire.ask(ApiKey.CREATE_TOPICS, version, ask)).topics
    assert isinstance(rows, list)
    return rows


# -- CreateTopics


@pytest.mark.slow
@pytest.mark.parametrize("version", range(8))
async def test_new_topic_is_usable_at_once(start: Start, version: int) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        (row,) = await create(wire, version, new_topic("t", 3))
        assert (row.name, row.error_code, row.error_message) == ("t", 0, None)
        if version >= 5:
            assert (row.num_partitions, row.replication_factor) == (3, 1)
            assert {c.name: c.value for c in row.configs}["retention.ms"] == "604800000"
        (found,) = (await metadata(wire, ["t"], 12)).topics
        assert row.topic_id == (found.topic_id if version >= 7 else ZERO_UUID)
        for partition in range(3):
            assert (await produce(wire, Topic("t"), batch(), partition=partition)).error_code == 0


@pytest.mark.parametrize("version", range(2, 8))
async def test_new_topic_uses_broker_defaults(version: int) -> None:
    """The value -1 is accepted even in versions 2 and 3."""
    async with started(num_partitions=4) as broker, connected(broker.endpoint) as wire:
        (row,) = await create(wire, version, new_topic("t", -1, -1))
        assert row.error_code == 0
        (found,) = (await metadata(wire, ["t"])).topics
        assert len(found.partitions) == 4


BAD: dict[str, tuple[New, int]] = {
    "no partitions": (new_topic("t", 0), 37),
    "-2 partitions": (new_topic("t", -2), 37),
    "factor 0": (new_topic("t", 1, 0), 38),
    "factor -2": (new_topic("t", 1, -2), 38),
    "factor above the nodes": (new_topic("t", 1, 2), 38),
    "bad name": (new_topic("a/b"), 17),
    "unknown setting": (new_topic("t", configs=setting("no.such.thing", "1")), 40),
    "bad value": (new_topic("t", configs=setting("retention.ms", "soon")), 40),
    "value out of range": (new_topic("t", configs=setting("retention.ms", "-5")), 40),
    "null value": (new_topic("t", configs=setting("retention.ms", None)), 40),
    "gap": (new_topic("t", -1, -1, assignments=assigned([1], [1], first=1)), 39),
    "partition twice": (new_topic("t", -1, -1, assignments=assigned([1]) * 2), 39),
    "node twice": (new_topic("t", -1, -1, assignments=assigned([1, 1])), 39),
    "unknown node": (new_topic("t", -1, -1, assignments=assigned([7])), 39),
    "no node": (new_topic("t", -1, -1, assignments=assigned([])), 39),
    "assignment and count": (new_topic("t", 1, -1, assignments=assigned([1])), 42),
    "assignment and factor": (new_topic("t", -1, 1, assignments=assigned([1])), 42),
}


@pytest.mark.slow
@pytest.mark.parametrize("version", range(8))
@pytest.mark.parametrize("case", BAD)
async def test_invalid_topic_is_rejected(
    broker: Broker, wire: Wire, case: str, version: int
) -> None:
    """Valid topics of the request are created. Error rows have no ID, and counts of -1."""
    topic, code = BAD[case]
    bad, good = await create(wire, version, topic, new_topic("good"))
    assert (bad.name, bad.error_code) == (topic.name, code)
    assert (bad.topic_id, bad.num_partitions, bad.replication_factor) == (ZERO_UUID, -1, -1)
    assert bool(bad.error_message) == (version >= 1)
    assert (good.name, good.error_code) == ("good", 0)
    assert set(broker.node.cluster.topics) == {"good"}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new_topic("a/b", -1, -1, assignments=assigned([1]) * 2), 17),
        (
            new_topic(
                "t",
                -1,
                -1,
                assignments=assigned([1]) * 2,
                configs=setting("retention.ms", "soon"),
            ),
            40,
        ),
        (new_topic("t", 0, 0), 38),
        (new_topic("t", 0, 2), 37),
    ],
)
async def test_topic_with_several_errors_is_rejected_with_kafkas_first_error(
    wire: Wire, topic: New, code: int
) -> None:
    (row,) = await create(wire, 7, topic)
    assert row.error_code == code


@pytest.mark.parametrize("version", range(8))
async def test_duplicate_and_existing_topics_are_rejected(
    broker: Broker, wire: Wire, version: int
) -> None:
    """A duplicate name gets one row with INVALID_REQUEST."""
    rows = await create(wire, version, new_topic("a"), new_topic("b"), new_topic("a"))
    assert sorted((row.name, row.error_code) for row in rows) == [("a", 42), ("b", 0)]
    (row,) = await create(wire, version, new_topic("b"))
    assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    if version >= 1:
        (row,) = await create(wire, version, new_topic("b"), validate_only=True)
        assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert set(broker.node.cluster.topics) == {"b"}


@pytest.mark.parametrize("version", range(1, 8))
async def test_validate_only_creates_no_topic(broker: Broker, wire: Wire, version: int) -> None:
    (row,) = await create(wire, version, new_topic("t", 2), validate_only=True)
    assert (row.error_code, row.topic_id) == (0, ZERO_UUID)
    if version >= 5:
        assert row.num_partitions == 2
    assert not broker.node.cluster.topics


@pytest.mark.parametrize("version", range(8))
async def test_topic_is_created_with_assignments_and_settings(wire: Wire, version: int) -> None:
    topic = new_topic(
        "t", -1, -1, assignments=assigned([1], [1]), configs=setting("retention.ms", "1000")
    )
    (row,) = await create(wire, version, topic)
    assert row.error_code == 0
    if version >= 5:
        configs = {c.name: c for c in row.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert configs["segment.bytes"].config_source == 5
    (found,) = (await metadata(wire, ["t"])).topics
    assert len(found.partitions) == 2


async def test_replication_factor_is_clamped_only_if_configured() -> None:
    """The error message names the setting."""
    async with started() as broker, connected(broker.endpoint) as wire:
        (row,) = await create(wire, 7, new_topic("t", 1, 3))
        assert row.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert "replication.factor.clamp=true" in row.error_message
    async with (
        started(replication_factor_clamp=True) as broker,
        connected(broker.endpoint) as wire,
    ):
        (row,) = await create(wire, 7, new_topic("t", 1, 3))
        assert (row.error_code, row.replication_factor) == (0, 1)


async def test_topic_with_too_many_partitions_is_rejected(wire: Wire) -> None:
    for count in (10_001, 2**31 - 1):
        (row,) = await create(wire, 7, new_topic("t", count))
        assert row.error_code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PARTITIONS)


async def test_request_with_too_many_partitions_is_rejected(wire: Wire) -> None:
    """Like in Kafka, the limit applies to the sum over all topics."""
    rows = await create(wire, 7, *(new_topic(name, 4000) for name in "abc"))
    assert [row.error_code for row in rows] == [ErrorCode.POLICY_VIOLATION] * 3
    for name in "abc":
        await create_topic(wire, name)
    cls = CreatePartitionsRequest
    ask = cls(topics=[cls.Topic(name=name, count=4000) for name in "abc"], timeout_ms=10_000)
    results = (await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)).results
    assert [row.error_code for row in results] == [ErrorCode.POLICY_VIOLATION] * 3
    found = (await metadata(wire, ["a", "b", "c"])).topics
    assert [len(topic.partitions) for topic in found] == [1, 1, 1]


# -- DeleteTopics


async def delete(wire: Wire, version: int, *topics: Topic | str | uuid.UUID) -> list[Any]:
    cls = DeleteTopicsRequest.Topic
    rows = [
        cls(topic_id=t)
        if isinstance(t, uuid.UUID)
        else cls(name=t)
        if isinstance(t, str)
        else cls(name=t.name, topic_id=t.id)
        for t in topics
    ]
    ask = DeleteTopicsRequest(
        topics=rows, topic_names=[t for t in topics if isinstance(t, str)], timeout_ms=10_000
    )
    response = await wire.ask(ApiKey.DELETE_TOPICS, version, ask)
    return list(response.responses)


@pytest.mark.parametrize("version", range(7))
async def test_deleted_topic_name_is_reusable_at_once(start: Start, version: int) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        for i in range(3):
            topic = await create_topic(wire, "t")
            await produce(wire, topic, batch([b"%d" % i]))
            assert values_of(await fetch(wire, topic)) == [b"%d" % i]
            (row,) = await delete(wire, version, "t")
            assert (row.name, row.error_code) == ("t", 0)
            (found,) = (await metadata(wire, ["t"])).topics
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(7))
async def test_deleting_unknown_topic_returns_error(wire: Wire, version: int) -> None:
    await create_topic(wire, "t")
    rows = await delete(wire, version, "missing", "t")
    assert [(row.name, row.error_code) for row in rows] == [("missing", 3), ("t", 0)]


async def test_topic_is_deleted_by_id(wire: Wire) -> None:
    topic, unknown = await create_topic(wire, "t"), uuid.uuid4()
    rows = await delete(wire, 6, topic.id, unknown)
    assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
        ("t", topic.id, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_ambiguous_deletion_is_rejected(broker: Broker, wire: Wire) -> None:
    """A row has both name and ID, neither of them, or occurs twice."""
    topic = await create_topic(wire, "t")
    for targets in ([topic], [uuid.UUID(int=0)], ["t", "t"], [topic.id, topic.id]):
        rows = await delete(wire, 6, *targets)
        assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST}
    assert set(broker.node.cluster.topics) == {"t"}


@pytest.mark.parametrize("version", range(7))
async def test_topic_deletion_can_be_disabled(version: int) -> None:
    async with started(delete_topic_enable=False) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        (row,) = await delete(wire, version, "t")
        assert row.error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert set(broker.node.cluster.topics) == {"t"}


# -- CreatePartitions


async def create_partitions(wire: Wire, version: int, name: str, count: int, **fields: Any) -> Any:
    cls = CreatePartitionsRequest
    assignments = fields.pop("assignments", None)
    row = cls.Topic(
        name=name,
        count=count,
        assignments=assignments
        if assignments is None
        else [cls.Assignment(broker_ids=each) for each in assignments],
    )
    ask = cls(topics=[row] * fields.pop("times", 1), timeout_ms=10_000, **fields)
    (found,) = (await wire.ask(ApiKey.CREATE_PARTITIONS, version, ask)).results
    return found


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added_to_topic(start: Start, version: int) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        await produce(wire, topic, batch([b"old"]), partition=1)
        assert (await create_partitions(wire, version, "t", 5)).error_code == 0
        (found,) = (await metadata(wire, ["t"], 12)).topics
        assert (len(found.partitions), found.topic_id) == (5, topic.id)
        assert (await produce(wire, topic, batch([b"new"]), partition=4)).error_code == 0
        assert values_of(await fetch(wire, topic, partitions=[1])) == [b"old"]


@pytest.mark.slow
@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    ("case", "name", "count", "fields", "code"),
    [
        ("not more", "t", 2, {}, 37),
        ("fewer", "t", 1, {}, 37),
        ("none", "t", 0, {}, 37),
        ("negative", "t", -1, {}, 37),
        ("too many", "t", 2**31 - 1, {}, 37),
        ("unknown", "missing", 3, {}, 3),
        ("twice", "t", 3, {"times": 2}, 42),
        ("too few assigned", "t", 4, {"assignments": [[1]]}, 39),
        ("too many assigned", "t", 3, {"assignments": [[1], [1]]}, 39),
        ("unknown node", "t", 3, {"assignments": [[9]]}, 39),
        ("node twice", "t", 3, {"assignments": [[1, 1]]}, 39),
        ("no node", "t", 3, {"assignments": [[]]}, 39),
        ("assigned", "t", 3, {"assignments": [[1]]}, 0),
    ],
)
async def test_partition_changes_are_validated(
    wire: Wire, version: int, case: str, name: str, count: int, fields: dict[str, Any], code: int
) -> None:
    await create_topic(wire, "t", 2)
    row = await create_partitions(wire, version, name, count, **fields)
    assert row.name == name
    if case == "too many":
        assert row.error_code in (37, ErrorCode.POLICY_VIOLATION)
    else:
        assert row.error_code == code
    (found,) = (await metadata(wire, ["t"])).topics
    assert len(found.partitions) == (3 if code == 0 else 2)


@pytest.mark.parametrize("version", range(4))
async def test_validate_only_adds_no_partitions(wire: Wire, version: int) -> None:
    await create_topic(wire, "t", 2)
    assert (await create_partitions(wire, version, "t", 5, validate_only=True)).error_code == 0
    (found,) = (await metadata(wire, ["t"])).topics
    assert len(found.partitions) == 2


# -- DeleteRecords


async def delete_records(
    wire: Wire, version: int, name: str, offset: int, partition: int = 0
) -> Any:
    cls = DeleteRecordsRequest
    rows = [cls.Partition(partition_index=partition, offset=offset)]
    ask = cls(topics=[cls.Topic(name=name, partitions=rows)], timeout_ms=10_000)
    response = await wire.ask(ApiKey.DELETE_RECORDS, version, ask)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
async def test_delete_records_advances_log_start(start: Start, version: int) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for i in range(6):
            await produce(wire, topic, batch([b"%d" % i]))
        for offset, low in ((0, 0), (2, 2), (1, 2), (5, 5), (-1, 6), (0, 6)):
            row = await delete_records(wire, version, "t", offset)
            assert (row.error_code, row.low_watermark) == (0, low)
            assert (await list_offset(wire, topic, EARLIEST)).offset == low
            assert (await list_offset(wire, topic, LATEST)).offset == 6
            if low:
                assert (await fetch(wire, topic, low - 1)).error_code == 1
        assert (await produce(wire, topic, batch())).base_offset == 6


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("name", "offset", "partition", "code"),
    [("t", 7, 0, 1), ("t", -2, 0, 1), ("t", 2**62, 0, 1), ("missing", 0, 0, 3), ("t", 0, 5, 3)],
)
async def test_invalid_delete_records_is_rejected(
    wire: Wire, version: int, name: str, offset: int, partition: int, code: int
) -> None:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"0", b"1"]))
    row = await delete_records(wire, version, name, offset, partition)
    assert (row.error_code, row.low_watermark) == (code, -1)
    assert (await list_offset(wire, topic, EARLIEST)).offset == 0


async def test_delete_records_of_compacted_topic_is_rejected(wire: Wire) -> None:
    await create_topic(wire, "t", configs={"cleanup.policy": "compact"})
    assert (await delete_records(wire, 2, "t", -1)).error_code == ErrorCode.POLICY_VIOLATION
    await create_topic(wire, "both", configs={"cleanup.policy": "compact,delete"})
    assert (await delete_records(wire, 2, "both", -1)).error_code == 0
