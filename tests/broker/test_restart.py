"""Tests of restarts after clean stops and crashes, of flush policies, and of the memory limit.

A crash is simulated by copying the data directory of a running broker: it has what the process
wrote, but not what a stop would have done.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
from kbroker.protocol.records import iter_headers
from kbroker.storage.errors import StorageError
from kbroker.storage.manager import CheckpointJob
from kbroker.storage.naming import CLEAN_SHUTDOWN

from ..brokers import started
from ..net.test_server import commit, committed
from ..wire import (
    EARLIEST,
    LATEST,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    list_offset,
    metadata,
    produce,
    request,
    until,
    values_of,
)


def crash(data: Path, to: Path) -> Path:
    """Return a copy of the data directory, as if the process had ended now."""
    shutil.copytree(data, to)
    return to


async def fill(wire: Wire) -> Topic:
    """Write records, delete some, commit an offset, and recreate a topic."""
    topic = await create_topic(wire, "t", 3)
    for i in range(30):
        await produce(wire, topic, batch([b"%d" % i]), partition=i % 3)
    message = request(ApiKey.DELETE_RECORDS)
    cls = type(message)
    row = cls.Partition(partition_index=1, offset=4)
    message.topics = [cls.Topic(name="t", partitions=[row])]
    await wire.ask(ApiKey.DELETE_RECORDS, 2, message)
    await commit(wire, "group", "t", 7)
    await create_topic(wire, "deleted")
    await delete_topic(wire, "deleted")
    return topic


async def check(broker: Broker, wire: Wire, topic: Topic, cluster_id: str) -> None:
    """Check that all effects of `fill` exist."""
    response = await metadata(wire, version=12)
    assert response.cluster_id == cluster_id
    topics = {row.name: row for row in response.topics}
    assert set(topics) == {"t", "__consumer_offsets"}
    assert topics["t"].topic_id == topic.id
    assert {p.leader_epoch for p in topics["t"].partitions} == {1}
    for index in range(3):
        start = 4 if index == 1 else 0
        row = await fetch(wire, topic, start, partitions=[index])
        assert values_of(row) == [b"%d" % i for i in range(30) if i % 3 == index][start:]
        assert (await list_offset(wire, topic, LATEST, partition=index)).offset == 10
        assert (await list_offset(wire, topic, EARLIEST, partition=index)).offset == start
    assert await committed(wire, "group", "t") == 7


async def test_clean_restart_keeps_all_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with started(data) as broker, connected(broker.endpoint) as wire:
        topic = await fill(wire)
        cluster_id = broker.node.cluster.id
        first = broker.node.partitions.named_replica("t", 0)
        assert not (data / CLEAN_SHUTDOWN).exists()
    assert (data / CLEAN_SHUTDOWN).exists()
    async with started(data) as broker, connected(broker.endpoint) as wire:
        assert broker.node.partitions.logs.clean
        assert not (data / CLEAN_SHUTDOWN).exists()
        await check(broker, wire, topic, cluster_id)
        assert broker.node.partitions.named_replica("t", 0).leader_epoch == first.leader_epoch + 1
        row = await produce(wire, topic, batch([b"after"]))
        assert (row.error_code, row.base_offset) == (0, 10)


async def test_crash_keeps_all_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with started(data) as broker, connected(broker.endpoint) as wire:
        topic = await fill(wire)
        cluster_id = broker.node.cluster.id
        copy = crash(data, tmp_path / "copy")
    async with started(copy) as broker, connected(broker.endpoint) as wire:
        assert not broker.node.partitions.logs.clean
        await check(broker, wire, topic, cluster_id)
        row = await produce(wire, topic, batch([b"after"]))
        assert (row.error_code, row.base_offset) == (0, 10)


async def test_torn_tail_is_truncated_and_acknowledged_records_are_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with started(data) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for i in range(5):
            await produce(wire, topic, batch([b"%d" % i]))
        copy = crash(data, tmp_path / "copy")
    segment = copy / "t-0" / "00000000000000000000.log"
    with segment.open("ab") as log:
        log.write(batch([b"torn"], base_offset=5)[:-10])
    async with started(copy) as broker, connected(broker.endpoint) as wire:
        assert values_of(await fetch(wire, topic)) == [b"%d" % i for i in range(5)]
        assert (await produce(wire, topic, batch([b"5"]))).base_offset == 5


async def test_corruption_below_recovery_point_takes_only_partition_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The corruption is logged and nothing is truncated; the other partition is served."""
    data = tmp_path / "data"
    async with started(data) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for i in range(5):
            await produce(wire, topic, batch([b"%d" % i]))
            await produce(wire, topic, batch([b"%d" % i]), partition=1)
        broker.node.partitions.logs.checkpoint(0).run()
        copy = crash(data, tmp_path / "copy")
    segment = copy / "t-0" / "00000000000000000000.log"
    bytes_before = bytearray(segment.read_bytes())
    bytes_before[100] ^= 0xFF
    segment.write_bytes(bytes_before)
    with caplog.at_level(logging.ERROR):
        async with started(copy) as broker, connected(broker.endpoint) as wire:
            row = await produce(wire, topic, batch())
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            row = await fetch(wire, topic)
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert values_of(await fetch(wire, topic, partitions=[1])) == [
                b"%d" % i for i in range(5)
            ]
    assert segment.read_bytes() == bytes_before
    named = [r.message for r in caplog.records if str(segment) in r.message]
    assert len(named) == 1, "logged once"
    assert "damaged at byte" in named[0]


async def test_restart_increases_leader_epoch_of_metadata_and_batches(tmp_path: Path) -> None:
    topic = Topic("t")
    for epoch in range(4):
        async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
            if not epoch:
                topic = await create_topic(wire, "t")
            response = await metadata(wire, ["t"])
            assert response.topics[0].partitions[0].leader_epoch == epoch
            await produce(wire, topic, batch([b"x", b"y"]))
            row = await fetch(wire, topic)
            epochs = [header.leader_epoch for _, header in iter_headers(row.records)]
            assert epochs == list(range(epoch + 1))


async def test_deleted_topic_stays_deleted_after_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        old = await create_topic(wire, "t")
        await produce(wire, old, batch([b"old"]))
        await delete_topic(wire, "t")
        new = await create_topic(wire, "t")
        assert new.id != old.id
        await produce(wire, new, batch([b"new"]))
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert values_of(await fetch(wire, new)) == [b"new"]
        row = await fetch(wire, old, version=13)
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        await until(lambda: not list(tmp_path.glob("*-delete")))


async def test_group_members_continue_after_restart(tmp_path: Path) -> None:
    """The group keeps its generation and assignment, so heartbeats succeed."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"m")],
        )
        joined = await wire.ask(ApiKey.JOIN_GROUP, 1, join)
        member, generation = joined.member_id, joined.generation_id
        assignment = SyncGroupRequest.Assignment(member_id=member, assignment=b"all of it")
        sync = SyncGroupRequest(
            group_id="g", generation_id=generation, member_id=member, assignments=[assignment]
        )
        assert (await wire.ask(ApiKey.SYNC_GROUP, 1, sync)).assignment == b"all of it"
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        beat = request(ApiKey.HEARTBEAT, group_id="g", generation_id=generation, member_id=member)
        assert (await wire.ask(ApiKey.HEARTBEAT, 3, beat)).error_code == 0
        sync.assignments = []
        repeated = await wire.ask(ApiKey.SYNC_GROUP, 1, sync)
        assert (repeated.error_code, repeated.assignment) == (0, b"all of it")


async def test_producer_ids_are_never_reused(tmp_path: Path) -> None:
    """Each start allocates new producer IDs, after clean stops and after crashes."""
    allocated = []
    directory = tmp_path / "0"
    for i in range(4):
        async with started(directory) as broker, connected(broker.endpoint) as wire:
            for _ in range(3):
                message = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=60_000)
                response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)
                allocated.append(response.producer_id)
            if i % 2:
                directory = crash(directory, tmp_path / str(i))
    assert len(set(allocated)) == len(allocated) == 12


async def test_directory_is_locked_by_one_broker(tmp_path: Path) -> None:
    async with started(tmp_path):
        with pytest.raises(StorageError, match="another broker uses"):
            async with started(tmp_path):
                raise AssertionError("the broker started")


async def test_directory_of_other_node_is_rejected(tmp_path: Path) -> None:
    async with started(tmp_path):
        pass
    with pytest.raises((StorageError, ValueError), match=r"node\.id|node 1|node 2"):
        async with started(tmp_path, node_id=2):
            raise AssertionError("the broker started")


# -- flush policies


@pytest.mark.parametrize(
    ("policy", "before_fsync"), [("fsync", False), ("interval", True), ("os", True)]
)
async def test_flush_policy_decides_if_acks_wait_for_disk(
    tmp_path: Path, policy: str, before_fsync: bool
) -> None:
    """Responses with acks=1 and consumers wait for the disk only with the policy `fsync`."""
    async with (
        started(tmp_path, flush_policy=policy, flush_interval_ms=3_600_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        for acks in (1, -1):
            await produce(wire, topic, batch([b"%d" % acks]), acks=acks)
            log = broker.node.partitions.named_replica("t", 0).log
            assert (log.synced_offset < log.log_end_offset) == before_fsync
            assert log.high_watermark == log.log_end_offset
        assert values_of(await fetch(wire, topic)) == [b"1", b"-1"]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.partitions.logs.clean, "a graceful stop syncs whatever the policy"
        assert values_of(await fetch(wire, topic)) == [b"1", b"-1"]


async def test_flush_policy_interval_syncs_in_time(tmp_path: Path) -> None:
    async with (
        started(tmp_path, flush_policy="interval", flush_interval_ms=50) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())
        log = broker.node.partitions.named_replica("t", 0).log
        await until(lambda: log.synced_offset == 1)


async def test_failed_sync_takes_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory stops all reads and writes, as in Kafka: the disk content is unknown."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"safe"]))
        monkeypatch.setattr("kbroker.storage.directories.sync_logs", lambda *_: [])
        with caplog.at_level(logging.ERROR):
            row = await produce(wire, topic, batch([b"lost"]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "offline" in caplog.text
        monkeypatch.undo()
        row = await produce(wire, topic, batch([b"rejected"]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch(wire, topic)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert not broker.node.partitions.logs.clean
        assert values_of(await fetch(wire, topic))[0] == b"safe"


# -- memory


async def test_memory_limit_rejects_records_and_drops_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client gets KAFKA_STORAGE_ERROR, and one log line names the setting."""
    async with started(memory_limit_bytes=2_000_000) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        stored = []
        with caplog.at_level(logging.WARNING):
            for i in range(100):
                value = b"%03d" % i + bytes(50_000)
                row = await produce(wire, topic, batch([value]))
                if row.error_code:
                    assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    stored.append(value)
        assert 30 < len(stored) < 40
        warnings = [r for r in caplog.records if "memory.limit.bytes" in r.getMessage()]
        assert len(warnings) == 1
        found: list[bytes | None] = []
        while len(found) < len(stored):
            found += values_of(await fetch(wire, topic, len(found)))
        assert found == stored


async def test_deleted_topic_frees_memory() -> None:
    async with started(memory_limit_bytes=2_000_000) as broker, connected(broker.endpoint) as wire:
        for i in range(10):
            topic = await create_topic(wire, f"t{i}")
            assert (await produce(wire, topic, batch([bytes(900_000)]))).error_code == 0
            await delete_topic(wire, topic.name)


async def test_records_of_unknown_topic_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Restored metadata from before the topic was created must not delete its records."""
    data = tmp_path / "data"
    async with started(data) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "old")
    before = (data / "cluster.journal").read_bytes()
    for _ in range(2):
        async with started(data) as broker, connected(broker.endpoint) as wire:
            await produce(wire, await create_topic(wire, "young"), batch([b"precious"]))
        (data / "cluster.journal").write_bytes(before)
        (data / "cluster.journal.clean").unlink()
    async with started(data) as broker:
        assert list(broker.node.cluster.topics) == ["old"]
    strays = sorted(data.glob("young-0.*-stray"))
    assert len(strays) == 2
    assert all(b"precious" in next(stray.glob("*.log")).read_bytes() for stray in strays)
    assert str(strays[0]) in caplog.text
    async with started(data):
        assert sorted(data.glob("young-0.*-stray")) == strays


async def test_stop_waits_for_running_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkpoints would replace the same files."""
    run = CheckpointJob.run
    started_running, running = threading.Event(), threading.Lock()

    def slow_run(job: CheckpointJob, *logs_at_once: int) -> None:
        assert running.acquire(blocking=False), "two checkpoints of one directory at once"
        started_running.set()
        time.sleep(0.2)
        run(job, *logs_at_once)
        running.release()

    async with (
        trio.open_nursery() as nursery,
        started(tmp_path) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())
        monkeypatch.setattr(CheckpointJob, "run", slow_run)
        nursery.start_soon(broker.node.maintenance.log_manager_tasks.checkpoint)
        await trio.to_thread.run_sync(started_running.wait)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert (await fetch(wire, topic)).high_watermark == 1
