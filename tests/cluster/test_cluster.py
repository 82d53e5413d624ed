"""Topics, leader epochs and producer IDs across restarts."""

from collections.abc import Mapping

import pytest

from kbroker.cluster.store import Document, Lease
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.files import MemFiles

from .clusters import open_cluster


async def test_recreated_topic_gets_new_id() -> None:
    cluster = await open_cluster(MemFiles())
    first = await cluster.create_topic("a", [[1]], {}, cause="test")
    await cluster.delete_topic("a", cause="test")
    second = await cluster.create_topic("a", [[1]], {}, cause="test")
    assert first.id != second.id
    assert list(cluster.topics_by_id) == [second.id]


@pytest.mark.parametrize("change", ["configs", "partitions", "deletion", "recreation"])
async def test_topic_that_changes_during_its_deletion_is_deleted(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    cluster = await open_cluster(MemFiles())
    topic = await cluster.create_topic("a", [[1]], {}, cause="test")
    transact = cluster._store.transact

    async def change_before(
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        monkeypatch.setattr(cluster._store, "transact", transact)
        if change == "configs":
            await cluster.alter_topic_configs(topic, {"retention.ms": "5"}, cause="test")
        elif change == "partitions":
            await cluster.add_partitions("a", [[1]], cause="test")
        else:
            await cluster.delete_topic("a", cause="test")
        if change == "recreation":
            await cluster.create_topic("a", [[1]], {}, cause="test")
        return await transact(puts, compares=compares, cause=cause, lease=lease)

    monkeypatch.setattr(cluster._store, "transact", change_before)
    await cluster.delete_topic("a", cause="test")
    assert topic.id not in cluster.topics_by_id
    assert ("a" in cluster.topics) == (change == "recreation")
    assert not cluster.strays


async def test_added_partitions_are_appended() -> None:
    files = MemFiles()
    cluster = await open_cluster(files)
    await cluster.create_topic("a", [[1]], {}, cause="test")
    await cluster.add_partitions("a", [[1], [1]], cause="test")
    reopened = await open_cluster(files)
    assert [p.index for p in reopened.topics["a"].partitions] == [0, 1, 2]
    assert [p.leader_epoch for p in reopened.topics["a"].partitions] == [1, 1, 1]


async def test_producer_ids_are_never_reused() -> None:
    files = MemFiles()
    cluster = await open_cluster(files)
    first = await cluster.allocate_producer_ids(10)
    reopened = await open_cluster(files)
    second = await reopened.allocate_producer_ids(10)
    assert not set(first) & set(second)


async def test_replication_factor_above_node_count_is_rejected() -> None:
    cluster = await open_cluster(MemFiles())
    with pytest.raises(KafkaError) as raised:
        cluster.place_partitions(1, 3)
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "replication.factor.clamp" in str(raised.value)
