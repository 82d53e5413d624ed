"""Tests of DescribeLogDirs and AlterReplicaLogDirs with several log directories."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.config import ConfigError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.errors import StorageError
from kbroker.storage.files import OsFile

from ..brokers import started
from ..net.test_server import commit, committed
from ..wire import (
    ANSWER_SECONDS,
    EARLIEST,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    list_offset,
    produce,
    until,
    values_of,
)


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
async def two_dir_broker(directories: list[Path]) -> AsyncIterator[Broker]:
    """Start a broker with two log directories."""
    async with started(directories) as opened:
        yield opened


@pytest.fixture
async def client(two_dir_broker: Broker) -> AsyncIterator[Wire]:
    async with connected(two_dir_broker.endpoint) as opened:
        yield opened


async def describe(wire: Wire, *topics: tuple[str, list[int]], version: int = 5) -> Any:
    cls = DescribeLogDirsRequest
    rows = [cls.Topic(topic=name, partitions=indexes) for name, indexes in topics]
    response = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, version, cls(topics=rows or None))
    assert response.error_code == 0
    return response.results


async def replica_directories(wire: Wire) -> dict[tuple[str, int], tuple[str, int]]:
    """Return directory name and size by partition; "future" marks the target of a move."""
    return {
        (topic.name, row.partition_index): (
            Path(directory.log_dir).name + (" future" if row.is_future_key else ""),
            row.partition_size,
        )
        for directory in await describe(wire)
        for topic in directory.topics
        for row in topic.partitions
    }


async def move(wire: Wire, path: Path | str, *topics: tuple[str, list[int]]) -> list[int]:
    cls = AlterReplicaLogDirsRequest
    rows = [cls.Topic(name=name, partitions=indexes) for name, indexes in topics]
    ask = cls(dirs=[cls.Dir(path=str(path), topics=rows)])
    response = await wire.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, ask)
    return [row.error_code for topic in response.results for row in topic.partitions]


async def wait_until_moved(wire: Wire, key: tuple[str, int], to: Path) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        while (await replica_directories(wire))[key][0] != to.name:  # noqa: ASYNC110  # polls with requests
            await trio.sleep(0.01)


# -- DescribeLogDirs


@pytest.mark.parametrize("version", range(6))
async def test_describe_log_dirs_returns_sizes_and_disk_usage(tmp_path: Path, version: int) -> None:
    async with started(tmp_path / "data") as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        data = batch([b"x" * 100])
        await produce(wire, topic, data)
        (directory,) = await describe(wire, version=version)
        assert (directory.error_code, directory.log_dir) == (0, str(tmp_path / "data"))
        (row,) = directory.topics
        assert row.name == "t"
        found = [
            (p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
            for p in row.partitions
        ]
        assert found == [(0, len(data), 0, False), (1, 0, 0, False)]
        disk = shutil.disk_usage(tmp_path)
        if version >= 4:
            allowed = disk.used + disk.free
            assert abs(directory.total_bytes - allowed) < allowed / 10
            assert abs(directory.usable_bytes - disk.free) < allowed / 10
        assert directory.is_cordoned is False


async def test_describe_log_dirs_returns_only_requested_partitions(wire: Wire) -> None:
    """The broker is in memory. Unknown partitions are omitted."""
    await create_topic(wire, "a", 2)
    await create_topic(wire, "b")
    (directory,) = await describe(wire, ("a", [1, 7, 1, -1]), ("none", [0]))
    found = [(t.name, [p.partition_index for p in t.partitions]) for t in directory.topics]
    assert found == [("a", [1])]
    response = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=[]))
    assert [directory.topics for directory in response.results] == [[]]
    assert 0 < response.results[0].usable_bytes <= response.results[0].total_bytes


async def test_sizes_of_unopened_logs_are_returned(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs={"internal.segment.bytes": "2000"})
        for _ in range(10):
            await produce(wire, topic, batch([b"x" * 500]))
        assert len(list((tmp_path / "t-0").glob("*.log"))) > 1
        before = await replica_directories(wire)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await replica_directories(wire) == before
        assert broker.node.partitions.logs.get("t", 0) is None


# -- several directories


async def test_partitions_are_spread_over_directories(directories: list[Path]) -> None:
    """Partitions keep their directory after a restart. Each directory has its own ID."""
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 5)
        for index in range(5):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
        before = await replica_directories(wire)
        assert sorted(name for name, _ in before.values()) == ["one"] * 3 + ["two"] * 2
    metas = [
        MetaProperties.from_bytes((each / "meta.properties").read_bytes(), str(each))
        for each in directories
    ]
    assert metas[0].cluster_id == metas[1].cluster_id
    assert metas[0].directory_id != metas[1].directory_id
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert broker.node.partitions.logs.clean
        assert await replica_directories(wire) == before
        for index in range(5):
            assert values_of(await fetch(wire, topic, partitions=[index])) == [b"%d" % index]


async def test_deleted_topic_is_removed_from_all_directories(
    client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t", 4)
    for index in range(4):
        await produce(client, topic, batch(), partition=index)
    await delete_topic(client, "t")
    await until(lambda: not [p for each in directories for p in each.glob("t-*")])


async def test_topic_deleted_during_removal_of_another_is_removed(
    two_dir_broker: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, resume = [], threading.Event()
    remove = two_dir_broker.node.partitions.logs.empty_trash

    def empty_trash_slowly() -> None:
        remove()
        runs.append(1)
        resume.wait(5)

    for name in ("a", "b"):
        await produce(client, await create_topic(client, name), batch())
    monkeypatch.setattr(two_dir_broker.node.partitions.logs, "empty_trash", empty_trash_slowly)
    await delete_topic(client, "a")
    await until(lambda: runs)
    await delete_topic(client, "b")
    resume.set()
    await until(lambda: not [p for each in directories for p in each.glob("b-0*")])


async def test_failed_disk_takes_only_its_partitions_offline(
    two_dir_broker: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(client, "t", 3)
    for index in range(3):
        await produce(client, topic, batch([b"safe"]), partition=index)
    where = {index: name for (_, index), (name, _) in (await replica_directories(client)).items()}

    def sync(file: OsFile) -> None:
        if file.path.startswith(f"{directories[1]}/"):
            raise StorageError("the disk is gone")

    monkeypatch.setattr(OsFile, "sync", sync)
    codes = {}
    for _ in range(2):
        for index in range(3):
            row = await produce(client, topic, batch(), partition=index)
            codes[index] = row.error_code
    assert {where[index]: code for index, code in codes.items()} == {"one": 0, "two": 56}
    one, failed = await describe(client)
    assert (one.error_code, failed.error_code) == (0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert (failed.log_dir, failed.topics, failed.total_bytes) == (str(directories[1]), [], -1)
    assert await move(client, directories[1], ("t", [0])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    new = await create_topic(client, "new", 2)
    for index in range(2):
        assert (await produce(client, new, batch(), partition=index)).error_code == 0
    assert two_dir_broker.node.partitions.logs.managers[0].failed is None


async def test_broker_does_not_start_if_directory_is_missing(directories: list[Path]) -> None:
    """The partitions of the missing directory would be empty. The operator accepts that by discarding the directory ID."""
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
        lost = broker.node.partitions.logs.managers[1].meta.directory_id
    with pytest.raises(StorageError, match=rf"two \(ID {lost}\) is missing"):
        async with started(directories[0]):
            raise AssertionError("it started")
    async with started(directories) as broker:
        assert broker.node.partitions.logs.clean
    async with (
        started(directories[0], log_dirs_discarded_ids=lost) as broker,
        connected(broker.endpoint) as wire,
    ):
        found = [values_of(await fetch(wire, topic, partitions=[index])) for index in range(2)]
        assert found == [[b"0"], []]
    async with started(directories[0]):
        pass  # the discarded directory is no longer known


async def test_order_of_directories_can_change(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
    async with started(directories[::-1]) as broker, connected(broker.endpoint) as wire:
        found = [values_of(await fetch(wire, topic, partitions=[index])) for index in range(2)]
        assert found == [[b"0"], [b"1"]]


async def test_new_directory_can_be_listed_first(directories: list[Path]) -> None:
    async with started(directories[1]) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"kept"]))
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert values_of(await fetch(wire, topic)) == [b"kept"]


async def test_partitions_survive_if_metadata_is_missing(directories: list[Path]) -> None:
    """The directory with metadata is missing from the list, or its metadata is lost."""
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
    (directories[0] / "cluster.journal").rename(directories[0] / "away")
    for configured in (directories, directories[1]):
        with pytest.raises(StorageError, match=r"no cluster\.journal .* log\.dirs, or restore it"):
            async with started(configured):
                raise AssertionError("it started")
    (directories[0] / "away").rename(directories[0] / "cluster.journal")
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        found = [values_of(await fetch(wire, topic, partitions=[index])) for index in range(2)]
        assert found == [[b"0"], [b"1"]]


async def test_broker_does_not_start_with_metadata_in_two_directories(
    directories: list[Path],
) -> None:
    async with started(directories):
        pass
    (directories[1] / "cluster.journal").write_bytes(
        (directories[0] / "cluster.journal").read_bytes()
    )
    with pytest.raises(StorageError, match="move all but one away"):
        async with started(directories):
            raise AssertionError("it started")


# -- cordons


async def cordon(wire: Wire, value: str) -> int:
    cls = IncrementalAlterConfigsRequest
    row = cls.Config(name="cordoned.log.dirs", config_operation=0, value=value)
    ask = cls(resources=[cls.Resource(resource_type=4, resource_name="1", configs=[row])])
    (response,) = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)).responses
    return int(response.error_code)


async def cordoned_flags(wire: Wire) -> list[bool]:
    return [directory.is_cordoned for directory in await describe(wire)]


async def test_cordoned_directory_gets_no_new_partitions(
    client: Wire, directories: list[Path]
) -> None:
    await create_topic(client, "old", 2)
    assert sorted((await replica_directories(client)).values()) == [("one", 0), ("two", 0)]
    assert await cordon(client, str(directories[0])) == 0
    assert await cordoned_flags(client) == [True, False]
    topic = await create_topic(client, "new", 3)
    for index in range(3):
        assert (await produce(client, topic, batch(), partition=index)).error_code == 0
    found = await replica_directories(client)
    assert {found["new", index][0] for index in range(3)} == {"two"}
    assert await move(client, directories[0], ("new", [0])) == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT
    ]
    assert await cordon(client, "") == 0
    assert await cordoned_flags(client) == [False, False]
    assert await move(client, directories[0], ("new", [0])) == [0]
    await wait_until_moved(client, ("new", 0), directories[0])


async def test_topic_creation_fails_if_all_directories_are_cordoned(
    two_dir_broker: Broker, client: Wire, directories: list[Path]
) -> None:
    old = await create_topic(client, "old", 2)
    for value in ("*", f"{directories[0]},{directories[1]}"):
        assert await cordon(client, value) == 0
        assert await cordoned_flags(client) == [True, True]
        await until(
            lambda: not two_dir_broker.node.cluster.open_ids
        )  # the metadata contains the cordons
        row = CreateTopicsRequest.Topic(name="new", num_partitions=1, replication_factor=1)
        response = await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[row]))
        assert response.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert "cordoned" in response.topics[0].error_message
    for index in range(2):  # the partitions exist, although their logs are empty
        assert (await produce(client, old, batch(), partition=index)).error_code == 0


async def test_cordon_of_unknown_directory_is_rejected(
    two_dir_broker: Broker, client: Wire, directories: list[Path], tmp_path: Path
) -> None:
    assert await cordon(client, str(tmp_path)) == ErrorCode.INVALID_REQUEST
    assert two_dir_broker.node.partitions.logs.cordoned == set()
    with pytest.raises(ConfigError, match="unknown log directory"):
        async with started(tmp_path / "other", cordoned_log_dirs="/nowhere"):
            raise AssertionError("it started")


async def test_cordons_survive_restart(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert await cordon(wire, str(directories[1])) == 0
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert await cordoned_flags(wire) == [False, True]


# -- moves


async def test_replica_moves_while_clients_write_and_read(
    two_dir_broker: Broker, client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t")
    written = [b"%05d" % number + bytes(2000) for number in range(300)]
    for start in range(0, 300, 50):
        await produce(client, topic, batch(written[start : start + 50]))
    assert (await replica_directories(client))["t", 0][0] == "one"
    stop = trio.Event()
    read: list[bytes | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write, two_dir_broker, topic, written, stop)
        nursery.start_soon(_read, two_dir_broker, topic, read, stop)
        for target in (directories[1], directories[0], directories[1]):
            await until(lambda: bool(read))
            assert await move(client, target, ("t", [0])) == [0]
            await wait_until_moved(client, ("t", 0), target)
        stop.set()
    assert len(written) > 303
    assert read == written[: len(read)]
    await until(lambda: not list(directories[0].glob("t-0*")))
    offset, found = 0, []
    while offset < len(written):
        found += values_of(await fetch(client, topic, offset))
        offset = len(found)
    assert found == written
    assert two_dir_broker.node.partitions.logs.future("t", 0) is None


async def _write(broker: Broker, topic: Topic, written: list[bytes], stop: trio.Event) -> None:
    async with connected(broker.endpoint) as wire:
        while not stop.is_set():
            value = b"later %d" % len(written)
            assert (await produce(wire, topic, batch([value]))).error_code == 0
            written.append(value)


async def _read(broker: Broker, topic: Topic, read: list[bytes | None], stop: trio.Event) -> None:
    async with connected(broker.endpoint) as wire:
        while not stop.is_set():
            row = await fetch(wire, topic, len(read), max_wait_ms=20)
            assert row.error_code == 0
            read += values_of(row)


async def test_completed_move_survives_restart(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"a"]))
        assert await move(wire, directories[1], ("t", [0])) == [0]
        await wait_until_moved(wire, ("t", 0), directories[1])
        await produce(wire, topic, batch([b"b"]))
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert (await replica_directories(wire))["t", 0][0] == "two"
        assert values_of(await fetch(wire, topic)) == [b"a", b"b"]


async def test_interrupted_move_continues_after_restart(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"a"]))
        replica = broker.node.partitions.named_replica("t", 0)
        broker.node.partitions.logs.start_move(
            replica.log, str(directories[1])
        )  # the mover does not run the move
        broker.node.partitions.logs.next_future().copy(100, now_ms=0)  # type: ignore[union-attr]
        found = await describe(wire, ("t", [0]))
        (now,), (future,) = (directory.topics[0].partitions for directory in found)
        assert (now.is_future_key, future.is_future_key, future.offset_lag) == (False, True, 0)
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        await wait_until_moved(wire, ("t", 0), directories[1])
        assert values_of(await fetch(wire, topic)) == [b"a"]


async def test_groups_work_while_offsets_partitions_move(directories: list[Path]) -> None:
    name = "__consumer_offsets"
    async with (
        started(directories, offsets_topic_num_partitions=3) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t")
        await commit(wire, "g", "t", 5)
        for index in range(3):
            here = (await replica_directories(wire))[name, index][0]
            target = directories[here == "one"]
            assert await move(wire, target, (name, [index])) == [0]
            await wait_until_moved(wire, (name, index), target)
        assert await committed(wire, "g", "t") == 5
        await commit(wire, "g", "t", 6)
        assert await committed(wire, "g", "t") == 6


async def test_moving_partitions_can_be_truncated_and_deleted(
    two_dir_broker: Broker, client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t")
    for _ in range(5):
        await produce(client, topic, batch([b"x" * 100]))
    replica = two_dir_broker.node.partitions.named_replica("t", 0)
    replica.delete_records_before(3)
    assert await move(client, directories[1], ("t", [0])) == [0]
    await wait_until_moved(client, ("t", 0), directories[1])
    assert (await list_offset(client, topic, EARLIEST)).offset == 3
    assert await move(client, directories[0], ("t", [0])) == [0]
    await delete_topic(client, "t")
    await until(lambda: not [p.name for each in directories for p in each.glob("t-0*")])
    assert await client.works()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_move_of_unknown_partition_or_directory_is_rejected(
    client: Wire, directories: list[Path], version: int
) -> None:
    await create_topic(client, "t")
    cls = AlterReplicaLogDirsRequest
    rows = [cls.Topic(name="t", partitions=[0, 7]), cls.Topic(name="none", partitions=[0])]
    ask = cls(dirs=[cls.Dir(path=str(directories[0]), topics=rows)])
    response = await client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, ask)
    found = [
        (topic.topic_name, row.partition_index, row.error_code)
        for topic in response.results
        for row in topic.partitions
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [("t", 0, 0), ("t", 7, unknown), ("none", 0, unknown)]
    for path in (directories[0] / "other", "one", ""):
        assert await move(client, path, ("t", [0])) == [ErrorCode.LOG_DIR_NOT_FOUND]


async def test_move_to_current_directory_cancels_move(
    two_dir_broker: Broker, client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t")
    await produce(client, topic, batch([b"a"]))
    logs = two_dir_broker.node.partitions.logs
    logs.start_move(two_dir_broker.node.partitions.named_replica("t", 0).log, str(directories[1]))
    assert await move(client, directories[0], ("t", [0])) == [0]
    assert logs.future("t", 0) is None
    assert (await replica_directories(client))["t", 0][0] == "one"
    assert values_of(await fetch(client, topic)) == [b"a"]


async def test_failed_copy_cancels_move(
    two_dir_broker: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(client, "t")
    await produce(client, topic, batch([b"a"]))

    def fail(self: Any, bytes_max: int, reading: Any, *, now_ms: int) -> bool:
        raise StorageError("the disk is full")

    monkeypatch.setattr("kbroker.storage.future.FutureLog.copy", fail)
    assert await move(client, directories[1], ("t", [0])) == [0]
    await until(lambda: two_dir_broker.node.partitions.logs.future("t", 0) is None)
    assert values_of(await fetch(client, topic)) == [b"a"]
    assert (await produce(client, topic, batch([b"b"]))).error_code == 0


async def test_move_that_fails_between_renames_is_completed_on_restart(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, key: Any, name: str) -> None:
        raise StorageError("the disk is gone")

    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"a"]))
        with monkeypatch.context() as patch:
            patch.setattr("kbroker.storage.manager.LogManager.install_future", fail)
            assert await move(wire, directories[1], ("t", [0])) == [0]
            await until(lambda: "offline until the node restarts" in caplog.text)
        row = await produce(wire, topic, batch([b"b"]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert (await replica_directories(wire))["t", 0][0] == "two"
        assert values_of(await fetch(wire, topic)) == [b"a"]
        assert (await produce(wire, topic, batch([b"b"]))).error_code == 0


async def test_move_is_cancelled_if_copied_log_is_missing(
    two_dir_broker: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(client, "t")
    await produce(client, topic, batch([b"a"]))

    def fail(self: Any) -> None:
        raise FileNotFoundError(2, "no such file", "somewhere")

    monkeypatch.setattr("kbroker.storage.future.FutureLog.finish", fail)
    assert await move(client, directories[1], ("t", [0])) == [0]
    await until(lambda: two_dir_broker.node.partitions.logs.future("t", 0) is None)
    assert values_of(await fetch(client, topic)) == [b"a"]
