"""Tests of requests with many or duplicate rows, which are processed in time slices."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.handlers.groups import MEMBERS_AT_ONCE, PROTOCOLS_MAX
from kbroker.handlers.steps import ROWS_AT_ONCE, append_rows, steps_of
from kbroker.partitions.waiters import FetchWait
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import DescribeConfigsRequest
from kbroker.protocol.messages.groups import JoinGroupRequest, LeaveGroupRequest
from kbroker.protocol.messages.log_dirs import AlterReplicaLogDirsRequest
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.records import read_header
from kbroker.runtime.time_slices import TimeSlice

from ..brokers import started
from ..wire import (
    NEVER,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
    request,
    values_of,
)

TOPIC = "t"
PARTITIONS = 3 * ROWS_AT_ONCE


async def find_coordinator(wire: Wire) -> None:
    ask = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    assert not (await wire.ask(ApiKey.FIND_COORDINATOR, 4, ask)).coordinators[0].error_code


def commit_request(indexes: Any, offset: int = 7, metadata: str = "") -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequest.Partition(
            partition_index=index, committed_offset=offset + position, committed_metadata=metadata
        )
        for position, index in enumerate(indexes)
    ]
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequest.Topic(name=TOPIC, partitions=rows)],
    )


async def committed(wire: Wire, indexes: Any) -> dict[int, int]:
    topic = OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=list(indexes))
    ask = OffsetFetchRequest(group_id="g", topics=[topic])
    response = await wire.ask(ApiKey.OFFSET_FETCH, 7, ask)
    return {row.partition_index: row.committed_offset for row in response.topics[0].partitions}


# -- commits


@pytest.fixture
async def wire() -> Any:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, TOPIC, PARTITIONS)
        await find_coordinator(wire)
        yield wire


async def test_last_row_of_duplicate_partition_wins_in_long_commit(wire: Wire) -> None:
    indexes = [*range(PARTITIONS), *[0] * PARTITIONS, PARTITIONS]
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, commit_request(indexes))
    (topic,) = response.topics
    codes = {row.partition_index: row.error_code for row in topic.partitions}
    assert list(codes) == [*range(PARTITIONS + 1)], "each partition has one row, in order"
    assert codes.pop(PARTITIONS) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert set(codes.values()) == {ErrorCode.NONE}
    found = await committed(wire, range(PARTITIONS))
    assert found == {0: 7 + 2 * PARTITIONS - 1} | {i: 7 + i for i in range(1, PARTITIONS)}


async def test_commit_above_batch_size_is_rejected(wire: Wire) -> None:
    ask = commit_request(range(PARTITIONS), metadata="m" * 4000)
    (topic,) = (await wire.ask(ApiKey.OFFSET_COMMIT, 7, ask)).topics
    assert {row.error_code for row in topic.partitions} == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert set((await committed(wire, range(PARTITIONS))).values()) == {-1}


async def test_many_offsets_can_be_deleted(wire: Wire) -> None:
    await wire.ask(ApiKey.OFFSET_COMMIT, 7, commit_request(range(PARTITIONS)))
    cls = OffsetDeleteRequest
    rows = [cls.Partition(partition_index=index) for index in (*range(PARTITIONS), 0)]
    ask = cls(group_id="g", topics=[cls.Topic(name=TOPIC, partitions=rows)])
    (topic,) = (await wire.ask(ApiKey.OFFSET_DELETE, 0, ask)).topics
    assert [row.partition_index for row in topic.partitions] == [*range(PARTITIONS)]
    assert {row.error_code for row in topic.partitions} == {0}
    assert set((await committed(wire, range(PARTITIONS))).values()) == {-1}


async def test_duplicate_groups_are_merged_in_offset_fetch(wire: Wire) -> None:
    await wire.ask(ApiKey.OFFSET_COMMIT, 7, commit_request(range(3)))
    cls = OffsetFetchRequest
    some = [
        cls.Group(group_id="g", topics=[cls.Topic(name=TOPIC, partition_indexes=[index])])
        for index in (0, 2)
    ]
    (group,) = (await wire.ask(ApiKey.OFFSET_FETCH, 8, cls(groups=some))).groups
    assert [row.committed_offset for each in group.topics for row in each.partitions] == [7, 9]
    every = cls(groups=[*some, cls.Group(group_id="g", topics=None)])
    (group,) = (await wire.ask(ApiKey.OFFSET_FETCH, 8, every)).groups
    assert [row.committed_offset for each in group.topics for row in each.partitions] == [7, 8, 9]


def test_steps_are_bounded_and_contain_all_rows() -> None:
    cls = OffsetDeleteRequest
    sizes = [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 5, 0, 3 * ROWS_AT_ONCE + 1, 0]
    topics = [
        cls.Topic(
            name=str(position),
            partitions=[cls.Partition(partition_index=index) for index in range(size)],
        )
        for position, size in enumerate(sizes)
    ]
    steps = [*steps_of(cls(group_id="g", topics=topics), topics)]
    assert {step.group_id for step in steps} == {"g"}
    for step in steps:
        rows = sum(1 + len(topic.partitions) for topic in step.topics)
        assert 0 < rows <= ROWS_AT_ONCE
    whole: list[Any] = []
    for step in steps:
        append_rows(whole, step.topics)
    assert whole == topics


# -- groups


async def test_many_members_can_leave_in_one_request(wire: Wire) -> None:
    count = 2 * MEMBERS_AT_ONCE + 1
    members = [LeaveGroupRequest.Member(member_id=f"m{index}") for index in range(count)]
    ask = LeaveGroupRequest(group_id="g", members=members)
    response = await wire.ask(ApiKey.LEAVE_GROUP, 5, ask)
    assert [row.member_id for row in response.members] == [each.member_id for each in members]
    assert {row.error_code for row in response.members} == {ErrorCode.UNKNOWN_MEMBER_ID}


async def test_too_many_protocols_are_rejected(wire: Wire) -> None:
    protocols = [JoinGroupRequest.Protocol(name=str(i)) for i in range(PROTOCOLS_MAX + 1)]
    ask = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols
    )
    assert (await wire.ask(ApiKey.JOIN_GROUP, 5, ask)).error_code == ErrorCode.INVALID_REQUEST


async def test_duplicate_names_are_described_once(wire: Wire) -> None:
    groups = request(ApiKey.DESCRIBE_GROUPS, groups=["g", "h", "g"])
    response = await wire.ask(ApiKey.DESCRIBE_GROUPS, 5, groups)
    assert [row.group_id for row in response.groups] == ["g", "h"]
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["x"], key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    ids = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["x", "y", "x"])
    response = await wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, ids)
    assert [row.transactional_id for row in response.transaction_states] == ["x", "y"]
    cls = DescribeProducersRequest
    twice = [cls.Topic(name=TOPIC, partition_indexes=[0, 1, 0]) for _ in range(2)]
    (topic,) = (await wire.ask(ApiKey.DESCRIBE_PRODUCERS, 0, cls(topics=twice))).topics
    assert [row.partition_index for row in topic.partitions] == [0, 1]


# -- partitions


async def test_last_row_of_duplicate_partition_wins_in_delete_records(wire: Wire) -> None:
    topic = await create_topic(wire, "records")
    await produce(wire, topic, batch([b"a", b"b", b"c"]))
    cls = DeleteRecordsRequest
    rows = [cls.Partition(partition_index=0, offset=offset) for offset in (3, 1)]
    ask = cls(topics=[cls.Topic(name="records", partitions=[row]) for row in rows], timeout_ms=1000)
    (response,) = (await wire.ask(ApiKey.DELETE_RECORDS, 2, ask)).topics
    assert [row.low_watermark for row in response.partitions] == [1]


async def test_last_directory_of_duplicate_replica_wins(wire: Wire) -> None:
    cls = AlterReplicaLogDirsRequest
    dirs = [
        cls.Dir(path=path, topics=[cls.Topic(name=TOPIC, partitions=[0, 0])])
        for path in ("memory", "/elsewhere")
    ]
    (topic,) = (await wire.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, cls(dirs=dirs))).results
    codes = [row.error_code for row in topic.partitions]
    assert codes == [ErrorCode.LOG_DIR_NOT_FOUND]


async def test_duplicate_markers_are_written_once(wire: Wire) -> None:
    topic = await create_topic(wire, "marked")
    cls = WriteTxnMarkersRequest
    row = cls.Marker(
        producer_id=5,
        transaction_result=True,
        topics=[cls.Topic(name="marked", partition_indexes=[0, 0])],
    )
    response = await wire.ask(ApiKey.WRITE_TXN_MARKERS, 1, cls(markers=[row, row]))
    ((marked,),) = ([each.partitions for each in one.topics] for one in response.markers)
    assert [each.error_code for each in marked] == [0]
    found = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic))
    assert found.responses[0].partitions[0].high_watermark == 1


async def test_last_row_of_duplicate_partition_wins_in_fetch(wire: Wire) -> None:
    topic = await create_topic(wire, "fetched")
    await produce(wire, topic, batch([b"a"]))
    ask = fetch_request(topic, 0, partitions=(0, 0))
    ask.topics[0].partitions[1].fetch_offset = 5
    (found,) = (await wire.ask(ApiKey.FETCH, 12, ask)).responses
    assert [row.error_code for row in found.partitions] == [ErrorCode.OFFSET_OUT_OF_RANGE]


@pytest.mark.slow
async def test_number_of_described_resources_is_bounded(wire: Wire) -> None:
    cls = DescribeConfigsRequest
    rows = [cls.Resource(resource_type=32, resource_name=f"g{index}") for index in range(10_001)]
    response = await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, cls(resources=rows))
    *described, last = response.results
    assert {row.error_code for row in described} == {0}
    assert {len(row.configs) for row in described} == {len(described[0].configs)}
    assert last.error_code == ErrorCode.POLICY_VIOLATION
    assert last.configs == []


# -- fetches that are read in time slices


async def test_append_between_time_slices_completes_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fetch that paused during its reads checks for appended records before it waits."""
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, TOPIC, PARTITIONS)
        replica = broker.node.partitions.named_replica(TOPIC, 0)
        begin_waiting = FetchWait.__init__
        written: list[object] = []

        def write_first(wait: FetchWait, missing_bytes: int, deadline: float) -> None:
            if not written:
                records = memoryview(batch([b"now"]))
                header, now_ms = read_header(records), broker.node.clock.log_ms()
                written.append(replica.append_produced(records, header, now_ms, all_in_sync=True))
            begin_waiting(wait, missing_bytes, deadline)

        monkeypatch.setattr(FetchWait, "__init__", write_first)
        monkeypatch.setattr(TimeSlice, "is_over", property(lambda time_slice: True))
        ask = fetch_request(topic, partitions=range(PARTITIONS), max_wait_ms=NEVER)
        (found,) = (await wire.ask(ApiKey.FETCH, 12, ask)).responses
        assert written
        assert values_of(found.partitions[0]) == [b"now"]
