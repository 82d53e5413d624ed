"""Stored ISR changes, including lost responses of the metadata store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import IsrChange
from kbroker.cluster.store import OutcomeUnknown
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.isr_manager import BATCH_MAX, TRANSACTIONS_AT_ONCE
from tests.brokers import started
from tests.wire import NEVER, Topic, Wire, batch, connected, fetch, produce, produce_request, until

from .playing import PlayedFollower, fake_node, replicated

LAG_MS = 200


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started(replica_lag_time_max_ms=LAG_MS) as broker:
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with connected(broker.endpoint) as wire:
        yield wire


@pytest.fixture
async def follower(broker: Broker) -> AsyncIterator[PlayedFollower]:
    async with fake_node(broker, 2) as follower:
        yield follower


def isr_of(broker: Broker, topic: Topic) -> list[int]:
    return broker.node.cluster.topics[topic.name].partitions[0].isr


async def test_lagging_follower_leaves_the_isr_and_acks_no_longer_wait(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
    await until(lambda: isr_of(broker, topic) == [1])
    response = await wire.receive()
    assert response.responses[0].partition_responses[0].error_code == 0
    (line,) = (
        entry
        for entry in broker.node.partitions.history.of((topic.name, 0))
        if "fell behind" in entry.text
    )
    assert "node 2 fell behind" in line.text


async def test_caught_up_follower_stays_in_the_isr_while_idle(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await follower.fetch(topic, 0)
    await trio.sleep(3 * LAG_MS / 1000)
    assert isr_of(broker, topic) == [1, 2]


async def test_delay_of_leader_does_not_count_as_lag() -> None:
    """The follower fetches as soon as the event loop of the leader continues."""
    async with (
        started(replica_lag_time_max_ms=1000) as broker,
        fake_node(broker, 2) as follower,
        connected(broker.endpoint) as wire,
    ):
        topic = await replicated(broker, 1, 2)
        await produce(wire, topic, batch(), acks=1)
        await follower.fetch(topic, 0)
        time.sleep(1.5)  # noqa: ASYNC251 - blocks the event loop
        await trio.sleep(0.2)
        assert isr_of(broker, topic) == [1, 2]
        await until(lambda: isr_of(broker, topic) == [1])  # no further fetch arrives


async def test_caught_up_follower_joins_the_isr(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch())
    await until(lambda: isr_of(broker, topic) == [1])
    await follower.fetch(topic, 0)
    await trio.sleep(0.05)
    assert isr_of(broker, topic) == [1], "it fetches but has not caught up"
    await follower.fetch(topic, 1)
    await until(lambda: isr_of(broker, topic) == [1, 2])


async def test_fenced_follower_joins_the_isr_once_it_is_ready(broker: Broker, wire: Wire) -> None:
    async with fake_node(broker, 2, ready=False) as follower:
        topic = await replicated(broker, 1, 2)
        await produce(wire, topic, batch())
        await follower.fetch(topic, 1)
        await trio.sleep(0.05)
        assert isr_of(broker, topic) == [1]
        await follower.membership.become_ready()
        await until(lambda: isr_of(broker, topic) == [1, 2])


async def test_restarted_follower_does_not_join_by_an_earlier_fetch(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower restarts between its fetch and the ISR change and may lose records (KIP-903)."""
    async with fake_node(broker, 2, ready=False) as follower:
        topic = await replicated(broker, 1, 2)
        requested: list[dict[int, int]] = []
        cluster = broker.node.cluster
        change_isr = cluster.change_isr

        async def change_isr_after_restart(*args: Any, **kwargs: Any) -> int | None:
            requested.append(args[0][0].registrations)
            if len(requested) == 1:
                async with fake_node(broker, 2):
                    pass
            return await change_isr(*args, **kwargs)

        monkeypatch.setattr(cluster, "change_isr", change_isr_after_restart)
        await follower.fetch(topic, 0)
        first = follower.membership.epoch
        await follower.membership.become_ready()
        await until(lambda: requested)
        await trio.sleep(0.3)
        assert requested == [{2: first}]
        assert isr_of(broker, topic) == [1]


@pytest.mark.parametrize("applied", [True, False])
async def test_isr_change_with_unknown_outcome_counts_until_it_is_known(
    broker: Broker,
    wire: Wire,
    follower: PlayedFollower,
    monkeypatch: pytest.MonkeyPatch,
    applied: bool,
) -> None:
    """The leader waits for a follower that may be in sync and retries the change."""
    topic = await replicated(broker, 1, 2)
    await produce(wire, topic, batch())
    await until(lambda: isr_of(broker, topic) == [1])
    cluster = broker.node.cluster
    change_isr = cluster.change_isr
    may_answer = trio.Event()

    async def lossy(*args: Any, **kwargs: Any) -> int | None:
        if may_answer.is_set():
            return await change_isr(*args, **kwargs)
        if applied:
            await change_isr(*args, **kwargs)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(cluster, "change_isr", lossy)
    await follower.fetch(topic, 1)
    leader_state = broker.node.partitions.named_replica(topic.name, 0).leader_state
    assert leader_state is not None
    await until(lambda: leader_state.maximal_isr == {1, 2})
    await produce(wire, topic, batch(), acks=1)
    await trio.sleep(2 * LAG_MS / 1000)
    if not applied:
        assert isr_of(broker, topic) == [1]
        assert (await fetch(wire, topic)).high_watermark == 1, "the follower may be in sync"
    may_answer.set()
    await until(lambda: isr_of(broker, topic) == [1] and leader_state.maximal_isr == {1})
    await until(lambda: broker.node.partitions.named_replica(topic.name, 0).log.high_watermark == 2)


async def test_rejected_isr_change_is_retried(
    broker: Broker, wire: Wire, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await replicated(broker, 1, 2)
    cluster = broker.node.cluster
    change_isr = cluster.change_isr
    refusals = [None, None]

    async def refuse_some(*args: Any, **kwargs: Any) -> int | None:
        return refusals.pop() if refusals else await change_isr(*args, **kwargs)

    monkeypatch.setattr(cluster, "change_isr", refuse_some)
    await produce(wire, topic, batch())
    assert not refusals
    assert isr_of(broker, topic) == [1]


async def test_many_isrs_change_in_few_transactions(
    broker: Broker, follower: PlayedFollower
) -> None:
    """Covers a node that falls behind in all partitions at once."""
    cluster, count = broker.node.cluster, 3 * BATCH_MAX
    topic = await cluster.create_topic("t", [[1, 2]] * count, {}, cause="test")
    before = cluster.revision
    for index in range(count):
        broker.node.partitions.named_replica("t", index)
    await until(lambda: all(each.isr == [1] for each in topic.partitions))
    assert cluster.revision - before < count / 5


async def test_rejected_isr_change_does_not_prevent_the_others(
    broker: Broker, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = broker.node.cluster
    topic = await cluster.create_topic("t", [[1, 2]] * 5, {}, cause="test")
    change_isr = cluster.change_isr

    async def refuse_some(changes: Sequence[IsrChange], **kwargs: Any) -> int | None:
        if any(each.partition.index == 3 for each in changes):
            return None
        return await change_isr(changes, **kwargs)

    monkeypatch.setattr(cluster, "change_isr", refuse_some)
    for index in range(5):
        broker.node.partitions.named_replica("t", index)
    await until(lambda: [each.isr for each in topic.partitions].count([1]) == 4)
    assert topic.partitions[3].isr == [1, 2]
    monkeypatch.undo()
    await until(lambda: topic.partitions[3].isr == [1])


@pytest.mark.slow
async def test_repeatedly_rejected_changes_do_not_delay_others(
    broker: Broker, follower: PlayedFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, count = broker.node.cluster, TRANSACTIONS_AT_ONCE * BATCH_MAX
    change_isr = cluster.change_isr
    refused: set[int] = set()

    async def refuse_some(changes: Sequence[IsrChange], **kwargs: Any) -> int | None:
        stuck = {each.partition.index for each in changes if each.topic.name == "stuck"}
        refused.update(stuck)
        return None if stuck else await change_isr(changes, **kwargs)

    monkeypatch.setattr(cluster, "change_isr", refuse_some)
    await cluster.create_topic("stuck", [[1, 2]] * count, {}, cause="test")
    for index in range(count):
        broker.node.partitions.named_replica("stuck", index)
    await until(lambda: len(refused) == count)
    topic = await cluster.create_topic("t", [[1, 2]], {}, cause="test")
    broker.node.partitions.named_replica("t", 0)
    await until(lambda: topic.partitions[0].isr == [1])


async def test_lower_min_insync_replicas_clears_the_eligible_leader_replicas(
    broker: Broker, wire: Wire, follower: PlayedFollower
) -> None:
    """A replica that left the ISR stays electable until the stored state says otherwise (KIP-966).

    The leader stores that records can be committed again before it commits any.
    """
    topic = await replicated(broker, 1, 2, min_insync_replicas=2)
    await produce(wire, topic, batch(), acks=1)
    await until(lambda: isr_of(broker, topic) == [1])
    cluster = broker.node.cluster
    partition = cluster.topics[topic.name].partitions[0]
    assert list(partition.elr) == [2]
    assert (await produce(wire, topic, batch())).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    changed = {"min.insync.replicas": "1"}
    await cluster.alter_topic_configs(cluster.topics[topic.name], changed, cause="test")
    log = broker.node.partitions.named_replica(topic.name, 0).log
    assert log.high_watermark == 0, "node 2 is still electable"
    await until(lambda: log.high_watermark == 1)
    assert list(cluster.topics[topic.name].partitions[0].elr) == []


@pytest.mark.parametrize("leader", [1, 2])
async def test_offline_log_resigns_and_leaves_the_isr(leader: int) -> None:
    async with started(nodes=3, replica_lag_time_max_ms=NEVER) as broker:  # no periodic ISR check
        first, second, _ = (each.node for each in broker.nodes)
        replicas = [[leader, 3 - leader, 3]]
        created = await first.cluster.create_topic("t", replicas, {}, cause="test")
        topic = Topic(created.name, created.id)
        lead = broker.local_node(leader)
        async with connected(lead.endpoint) as wire:
            await produce(wire, topic, batch([b"a"]))
            second.partitions.named_hosted("t", 0).log.fail("the disk is broken")
            await produce(wire, topic, batch([b"b"]), acks=1)
        await until(lambda: sorted(created.partitions[0].isr) == [1, 3])
        now = broker.local_node(first.cluster.topics["t"].partitions[0].leader)
        assert now.id == 1
        async with connected(now.endpoint) as wire:
            assert (await produce(wire, topic, batch([b"c"]))).error_code == 0


async def test_node_in_controlled_shutdown_stays_in_the_isr() -> None:
    async with started(nodes=3) as broker:
        first, second, _ = (each.node for each in broker.nodes)
        created = await first.cluster.create_topic("t", [[1, 2, 3]], {}, cause="test")
        await until(lambda: sorted(created.partitions[0].isr) == [1, 2, 3])
        replica = second.partitions.named_hosted("t", 0)
        await second.replication.fetcher_manager.stop()
        replica.close(deleted=False)
        replica.log.close(clean=True)  # takes the log offline
        second.replication.isr_manager.check_all_isrs()
        await trio.sleep(0.2)
        assert sorted(created.partitions[0].isr) == [1, 2, 3]


async def test_only_replica_keeps_its_leadership(broker: Broker, wire: Wire) -> None:
    topic = await replicated(broker, 1)
    broker.node.partitions.named_replica("t", 0).log.fail("the disk is broken")
    assert (await produce(wire, topic, batch())).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    await trio.sleep(0.05)
    assert isr_of(broker, topic) == [1]
