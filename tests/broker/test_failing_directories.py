"""Tests of unreadable directories and files: only the affected partitions are offline."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.client.cluster import open_cluster
from kbroker.client.cluster_details import cluster_problems
from kbroker.process.node_info import _segment_bytes, banner_lines, info_of_all
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.errors import StorageError, SyncFailedError, WriteRefusedError

from ..brokers import started, started_on
from ..partitions.test_log_opening import served, write
from ..storage.test_lost_files import file_instead, link_to_itself
from ..wire import Topic, batch, connected, create_topic, fetch, produce, values_of


@pytest.mark.parametrize("plant", [file_instead, link_to_itself])
async def test_partition_whose_directory_cannot_be_listed_is_offline_and_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, plant: Callable[[Path], None]
) -> None:
    await write(tmp_path, {"a": 2})
    plant(tmp_path / "a-0")
    async with started(tmp_path) as broker:
        lines = [*banner_lines(info_of_all(broker, None), data_dirs=["data"], is_new=False)]
        assert any("1 topic, " in line for line in lines)
        assert await served(broker, "a", 0) is None
        assert await served(broker, "a", 1) is not None
        async with connected(broker.endpoint) as wire:
            topic = Topic("a", broker.node.cluster.topics["a"].id)
            row = await produce(wire, topic, batch([b"x"]))
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await produce(wire, topic, batch([b"x"]), partition=1)).error_code == 0
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert line.getMessage().startswith("partition a-0: cannot ")
    assert f"{tmp_path}/a-0" in line.getMessage()
    assert "restore it from a backup" in line.getMessage()


def test_banner_omits_size_of_unlistable_directory(tmp_path: Path) -> None:
    for name in ("a-0", "a-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(bytes(10))
    link_to_itself(tmp_path / "a-1")
    assert _segment_bytes(str(tmp_path)) == 20, "the quarantined directory still counts"
    assert _segment_bytes(str(tmp_path / "missing")) == 0


@pytest.mark.parametrize("ending", [".index", "leader-epoch-checkpoint.tmp", "/one/a-0", "/one"])
async def test_failed_sync_of_any_file_takes_directory_offline(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = CrashFiles()
    is_failing = False

    def fail_sync(operation: Operation) -> None:
        is_sync = operation.kind in ("sync", "syncdir")
        is_below = operation.path.startswith("/one") and operation.path.endswith(ending)
        if is_failing and is_sync and is_below:
            raise SyncFailedError(f"cannot sync {operation.path}: I/O", operation.path)

    files.hook = fail_sync
    async with started_on(files, ["/one", "/two"]) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a", 2)
        for index in range(2):
            records = batch([bytes(10_000)] * 3)
            assert (await produce(wire, topic, records, partition=index)).error_code == 0
        broker.node.partitions.named_hosted("a", 0).log.save()
        broker.node.partitions.named_hosted("a", 0).log.epochs.changed = True
        is_failing = True
        if ending.endswith(("a-0", "one")):
            log = broker.node.partitions.named_hosted("a", 0).log
            log.segments.schedule_all_directory_syncs()
            await produce(wire, topic, batch([b"x"]))
        await broker.node.maintenance.log_manager_tasks.checkpoint()
        row = await produce(wire, topic, batch([b"x"]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch(wire, topic)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(wire, topic, batch([b"x"]), partition=1)).error_code == 0
        assert len(values_of(await fetch(wire, topic, partitions=[1]))) == 4
    lines = [each.getMessage() for each in caplog.records if "directory is offline" in each.message]
    assert len(lines) == 1
    assert "check the disk, then restart the server" in lines[0]


async def test_partition_whose_directory_is_removed_is_offline_and_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"x"]), partition=index)
            broker.node.partitions.named_hosted("a", index).log.save()
        shutil.rmtree(tmp_path / "a-0")
        await broker.node.maintenance.log_manager_tasks.checkpoint()
        row = await produce(wire, topic, batch([b"y"]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(wire, topic, batch([b"y"]), partition=1)).error_code == 0
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert f"{tmp_path}/a-0/" in line.getMessage()


@pytest.mark.parametrize("error", [SyncFailedError, WriteRefusedError])
async def test_delete_records_fails_if_log_start_is_not_stored(error: type[StorageError]) -> None:
    files, is_failing = CrashFiles(), False

    def fail(operation: Operation) -> None:
        if is_failing and operation.kind == "sync" and "/one/log-start" in operation.path:
            text = f"cannot write {operation.path}: I/O"
            raise SyncFailedError(text, operation.path) if error is SyncFailedError else error(text)

    files.hook = fail
    async with started_on(files, ["/one", "/two"]) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"x"] * 3), partition=index)
        rows = [DeleteRecordsRequest.Partition(partition_index=index, offset=2) for index in (0, 1)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequest.Topic(name="a", partitions=rows)], timeout_ms=10_000
        )
        is_failing = True
        for _ in range(2):  # the second request finds the log start in memory
            answer = await wire.ask(ApiKey.DELETE_RECORDS, 2, request)
            codes = {row.partition_index: row.error_code for row in answer.topics[0].partitions}
            assert codes == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: 0}
        is_failing = False
        answer = await wire.ask(ApiKey.DELETE_RECORDS, 2, request)
        is_offline = error is SyncFailedError
        expected = ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE
        assert answer.topics[0].partitions[0].error_code == expected


async def test_health_advises_to_check_disk_after_failed_sync(tmp_path: Path) -> None:
    async with started([tmp_path / "one", tmp_path / "two"]) as broker:
        await broker.create_topic("a")
        broker.node.partitions.logs.managers[0].fail("cannot sync a file")
        async with open_cluster([broker.endpoint], "test") as cluster:
            (problem,) = await cluster_problems(cluster)
    assert "check or replace the disk" in problem["action"]
    assert "room" not in problem["action"]
