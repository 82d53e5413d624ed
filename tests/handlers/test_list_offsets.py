"""Tests of ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kbroker.protocol.records import Record

from ..brokers import Start, started
from ..wire import Topic, Wire, batch, connected, create_topic, list_offset, produce
from .test_fetch import create_log_with_epochs, delete_records
from .test_transactions import SECOND, begin_writer

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
VERSIONS = range(1, 12)


async def filled_topic(wire: Wire, codec: Codec = Codec.NONE) -> Topic:
    """Create a topic with six records in two batches; the maximum timestamp is in the middle."""
    topic = await create_topic(wire, "t")
    times = [1000, 1500, 2000, 5000, 3000, 4000]
    for part in (times[:3], times[3:]):
        rows = [Record(None, b"%d" % time, time) for time in part]
        assert (await produce(wire, topic, batch(rows, codec=codec))).error_code == 0
    return topic


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
async def test_earliest_and_latest_offsets_are_returned(
    start: Start, version: int, isolation: int
) -> None:
    """The timestamp is -1 for special timestamps; the epoch is set from version 4 on."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for expected in (0, 1):
            for timestamp, offset in ((LATEST, expected), (EARLIEST, 0)):
                row = await list_offset(wire, topic, timestamp, version, isolation_level=isolation)
                assert (row.error_code, row.offset, row.timestamp) == (0, offset, -1)
                assert row.leader_epoch == (0 if version >= 4 else -1)
            await produce(wire, topic, batch())


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("timestamp", "since", "offset", "time"),
    [
        (MAX_TIMESTAMP, 7, 3, 5000),
        (EARLIEST_LOCAL, 8, 0, -1),
        (LATEST_TIERED, 9, -1, -1),
        (EARLIEST_PENDING, 11, -1, -1),
        (-7, 99, -1, -1),
    ],
)
async def test_newer_special_timestamps_need_their_version(
    wire: Wire, version: int, timestamp: int, since: int, offset: int, time: int
) -> None:
    """Older versions get UNSUPPORTED_VERSION for that partition only."""
    topic = await filled_topic(wire)
    row = await list_offset(wire, topic, timestamp, version)
    if version < since:
        expected = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    else:
        expected = (ErrorCode.NONE, offset, time)
    assert (row.error_code, row.offset, row.timestamp) == expected


async def test_unsupported_timestamp_is_reported_before_wrong_epoch(wire: Wire) -> None:
    topic = await filled_topic(wire)
    row = await list_offset(wire, topic, EARLIEST_LOCAL, 7, current_leader_epoch=5)
    assert row.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", list(Codec))
async def test_timestamp_lookup_returns_first_record_at_or_after(
    wire: Wire, version: int, codec: Codec
) -> None:
    """The response has the offset of the record itself, even inside a compressed batch."""
    topic = await filled_topic(wire, codec)
    for timestamp, offset, time in (
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 1500),
        (1500, 1, 1500),
        (2000, 2, 2000),
        (2001, 3, 5000),
        (4000, 3, 5000),
        (5000, 3, 5000),
    ):
        row = await list_offset(wire, topic, timestamp, version)
        assert (row.error_code, row.offset, row.timestamp) == (0, offset, time), timestamp
        assert row.leader_epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_timestamp_lookup_without_match_returns_no_offset(wire: Wire, version: int) -> None:
    topic = await filled_topic(wire)
    row = await list_offset(wire, topic, 5001, version)
    assert (row.error_code, row.offset, row.timestamp, row.leader_epoch) == (0, -1, -1, -1)
    empty = await create_topic(wire, "empty")
    row = await list_offset(wire, empty, 0, version)
    assert (row.error_code, row.offset, row.timestamp) == (0, -1, -1)


async def test_max_timestamp_of_empty_log_returns_no_offset(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    row = await list_offset(wire, topic, MAX_TIMESTAMP, 7)
    assert (row.error_code, row.offset, row.timestamp) == (0, -1, -1)


async def test_max_timestamp_respects_isolation_level(wire: Wire) -> None:
    """The newest record is the first one of an open transaction."""
    topic = await create_topic(wire, "tx")
    writer = await begin_writer(wire, SECOND)
    await writer.write(topic, b"open")
    for committed_only, offset in ((0, 0), (1, -1)):
        row = await list_offset(wire, topic, MAX_TIMESTAMP, 7, isolation_level=committed_only)
        assert (row.error_code, row.offset) == (0, offset)


async def test_timestamp_lookup_works_over_many_segments(start: Start) -> None:
    """The log has index entries, rolled segments and an advanced log start offset."""
    async with (
        start(log_segment_bytes=1_048_576, log_index_interval_bytes=4096) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        for i in range(40):
            rows = [Record(None, bytes(30_000), 1000 * (3 * i + n)) for n in range(3)]
            await produce(wire, topic, batch(rows))
        for n in range(0, 120, 7):
            row = await list_offset(wire, topic, max(1000 * n - 500, 0))
            assert (row.offset, row.timestamp) == (n, 1000 * n)
        await delete_records(wire, "t", 50)
        assert (await list_offset(wire, topic, EARLIEST)).offset == 50
        assert (await list_offset(wire, topic, 0)).offset == 50
        assert (await list_offset(wire, topic, 60_000)).offset == 60


@pytest.mark.parametrize("version", VERSIONS)
async def test_partition_named_twice_is_rejected(wire: Wire, version: int) -> None:
    """The partition gets one row with INVALID_REQUEST; the other partition is served."""
    await create_topic(wire, "t", 2)
    rows = [ListOffsetsRequest.Partition(partition_index=i, timestamp=LATEST) for i in (0, 1, 0)]
    ask = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.Topic(name="t", partitions=rows)]
    )
    response = await wire.ask(ApiKey.LIST_OFFSETS, version, ask)
    found = [(p.partition_index, p.error_code, p.offset) for p in response.topics[0].partitions]
    assert sorted(found) == [(0, ErrorCode.INVALID_REQUEST, -1), (1, 0, 0)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_list_offsets_of_unknown_partition_returns_error(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    for topic_, partition in ((Topic("missing"), 0), (topic, 1), (topic, -1)):
        row = await list_offset(wire, topic_, LATEST, version, partition=partition)
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (row.offset, row.timestamp) == (-1, -1)


async def test_version_0_returns_segment_offsets_before_timestamp(
    broker: Broker, wire: Wire
) -> None:
    """KIP-79: the newest come first, including the log end offset as the start of a new segment."""
    topic = await create_topic(wire, "t", configs={"segment.bytes": "1048576"})
    ahead = 1 << 50
    for timestamp, offsets in ((LATEST, [0]), (EARLIEST, [0]), (0, []), (ahead, [0])):
        assert await offsets_before(wire, topic, timestamp) == offsets
    for number in range(8):
        await produce(wire, topic, batch([Record(None, bytes(400_000), 1000 * number)]))
    for timestamp, count, offsets in (
        (LATEST, 10, [8, 6, 4, 2, 0]),
        (LATEST, 2, [8, 6]),
        (EARLIEST, 10, [0]),
        (0, 10, []),
        (999, 10, []),
        (1000, 10, [0]),
        (4999, 10, [2, 0]),
        (5000, 1, [4]),
        (7000, 10, [6, 4, 2, 0]),
        (ahead, 10, [8, 6, 4, 2, 0]),
        (ahead, 0, []),
    ):
        assert await offsets_before(wire, topic, timestamp, count) == offsets, timestamp
    row = await list_offset(wire, topic, MAX_TIMESTAMP, 0, max_num_offsets=10)
    assert (row.error_code, row.old_style_offsets) == (ErrorCode.UNSUPPORTED_VERSION, [])
    replica = broker.node.partitions.named_replica("t", 0)
    replica.log.delete_records_before(3)
    assert await offsets_before(wire, topic, LATEST) == [8, 6, 4, 3]
    assert await offsets_before(wire, topic, EARLIEST) == [3]


async def offsets_before(wire: Wire, topic: Topic, timestamp: int, count: int = 10) -> list[int]:
    row = await list_offset(wire, topic, timestamp, 0, max_num_offsets=count)
    assert row.error_code == 0
    offsets: list[int] = row.old_style_offsets
    return offsets


@pytest.mark.slow
@pytest.mark.parametrize("version", range(4, 12))
async def test_list_offsets_checks_and_returns_leader_epochs(tmp_path: Path, version: int) -> None:
    topic = await create_log_with_epochs(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        for epoch, code in ((-1, 0), (2, 0), (1, 74), (0, 74), (3, 75)):
            row = await list_offset(wire, topic, LATEST, version, current_leader_epoch=epoch)
            assert (row.error_code, row.offset) == (code, 5 if code == 0 else -1)
        for timestamp, epoch in ((LATEST, 2), (EARLIEST, 0), (MAX_TIMESTAMP, 1)):
            if timestamp == MAX_TIMESTAMP and version < 7:
                continue
            assert (await list_offset(wire, topic, timestamp, version)).leader_epoch == epoch


# -- OffsetForLeaderEpoch


async def epoch_end(
    wire: Wire, topic: str, epoch: int, version: int, *, partition: int = 0, current: int = -1
) -> Any:
    cls = OffsetForLeaderEpochRequest
    row = cls.Partition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    ask = cls(replica_id=-1, topics=[cls.Topic(topic=topic, partitions=[row])])
    response = await wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, ask)
    assert response.topics[0].topic == topic
    return response.topics[0].partitions[0]


@pytest.mark.slow
@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(
    ("requested", "epoch", "end"),
    [(0, 0, 3), (1, 1, 5), (2, 2, 5), (3, -1, -1), (99, -1, -1), (-1, -1, -1)],
)
async def test_end_offset_of_leader_epoch_is_returned(
    tmp_path: Path, version: int, requested: int, epoch: int, end: int
) -> None:
    await create_log_with_epochs(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        row = await epoch_end(wire, "t", requested, version)
        assert (row.error_code, row.end_offset) == (0, end)
        assert row.leader_epoch == (epoch if version >= 1 else -1)


@pytest.mark.parametrize("version", range(5))
async def test_empty_epoch_returns_largest_lower_epoch(tmp_path: Path, version: int) -> None:
    for i in range(4):
        async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
            if i == 0:
                topic = await create_topic(wire, "t")
            if i in (0, 3):
                await produce(wire, topic, batch())
            if i == 3:
                row = await epoch_end(wire, "t", 2, version)
                assert (row.error_code, row.end_offset) == (0, 1)
                assert row.leader_epoch == (0 if version >= 1 else -1)


@pytest.mark.parametrize("version", range(5))
async def test_unknown_epoch_of_unwritten_log_has_no_end(wire: Wire, version: int) -> None:
    await create_topic(wire, "t")
    for requested, end in ((-1, -1), (0, 0), (1, -1)):
        row = await epoch_end(wire, "t", requested, version)
        assert (row.error_code, row.end_offset) == (0, end)


@pytest.mark.parametrize("version", range(2, 5))
async def test_offset_for_leader_epoch_checks_current_epoch(tmp_path: Path, version: int) -> None:
    await create_log_with_epochs(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        for current, code in ((-1, 0), (2, 0), (1, 74), (3, 75)):
            row = await epoch_end(wire, "t", 0, version, current=current)
            assert (row.error_code, row.end_offset) == (code, 3 if code == 0 else -1)


@pytest.mark.parametrize("version", range(5))
async def test_offset_for_leader_epoch_of_unknown_partition_returns_error(
    wire: Wire, version: int
) -> None:
    await create_topic(wire, "t")
    for name, partition in (("missing", 0), ("t", 1), ("t", -1)):
        row = await epoch_end(wire, name, 0, version, partition=partition)
        assert (row.error_code, row.end_offset) == (3, -1)
