"""Directories that contain another partition than their name says are kept and reported."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.storage.checkpoints import PartitionMetadata, encode_id

from ..brokers import started
from ..replication.harness import place_topic, send, until_equal, until_leader, values_in
from ..wire import (
    Topic,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    produce,
    until,
    values_of,
)

VALUES = [b"precious %d" % number for number in range(5)]


async def write(data: Path, topics: Mapping[str, int], prefix: bytes = b"") -> dict[str, Topic]:
    """Start a broker and write records that contain the partition's name into each partition."""
    made = {}
    async with started(data) as broker, connected(broker.endpoint) as wire:
        for name, partitions in topics.items():
            made[name] = await create_topic(wire, name, partitions)
            for index in range(partitions):
                records = batch([prefix + b"%s-%d" % (name.encode(), index), *VALUES])
                assert (await produce(wire, made[name], records, partition=index)).error_code == 0
    return made


async def served(broker: Broker, name: str, index: int) -> list[bytes | None] | None:
    """Return the values of a partition, None if the partition is offline."""
    topic = broker.node.cluster.topics[name]
    async with connected(broker.endpoint) as wire:
        row = await fetch(wire, Topic(name, topic.id), partitions=[index])
    if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
        return None
    assert row.error_code == 0
    return values_of(row)


def read_partition_metadata(directory: Path) -> PartitionMetadata:
    found = PartitionMetadata.from_bytes((directory / "partition.metadata").read_bytes())
    assert found is not None
    return found


def strays_in(data: Path) -> list[Path]:
    return [*data.glob("*-stray")]


def kept_records(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("*.log"))


def swap(one: Path, two: Path) -> None:
    one.rename(one.with_name("x"))
    two.rename(one)
    one.with_name("x").rename(two)


async def test_directory_of_another_cluster_is_kept_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    await write(data, {"a": 1, "b": 1})
    await write(other, {"a": 1}, prefix=b"other ")
    ours, theirs = (
        read_partition_metadata(data / "a-0").topic_id,
        read_partition_metadata(other / "a-0").topic_id,
    )
    shutil.rmtree(data / "a-0")
    shutil.copytree(other / "a-0", data / "a-0")
    for _ in range(2):
        async with started(data) as broker:
            assert await served(broker, "a", 0) == []
            assert await served(broker, "b", 0) == [b"b-0", *VALUES]
        (stray,) = data.glob("*-stray")
        assert stray.name == f"a-0.{theirs.hex}-stray"
        assert b"other a-0" in kept_records(stray)
    (line,) = [each for each in caplog.records if "starts empty" in each.getMessage()]
    assert line.levelname == "WARNING"
    for text in ("a-0", encode_id(ours), encode_id(theirs), str(stray), "restore"):
        assert text in line.getMessage()


@pytest.mark.parametrize(("one", "two"), [("a-0", "a-1"), ("a-0", "b-0")])
async def test_swapped_directories_are_offline_until_they_have_their_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, one: str, two: str
) -> None:
    await write(tmp_path, {"a": 3, "b": 1})
    swap(tmp_path / one, tmp_path / two)
    async with started(tmp_path) as broker:
        for name in (one, two):
            topic, index = name.split("-")
            assert await served(broker, topic, int(index)) is None
        assert await served(broker, "a", 2) == [b"a-2", *VALUES]
    assert f"it is the directory of {two}" in caplog.text
    assert f"it is the directory of {one}" in caplog.text
    swap(tmp_path / one, tmp_path / two)
    async with started(tmp_path) as broker:
        for name in (one, two):
            topic, index = name.split("-")
            assert await served(broker, topic, int(index)) == [name.encode(), *VALUES]
    assert not strays_in(tmp_path)


async def test_copied_directory_does_not_stand_for_another_partition(tmp_path: Path) -> None:
    await write(tmp_path, {"a": 2})
    shutil.rmtree(tmp_path / "a-1")
    shutil.copytree(tmp_path / "a-0", tmp_path / "a-1")
    async with started(tmp_path) as broker:
        assert await served(broker, "a", 0) == [b"a-0", *VALUES]
        assert await served(broker, "a", 1) is None


async def test_topic_deletion_keeps_a_directory_of_another_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    await write(data, {"a": 1})
    await write(other, {"a": 1}, prefix=b"other ")
    shutil.rmtree(data / "a-0")
    shutil.copytree(other / "a-0", data / "a-0")
    async with started(data) as broker, connected(broker.endpoint) as wire:
        await delete_topic(wire, "a")
        (stray,) = data.glob("*-stray")
    assert b"other a-0" in kept_records(stray)
    assert str(stray) in caplog.text


async def test_file_with_the_name_of_an_unknown_partition_is_left_alone(tmp_path: Path) -> None:
    await write(tmp_path, {"a": 1})
    (tmp_path / "notes-1").write_text("mine")
    async with started(tmp_path) as broker:
        assert await served(broker, "a", 0) == [b"a-0", *VALUES]
    assert (tmp_path / "notes-1").read_text() == "mine"


async def test_replica_with_a_foreign_directory_does_not_empty_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node is in the ISR and leads: followers must not truncate their logs to its empty log."""
    data, other = tmp_path / "data", tmp_path / "other"
    async with started(data, nodes=3) as broker:
        topic = await place_topic(broker, "a", 1, 2, 3)
        leader = await until_leader(broker, "a", {1, 2, 3})
        await send(broker, leader, topic, *VALUES)
        await until_equal(broker, "a", 1, 2, 3)
    await write(other, {"a": 1}, prefix=b"other ")
    directory = data / f"node-{leader}" / "a-0"
    shutil.rmtree(directory)
    shutil.copytree(other / "a-0", directory)
    async with started(data, nodes=3) as broker:
        await until_leader(broker, "a", {1, 2, 3} - {leader})
        await until(lambda: leader in broker.node.cluster.topics["a"].partitions[0].isr)
        for node_id in (1, 2, 3):
            log = broker.local_node(node_id).node.partitions.named_hosted("a", 0).log
            assert values_in(log) == VALUES
    (stray,) = (data / f"node-{leader}").glob("*-stray")
    assert b"other a-0" in kept_records(stray)
    assert "starts empty" in caplog.text
    assert "a-0 would start empty on node" in caplog.text


async def test_replica_that_moved_away_while_its_node_was_down_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "a", 1, 2)
        await send(broker, 1, topic, *VALUES)
        await until_equal(broker, "a", 1, 2)
        await broker.local_node(2).stop()
        await broker.node.cluster.reassign("a", 0, [1, 3], factor_may_change=False, cause="test")
        await until(lambda: broker.node.cluster.topics["a"].partitions[0].replicas == [1, 3])
        await broker.local_node(2).start()
        (stray,) = (tmp_path / "node-2").glob("*-stray")
    assert VALUES[0] in kept_records(stray)
    assert str(stray) in caplog.text


async def test_records_newer_than_the_metadata_are_served_and_appended_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older metadata log has lower leader epochs than the records."""
    await write(tmp_path, {"a": 1})
    before = (tmp_path / "cluster.journal").read_bytes()
    for number in range(3):
        async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
            topic = Topic("a", broker.node.cluster.topics["a"].id)
            assert (await produce(wire, topic, batch([b"%d" % number]))).error_code == 0
    (tmp_path / "cluster.journal").write_bytes(before)
    (tmp_path / "cluster.journal.clean").unlink()
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        broker.node.partitions.named_hosted("a", 0)
        await until(lambda: broker.node.cluster.topics["a"].partitions[0].leader_epoch > 3)
        assert (await produce(wire, topic, batch([b"after"]))).error_code == 0
        assert await served(broker, "a", 0) == [b"a-0", *VALUES, b"0", b"1", b"2", b"after"]
    assert caplog.text.count("metadata is older than the records: a-0") == 1
