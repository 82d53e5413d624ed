"""Tests of sync passes: their threads, the logs that they take, and the files that they sync.

A sync pass syncs the logs that wait for the disk, which releases the acks of their batches. Other tests
(kill, storage) check that acknowledged records survive.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.storage import files
from kbroker.storage.log import Log

from ..brokers import started
from ..wire import batch, connected, create_topic, produce, produce_request, until


async def test_pass_during_another_sync_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass runs in the event loop's thread on a fast disk.

    While another component syncs the same disk, it runs in a worker thread.
    """
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())
        flusher = broker.node.partitions.flusher
        sync = flusher._sync
        threads: list[bool] = []

        def record_sync(logs: list[Log]) -> list[tuple[Log, int]]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return sync(logs)

        monkeypatch.setattr(flusher, "_sync", record_sync)
        monkeypatch.setattr("kbroker.runtime.disk_work.AT_ONCE_SECONDS_MAX", 1000)
        await produce(wire, topic, batch())
        with flusher.during_other_sync(), flusher.during_other_sync():
            await produce(wire, topic, batch())
        await produce(wire, topic, batch())
        assert threads == [False, True, False]


async def test_log_does_not_wait_for_all_logs_of_another_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes some logs, round-robin over topics; the next pass follows at once."""
    monkeypatch.setattr("kbroker.partitions.flusher.LOGS_AT_ONCE", 10)
    count = 35
    async with (
        started(tmp_path) as broker,
        connected(broker.endpoint) as wide,
        connected(broker.endpoint) as polite,
    ):
        many = await create_topic(wide, "many", count)
        one = await create_topic(polite, "one")
        flusher = broker.node.partitions.flusher
        sync = flusher._sync
        passes: list[list[str]] = []

        def record_sync(logs: list[Log]) -> list[tuple[Log, int]]:
            passes.append([log.topic for log in logs])
            return sync(logs)

        monkeypatch.setattr(flusher, "_sync", record_sync)
        async with flusher.sync_lock:  # makes all requests wait for the sync
            request = produce_request(many, None)
            request.topic_data[0].partition_data = [
                ProduceRequest.Partition(index=index, records=batch()) for index in range(count)
            ]
            await wide.send(ApiKey.PRODUCE, 9, request)
            await until(lambda: len(flusher._dirty.get("many", ())) == count)
            await polite.send(ApiKey.PRODUCE, 9, produce_request(one, batch()))
            await until(lambda: "one" in flusher._dirty)
        for wire in (polite, wide):
            (response,) = (await wire.receive()).responses
            assert {row.error_code for row in response.partition_responses} == {0}
        assert [len(logs) for logs in passes] == [10, 10, 10, 6]
        assert passes[0].count("one") == 1


async def test_acks_of_many_partitions_require_a_sync_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of the whole file system is not sufficient on some file systems."""
    count = 24
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", count)
        fsync = files._fsync
        synced: set[str] = set()

        def record_sync(fd: int) -> None:
            synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")).parent.name)
            fsync(fd)

        monkeypatch.setattr(files, "_fsync", record_sync)
        rows = [ProduceRequest.Partition(index=n, records=batch()) for n in range(count)]
        request = produce_request(topic, None)
        request.topic_data[0].partition_data = rows
        response = await wire.ask(ApiKey.PRODUCE, 9, request)
        assert [row.error_code for row in response.responses[0].partition_responses] == [0] * count
        assert synced == {f"t-{number}" for number in range(count)}


async def test_high_watermark_never_exceeds_the_durable_end(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        replica = broker.node.partitions.named_replica("t", 0)
        with pytest.raises(AssertionError, match="high watermark exceeds the durable end"):
            replica._commit(1)
        assert replica.log.high_watermark == 0
