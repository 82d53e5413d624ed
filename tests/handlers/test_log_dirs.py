"""DescribeLogDirs and AlterReplicaLogDirs: several data directories, and replicas that move."""

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
async def two(directories: list[Path]) -> AsyncIterator[Broker]:
    """A broker with two data directories."""
    async with started(directories) as opened:
        yield opened


@pytest.fixture
async def client(two: Broker) -> AsyncIterator[Wire]:
    async with connected(two.endpoint) as opened:
        yield opened


async def describe(wire: Wire, *topics: tuple[str, list[int]], version: int = 5) -> Any:
    cls = DescribeLogDirsRequest
    rows = [cls.Topic(topic=name, partitions=indexes) for name, indexes in topics]
    answer = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, version, cls(topics=rows or None))
    assert answer.error_code == 0
    return answer.results


async def places(wire: Wire) -> dict[tuple[str, int], tuple[str, int]]:
    """Name of the directory, and size, of each partition; one that moves has a "future" too."""
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
    answer = await wire.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, ask)
    return [row.error_code for topic in answer.results for row in topic.partitions]


async def moved(wire: Wire, key: tuple[str, int], to: Path) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        while (await places(wire))[key][0] != to.name:  # noqa: ASYNC110  # it takes a request
            await trio.sleep(0.01)


# -- DescribeLogDirs


@pytest.mark.parametrize("version", range(6))
async def test_one_directory(tmp_path: Path, version: int) -> None:
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


async def test_what_is_asked_for(wire: Wire) -> None:
    """In memory too; partitions that do not exist are left out."""
    await create_topic(wire, "a", 2)
    await create_topic(wire, "b")
    (directory,) = await describe(wire, ("a", [1, 7, 1, -1]), ("none", [0]))
    found = [(t.name, [p.partition_index for p in t.partitions]) for t in directory.topics]
    assert found == [("a", [1])]
    answer = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=[]))
    assert [directory.topics for directory in answer.results] == [[]]
    assert 0 < answer.results[0].usable_bytes <= answer.results[0].total_bytes


async def test_sizes_of_logs_that_are_not_open(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs={"internal.segment.bytes": "2000"})
        for _ in range(10):
            await produce(wire, topic, batch([b"x" * 500]))
        assert len(list((tmp_path / "t-0").glob("*.log"))) > 1
        before = await places(wire)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await places(wire) == before
        assert broker.node.partitions.logs.get("t", 0) is None


# -- several directories


async def test_partitions_are_spread(directories: list[Path]) -> None:
    """And found again where they are; each directory is of the same cluster and has its own id."""
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 5)
        for index in range(5):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
        before = await places(wire)
        assert sorted(name for name, _ in before.values()) == ["one"] * 3 + ["two"] * 2
    metas = [
        MetaProperties.from_bytes((each / "meta.properties").read_bytes(), str(each))
        for each in directories
    ]
    assert metas[0].cluster_id == metas[1].cluster_id
    assert metas[0].directory_id != metas[1].directory_id
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert broker.node.partitions.logs.clean
        assert await places(wire) == before
        for index in range(5):
            assert values_of(await fetch(wire, topic, partitions=[index])) == [b"%d" % index]


async def test_a_deleted_topic_leaves_all_directories(
    client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t", 4)
    for index in range(4):
        await produce(client, topic, batch(), partition=index)
    await delete_topic(client, "t")
    await until(lambda: not [p for each in directories for p in each.glob("t-*")])


async def test_what_is_deleted_while_others_are_removed_goes_too(
    two: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, go_on = [], threading.Event()
    remove = two.node.partitions.logs.empty_trash

    def slowly() -> None:
        remove()
        runs.append(1)
        go_on.wait(5)

    for name in ("a", "b"):
        await produce(client, await create_topic(client, name), batch())
    monkeypatch.setattr(two.node.partitions.logs, "empty_trash", slowly)
    await delete_topic(client, "a")
    await until(lambda: runs)
    await delete_topic(client, "b")
    go_on.set()
    await until(lambda: not [p for each in directories for p in each.glob("b-0*")])


async def test_a_disk_that_fails_takes_its_own_partitions(
    two: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(client, "t", 3)
    for index in range(3):
        await produce(client, topic, batch([b"safe"]), partition=index)
    where = {index: name for (_, index), (name, _) in (await places(client)).items()}

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
    one, gone = await describe(client)
    assert (one.error_code, gone.error_code) == (0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert (gone.log_dir, gone.topics, gone.total_bytes) == (str(directories[1]), [], -1)
    assert await move(client, directories[1], ("t", [0])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    new = await create_topic(client, "new", 2)
    for index in range(2):
        assert (await produce(client, new, batch(), partition=index)).error_code == 0
    assert two.node.partitions.logs.managers[0].failed is None


async def test_a_directory_that_is_missing_is_asked_for(directories: list[Path]) -> None:
    """Its partitions would begin empty; who accepts that says so."""
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
        pass  # it is forgotten now


async def test_the_order_of_directories_does_not_matter(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
    async with started(directories[::-1]) as broker, connected(broker.endpoint) as wire:
        found = [values_of(await fetch(wire, topic, partitions=[index])) for index in range(2)]
        assert found == [[b"0"], [b"1"]]


async def test_a_new_directory_may_stand_before_the_others(directories: list[Path]) -> None:
    async with started(directories[1]) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"kept"]))
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert values_of(await fetch(wire, topic)) == [b"kept"]


async def test_partitions_without_metadata_are_left_alone(directories: list[Path]) -> None:
    """Of the directory alone that has no metadata, and of one whose metadata is gone."""
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for index in range(2):
            await produce(wire, topic, batch([b"%d" % index]), partition=index)
    (directories[0] / "cluster.journal").rename(directories[0] / "away")
    for given in (directories, directories[1]):
        with pytest.raises(StorageError, match=r"no cluster\.journal .* log\.dirs, or restore it"):
            async with started(given):
                raise AssertionError("it started")
    (directories[0] / "away").rename(directories[0] / "cluster.journal")
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        found = [values_of(await fetch(wire, topic, partitions=[index])) for index in range(2)]
        assert found == [[b"0"], [b"1"]]


async def test_metadata_in_two_directories_is_refused(directories: list[Path]) -> None:
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
    (answer,) = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)).responses
    return int(answer.error_code)


async def cordoned(wire: Wire) -> list[bool]:
    return [directory.is_cordoned for directory in await describe(wire)]


async def test_a_cordoned_directory_takes_nothing_new(
    client: Wire, directories: list[Path]
) -> None:
    await create_topic(client, "old", 2)
    assert sorted((await places(client)).values()) == [("one", 0), ("two", 0)]
    assert await cordon(client, str(directories[0])) == 0
    assert await cordoned(client) == [True, False]
    topic = await create_topic(client, "new", 3)
    for index in range(3):
        assert (await produce(client, topic, batch(), partition=index)).error_code == 0
    found = await places(client)
    assert {found["new", index][0] for index in range(3)} == {"two"}
    assert await move(client, directories[0], ("new", [0])) == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT
    ]
    assert await cordon(client, "") == 0
    assert await cordoned(client) == [False, False]
    assert await move(client, directories[0], ("new", [0])) == [0]
    await moved(client, ("new", 0), directories[0])


async def test_nothing_is_created_when_all_directories_are_cordoned(
    two: Broker, client: Wire, directories: list[Path]
) -> None:
    old = await create_topic(client, "old", 2)
    for value in ("*", f"{directories[0]},{directories[1]}"):
        assert await cordon(client, value) == 0
        assert await cordoned(client) == [True, True]
        await until(lambda: not two.node.cluster.open_ids)  # whoever creates topics knows as well
        row = CreateTopicsRequest.Topic(name="new", num_partitions=1, replication_factor=1)
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[row]))
        assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert "cordoned" in answer.topics[0].error_message
    for index in range(2):  # they exist, though nothing was ever written
        assert (await produce(client, old, batch(), partition=index)).error_code == 0


async def test_cordons_name_directories_that_exist(
    two: Broker, client: Wire, directories: list[Path], tmp_path: Path
) -> None:
    assert await cordon(client, str(tmp_path)) == ErrorCode.INVALID_REQUEST
    assert two.node.partitions.logs.cordoned == set()
    with pytest.raises(ConfigError, match="unknown log directory"):
        async with started(tmp_path / "other", cordoned_log_dirs="/nowhere"):
            raise AssertionError("it started")


async def test_cordons_last(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert await cordon(wire, str(directories[1])) == 0
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert await cordoned(wire) == [False, True]


# -- moves


async def test_a_replica_moves_while_clients_write_and_read(
    two: Broker, client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t")
    written = [b"%05d" % number + bytes(2000) for number in range(300)]
    for start in range(0, 300, 50):
        await produce(client, topic, batch(written[start : start + 50]))
    assert (await places(client))["t", 0][0] == "one"
    stop = trio.Event()
    read: list[bytes | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write, two, topic, written, stop)
        nursery.start_soon(_read, two, topic, read, stop)
        for target in (directories[1], directories[0], directories[1]):
            await until(lambda: bool(read))
            assert await move(client, target, ("t", [0])) == [0]
            await moved(client, ("t", 0), target)
        stop.set()
    assert len(written) > 303
    assert read == written[: len(read)]
    await until(lambda: not list(directories[0].glob("t-0*")))
    offset, found = 0, []
    while offset < len(written):
        found += values_of(await fetch(client, topic, offset))
        offset = len(found)
    assert found == written
    assert two.node.partitions.logs.future("t", 0) is None


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


async def test_a_move_survives_restarts(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"a"]))
        assert await move(wire, directories[1], ("t", [0])) == [0]
        await moved(wire, ("t", 0), directories[1])
        await produce(wire, topic, batch([b"b"]))
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert (await places(wire))["t", 0][0] == "two"
        assert values_of(await fetch(wire, topic)) == [b"a", b"b"]


async def test_a_move_that_a_stop_broke_off_goes_on(directories: list[Path]) -> None:
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"a"]))
        replica = broker.node.partitions.named_replica("t", 0)
        broker.node.partitions.logs.start_move(
            replica.log, str(directories[1])
        )  # nobody carries it out
        broker.node.partitions.logs.next_future().copy(100, now_ms=0)  # type: ignore[union-attr]
        found = await describe(wire, ("t", [0]))
        (now,), (future,) = (directory.topics[0].partitions for directory in found)
        assert (now.is_future_key, future.is_future_key, future.offset_lag) == (False, True, 0)
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        await moved(wire, ("t", 0), directories[1])
        assert values_of(await fetch(wire, topic)) == [b"a"]


async def test_groups_go_on_when_their_offsets_move(directories: list[Path]) -> None:
    name = "__consumer_offsets"
    async with (
        started(directories, offsets_topic_num_partitions=3) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t")
        await commit(wire, "g", "t", 5)
        for index in range(3):
            here = (await places(wire))[name, index][0]
            target = directories[here == "one"]
            assert await move(wire, target, (name, [index])) == [0]
            await moved(wire, (name, index), target)
        assert await committed(wire, "g", "t") == 5
        await commit(wire, "g", "t", 6)
        assert await committed(wire, "g", "t") == 6


async def test_deleting_records_and_topics_while_they_move(
    two: Broker, client: Wire, directories: list[Path]
) -> None:
    topic = await create_topic(client, "t")
    for _ in range(5):
        await produce(client, topic, batch([b"x" * 100]))
    replica = two.node.partitions.named_replica("t", 0)
    replica.delete_records_before(3)
    assert await move(client, directories[1], ("t", [0])) == [0]
    await moved(client, ("t", 0), directories[1])
    assert (await list_offset(client, topic, EARLIEST)).offset == 3
    assert await move(client, directories[0], ("t", [0])) == [0]
    await delete_topic(client, "t")
    await until(lambda: not [p.name for each in directories for p in each.glob("t-0*")])
    assert await client.works()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_what_cannot_move(client: Wire, directories: list[Path], version: int) -> None:
    await create_topic(client, "t")
    cls = AlterReplicaLogDirsRequest
    rows = [cls.Topic(name="t", partitions=[0, 7]), cls.Topic(name="none", partitions=[0])]
    ask = cls(dirs=[cls.Dir(path=str(directories[0]), topics=rows)])
    answer = await client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, ask)
    found = [
        (topic.topic_name, row.partition_index, row.error_code)
        for topic in answer.results
        for row in topic.partitions
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [("t", 0, 0), ("t", 7, unknown), ("none", 0, unknown)]
    for path in (directories[0] / "other", "one", ""):
        assert await move(client, path, ("t", [0])) == [ErrorCode.LOG_DIR_NOT_FOUND]


async def test_to_stay_ends_a_move(two: Broker, client: Wire, directories: list[Path]) -> None:
    topic = await create_topic(client, "t")
    await produce(client, topic, batch([b"a"]))
    logs = two.node.partitions.logs
    logs.start_move(two.node.partitions.named_replica("t", 0).log, str(directories[1]))
    assert await move(client, directories[0], ("t", [0])) == [0]
    assert logs.future("t", 0) is None
    assert (await places(client))["t", 0][0] == "one"
    assert values_of(await fetch(client, topic)) == [b"a"]


async def test_a_copy_that_fails_is_given_up(
    two: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(client, "t")
    await produce(client, topic, batch([b"a"]))

    def refuse(self: Any, bytes_max: int, reading: Any, *, now_ms: int) -> bool:
        raise StorageError("the disk is full")

    monkeypatch.setattr("kbroker.storage.future.FutureLog.copy", refuse)
    assert await move(client, directories[1], ("t", [0])) == [0]
    await until(lambda: two.node.partitions.logs.future("t", 0) is None)
    assert values_of(await fetch(client, topic)) == [b"a"]
    assert (await produce(client, topic, batch([b"b"]))).error_code == 0


async def test_a_move_that_fails_between_the_names_is_finished_by_the_next_start(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Any, key: Any, name: str) -> None:
        raise StorageError("the disk is gone")

    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"a"]))
        with monkeypatch.context() as patch:
            patch.setattr("kbroker.storage.manager.LogManager.install_future", refuse)
            assert await move(wire, directories[1], ("t", [0])) == [0]
            await until(lambda: "offline until the node restarts" in caplog.text)
        row = await produce(wire, topic, batch([b"b"]))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert (await places(wire))["t", 0][0] == "two"
        assert values_of(await fetch(wire, topic)) == [b"a"]
        assert (await produce(wire, topic, batch([b"b"]))).error_code == 0


async def test_a_copy_whose_directory_is_gone_is_given_up(
    two: Broker, client: Wire, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(client, "t")
    await produce(client, topic, batch([b"a"]))

    def refuse(self: Any) -> None:
        raise FileNotFoundError(2, "no such file", "somewhere")

    monkeypatch.setattr("kbroker.storage.future.FutureLog.finish", refuse)
    assert await move(client, directories[1], ("t", [0])) == [0]
    await until(lambda: two.node.partitions.logs.future("t", 0) is None)
    assert values_of(await fetch(client, topic)) == [b"a"]
