"""Topics, leader epochs and producer ids as all nodes see them, across restarts."""

import pytest

from kbroker.cluster import Cluster, LocalStore, TopicsChanged
from kbroker.cluster.controller import Controller
from kbroker.cluster.membership import Membership
from kbroker.cluster.model import random_cluster_id
from kbroker.config import BrokerConfig
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.files import MemFiles


async def start(cluster: Cluster) -> None:
    """Let node 1 join and lead what it can."""
    member = Membership(cluster, BrokerConfig(), directories={}, is_clean=True, keeps_records=True)
    cluster.subscribe_nodes(member.nodes_changed)
    await member.register({})
    await member.become_ready()
    await Controller(cluster, member, BrokerConfig()).settle()


async def open_cluster(files: MemFiles) -> Cluster:
    files.mkdir("data")
    cluster = await Cluster.open(LocalStore(files, "data/journal"))
    await start(cluster)
    return cluster


async def test_ids_survive_a_restart_and_leader_epochs_rise() -> None:
    files = MemFiles()
    cluster = await open_cluster(files)
    topic = await cluster.create_topic("a", [[1], [1]], {"retention.ms": "5"}, cause="test")
    assert [p.leader_epoch for p in topic.partitions] == [0, 0]
    again = await open_cluster(files)
    found = again.topics["a"]
    assert again.id == cluster.id
    assert found.id == topic.id
    assert found.configs == {"retention.ms": "5"}
    assert [(p.leader, p.leader_epoch, p.isr) for p in found.partitions] == [(1, 1, [1])] * 2


async def test_a_deleted_name_is_free_at_once_and_gets_a_new_id() -> None:
    cluster = await open_cluster(MemFiles())
    first = await cluster.create_topic("a", [[1]], {}, cause="test")
    await cluster.delete_topic("a", cause="test")
    second = await cluster.create_topic("a", [[1]], {}, cause="test")
    assert first.id != second.id
    assert list(cluster.topics_by_id) == [second.id]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a.b", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a\0", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("ä", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a\n", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_names_that_cannot_be(name: str, code: ErrorCode) -> None:
    cluster = await open_cluster(MemFiles())
    await cluster.create_topic("a.b", [[1]], {}, cause="test")
    with pytest.raises(KafkaError) as raised:
        await cluster.create_topic(name, [[1]], {}, cause="test")
    assert raised.value.code == code


async def test_added_partitions_come_after_the_old_ones() -> None:
    files = MemFiles()
    cluster = await open_cluster(files)
    await cluster.create_topic("a", [[1]], {}, cause="test")
    await cluster.add_partitions("a", [[1], [1]], cause="test")
    again = await open_cluster(files)
    assert [p.index for p in again.topics["a"].partitions] == [0, 1, 2]
    assert [p.leader_epoch for p in again.topics["a"].partitions] == [1, 1, 1]


async def test_producer_ids_are_never_given_twice() -> None:
    files = MemFiles()
    cluster = await open_cluster(files)
    first = await cluster.allocate_producer_ids(10)
    again = await open_cluster(files)
    second = await again.allocate_producer_ids(10)
    assert not set(first) & set(second)


async def test_listeners_hear_what_changed_and_why() -> None:
    cluster = await open_cluster(MemFiles())
    heard: list[TopicsChanged] = []
    cluster.subscribe(heard.append)
    topic = await cluster.create_topic("a", [[1]], {}, cause="asked")
    await cluster.add_partitions("a", [[1]], cause="grown")
    await cluster.delete_topic("a", cause="gone")
    assert [(e.created, e.changed, e.deleted, e.cause) for e in heard] == [
        ([topic], [], [], "asked"),
        ([], [topic], [], "grown"),
        ([], [], [topic], "gone"),
    ]


async def test_a_store_of_another_cluster_is_refused() -> None:
    files = MemFiles()
    await open_cluster(files)
    with pytest.raises(ValueError, match="belongs to cluster"):
        await Cluster.open(LocalStore(files, "data/journal"), cluster_id=random_cluster_id())


async def test_more_replicas_than_nodes_are_refused() -> None:
    cluster = await open_cluster(MemFiles())
    with pytest.raises(KafkaError) as raised:
        cluster.place_partitions(1, 3)
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "replication.factor.clamp" in str(raised.value)


def test_cluster_ids_look_like_kafkas() -> None:
    ids = {random_cluster_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)


async def test_a_journal_from_before_nodes_registered_is_read() -> None:
    files = MemFiles()
    files.mkdir("data")
    store = LocalStore(files, "data/journal")
    topic_id = "317ad9a5-c189-424d-ae95-76db51159248"
    place = {"replicas": [1], "isr": [1], "leader": 1, "leader_epoch": 4}
    await store.transact(
        {
            "meta": {"cluster_id": "OrnxHs91TRKzTHq2-ZmFxw"},
            "controller": {"node": 1, "epoch": 7},
            "nodes/1": {"directories": {"S9v80FFvS02I_CYAP_S8zg": "/data"}},
            "topics/a": {"id": topic_id, "partitions": 1, "configs": {}},
            f"p/{topic_id}/0": place,
        },
        compares={},
        cause="an earlier version",
    )
    cluster = await open_cluster(files)
    (partition,) = cluster.topics["a"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 5, [1])
    assert partition.leader_registration == cluster.nodes[1].epoch
    assert cluster.controller_epoch == 8
