"""Tests of Metadata, DescribeCluster and DescribeTopicPartitions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from kbroker.protocol.schema import ZERO_UUID

from ..brokers import started
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    produce,
    request,
    until,
)

VERSIONS = range(14)
# Value of authorized operations that are not requested.
NOT_REQUESTED = -(2**31)


def rows(*names: str | None, ids: list[uuid.UUID] | None = None) -> list[MetadataRequest.Topic]:
    return [
        MetadataRequest.Topic(name=name, topic_id=(ids or [ZERO_UUID] * len(names))[i])
        for i, name in enumerate(names)
    ]


async def request_metadata(wire: Wire, version: int, **fields: Any) -> Any:
    fields.setdefault("allow_auto_topic_creation", False)
    return await wire.ask(ApiKey.METADATA, version, MetadataRequest(**fields))


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_returns_brokers_and_partitions(
    broker: Broker, wire: Wire, version: int
) -> None:
    topic = await create_topic(wire, "t", 3)
    response = await request_metadata(wire, version, topics=rows("t"))
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, *broker.endpoint)
    assert node.rack is None
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id == broker.node.cluster.id
    assert (response.throttle_time_ms, response.error_code) == (0, 0)
    (row,) = response.topics
    assert (row.error_code, row.name, row.is_internal) == (0, "t", False)
    assert row.topic_id == (topic.id if version >= 10 else ZERO_UUID)
    assert topic.id != ZERO_UUID
    assert [p.partition_index for p in row.partitions] == [0, 1, 2]
    for partition in row.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 1)
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert (partition.replica_nodes, partition.isr_nodes) == ([1], [1])
        assert partition.offline_replicas == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_of_all_and_of_no_topics_is_returned(wire: Wire, version: int) -> None:
    for name in ("a", "b"):
        await create_topic(wire, name)
    all_topics = await request_metadata(wire, version, topics=None if version else [])
    assert sorted(t.name for t in all_topics.topics) == ["a", "b"]
    if version:
        nothing = await request_metadata(wire, version, topics=[])
        assert (nothing.topics, len(nothing.brokers)) == ([], 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_and_duplicate_topic_names_get_one_row(wire: Wire, version: int) -> None:
    await create_topic(wire, "t")
    response = await request_metadata(wire, version, topics=rows("t", "missing", "t"))
    if version < 4:  # these versions imply auto-creation
        assert {(t.name, t.error_code) for t in response.topics} == {("t", 0), ("missing", 0)}
    else:
        found = [(t.name, t.error_code, len(t.partitions)) for t in response.topics]
        assert found == [("t", 0, 1), ("missing", 3, 0)]


@pytest.mark.parametrize("version", [12, 13])
async def test_metadata_by_topic_id_is_returned(wire: Wire, version: int) -> None:
    topic, unknown = await create_topic(wire, "t"), uuid.uuid4()
    requested = rows(None, None, None, ids=[topic.id, unknown, topic.id])
    response = await request_metadata(wire, version, topics=requested)
    found = [(t.error_code, t.name, t.topic_id) for t in response.topics]
    assert found == [
        (0, "t", topic.id),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown),
    ]
    assert len(response.topics[0].partitions) == 1


@pytest.mark.parametrize("version", [10, 11])
async def test_topic_ids_are_rejected_below_version_12(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    for requested in (rows(None, ids=[topic.id]), rows("t", ids=[topic.id]), rows(None)):
        response = await request_metadata(wire, version, topics=requested)
        (row,) = response.topics
        assert (row.error_code, row.partitions) == (ErrorCode.INVALID_REQUEST, [])
        assert (response.brokers, response.cluster_id, response.controller_id) == ([], None, -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_is_auto_created_if_client_and_broker_allow_it(
    wire: Wire, version: int
) -> None:
    """The response contains the new topic. Versions below 4 imply permission of the client."""
    response = await request_metadata(
        wire, version, topics=rows("new"), allow_auto_topic_creation=True
    )
    (row,) = response.topics
    assert (row.error_code, row.name, len(row.partitions)) == (0, "new", 1)
    topic = await request_metadata(wire, 12, topics=rows("new"))
    assert topic.topics[0].topic_id != ZERO_UUID
    assert (await produce(wire, Topic("new"), batch())).error_code == 0
    response = await request_metadata(
        wire, version, topics=rows("other"), allow_auto_topic_creation=False
    )
    assert response.topics[0].error_code == (0 if version < 4 else 3)


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_is_not_auto_created_if_broker_forbids_it(version: int) -> None:
    async with (
        started(auto_create_topics_enable=False) as broker,
        connected(broker.endpoint) as wire,
    ):
        response = await request_metadata(
            wire, version, topics=rows("new"), allow_auto_topic_creation=True
        )
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.node.cluster.topics


async def test_metadata_of_all_topics_creates_nothing(broker: Broker, wire: Wire) -> None:
    await request_metadata(wire, 0, topics=[])
    await request_metadata(wire, 9, topics=None, allow_auto_topic_creation=True)
    assert not broker.node.cluster.topics


async def test_auto_created_topic_has_broker_defaults() -> None:
    async with started(num_partitions=5) as broker, connected(broker.endpoint) as wire:
        response = await request_metadata(
            wire, 9, topics=rows("new"), allow_auto_topic_creation=True
        )
        assert len(response.topics[0].partitions) == 5


async def test_concurrent_auto_creation_creates_one_topic(broker: Broker) -> None:
    responses = []

    async def client() -> None:
        async with connected(broker.endpoint) as wire:
            responses.append(
                await request_metadata(wire, 12, topics=rows("new"), allow_auto_topic_creation=True)
            )

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(client)
    assert {a.topics[0].error_code for a in responses} == {0}
    assert len({a.topics[0].topic_id for a in responses}) == 1


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.parametrize("requested", [False, True])
async def test_authorized_operations_are_returned_on_request(
    wire: Wire, version: int, requested: bool
) -> None:
    await create_topic(wire, "t")
    response = await request_metadata(
        wire,
        version,
        topics=rows("t"),
        include_cluster_authorized_operations=requested,
        include_topic_authorized_operations=requested,
    )
    assert response.topics[0].topic_authorized_operations == (0xDF8 if requested else NOT_REQUESTED)
    if version <= 10:
        assert response.cluster_authorized_operations == (0x1FA0 if requested else NOT_REQUESTED)


async def test_rack_of_broker_is_returned() -> None:
    async with started(broker_rack="hall-7") as broker, connected(broker.endpoint) as wire:
        for key, version in ((ApiKey.METADATA, 9), (ApiKey.DESCRIBE_CLUSTER, 2)):
            (row,) = (await wire.ask(key, version, request(key))).brokers
            assert row.rack == "hall-7"


async def test_recreated_topic_has_new_id(wire: Wire) -> None:
    first = await create_topic(wire, "t")
    await delete_topic(wire, "t")
    second = await create_topic(wire, "t")
    assert first.id != second.id
    response = await request_metadata(wire, 12, topics=rows(None, None, ids=[first.id, second.id]))
    assert [t.error_code for t in response.topics] == [ErrorCode.UNKNOWN_TOPIC_ID, 0]


async def test_internal_topics_are_flagged(wire: Wire) -> None:
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
    for version in range(1, 14):
        response = await request_metadata(wire, version, topics=None)
        assert [(t.name, t.is_internal) for t in response.topics] == [("__consumer_offsets", True)]


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("requested", [False, True])
async def test_describe_cluster_returns_brokers_and_controller(
    broker: Broker, wire: Wire, version: int, requested: bool
) -> None:
    response = await wire.ask(
        ApiKey.DESCRIBE_CLUSTER,
        version,
        request(
            ApiKey.DESCRIBE_CLUSTER,
            include_cluster_authorized_operations=requested,
            endpoint_type=1,
        ),
    )
    assert (response.error_code, response.cluster_id) == (0, broker.node.cluster.id)
    assert (response.controller_id, response.endpoint_type) == (1, 1)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port) == (1, *broker.endpoint)
    assert not getattr(node, "is_fenced", False)
    assert response.cluster_authorized_operations == (0x1FA0 if requested else NOT_REQUESTED)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("kind", "code"), [(2, 114), (0, 115), (3, 115), (-1, 115)])
async def test_describe_cluster_rejects_unsupported_endpoint_types(
    wire: Wire, version: int, kind: int, code: int
) -> None:
    ask_for = request(ApiKey.DESCRIBE_CLUSTER, endpoint_type=kind)
    response = await wire.ask(ApiKey.DESCRIBE_CLUSTER, version, ask_for)
    assert (response.error_code, response.cluster_id, response.controller_id) == (code, "", -1)
    assert response.brokers == []
    assert response.error_message


# -- DescribeTopicPartitions


async def describe_page(
    wire: Wire,
    *names: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
) -> Any:
    cls = DescribeTopicPartitionsRequest
    return await wire.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        cls(
            topics=[cls.Topic(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor and cls.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        ),
    )


def topic_rows(response: Any) -> list[tuple[str, int, list[int]]]:
    return [
        (t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in response.topics
    ]


async def test_topic_partitions_are_sorted_by_name(wire: Wire) -> None:
    for name, count in (("b", 2), ("a", 1), ("c", 3)):
        await create_topic(wire, name, count)
    all_topics = [("a", 0, [0]), ("b", 0, [0, 1]), ("c", 0, [0, 1, 2])]
    for names in ((), ("c", "a", "b"), ("c", "b", "a", "a")):
        response = await describe_page(wire, *names)
        assert (topic_rows(response), response.next_cursor) == (all_topics, None)
    (row, *_) = (await describe_page(wire, "a")).topics
    assert row.topic_id != ZERO_UUID
    assert row.topic_authorized_operations == 0xDF8
    (partition,) = row.partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])


@pytest.mark.parametrize("limit", [-5, 0, 1, 2, 3, 4, 6, 100])
async def test_pages_contain_each_partition_once(wire: Wire, limit: int) -> None:
    """Each page has at least one partition."""
    for name, count in (("b", 2), ("a", 1), ("c", 3)):
        await create_topic(wire, name, count)
    found: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while True:
        response = await describe_page(wire, "a", "b", "c", limit=limit, cursor=cursor)
        got = [(name, index) for name, _, indexes in topic_rows(response) for index in indexes]
        assert len(got) <= max(limit, 1)
        found += got
        pages += 1
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert found == [("a", 0), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("c", 2)]
    assert pages == -(-6 // max(limit, 1))


async def test_invalid_topics_get_error_rows(wire: Wire) -> None:
    await create_topic(wire, "t")
    response = await describe_page(wire, "missing", "t", "a b")
    assert [(name, code) for name, code, _ in topic_rows(response)] == [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0),
    ]
    assert {row.topic_authorized_operations for row in response.topics} == {0xDF8}


async def test_cursor_outside_of_requested_topics_fails_all_rows(wire: Wire) -> None:
    """The error rows keep the order and the duplicates of the request."""
    await create_topic(wire, "t", 2)
    for cursor in (("t", -1), ("a", 0), ("z", 0)):
        response = await describe_page(wire, "t", "b", "t", cursor=cursor)
        bad = ErrorCode.INVALID_REQUEST
        assert topic_rows(response) == [("t", bad, []), ("b", bad, []), ("t", bad, [])]
        assert {row.topic_authorized_operations for row in response.topics} == {NOT_REQUESTED}
        assert response.next_cursor is None
    assert topic_rows(await describe_page(wire, cursor=("a", 0))) == [("t", 0, [0, 1])]
    assert topic_rows(await describe_page(wire, cursor=("z", 0))) == []
    assert [
        indexes for _, _, indexes in topic_rows(await describe_page(wire, "t", cursor=("t", 9)))
    ] in ([], [[]])


async def test_request_that_would_create_too_many_partitions_creates_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ("a", "b", "c")
    async with started(num_partitions=4_000) as broker, connected(broker.endpoint) as wire:
        response = await request_metadata(
            wire, 9, topics=rows(*names), allow_auto_topic_creation=True
        )
        assert {each.error_code for each in response.topics} == {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert not broker.node.cluster.topics.keys() & set(names)
        response = await request_metadata(wire, 9, topics=rows("a"), allow_auto_topic_creation=True)
        assert len(response.topics[0].partitions) == 4_000
    assert "would create 12000 partitions" in caplog.text


@pytest.mark.parametrize("pipelined", [False, True])
async def test_topics_are_not_created_after_client_disconnects(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, pipelined: bool
) -> None:
    created: list[str] = []
    auto_create_topic = broker.node.auto_create_topic
    async with connected(broker.endpoint) as wire:

        async def create(name: str) -> Any:
            created.append(name)
            if len(created) == 3:
                await wire.stream.aclose()
            return await auto_create_topic(name)

        monkeypatch.setattr(broker.node, "auto_create_topic", create)
        names = [f"t{number}" for number in range(500)]
        requested = MetadataRequest(topics=rows(*names), allow_auto_topic_creation=True)
        await wire.send(ApiKey.METADATA, 9, requested)
        if pipelined:  # unread bytes must not hide the disconnect
            await wire.send_bytes(b"\0\0\0\x10")
        await until(lambda: len(created) >= 3 and not broker.server.connections)
    assert created == names[:3] == list(broker.node.cluster.topics)


async def test_all_topics_are_created_for_connected_client(broker: Broker, wire: Wire) -> None:
    names = [f"t{number}" for number in range(20)]
    response = await request_metadata(wire, 9, topics=rows(*names), allow_auto_topic_creation=True)
    assert [each.name for each in response.topics if not each.error_code] == names
