"""Failure scenarios from Kafka's improvement proposals about replication, on real nodes.

Each proposal describes a sequence of events that lost committed records or let logs diverge
before the proposal. All nodes run in one process, on disk. Links between nodes delay messages where
needed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import NO_LEADER, Partition
from kbroker.cluster.keys import partition_key
from kbroker.node.node import Node
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import ElectLeadersRequest
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.protocol.schema import BrokerEpoch

from ..brokers import started
from ..wire import Topic, fetch, fetch_request, until
from .harness import (
    Links,
    links,
    log_on,
    place_topic,
    replica_on,
    send,
    try_send,
    until_equal,
    until_leader,
    values_in,
    wire_to,
)

__all__ = ["links"]

# Values of acks in Produce requests.
LEADER_ONLY, ALL = 1, -1


def partition_of(broker: Broker, name: str = "t") -> Partition:
    partition = broker.running().cluster.partition(name, 0)
    assert partition is not None
    return partition


async def elect_unclean(broker: Broker, node_id: int) -> None:
    """Elect any running replica as leader, even if records are lost."""
    cls = ElectLeadersRequest
    rows = [cls.Topic(topic="t", partitions=[0])]
    async with wire_to(broker.local_node(node_id)) as wire:
        response = await wire.ask(
            ApiKey.ELECT_LEADERS, 2, cls(election_type=1, topic_partitions=rows)
        )
    assert response.replica_election_results[0].partition_result[0].error_code == 0, response


# -- KIP-101: truncation by leader epoch instead of high watermark


async def test_kip_101_committed_record_above_the_followers_high_watermark_survives(
    links: Links, tmp_path: Path
) -> None:
    """The follower has a committed record but not the new high watermark when it restarts.

    Then the leader crashes. Truncation to the follower's high watermark would lose the record.
    """
    async with started(tmp_path, nodes=2, broker_session_timeout_ms=500) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2)
        # The follower learns the high watermark only from a later response.
        links.hold_from(2, lambda: log_on(broker, 1, "t").high_watermark == 2)
        await send(broker, 1, topic, b"m2")
        await links.until_held(2)
        assert log_on(broker, 1, "t").high_watermark == 2
        assert (log_on(broker, 2, "t").log_end_offset, log_on(broker, 2, "t").high_watermark) == (
            2,
            1,
        )
        await broker.local_node(2).crash()
        await broker.local_node(2).start()
        await broker.local_node(1).crash()
        await until(lambda: partition_of(broker).leader != 1)
        if partition_of(broker).leader != 2:  # it left the ISR while it was down
            await elect_unclean(broker, 2)
        await until_leader(broker, "t", {2})
        links.release(2)
        assert values_in(log_on(broker, 2, "t")) == [b"m1", b"m2"]
        await broker.local_node(1).start()
        await send(broker, 2, topic, b"m3")
        await until_equal(broker, "t", 1, 2)
        assert values_in(log_on(broker, 1, "t")) == [b"m1", b"m2", b"m3"]


async def test_kip_101_diverged_logs_converge_after_both_nodes_restart(
    links: Links, tmp_path: Path
) -> None:
    """Both nodes crash. The one without the last, uncommitted record leads next.

    It writes another record at the same offset.
    """
    async with started(tmp_path, nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2)
        links.hold(2)
        await send(broker, 1, topic, b"m2", acks=LEADER_ONLY)
        await broker.local_node(1).crash()
        await broker.local_node(2).crash()
        links.release(2)
        await broker.local_node(2).start()
        await until_leader(broker, "t", {2})
        await send(broker, 2, topic, b"m3")
        await broker.local_node(1).start()
        await until_equal(broker, "t", 1, 2)
        assert values_in(log_on(broker, 1, "t")) == [b"m1", b"m3"]


# -- KIP-279: the leader may lack the follower's epoch


@asynccontextmanager
async def fast_failovers(links: Links, directory: Path) -> AsyncIterator[tuple[Broker, Topic]]:
    """Start two nodes with diverged logs.

    Node 1 has a0 to a4 and x5 to x9 of the first epoch, followed by c10 to c12. Node 2 is down and
    has a0 to a4 of the first epoch and b5 to b14 of the next one.
    """
    async with started(directory, nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        for number in range(5):
            await send(broker, 1, topic, b"a%d" % number)
        await until_equal(broker, "t", 1, 2)
        links.hold(2)
        for number in range(5, 10):
            await send(broker, 1, topic, b"x%d" % number, acks=LEADER_ONLY)
        await broker.local_node(1).crash()
        await until_leader(broker, "t", {2})
        links.release(2)
        for number in range(5, 15):
            await send(broker, 2, topic, b"b%d" % number)
        await broker.local_node(2).stop()
        await broker.local_node(1).start()
        await until(lambda: partition_of(broker).leader == NO_LEADER)
        await elect_unclean(broker, 1)
        await until_leader(broker, "t", {1})
        for number in range(10, 13):
            await send(broker, 1, topic, b"c%d" % number)
        yield broker, topic


async def test_kip_279_leader_without_the_followers_epoch_returns_a_common_epoch(
    links: Links, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Truncation to the start of the leader's next epoch (10) would keep b5 to b9."""
    async with fast_failovers(links, tmp_path) as (broker, _):
        await broker.local_node(2).start()
        await until_equal(broker, "t", 1, 2)
        kept = [b"a%d" % n for n in range(5)] + [b"x%d" % n for n in range(5, 10)]
        assert values_in(log_on(broker, 2, "t")) == [*kept, b"c10", b"c11", b"c12"]
        assert log_on(broker, 2, "t").epochs.entries == log_on(broker, 1, "t").epochs.entries
        known = [line.text for line in broker.local_node(2).node.partitions.history.of(("t", 0))]
        assert "truncated from 15 to 5 because its leader's epoch 0 ends at 10" in known
    # The unclean election lost committed records, which is logged.
    lost = [
        each
        for each in caplog.records
        if "were committed and are lost on this node" in each.message
    ]
    assert [each.levelno for each in lost] == [logging.ERROR]


# -- KIP-320: consumers and stale leaders


async def test_kip_320_consumer_gets_the_diverging_epoch_of_a_truncated_log(
    links: Links, tmp_path: Path
) -> None:
    """The consumer has read up to b14 of the lost epoch. Its offset alone would be valid."""
    async with fast_failovers(links, tmp_path) as (broker, topic):
        lost_epoch = log_on(broker, 1, "t").epochs.entries[0][0] + 1
        async with wire_to(broker.local_node(1)) as wire:
            row = await fetch(wire, topic, 12, last_fetched_epoch=lost_epoch)
            assert (row.error_code, row.diverging_epoch.end_offset) == (0, 10)
            assert not row.records
            cls = OffsetForLeaderEpochRequest
            at = cls.Topic(
                topic="t", partitions=[cls.Partition(partition=0, leader_epoch=lost_epoch)]
            )
            response = await wire.ask(
                ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, cls(replica_id=-1, topics=[at])
            )
        assert response.topics[0].partitions[0].end_offset == 10


def stop_metadata_updates(node: Node) -> int:
    """Stop a node's metadata updates, and return its current revision."""
    node.cluster._store.unwatch(node.cluster.apply)
    return node.cluster.revision


def resume_metadata_updates(node: Node, revision: int) -> None:
    node.cluster._store.watch(node.cluster.apply, after=revision)


async def move_leader(broker: Broker, to: int) -> Partition:
    """Elect a leader directly in the metadata, and return the partition's new state."""
    node = broker.local_node(to).node
    topic, before = node.cluster.existing("t", 0)
    state = before.to_document()
    state |= {
        "leader": to,
        "leader_epoch": before.leader_epoch + 1,
        "leader_registration": node.partitions.epoch,
    }
    key = partition_key(topic.id, 0)
    assert await node.cluster.transact({key: state}, compares={key: before.revision}, cause="test")
    return node.cluster.existing("t", 0)[1]


async def test_kip_320_stale_leader_commits_nothing(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3, replica_lag_time_max_ms=500) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2, 3)
        stale = broker.local_node(1).node
        before = partition_of(broker).leader_epoch
        revision = stop_metadata_updates(stale)
        now = await move_leader(broker, 2)
        assert replica_on(broker, 1, "t").is_leader
        await send(broker, 1, topic, b"lost", acks=LEADER_ONLY)
        refused = await try_send(broker, 1, topic, b"never", acks=ALL, timeout_ms=300)
        assert refused.error_code != 0
        await send(broker, 2, topic, b"m2")
        async with wire_to(broker.local_node(1)) as wire:
            row = await fetch(wire, topic, 1, current_leader_epoch=now.leader_epoch)
            assert row.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
            row = await fetch(wire, topic, 1)
            assert (row.high_watermark, row.records) == (1, b"")
        async with wire_to(broker.local_node(2)) as wire:
            row = await fetch(wire, topic, 1, current_leader_epoch=before)
            assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
        resume_metadata_updates(stale, revision)
        await until_equal(broker, "t", 1, 2, 3)
        assert values_in(log_on(broker, 1, "t")) == [b"m1", b"m2"]


async def test_kip_320_follower_of_an_earlier_epoch_neither_appends_nor_truncates(
    links: Links, tmp_path: Path
) -> None:
    """The follower does not know of the election and still fetches from the previous leader.

    Responses of that node are stale: it is a follower now and may truncate its log.
    """
    async with started(tmp_path, nodes=3, replica_lag_time_max_ms=500) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2, 3)
        late = broker.local_node(3).node
        revision = stop_metadata_updates(late)
        await move_leader(broker, 2)
        for number in range(3):
            await send(broker, 2, topic, b"n%d" % number)
        await until_equal(broker, "t", 1, 2)
        assert values_in(log_on(broker, 3, "t")) == [b"m1"]
        resume_metadata_updates(late, revision)
        await until_equal(broker, "t", 1, 2, 3)


# -- KIP-903: a node that restarts without its data


async def test_kip_903_node_with_a_lost_disk_does_not_join_by_earlier_fetches(
    links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node had caught up but lost its disk before the ISR change was stored."""
    async with started(tmp_path, nodes=2, replica_lag_time_max_ms=300) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2)
        links.hold(2)
        await send(broker, 1, topic, b"m2")
        await until(lambda: partition_of(broker).isr == [1])
        requested, responses, go = [], [], trio.Event()
        cluster = broker.local_node(1).node.cluster
        change_isr = cluster.change_isr

        async def change_isr_late(*args: Any, **settings: Any) -> int | None:
            requested.append(args[0][0].registrations)
            await go.wait()
            responses.append(await change_isr(*args, **settings))
            return responses[-1]

        monkeypatch.setattr(cluster, "change_isr", change_isr_late)
        earlier = broker.local_node(2).node.partitions.epoch
        links.release(2)
        await until(lambda: requested == [{2: earlier}])
        await broker.local_node(2).crash()
        lose_records(broker.local_node(2).data_dirs)
        links.hold(2)
        await broker.local_node(2).start()
        assert log_on(broker, 2, "t").log_end_offset == 0
        go.set()
        await until(lambda: len(responses) == 1)
        assert responses == [None]
        assert partition_of(broker).isr == [1]
        links.release(2)
        await until(lambda: partition_of(broker).isr == [1, 2])
        assert values_in(log_on(broker, 2, "t")) == [b"m1", b"m2"]
        assert requested[-1] == {2: broker.local_node(2).node.partitions.epoch}


def lose_records(directories: list[str]) -> None:
    """Delete all records but keep the identity of the directories, like a rebuilt file system."""
    for directory in map(Path, directories):
        for entry in directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif "checkpoint" in entry.name:
                entry.unlink()


async def test_kip_903_fetch_with_an_earlier_broker_epoch_is_rejected(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"m1")
        cls = type(fetch_request(topic))
        for epoch, code in (
            (broker.local_node(2).node.partitions.epoch, 0),
            (broker.local_node(2).node.partitions.epoch - 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            state = cls.ReplicaState(replica_id=2, replica_epoch=BrokerEpoch(epoch))
            async with wire_to(broker.local_node(1)) as wire:
                row = await fetch(wire, topic, version=17, replica_state=state)
            assert row.error_code == code


# -- KIP-966: eligible leader replicas


async def test_kip_966_eligible_leader_replica_leads_without_loss(tmp_path: Path) -> None:
    """The last replica in the ISR appends records that cannot be committed, and crashes.

    The replica that left the ISR before it has all committed records and may lead.
    """
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3, configs={"min.insync.replicas": "2"})
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2, 3)
        await broker.local_node(3).crash()
        await until(lambda: partition_of(broker).isr == [1, 2])
        await send(broker, 1, topic, b"m2")
        await broker.local_node(2).crash()
        await until(lambda: partition_of(broker).isr == [1])
        assert list(partition_of(broker).elr) == [2]
        await send(broker, 1, topic, b"only here", acks=LEADER_ONLY)
        refused = await try_send(broker, 1, topic, b"refused")
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert log_on(broker, 1, "t").high_watermark == 2
        await broker.local_node(1).crash()
        await broker.local_node(2).start()
        await until_leader(broker, "t", {2})
        assert values_in(log_on(broker, 2, "t")) == [b"m1", b"m2"]
        await broker.local_node(3).start()
        await broker.local_node(1).start()
        await until(lambda: len(partition_of(broker).isr) >= 2)
        await send(broker, 2, topic, b"m3")
        await until_equal(broker, "t", 1, 2, 3)
        assert values_in(log_on(broker, 1, "t")) == [b"m1", b"m2", b"m3"]


async def test_kip_966_unclean_shutdown_removes_leader_eligibility(tmp_path: Path) -> None:
    """Without fsync, a crash may lose records, so only replicas that did not crash may lead."""
    async with started(tmp_path, nodes=2, flush_policy="os") as broker:
        topic = await place_topic(broker, "t", 1, 2, configs={"min.insync.replicas": "2"})
        await send(broker, 1, topic, b"m1")
        await until_equal(broker, "t", 1, 2)
        await broker.local_node(2).crash()
        await until(lambda: list(partition_of(broker).elr) == [2])
        await broker.local_node(1).stop()
        await broker.local_node(2).start()
        await trio.sleep(0.5)
        assert partition_of(broker).leader == NO_LEADER
        await broker.local_node(1).start()
        await until_leader(broker, "t", {1})
        await until(lambda: partition_of(broker).isr == [1, 2])
        await send(broker, 1, topic, b"m2")
        await until_equal(broker, "t", 1, 2)
