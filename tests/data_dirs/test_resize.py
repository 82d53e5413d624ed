"""Conversion of data directories between one and several nodes, with crashes at every step."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.data_dirs.data_directories import JOURNAL_RESERVE
from kbroker.data_dirs.found_directories import JOURNAL_END, METADATA_JOURNAL
from kbroker.data_dirs.resize import PLAN_FILE, finish, grow, shrink
from kbroker.protocol.errors import ErrorCode
from kbroker.storage.errors import StorageError
from kbroker.storage.files import OsFiles

from ..brokers import started
from ..wire import Topic, batch, connected, create_topic, fetch, produce, values_of

pytestmark = pytest.mark.usefixtures("no_settings_of_this_machine")


VALUES = [b"a", b"b", b"c"]
# Partition 1 of the second topic has the same directory name as node 1.
TOPICS = ("orders", "node")


class Killed(Exception):
    """Simulated death of the process."""


class MortalFiles(OsFiles):
    """Files that raise Killed before change number `left`."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _change(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def rename(self, old: str, new: str) -> None:
        self._change()
        super().rename(old, new)

    def mkdir(self, path: str) -> None:
        self._change()
        super().mkdir(path)

    def rmtree(self, path: str) -> None:
        self._change()
        super().rmtree(path)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self._change()
        super().write_atomic(path, data)


@pytest.fixture
async def alone(tmp_path: Path) -> Path:
    """Return the directory of a stopped single node."""
    directory = tmp_path / "alone"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        for name in TOPICS:
            topic = await create_topic(wire, name, 3)
            for index in range(3):
                row = await produce(wire, topic, batch(VALUES), partition=index)
                assert row.error_code == ErrorCode.NONE
    return directory


async def _check(broker: Broker) -> None:
    """Check that all data exists."""
    for name in TOPICS:
        topic = broker.node.cluster.topics[name]
        for partition in topic.partitions:
            local = broker.local_node(partition.leader)
            async with connected(local.endpoint) as wire:
                row = await fetch(wire, Topic(name, topic.id), partitions=[partition.index])
                assert values_of(row) == VALUES


async def test_cluster_grows_to_three_nodes_and_shrinks_back(alone: Path) -> None:
    assert grow(OsFiles(), [str(alone)], 3) == [1, 2, 3]
    files = {METADATA_JOURNAL, JOURNAL_RESERVE, JOURNAL_END, ".lock"}
    files |= {"node-1", "node-2", "node-3"}
    assert set(os.listdir(alone)) == files
    async with started(alone) as broker:
        assert [each.id for each in broker.nodes] == [1, 2, 3]
        assert all(each.node.partitions.logs.clean for each in broker.nodes)
        await _check(broker)
    assert await shrink(OsFiles(), [str(alone)]) == 1
    assert not {"node-3", ".moving", ".moved"} & set(os.listdir(alone))
    async with started(alone) as broker:
        assert [each.id for each in broker.nodes] == [1]
        assert broker.node.cluster.node_ids == [1]
        await _check(broker)


async def test_all_data_directories_are_converted(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        for name in TOPICS:
            topic = await create_topic(wire, name, 3)
            for index in range(3):
                await produce(wire, topic, batch(VALUES), partition=index)
    paths = [str(each) for each in directories]
    grow(OsFiles(), paths, 2)
    async with started(directories) as broker:
        assert [each.id for each in broker.nodes] == [1, 2]
        await _check(broker)
    await shrink(OsFiles(), paths)
    async with started(directories) as broker:
        await _check(broker)


async def test_multi_node_cluster_grows_further(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=2):
        pass
    assert grow(OsFiles(), [str(tmp_path)], 4) == [1, 2, 3, 4]
    async with started(tmp_path) as broker:
        assert [each.id for each in broker.nodes] == [1, 2, 3, 4]


@pytest.mark.slow
async def test_interrupted_growth_is_atomic(alone: Path, tmp_path: Path) -> None:
    seen = set()
    for left in range(1000):
        directory = tmp_path / "copy"
        shutil.copytree(alone, directory)
        try:
            grow(MortalFiles(left), [str(directory)], 3)
        except Killed:
            is_over = False
        else:
            is_over = True
        async with started(directory) as broker:
            seen.add(len(broker.nodes))
            await _check(broker)
        shutil.rmtree(directory)
        if is_over:
            break
    assert seen == {1, 3}
    assert left > 10


@pytest.mark.slow
async def test_interrupted_shrinking_is_atomic(alone: Path, tmp_path: Path) -> None:
    grow(OsFiles(), [str(alone)], 3)
    seen = set()
    for left in range(1000):
        directory = tmp_path / "copy"
        shutil.copytree(alone, directory)
        try:
            await shrink(MortalFiles(left), [str(directory)])
        except Killed:
            is_over = False
        else:
            is_over = True
        async with started(directory) as broker:
            seen.add(len(broker.nodes))
            await _check(broker)
        shutil.rmtree(directory)
        if is_over:
            break
    assert seen == {1, 3}
    assert left > 10


async def test_directory_in_use_is_rejected_unchanged(tmp_path: Path) -> None:
    async with started(tmp_path):
        with pytest.raises(StorageError, match="another broker uses this data directory"):
            grow(OsFiles(), [str(tmp_path)], 3)


async def test_shrink_with_partitions_on_several_nodes_is_rejected(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=2) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "orders", 3)
    with pytest.raises(StorageError, match=r"on several nodes \(node 1 has 2; node 2 has 1\)"):
        await shrink(OsFiles(), [str(tmp_path)])


async def test_invalid_resize_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match="the directories are empty; start with `kbroker serve --nodes 3`"
    ):
        grow(OsFiles(), [str(tmp_path)], 3)
    async with started(tmp_path, nodes=3):
        pass
    with pytest.raises(StorageError, match="there are already 3 nodes"):
        grow(OsFiles(), [str(tmp_path)], 3)


@pytest.mark.parametrize(
    "change", [{"paths": ["OTHER"]}, {"node_id": "../x"}, {"others": ["../x"]}]
)
def test_plan_file_with_other_paths_is_rejected(tmp_path: Path, change: dict[str, object]) -> None:
    """A plan file must not move files outside the broker's data directories."""
    directory, other = tmp_path / "data", tmp_path / "other"
    for each in (directory, other):
        each.mkdir()
        (each / "kept").write_text("kept")
    text = json.dumps(
        {"grows": True, "paths": [str(directory)], "node_id": 1, "others": [2]} | change
    )
    (directory / PLAN_FILE).write_text(text.replace("OTHER", str(other)))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError, match="provide all data directories"):
        finish(OsFiles(), [str(directory)])
    assert sorted(tmp_path.rglob("*")) == before


async def test_shrink_keeps_records_unknown_to_metadata(
    tmp_path: Path,
) -> None:
    async with started(tmp_path, nodes=2) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        await broker.local_node(1).node.cluster.reassign(
            "t", 0, [1], factor_may_change=False, cause="test"
        )
    stray = tmp_path / "node-2" / f"x-0.{'0' * 32}-stray"
    stray.mkdir()
    (stray / "00000000000000000000.log").write_bytes(b"precious")
    journal = (tmp_path / METADATA_JOURNAL).read_bytes()
    with pytest.raises(StorageError, match="node-2 would be removed, but contains x-0"):
        await shrink(OsFiles(), [str(tmp_path)])
    assert (stray / "00000000000000000000.log").read_bytes() == b"precious"
    assert (tmp_path / METADATA_JOURNAL).read_bytes() == journal, "node 2 stays registered"
