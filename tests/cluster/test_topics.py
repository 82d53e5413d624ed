"""Topics with more partitions than one transaction of a store can write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from trio.testing import MockClock

from kbroker.cluster import Cluster, LocalStore
from kbroker.cluster.controller import BATCH_MAX
from kbroker.cluster.keys import META, PARTITIONS, TOPICS, partition_key
from kbroker.cluster.placement import Load
from kbroker.cluster.store import ABSENT, OPERATIONS_MAX, Document, Lease
from kbroker.cluster.view import PartitionChange
from kbroker.protocol.errors import ErrorCode
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles

from .members import TOPIC, Member, make_topic, members, wait_until_settled
from .strict_store import Strict

COUNT = 1000


async def started(store: LocalStore, node_id: int) -> Member:
    member = Member(node_id, store)
    await member.start()
    return member


async def touch_all(cluster: Cluster, name: str) -> None:
    """Change each partition of a topic, so that each has its own entry."""
    topic = cluster.topics[name]
    for first in range(0, len(topic.partitions), 100):
        some = topic.partitions[first : first + 100]
        changes = [PartitionChange(topic, each, each) for each in some]
        assert await cluster.put_partitions(changes, fences={}, cause="test")


async def remaining_keys(store: LocalStore, prefix: str) -> list[str]:
    return [*(await store.range(prefix)).entries]


async def test_large_topic_is_created_by_one_put() -> None:
    files = MemFiles()
    store = Strict(files)
    member = await started(store, 1)
    await started(store, 2)
    cluster = member.cluster
    store.operations.clear()
    made = await cluster.create_topic("a", [[1, 2], [2, 1]] * COUNT, {}, cause="test")
    assert store.operations == [1]
    assert [each.leader for each in made.partitions] == [1, 2] * COUNT
    assert all(each.isr == each.replicas for each in made.partitions)
    registrations = [each.leader_registration for each in made.partitions[:2]]
    assert registrations == [cluster.nodes[1].epoch, cluster.nodes[2].epoch]
    reopened = await Cluster.open(LocalStore(files, "data/journal"))
    assert reopened.topics["a"].partitions == made.partitions


async def test_unready_nodes_are_not_in_isr_of_new_topic() -> None:
    store = Strict(MemFiles())
    cluster = (await started(store, 1)).cluster
    topic = await cluster.create_topic("a", [[2, 1], [2, 3]], {}, cause="test")
    assert [(each.leader, each.isr) for each in topic.partitions] == [(1, [1]), (-1, [2, 3])]


async def test_added_partitions_use_current_ready_nodes() -> None:
    files = MemFiles()
    store = Strict(files)
    cluster = (await started(store, 1)).cluster
    await cluster.create_topic("a", [[1, 2]] * 3, {}, cause="test")
    await touch_all(cluster, "a")
    await started(store, 2)
    store.operations.clear()
    await cluster.add_partitions("a", [[2, 1]] * COUNT, cause="test")
    assert store.operations == [1]
    partitions = cluster.topics["a"].partitions
    assert [each.index for each in partitions] == [*range(3 + COUNT)]
    assert [each.isr for each in partitions[:4]] == [[1], [1], [1], [2, 1]]
    reopened = await Cluster.open(LocalStore(files, "data/journal"))
    assert reopened.topics["a"].partitions == partitions


async def test_large_topic_configs_change_by_one_put() -> None:
    files = MemFiles()
    store = Strict(files)
    cluster = (await started(store, 1)).cluster
    topic = await cluster.create_topic("a", [[1]] * COUNT, {}, cause="test")
    assert await cluster.alter_topic_configs(topic, {"retention.ms": "5"}, cause="test")
    reopened = await Cluster.open(LocalStore(files, "data/journal"))
    assert reopened.topics["a"].configs == {"retention.ms": "5"}
    assert len(reopened.topics["a"].partitions) == COUNT


async def test_first_partition_change_compares_with_absent_entry() -> None:
    store = Strict(MemFiles())
    cluster = (await started(store, 1)).cluster
    topic = await cluster.create_topic("a", [[1]], {}, cause="test")
    before = topic.partitions[0]
    assert before.revision == ABSENT
    change = [PartitionChange(topic, before, before)]
    assert await cluster.put_partitions(change, fences={}, cause="test")
    assert await cluster.put_partitions(change, fences={}, cause="test") is None


async def test_deleted_large_topic_leaves_no_entries() -> None:
    store = Strict(MemFiles())
    member = await started(store, 1)
    await member.cluster.create_topic("a", [[1]] * COUNT, {}, cause="test")
    await touch_all(member.cluster, "a")
    await member.cluster.delete_topic("a", cause="test")
    assert await remaining_keys(store, TOPICS) == []
    assert member.cluster.topics == {}
    await member.controller.process_changes()
    assert await remaining_keys(store, PARTITIONS) == []
    assert not member.cluster.strays


@pytest.mark.parametrize("hears_of_it", [True, False])
async def test_next_controller_removes_leftovers_of_deleted_topic(
    hears_of_it: bool,
) -> None:
    store = Strict(MemFiles())
    first = await started(store, 1)
    second = await started(store, 2) if hears_of_it else None
    await first.cluster.create_topic("a", [[1]] * COUNT, {}, cause="test")
    await touch_all(first.cluster, "a")
    await first.cluster.delete_topic("a", cause="test")
    assert len(await remaining_keys(store, PARTITIONS)) == COUNT - OPERATIONS_MAX + 1
    await first.membership.lease.revoke()
    next_one = second or await started(store, 2)
    await next_one.controller.process_changes()
    assert next_one.controller.in_charge
    assert await remaining_keys(store, PARTITIONS) == []


async def test_late_change_of_deleted_topic_is_removed() -> None:
    store = Strict(MemFiles())
    member = await started(store, 1)
    topic = await member.cluster.create_topic("a", [[1]], {}, cause="test")
    late = PartitionChange(topic, topic.partitions[0], topic.partitions[0])
    await member.cluster.delete_topic("a", cause="test")
    await member.cluster.put_partitions([late], fences={}, cause="test")
    assert await remaining_keys(store, PARTITIONS) == [partition_key(topic.id, 0)]
    await member.controller.process_changes()
    assert await remaining_keys(store, PARTITIONS) == []


async def test_running_controller_is_notified_of_late_change_of_deleted_topic(
    autojump_clock: MockClock,
) -> None:
    """Nothing else may wake the controller: the entry would stay until a node or topic changes."""
    async with members(2) as (active, other):
        await make_topic(active, [2, 1])
        topic = other.cluster.topics[TOPIC]
        late = PartitionChange(topic, topic.partitions[0], topic.partitions[0])
        await active.cluster.delete_topic(TOPIC, cause="test")
        await wait_until_settled()
        assert active.controller.in_charge
        assert await other.cluster.put_partitions([late], fences={}, cause="node 1 fell behind")
        assert active.cluster.strays == {partition_key(topic.id, 0)}
        await wait_until_settled()
        assert not active.cluster.strays
        assert not (await Cluster.open(active._store)).strays


class WritingAfterRemoval(Strict):
    """A store to which another node writes before the controller gets the response to a removal."""

    late: tuple[Cluster, PartitionChange] | None = None

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        revision = await super().transact(puts, compares=compares, cause=cause, lease=lease)
        if self.late is not None and cause == "topics were deleted":
            (cluster, change), self.late = self.late, None
            assert await cluster.put_partitions([change], fences={}, cause="test")
        return revision


async def test_late_change_right_after_removal_is_removed_again() -> None:
    store = WritingAfterRemoval()
    member = await started(store, 1)
    topic = await member.cluster.create_topic("a", [[1]], {}, cause="test")
    late = PartitionChange(topic, topic.partitions[0], topic.partitions[0])
    await member.cluster.delete_topic("a", cause="test")
    await member.cluster.put_partitions([late], fences={}, cause="test")
    store.late = member.cluster, late
    await member.controller.process_changes()
    assert store.late is None
    assert await remaining_keys(store, PARTITIONS) == []


async def test_strays_stay_listed_if_removal_fails() -> None:
    store = Strict()
    member = await started(store, 1)
    topic = await member.cluster.create_topic("a", [[1]], {}, cause="test")
    late = PartitionChange(topic, topic.partitions[0], topic.partitions[0])
    await member.cluster.delete_topic("a", cause="test")
    await member.cluster.put_partitions([late], fences={}, cause="test")
    store.fails_after = 0
    with pytest.raises(StorageError):
        await member.controller.process_changes()
    store.fails_after = 1
    await member.controller.process_changes()
    assert await remaining_keys(store, PARTITIONS) == []


async def test_leaders_are_elected_before_isrs_are_updated() -> None:
    store = Strict(MemFiles())
    second = await started(store, 2)
    first = await started(store, 1)
    await first.cluster.create_topic("a", [[1, 2], [2, 1]] * (2 * BATCH_MAX), {}, cause="test")
    store.operations.clear()
    store.causes.clear()
    await first.membership.lease.revoke()
    await second.controller.process_changes()
    assert store.operations == [BATCH_MAX] * 4
    down = "node 1 is down"
    assert store.causes == [down] * 2 + [f"{down} or leaving"] * 2
    partitions = second.cluster.topics["a"].partitions
    assert all((each.leader, each.isr) == (2, [2]) for each in partitions)


async def test_many_leaders_are_elected_in_batches() -> None:
    store = Strict(MemFiles())
    member = await started(store, 1)
    await member.cluster.create_topic("a", [[2, 1]] * BATCH_MAX, {}, cause="test")
    await started(store, 2)
    partitions = [("a", index) for index in range(BATCH_MAX)]
    for index in range(BATCH_MAX):
        await report_in_sync(member, "a", index)
    store.operations.clear()
    found = await member.cluster.elect_leaders(partitions, unclean=False, cause="test")
    assert found == [None] * BATCH_MAX
    assert store.operations == [BATCH_MAX]
    found = await member.cluster.elect_leaders([*partitions, ("b", 0)], unclean=False, cause="test")
    codes = [each.code for each in found if each is not None]
    assert codes[:-1] == [ErrorCode.ELECTION_NOT_NEEDED] * BATCH_MAX
    assert codes[-1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert store.operations == [BATCH_MAX]


async def report_in_sync(member: Member, name: str, index: int) -> None:
    """Store an ISR with all replicas as the leader."""
    topic, partition = member.cluster.existing(name, index)
    after = replace(partition, isr=[*partition.replicas])
    change = PartitionChange(topic, partition, after)
    assert await member.cluster.put_partitions([change], fences={}, cause="test")


async def test_load_is_counted_incrementally() -> None:
    """Recounting all partitions for each new topic would be slow."""
    store = Strict(MemFiles())
    member = await started(store, 1)
    await started(store, 2)
    cluster = member.cluster
    await cluster.create_topic("a", [[1, 2], [2, 1], [2, 1]], {}, cause="test")
    await cluster.create_topic("b", [[1], [1]], {}, cause="test")
    await cluster.add_partitions("a", [[2, 1]], cause="test")
    await cluster.reassign("a", 1, [1], factor_may_change=True, cause="test")
    await member.controller.process_changes()
    await cluster.delete_topic("b", cause="test")
    every = [each.replicas for each in cluster.topics["a"].partitions]
    assert every == [[1, 2], [1], [2, 1], [2, 1]]
    for view in (cluster, await Cluster.open(store)):
        assert view.load.leaders == Load(every).leaders
        assert view.load.replicas == Load(every).replicas
        assert view.load.successors == Load(every).successors


async def test_metadata_of_older_format_is_read() -> None:
    """Format 1 had an entry per partition, and no placement in the entries of topics."""
    store = Strict(MemFiles())
    member = await started(store, 1)
    topic = await member.cluster.create_topic("a", [[1], [1]], {}, cause="test")
    await touch_all(member.cluster, "a")
    document = topic.to_document()
    del document["placed"]
    assert await store.transact({TOPICS + "a": document}, compares={}, cause="as it was")
    reopened = await Cluster.open(store)
    assert reopened.topics["a"].partitions == topic.partitions
    await reopened.add_partitions("a", [[1]], cause="test")
    third = await Cluster.open(store)
    assert [each.leader for each in third.topics["a"].partitions] == [1, 1, 1]


async def test_metadata_of_newer_format_is_rejected() -> None:
    store = Strict(MemFiles())
    await store.transact({META: {"cluster_id": "a", "format": 3}}, compares={}, cause="newer")
    with pytest.raises(StorageError, match="newer format"):
        await Cluster.open(store)
