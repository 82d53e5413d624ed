"""Migration of a stopped cluster's metadata to another store and back."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.cluster.keys import LEAVING, META
from kbroker.cluster.quota_changes import alter_quotas
from kbroker.data_dirs.metadata_migration import move_to_directories, move_to_store
from kbroker.security.scram import ScramMechanism, credential_from
from kbroker.storage.errors import StorageError
from kbroker.storage.files import OsFiles

from ..brokers import started
from ..cluster.strict_store import Strict
from ..wire import Topic, Wire, batch, connected, create_topic, fetch, metadata, produce, values_of

FILES = OsFiles()
BOB = credential_from(ScramMechanism.SHA_256, b"hash of a password", b"salt", 4096)


async def fill(directory: Path, nodes: int) -> object:
    """Create topics and records, and return the state that clients see."""
    async with started(directory, nodes=nodes) as broker, connected(broker.endpoint) as wire:
        for number in range(3):
            topic = await create_topic(wire, f"t{number}", 100, {"retention.ms": "-1"})
            async with leader_of(broker, topic.name) as leader:
                row = await produce(leader, topic, batch([b"%d" % number]))
                assert row.error_code == 0
        users = {"bob": {ScramMechanism.SHA_256: BOB}}
        assert await broker.node.cluster.put_scram_users(users, cause="test")
        quota = {"producer_byte_rate": 1e9}
        await alter_quotas(broker.node.cluster, [({"user": "bob"}, quota)], cause="test")
        return [broker.node.cluster.scram_users.secret, *await replicas_of_topics(wire)]


def leader_of(broker: Broker, name: str) -> AbstractAsyncContextManager[Wire]:
    """Connect to the leader of partition 0."""
    node_id = broker.node.cluster.topics[name].partitions[0].leader
    return connected(broker.local_node(node_id).endpoint)


async def replicas_of_topics(wire: Wire) -> list[object]:
    response = await metadata(wire, ["t0", "t1", "t2"])
    return [
        (topic.name, topic.topic_id, [(row.partition_index, row.replica_nodes) for row in rows])
        for topic in response.topics
        if (rows := topic.partitions)
    ]


async def check(directory: Path, nodes: int, before: object) -> None:
    async with started(directory, nodes=nodes) as broker, connected(broker.endpoint) as wire:
        users = broker.node.cluster.scram_users
        assert users.credentials("bob") == {ScramMechanism.SHA_256: BOB}
        assert [users.secret, *await replicas_of_topics(wire)] == before
        (quota,) = broker.node.cluster.client_quotas.all
        assert quota == ({"user": "bob"}, {"producer_byte_rate": 1e9})
        async with leader_of(broker, "t1") as leader:
            assert values_of(await fetch(leader, Topic("t1"))) == [b"1"]
        assert broker.node.cluster.topics["t2"].configs == {"retention.ms": "-1"}


@pytest.mark.parametrize("nodes", [1, 3])
async def test_metadata_migrates_to_store_and_back(tmp_path: Path, nodes: int) -> None:
    directory = tmp_path / "data"
    before = await fill(directory, nodes)
    store = Strict()
    found = await move_to_store(FILES, [str(directory)], store)
    own = {1: [str(directory)]} if nodes == 1 else None
    assert found == (own or {each: [str(directory / f"node-{each}")] for each in (1, 2, 3)})
    with pytest.raises(StorageError, match=re.escape("no cluster.journal")):
        async with started(directory, nodes=nodes):
            pass
    assert await move_to_directories(FILES, [str(directory)], store) == found
    assert (await store.range("")).entries == {}
    await check(directory, nodes, before)


async def test_interrupted_migration_is_continued(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    before = await fill(directory, 1)
    store = Strict()
    for fails_after in range(20):
        store.fails_after = fails_after
        try:
            await move_to_store(FILES, [str(directory)], store)
            break
        except StorageError:
            with pytest.raises(StorageError, match="finish the migration"):
                async with started(directory):
                    pass
    assert fails_after >= 3
    for fails_after in range(20):
        store.fails_after = fails_after
        try:
            await move_to_directories(FILES, [str(directory)], store)
            break
        except StorageError:
            entries = (await store.range("")).entries
            assert (LEAVING in entries) != (META in entries)
    assert fails_after >= 2
    store.fails_after = 10**9
    assert (await store.range("")).entries == {}
    await check(directory, 1, before)


async def test_target_with_another_cluster_is_rejected_unchanged(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    before = await fill(directory, 1)
    store = Strict()
    await store.transact({META: {"cluster_id": "other"}}, compares={}, cause="test")
    with pytest.raises(StorageError, match="the target contains another cluster, other"):
        await move_to_store(FILES, [str(directory)], store)
    await check(directory, 1, before)


async def test_running_nodes_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await fill(directory, 1)
    store = Strict()
    await move_to_store(FILES, [str(directory)], store)
    await store.transact({"live/1": {}}, compares={}, cause="test")
    with pytest.raises(StorageError, match="nodes 1 of this cluster run"):
        await move_to_directories(FILES, [str(directory)], store)


async def test_missing_directories_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await fill(directory, 3)
    store = Strict()
    await move_to_store(FILES, [str(directory)], store)
    (directory / "node-2").rename(tmp_path / "away")
    with pytest.raises(StorageError, match=r"copy them to .*node-2"):
        await move_to_directories(FILES, [str(directory)], store)


async def test_directory_without_cluster_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no data of a cluster"):
        await move_to_store(FILES, [str(tmp_path)], Strict())


async def test_migration_back_rejects_older_journal(tmp_path: Path) -> None:
    directory, other = tmp_path / "data", tmp_path / "other"
    paths = [str(directory), str(other)]
    before = await fill(directory, 1)
    other.mkdir()
    store = Strict()
    await move_to_store(FILES, [str(directory)], store)
    migrated = directory / "cluster.journal.migrated"
    for path in (directory, other):
        older = path / "cluster.journal"
        older.write_bytes(migrated.read_bytes())
        with pytest.raises(StorageError, match="already exists, but the store contains"):
            await move_to_directories(FILES, paths, store)
        assert META in (await store.range("")).entries
        older.unlink()
    await move_to_directories(FILES, [str(directory)], store)
    await check(directory, 1, before)
