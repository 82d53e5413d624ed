"""Background compaction of a broker, in a separate process and in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker
from kbroker.partitions.compactor import CompactionFailed
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kbroker.protocol.records import Record, read_records
from kbroker.storage.compaction import CompactionTask
from kbroker.storage.log import Log

from ..brokers import Start, started
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    produce,
    until,
)
from .compaction_tasks import COMPACTED, KEYS, leftovers, update


def log_of(broker: Broker, name: str) -> Log:
    return broker.node.partitions.named_replica(name, 0).log


async def contents(wire: Wire, topic: Topic) -> list[Record]:
    """Return all records of a topic, as a consumer reads them."""
    found: list[Record] = []
    offset = 0
    while True:
        row = await fetch(wire, topic, offset)
        assert row.error_code == 0
        if not row.records:
            if offset >= row.high_watermark:
                return found
            offset += 1
            continue
        listed = list(read_records(row.records))
        found += listed
        offset = listed[-1].offset + 1 if listed else offset + 1


@pytest.mark.slow
async def test_topic_is_compacted_during_writes(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 100)
        before = log_of(broker, "t").segments.size
        assert await broker.node.maintenance.cleaner.clean_all() > 0
        assert log_of(broker, "t").segments.size < before / 3
        await update(wire, topic, 100, 120)
        found = await contents(wire, topic)
        assert {record.key: record.offset for record in found} == {
            b"key %d" % (number % KEYS): number for number in range(115, 120)
        }
        assert [record.offset for record in found if record.offset >= 100] == list(range(100, 120))
        assert await broker.node.maintenance.cleaner.clean_all() > 0
        second_read = await contents(wire, topic)
        assert len(second_read) < len(found)
        assert {record.key: record.offset for record in second_read} == {
            record.key: record.offset for record in found
        }


async def test_cleaner_compacts_topics_in_the_background(start: Start) -> None:
    async with start(log_cleaner_backoff_ms=100) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 60)
        await until(lambda: log_of(broker, "t").first_dirty_offset > 0)
        assert len({record.key for record in await contents(wire, topic)}) == KEYS


async def test_disabled_cleaner_compacts_nothing(start: Start) -> None:
    off = {"log_cleaner_backoff_ms": 100, "log_cleaner_enable": False}
    async with start(**off) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 60)
        await trio.sleep(0.3)
        assert log_of(broker, "t").first_dirty_offset == -1


@pytest.mark.slow
async def test_compacted_topic_survives_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 100)
        await broker.node.maintenance.cleaner.clean_all()
        before = await contents(wire, topic)
    assert "t 0 " in (tmp_path / "cleaner-offset-checkpoint").read_text()
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await contents(wire, topic) == before
        assert log_of(broker, "t").first_dirty_offset > 0
        await update(wire, topic, 100, 200)
        assert await broker.node.maintenance.cleaner.clean_all() > 0


@pytest.mark.slow
async def test_committed_offsets_are_compacted(start: Start) -> None:
    small = {"offsets_topic_num_partitions": 1}
    async with start(**small) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", partitions=4)
        await broker.node.groups.create_topic()
        for offset in range(250):
            await commit(wire, "g", offset)
        log = log_of(broker, "__consumer_offsets")
        log.roll()
        await broker.node.partitions.flusher.sync_now()
        before = log.segments.size
        assert await broker.node.maintenance.cleaner.clean_all() > 0
        assert log.segments.size < before / 10
        broker.node.groups.stop()
        await broker.node.groups.load()
        assert await committed(wire, "g") == [249 + index for index in range(4)]


async def commit(wire: Wire, group: str, offset: int) -> None:
    cls = OffsetCommitRequest
    rows = [
        cls.Partition(partition_index=index, committed_offset=offset + index) for index in range(4)
    ]
    topics = [cls.Topic(name="t", partitions=rows)]
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, cls(group_id=group, topics=topics))
    assert {row.error_code for row in response.topics[0].partitions} == {0}


async def committed(wire: Wire, group: str) -> list[int]:
    cls = OffsetFetchRequest
    topics = [cls.Topic(name="t", partition_indexes=list(range(4)))]
    response = await wire.ask(ApiKey.OFFSET_FETCH, 5, cls(group_id=group, topics=topics))
    return [row.committed_offset for row in response.topics[0].partitions]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def test_corruption_found_by_compaction_takes_the_partition_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 100)
        damage(Path(log_of(broker, "t").segments[1].log_path))
        assert await broker.node.maintenance.cleaner.clean_all() == 0
        assert (await fetch(wire, topic)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        row = await produce(wire, topic, batch([Record(b"k", b"v")]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "kbroker log repair" in caplog.text
    assert leftovers(tmp_path) == []


async def test_topic_deletion_during_compaction_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 100)
        compactor = broker.node.maintenance.cleaner._compactor
        compact = compactor.compact

        async def compact_too_late(task: CompactionTask) -> object:
            result = await compact(task)
            await delete_topic(wire, "t")
            await create_topic(wire, "t", configs=COMPACTED)
            await update(wire, topic, 0, 3)
            return result

        monkeypatch.setattr(compactor, "compact", compact_too_late)
        assert await broker.node.maintenance.cleaner.clean_all() == 0
        assert len(await contents(wire, topic)) == 3
        assert leftovers(tmp_path / "t-0") == []


@pytest.mark.parametrize("is_damage", [False, True])
async def test_truncation_during_compaction_discards_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damage: bool
) -> None:
    """After an unclean election, the new records fill segments of the same sizes.

    The run may also find a source that is only partly rewritten, which looks like damage.
    """
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 100, 200)
        compactor = broker.node.maintenance.cleaner._compactor
        compact = compactor.compact

        async def truncate_later(task: CompactionTask) -> object:
            result = await compact(task)
            monkeypatch.setattr(compactor, "compact", compact)
            partitions = broker.node.partitions
            async with partitions.flusher.sync_lock, partitions.checkpoint_lock:
                partitions.named_replica("t", 0).truncate_to(0, 0)
            await update(wire, topic, 200, 300)
            if is_damage:
                raise CompactionFailed("damaged", has_lost_bytes=True)
            return result

        monkeypatch.setattr(compactor, "compact", truncate_later)
        assert await broker.node.maintenance.cleaner.clean_all() == 0
        assert await broker.node.maintenance.cleaner.clean_all() > 0
        records = await contents(wire, topic)
        assert {record.value for record in records} <= {
            b"value %d " % number * 10 for number in range(200, 300)
        }
        assert leftovers(tmp_path / "t-0") == []


@pytest.mark.parametrize("is_damage", [False, True])
async def test_move_to_another_directory_during_compaction_keeps_partition_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damage: bool
) -> None:
    """The run does not find its sources any more, which may look like damage."""
    directories = [tmp_path / "one", tmp_path / "two"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 100)
        before = await contents(wire, topic)
        source = log_of(broker, "t")
        compactor = broker.node.maintenance.cleaner._compactor
        compact = compactor.compact

        async def compact_after_move(task: CompactionTask) -> object:
            target = directories[source.directory.startswith(directories[0].as_posix())]
            broker.node.maintenance.log_dir_mover.begin("t", 0, target.as_posix())
            await until(lambda: log_of(broker, "t") is not source)
            if is_damage:
                raise CompactionFailed("damaged", has_lost_bytes=True)
            return await compact(task)

        monkeypatch.setattr(compactor, "compact", compact_after_move)
        assert await broker.node.maintenance.cleaner.clean_all() == 0
        assert log_of(broker, "t").offline is None
        assert await contents(wire, topic) == before


async def test_failed_compaction_with_full_memory_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started(memory_limit_bytes=60_000) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        for number in range(1000):
            row = await produce(wire, topic, batch([Record(b"%d" % number, bytes(1000))]))
            if row.error_code:
                break
        before = await contents(wire, topic)
        assert await broker.node.maintenance.cleaner.clean_all() == 0
        assert await contents(wire, topic) == before
    assert "compaction failed, will retry" in caplog.text


async def test_missing_segment_files_do_not_stop_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing file fails the run, but does not stop the broker."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs=COMPACTED)
        await update(wire, topic, 0, 100)
        before = await contents(wire, topic)
        compactor = broker.node.maintenance.cleaner._compactor
        compact = compactor.compact

        async def compact_and_lose(task: CompactionTask) -> object:
            result = await compact(task)
            for path in leftovers(tmp_path):
                os.unlink(path)
            return result

        monkeypatch.setattr(compactor, "compact", compact_and_lose)
        for _ in range(2):
            assert await broker.node.maintenance.cleaner.clean_all() == 0
        assert await contents(wire, topic) == before
        monkeypatch.setattr(compactor, "compact", compact)
        assert await broker.node.maintenance.cleaner.clean_all() > 0
    assert caplog.text.count("the compacted segment is missing") == 1


@pytest.mark.slow
async def test_dirtiest_log_is_compacted_first(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "kbroker.partitions.cleaner")
    async with start() as broker, connected(broker.endpoint) as wire:
        half = await create_topic(wire, "half", configs=COMPACTED)
        for number in range(60):
            await produce(wire, half, batch([Record(b"%d" % number, bytes(100))]))
        assert await broker.node.maintenance.cleaner.clean_all() > 0
        for number in range(100):
            await produce(wire, half, batch([Record(b"%d" % number, bytes(100))]))
        whole = await create_topic(wire, "whole", configs=COMPACTED)
        await update(wire, whole, 0, 60)
        caplog.clear()
        assert await broker.node.maintenance.cleaner.clean_all() >= 2
    directories = [record.getMessage().split("/")[-1] for record in caplog.records]
    assert directories[0].startswith("whole-0: compacted")
    assert any(text.startswith("half-0: compacted") for text in directories)
