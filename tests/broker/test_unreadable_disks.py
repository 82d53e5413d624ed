"""Tests of unreadable partitions: only requests for them get KAFKA_STORAGE_ERROR."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.records import Record

from ..brokers import started
from ..cold_disk import ColdDisk
from ..security.certificates import Authority
from ..security.clients import encrypted
from ..security.test_tls_listeners import secured
from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
)

MAX_TIMESTAMP = -3
SIZES = {"small": 10, "large": 40_000}
RECORDS = 20

# Function that sends a request about both partitions, and returns their error codes.
Query: TypeAlias = Callable[[Wire, Topic], Awaitable[dict[int, int]]]


async def fetch_batches(wire: Wire, topic: Topic) -> dict[int, int]:
    return await _fetched(wire, topic, 12)


async def fetch_one_batch(wire: Wire, topic: Topic) -> dict[int, int]:
    return await _fetched(wire, topic, 12, partition_max_bytes=1)


async def fetch_committed(wire: Wire, topic: Topic) -> dict[int, int]:
    return await _fetched(wire, topic, 12, isolation_level=1)


async def fetch_as_old_consumer(wire: Wire, topic: Topic) -> dict[int, int]:
    return await _fetched(wire, topic, 2)


async def _fetched(wire: Wire, topic: Topic, version: int, **fields: int) -> dict[int, int]:
    request = fetch_request(topic, partitions=(0, 1), **fields)
    response = await wire.ask(ApiKey.FETCH, version, request)
    rows = response.responses[0].partitions
    assert all(len(row.records) > 0 for row in rows if not row.error_code)
    return {row.partition_index: row.error_code for row in rows}


async def list_offsets_by_timestamp(wire: Wire, topic: Topic) -> dict[int, int]:
    return await _listed(wire, topic, 1005)


async def list_offset_of_max_timestamp(wire: Wire, topic: Topic) -> dict[int, int]:
    return await _listed(wire, topic, MAX_TIMESTAMP)


async def _listed(wire: Wire, topic: Topic, timestamp: int) -> dict[int, int]:
    rows = [
        ListOffsetsRequest.Partition(partition_index=index, timestamp=timestamp) for index in (0, 1)
    ]
    request = ListOffsetsRequest(
        topics=[ListOffsetsRequest.Topic(name=topic.name, partitions=rows)]
    )
    response = await wire.ask(ApiKey.LIST_OFFSETS, 7, request)
    return {row.partition_index: row.error_code for row in response.topics[0].partitions}


async def fill(wire: Wire, size: int) -> Topic:
    topic = await create_topic(wire, "t", 2)
    for partition in (0, 1):
        for number in range(RECORDS):
            record = Record(None, bytes(size), 1000 + number)
            assert not (await produce(wire, topic, batch([record]), partition=partition)).error_code
    return topic


async def check(
    broker: Broker, wire: Wire, topic: Topic, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {0: int(ErrorCode.KAFKA_STORAGE_ERROR), 1: 0}
    for _ in range(3):
        assert await query(wire, topic) == expected
    log = broker.node.partitions.logs.get("t", 0)
    assert log is not None
    assert log.offline is not None
    assert "t-0/" in log.offline
    assert "check the disk" in log.offline
    assert "partition t-0: cannot read" in caplog.text
    assert "unexpected error" not in caplog.text
    row = await produce(wire, topic, batch([b"more"]), partition=1)
    assert row.error_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "query",
    [
        fetch_batches,
        fetch_one_batch,
        fetch_committed,
        fetch_as_old_consumer,
        list_offsets_by_timestamp,
        list_offset_of_max_timestamp,
    ],
    ids=lambda query: query.__name__,
)
async def test_unreadable_partition_is_answered_alone(
    query: Query,
    size: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic = await fill(wire, SIZES[size])
        disk = ColdDisk(monkeypatch, directory)
        disk.break_files(directory / "t-0")
        assert await query(wire, topic) == {0: int(ErrorCode.KAFKA_STORAGE_ERROR), 1: 0}
        await check(broker, wire, topic, query, caplog)


@pytest.mark.parametrize("size", SIZES)
async def test_unreadable_partition_is_answered_alone_over_tls(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority, directory = Authority(tmp_path), tmp_path / "data"
    async with (
        secured(authority, directory) as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        topic = await fill(wire, SIZES[size])
        disk = ColdDisk(monkeypatch, directory)
        disk.break_files(directory / "t-0")
        assert await fetch_batches(wire, topic) == {0: int(ErrorCode.KAFKA_STORAGE_ERROR), 1: 0}
        await check(broker, wire, topic, fetch_batches, caplog)


async def test_unreadable_records_in_middle_are_detected_before_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic = await fill(wire, SIZES["large"])
        disk = ColdDisk(monkeypatch, directory)
        assert await _fetched(wire, topic, 12, partition_max_bytes=50_000) == {0: 0, 1: 0}
        disk.break_files(directory / "t-0")

        async def fetch_some(wire: Wire, topic: Topic) -> dict[int, int]:
            return await _fetched(wire, topic, 12, partition_max_bytes=400_000)

        assert await fetch_some(wire, topic) == {0: int(ErrorCode.KAFKA_STORAGE_ERROR), 1: 0}
        await check(broker, wire, topic, fetch_some, caplog)


async def test_unreadable_records_during_response_take_partition_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The header is already sent, so the connection is closed; the client retries."""
    directory = tmp_path / "data"
    async with started(directory) as broker:
        async with connected(broker.endpoint) as wire:
            topic = await fill(wire, SIZES["large"])
            disk = ColdDisk(monkeypatch, directory)
            assert await _fetched(wire, topic, 12, partition_max_bytes=50_000) == {0: 0, 1: 0}
            disk.break_files(directory / "t-0")
            with pytest.raises((ConnectionClosed, OSError, trio.BrokenResourceError)):
                await fetch_batches(wire, topic)
        async with connected(broker.endpoint) as wire:
            await check(broker, wire, topic, fetch_batches, caplog)


async def test_scrub_takes_unreadable_partition_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic = await fill(wire, SIZES["large"])
        disk = ColdDisk(monkeypatch, directory)
        disk.break_files(directory / "t-0")
        await broker.node.maintenance.scrubber.scrub_all()
        await check(broker, wire, topic, fetch_batches, caplog)
