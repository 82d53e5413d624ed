"""Registration of nodes: start, shutdown, crash and return."""

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from kbroker.cluster import Cluster, LocalStore
from kbroker.cluster.model import random_cluster_id
from kbroker.cluster.store import Document, Lease
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles

from .clusters import open_cluster
from .members import DIRECTORIES, lease_ends, make_topic, members, wait_until_settled


async def test_restart_keeps_ids_and_raises_leader_epochs() -> None:
    files = MemFiles()
    cluster = await open_cluster(files)
    topic = await cluster.create_topic("a", [[1], [1]], {"retention.ms": "5"}, cause="test")
    assert [p.leader_epoch for p in topic.partitions] == [0, 0]
    reopened = await open_cluster(files)
    found = reopened.topics["a"]
    assert reopened.id == cluster.id
    assert found.id == topic.id
    assert found.configs == {"retention.ms": "5"}
    assert [(p.leader, p.leader_epoch, p.isr) for p in found.partitions] == [(1, 1, [1])] * 2


async def test_store_of_another_cluster_is_rejected() -> None:
    files = MemFiles()
    await open_cluster(files)
    with pytest.raises(ValueError, match="belongs to cluster"):
        await Cluster.open(LocalStore(files, "data/journal"), cluster_id=random_cluster_id())


async def test_journal_without_registrations_is_read() -> None:
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


@pytest.mark.parametrize(
    ("stays", "is_clean", "keeps_records"),
    [(True, True, False), (True, False, True), (False, False, False)],
)
async def test_node_leaves_isr_after_unclean_shutdown(
    stays: bool,
    is_clean: bool,
    keeps_records: bool,
) -> None:
    """The lease has not expired, so the other nodes did not notice the crash."""
    async with members(2) as (one, two):
        await make_topic(one, [1, 2], [2])
        one.controller.retire()
        if is_clean:
            await two.membership.end(clean=True)
        await two.crash()
        two.is_clean, two.keeps_records = is_clean, keeps_records
        await two.join()
        assert (2 in one.partition().isr) == stays
        assert one.partition(1).isr == [2], "nobody else has it"


async def test_node_with_new_disk_leaves_isr_and_elr(autojump_clock: MockClock) -> None:
    async with members(2) as (one, two):
        await make_topic(one, [1, 2], [2, 1], [2], min_insync_replicas="2")
        await two.stop()
        await one.put_isr([1])
        assert list(one.partition().elr) == [2]
        two.directories = {"another-directory": "/data"}
        await two.start()
        await wait_until_settled()
        assert list(one.partition().elr) == []
        assert [one.partition(i).isr for i in range(3)] == [[1], [1], [2]]
        two.directories = DIRECTORIES


async def test_interrupted_start_still_detects_new_disk(
    autojump_clock: MockClock,
) -> None:
    async with members(2) as (one, two):
        await make_topic(one, [1, 2], [2, 1], min_insync_replicas="2")
        await two.crash()
        await lease_ends()
        assert [list(one.partition(i).elr) for i in range(2)] == [[2], [2]]
        two.directories = {"another-directory": "/data"}
        await two.register()
        await two.crash()
        await lease_ends()
        await two.start()
        await wait_until_settled()
        assert [list(one.partition(i).elr) for i in range(2)] == [[], []]
        assert [one.partition(i).isr for i in range(2)] == [[1], [1]]
        assert one.cluster.directories(2) == two.directories
        two.directories = DIRECTORIES


async def test_node_registers_again_after_lease_expiry(autojump_clock: MockClock) -> None:
    async with members() as (one, two, _):
        await make_topic(one, [1, 2, 3])
        epoch = one.membership.epoch
        await one.membership.lease.revoke()
        await lease_ends()
        assert one.membership.is_registered
        assert one.membership.epoch > epoch
        assert two.cluster.ready_ids == [1, 2, 3]
        # Node 1 may register again before the controller elects another leader.
        leader = two.cluster.registration(two.partition().leader)
        assert leader is not None
        assert two.partition().leader_registration == leader.epoch
        assert two.partition().leader_epoch == 1


async def test_cordon_during_lost_registration_is_published_later(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, _):
        await one.membership.lease.revoke()
        assert not one.membership.is_registered
        one.membership.cordon(True)
        await lease_ends()
        assert one.membership.is_registered
        assert two.cluster.open_ids == [2, 3]


async def test_cordon_is_published_after_failed_write(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members() as (one, two, _):
        with monkeypatch.context() as patched:
            patched.setattr(one.cluster, "transact", reject_write)
            one.membership.cordon(True)
            await trio.sleep(0.01)
            assert two.cluster.open_ids == [1, 2, 3]
        await lease_ends()
        assert two.cluster.open_ids == [2, 3]


async def test_late_cordon_keeps_clean_end_of_registration(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members() as (one, two, _):
        epoch, transact = one.membership.epoch, one.cluster.transact
        is_ended = trio.Event()

        async def delay_cordon(
            puts: Mapping[str, Document | None], *, compares: Mapping[str, int], cause: str
        ) -> int | None:
            if cause.endswith("started"):
                await is_ended.wait()
            return await transact(puts, compares=compares, cause=cause)

        monkeypatch.setattr(one.cluster, "transact", delay_cordon)
        one.membership.cordon(True)
        await trio.sleep(0.01)
        await one.membership.end(clean=True)
        is_ended.set()
        await trio.sleep(0.01)
        assert two.cluster.registrations.known[1].clean_epoch == epoch


async def reject_write(*_: object, **__: object) -> int | None:
    raise StorageError("the disk is full")


async def test_second_process_replaces_registration(autojump_clock: MockClock) -> None:
    async with members() as (one, two, _):
        successor = type(one)(1, one._store, one._nursery)
        await successor.start()
        await lease_ends()
        assert not one.membership.is_registered
        registration = two.cluster.registration(1)
        assert registration is not None
        assert registration.epoch == successor.membership.epoch


async def test_process_that_resumes_does_not_replace_its_successor(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata cache of the process does not contain the successor yet when it checks."""
    async with members() as (one, two, _):
        successor = type(one)(1, one._store, one._nursery)
        grant = one.cluster.grant

        async def grant_after_start(seconds: float, *, holder: str) -> Lease:
            monkeypatch.undo()
            await successor.start()
            return await grant(seconds, holder=holder)

        monkeypatch.setattr(one.cluster, "grant", grant_after_start)
        await one.membership.lease.revoke()
        await lease_ends()
        assert not one.membership.is_registered
        registration = two.cluster.registration(1)
        assert registration is not None
        assert registration.epoch == successor.membership.epoch


async def test_process_that_resumes_does_not_register_after_successor_with_another_disk(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor may have joined ISRs, so the node could lead without its records."""
    async with members() as (one, two, _):
        successor = type(one)(1, one._store, one._nursery)
        successor.directories = {"another-directory": "/data"}
        grant = one.cluster.grant

        async def grant_after_run(seconds: float, *, holder: str) -> Lease:
            monkeypatch.undo()
            await successor.start()
            await successor.stop()
            return await grant(seconds, holder=holder)

        monkeypatch.setattr(one.cluster, "grant", grant_after_run)
        await one.membership.lease.revoke()
        await lease_ends()
        assert not one.membership.is_registered
        assert two.cluster.registration(1) is None
