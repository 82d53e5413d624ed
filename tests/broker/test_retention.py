"""Tests of retention and compaction with a manual clock, and once in real time with a client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbroker.broker import Broker, open_broker
from kbroker.config import BrokerConfig
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.protocol.records import Record, read_records
from kbroker.testing.clock import MovableClock

from ..brokers import LOOPBACK, started
from ..partitions.test_cleaner import committed
from ..wire import (
    ANSWER_SECONDS,
    EARLIEST,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    list_offset,
    produce,
)

T = Topic("t")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@asynccontextmanager
async def broker_with_clock(
    directory: Path, **properties: str
) -> AsyncIterator[tuple[Broker, Wire, MovableClock]]:
    """Run a broker on disk with a log clock that the test moves."""
    clock = MovableClock()
    clock.log.freeze()
    options = {name.replace("_", "."): value for name, value in properties.items()}
    config = BrokerConfig.load(options=options)
    async with (
        open_broker(config, data_dir=str(directory), listeners=[LOOPBACK], clock=clock) as broker,
        connected(broker.endpoint) as wire,
    ):
        yield broker, wire, clock
        assert broker.node.context.error_log.unhandled_errors == 0


async def put(wire: Wire, clock: MovableClock, value: bytes | None, **fields: Any) -> int:
    row = await produce(wire, T, batch([Record(b"key", value, clock.log_ms())], **fields))
    assert row.error_code == 0
    assert isinstance(row.base_offset, int)
    return row.base_offset


async def start_of(wire: Wire) -> int:
    row = await list_offset(wire, T, EARLIEST)
    assert isinstance(row.offset, int)
    return row.offset


class TestManualClock:
    async def test_retention_deletes_old_segments(self, tmp_path: Path) -> None:
        async with broker_with_clock(tmp_path) as (broker, wire, clock):
            settings = {"retention.ms": str(3 * HOUR_MS), "segment.ms": str(HOUR_MS)}
            await create_topic(wire, "t", configs=settings)
            for hours in range(6):
                await put(wire, clock, b"hour %d" % hours)
                clock.log.add(HOUR_MS + 1)
            await broker.node.maintenance.log_manager_tasks.apply_retention_now()
            left = await start_of(wire)
            assert 0 < left < 5
            clock.log.add(-4 * HOUR_MS)  # a clock that jumps back deletes nothing
            await broker.node.maintenance.log_manager_tasks.apply_retention_now()
            assert await start_of(wire) == left
            clock.log.add(DAY_MS)
            await broker.node.maintenance.log_manager_tasks.apply_retention_now()
            assert await start_of(wire) == 6

    async def test_future_timestamp_is_rejected(self, tmp_path: Path) -> None:
        async with broker_with_clock(tmp_path) as (_, wire, clock):
            await create_topic(wire, "t")
            ahead = batch([Record(b"key", b"x", clock.log_ms() + HOUR_MS + 1)])
            assert (await produce(wire, T, ahead)).error_code != 0

    async def test_producer_state_expires(self, tmp_path: Path) -> None:
        async with broker_with_clock(tmp_path, producer_id_expiration_ms=str(HOUR_MS)) as (
            broker,
            wire,
            clock,
        ):
            await create_topic(wire, "t")
            mine = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
            assert [await put(wire, clock, b"x", **mine) for _ in range(2)] == [0, 0]
            clock.log.add(HOUR_MS - 1)
            await broker.node.maintenance.log_manager_tasks.apply_retention_now()
            assert await put(wire, clock, b"x", **mine) == 0
            clock.log.add(HOUR_MS)
            await broker.node.maintenance.log_manager_tasks.apply_retention_now()
            assert await put(wire, clock, b"x", **mine) == 1

    async def test_committed_offsets_expire(self, tmp_path: Path) -> None:
        async with broker_with_clock(tmp_path, offsets_retention_minutes="60") as (
            broker,
            wire,
            clock,
        ):
            await create_topic(wire, "t", partitions=4)
            await broker.node.groups.create_topic()
            await commit(wire, "g")
            clock.log.add(HOUR_MS - 1)
            await broker.node.groups.expire()
            assert await committed(wire, "g") == [7] * 4
            clock.log.add(1)
            await broker.node.groups.expire()
            assert await committed(wire, "g") == [-1] * 4

    async def test_compaction_removes_old_values_and_tombstones(self, tmp_path: Path) -> None:
        async with broker_with_clock(tmp_path) as (broker, wire, clock):
            settings = {
                "cleanup.policy": "compact",
                "internal.segment.bytes": "100",
                "min.compaction.lag.ms": str(HOUR_MS),
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(DAY_MS),
            }
            await create_topic(wire, "t", configs=settings)
            for value in (b"1", b"2", None):
                await put(wire, clock, value)
            for _ in range(2):
                await roll_segment(wire, clock)
            assert await broker.node.maintenance.cleaner.clean_all() == 0
            clock.log.add(HOUR_MS)
            assert await broker.node.maintenance.cleaner.clean_all() > 0
            assert await values_of_key(wire) == [None]
            for passed_ms, expected in ((DAY_MS - 1, [None]), (1, [])):
                clock.log.add(passed_ms)
                for _ in range(2):
                    await roll_segment(wire, clock)
                clock.log.add(HOUR_MS if passed_ms == 1 else 0)
                await broker.node.maintenance.cleaner.clean_all()
                assert await values_of_key(wire) == expected


async def roll_segment(wire: Wire, clock: MovableClock) -> None:
    """Append a record of another key in a new segment."""
    row = await produce(wire, T, batch([Record(b"other", bytes(20), clock.log_ms())]))
    assert row.error_code == 0


async def values_of_key(wire: Wire) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while (row := await fetch(wire, T, offset)).records or offset < row.high_watermark:
        listed = list(read_records(row.records))
        found += [record.value for record in listed if record.key == b"key"]
        offset = listed[-1].offset + 1 if listed else offset + 1
    return found


async def commit(wire: Wire, group: str, retention_time_ms: int = -1) -> None:
    cls = OffsetCommitRequest
    rows = [cls.Partition(partition_index=index, committed_offset=7) for index in range(4)]
    message = cls(
        group_id=group,
        retention_time_ms=retention_time_ms,
        topics=[cls.Topic(name="t", partitions=rows)],
    )
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 4, message)
    assert {row.error_code for row in response.topics[0].partitions} == {0}


@pytest.mark.slow
async def test_retention_and_compaction_run_in_real_time(tmp_path: Path) -> None:
    """Retention and compaction run with short intervals and librdkafka as the client."""
    async with started(
        tmp_path,
        log_retention_check_interval_ms=100,
        log_cleaner_backoff_ms=100,
        offsets_retention_check_interval_ms=100,
        producer_id_expiration_ms=300,
    ) as broker:
        client = partial(trio.to_thread.run_sync, abandon_on_cancel=False)
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        await client(create_topics, servers)
        await client(write_for_a_while, servers)
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "t", partitions=4)
            await broker.node.groups.create_topic()
            await commit(wire, "g", retention_time_ms=200)
            with trio.fail_after(ANSWER_SECONDS):
                while await committed(wire, "g") != [-1] * 4:  # noqa: ASYNC110
                    await trio.sleep(0.05)
        low = await client(
            wait_for, partial(low_watermark, servers, "aging"), lambda value: value == 30
        )
        assert low == 30
        kept = await client(
            wait_for,
            partial(write_and_read, servers),
            lambda found: len(found) < 15 and (b"key 0", None) not in found,
        )
        assert dict(kept)[b"key 1"] == b"29"
        assert b"key 0" not in dict(kept)
        log = broker.node.partitions.named_replica("aging", 0).log
        with trio.fail_after(ANSWER_SECONDS):
            while len(log.producers):  # noqa: ASYNC110
                await trio.sleep(0.05)


def create_topics(servers: dict[str, Any]) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "500",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
    }
    aging = {"retention.ms": "300", "segment.ms": "100"}
    topics = [
        NewTopic("compacted", 1, 1, config=compacted),
        NewTopic("aging", 1, 1, config=aging),
    ]
    admin = AdminClient(servers)
    for created in admin.create_topics(topics).values():
        created.result(20)


def write_for_a_while(servers: dict[str, Any]) -> None:
    producer = Producer(servers | {"enable.idempotence": True, "linger.ms": 0})
    for number in range(30):
        for topic in ("compacted", "aging"):
            producer.produce(topic, key=b"key %d" % (number % 3), value=b"%d" % (number + 1))
        producer.flush(20)
    producer.produce("compacted", key=b"key 0", value=None)
    producer.flush(20)


def write_and_read(servers: dict[str, Any]) -> list[tuple[bytes | None, bytes | None]]:
    """Write three records and read the topic; a compaction needs new records in the log."""
    producer = Producer(servers)
    for _ in range(3):
        producer.produce("compacted", key=b"later", value=bytes(300))
        producer.flush(20)
    return read_all(servers, "compacted")


def wait_for(get: Callable[[], Any], is_reached: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + ANSWER_SECONDS
    while not is_reached(found := get()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def low_watermark(servers: dict[str, Any], topic: str) -> int:
    consumer = Consumer(servers | {"group.id": "watch"})
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        assert isinstance(low, int)
        return low
    finally:
        consumer.close()


def read_all(servers: dict[str, Any], topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of all records, with a new consumer."""
    settings = {"group.id": "read", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer(servers | settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(10)) is not None and not message.error():
            found.append((message.key(), message.value()))
        return found
    finally:
        consumer.close()
