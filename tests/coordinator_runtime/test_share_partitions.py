"""Share partitions of three nodes: each moves with the leader of its partition (KIP-932)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.coordinator_runtime.share_partitions import EXPIRED_AT_ONCE
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from ..brokers import started
from ..replication.harness import log_on
from ..replication.routed import all_in_sync, leader, others, routed
from ..sharing import ACCEPT, RELEASE, ShareMember, initialize, row_of
from ..wire import (
    ANSWER_SECONDS,
    ConnectionClosed,
    Topic,
    batch,
    connected,
    create_topic,
    produce_request,
    request,
    until,
    values_of,
)

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
RECORDS = 40


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started(
        nodes=3,
        default_replication_factor=3,
        auto_leader_rebalance_enable=False,
        share_coordinator_state_topic_num_partitions=3,
    ) as broker:
        yield broker


async def filled(broker: Broker, records: int = RECORDS) -> Topic:
    """Create a topic with single-record batches, and the share state of a group."""
    async with routed(broker) as wire:
        topic = await create_topic(wire, "t")
        await initialize(broker.running(), topic)
        await all_in_sync(broker)
        for number in range(records):
            message = produce_request(topic, batch([b"%d" % number]), acks=-1)
            response = await wire.ask(ApiKey.PRODUCE, 9, message)
            assert not response.responses[0].partition_responses[0].error_code
    return topic


async def test_acknowledgements_survive_change_of_leader(broker: Broker) -> None:
    topic = await filled(broker, 10)
    first = await leader(broker, "t", 0)
    async with connected(broker.local_node(first).endpoint) as wire:
        member = ShareMember(wire, topic)
        assert await member.acquire() == [(0, 9, 1)]
        assert not (await member.acknowledge_partition((0, 4, ACCEPT), (5, 6, RELEASE))).error_code
    await broker.local_node(first).crash()
    second = broker.local_node(await leader(broker, "t", 0))
    # The new leader may not know the high watermark of the last record yet.
    log = log_on(broker, second.id, "t")
    await until(lambda: log.high_watermark == 10)
    async with connected(second.endpoint) as wire:
        member = ShareMember(wire, topic, "b")
        assert await member.acquire() == [(5, 6, 2), (7, 9, 1)]


async def test_share_fetch_to_other_node_returns_current_leader(broker: Broker) -> None:
    topic = await filled(broker, 1)
    first = await leader(broker, "t", 0)
    other = others(broker, first)[0]
    async with connected(other.endpoint) as wire:
        response = await ShareMember(wire, topic).fetch()
        row = row_of(response)
        assert (row.error_code, row.current_leader.leader_id) == (NOT_LEADER, first)
        assert [each.node_id for each in response.node_endpoints] == [first]


async def test_locks_that_expire_together_are_released_in_slices(broker: Broker) -> None:
    partitions = broker.node.share.partitions
    timers: list[Any] = [
        (0, number, SimpleNamespace(closed=True, armed_ms=0))
        for number in range(2 * EXPIRED_AT_ONCE + 1)
    ]
    partitions._timers[:] = timers
    assert [partitions._expire_some(0) for _ in range(3)] == [True, True, False]
    assert not partitions._timers


async def test_pending_share_fetch_fails_if_leadership_moves(broker: Broker) -> None:
    topic = await filled(broker, 0)
    preferred = await leader(broker, "t", 0)
    await broker.local_node(preferred).crash()
    local = broker.local_node(await leader(broker, "t", 0))
    await broker.local_node(preferred).start()
    await all_in_sync(broker)
    async with connected(local.endpoint) as wire, connected(local.endpoint) as admin:
        member = ShareMember(wire, topic)
        await member.begin()
        await member.send_fetch(())
        await until(lambda: any(each.waits for each in local.node.share.partitions))
        back = request(ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=None)
        back.timeout_ms = 10_000
        assert not (await admin.ask(ApiKey.ELECT_LEADERS, 2, back)).error_code
        row = row_of(await wire.receive())
        assert (row.error_code, row.current_leader.leader_id) == (NOT_LEADER, preferred)
        assert not len(local.node.share.partitions)


class AcceptedRecords:
    """Accepted records with their counts; `unsure` contains records without a response."""

    def __init__(self) -> None:
        self.accepted: Counter[bytes] = Counter()
        self.unsure: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.unsure.union(self.accepted))


class Worker:
    """A member that follows the leader and accepts all records."""

    def __init__(self, broker: Broker, topic: Topic, name: str, done: AcceptedRecords) -> None:
        self.broker = broker
        self.topic = topic
        self.name = name
        self.done = done

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            local = self.broker.local_node(await leader(self.broker, "t", 0))
            try:
                async with connected(local.endpoint) as wire:
                    await self._work(ShareMember(wire, self.topic, self.name))
            except (OSError, ConnectionClosed, trio.BrokenResourceError):
                await trio.sleep(0.01)

    async def _work(self, member: ShareMember) -> None:
        """Fetch and accept until another node leads."""
        while True:
            response = await member.fetch(
                (0,) if member.epoch == 0 else (), max_records=2, max_wait_ms=50
            )
            if response.error_code:
                return
            for topic in response.responses:
                for row in topic.partitions:
                    if row.error_code:
                        await trio.sleep(0.01)
                        return
                    if row.acquired_records:
                        await self._accept(member, row)

    async def _accept(self, member: ShareMember, row: Any) -> None:
        values = [bytes(value or b"") for value in values_of(row)]
        for each in row.acquired_records:
            count = each.last_offset - each.first_offset + 1
            these, values = values[:count], values[count:]
            self.done.unsure.update(these)
            result = await member.acknowledge_partition(
                (each.first_offset, each.last_offset, ACCEPT)
            )
            self.done.unsure.difference_update(these)
            if not result.error_code:
                self.done.accepted.update(these)


def starts(broker: Broker) -> set[int]:
    """Return the share-partition start offsets of all nodes that have led."""
    shares = (share for node in broker.running_nodes for share in node.share.partitions)
    return {share.delivery.start_offset for share in shares if share.delivery is not None}


async def wait_until_accepted(done: AcceptedRecords, goal: int) -> None:
    await until(lambda: len(done) >= goal, 3 * ANSWER_SECONDS)


@pytest.mark.slow
async def test_every_record_is_accepted_once_while_leaders_crash(broker: Broker) -> None:
    topic = await filled(broker)
    done = AcceptedRecords()
    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(Worker(broker, topic, name, done).run)
        for goal in (RECORDS // 4, RECORDS // 2):
            await wait_until_accepted(done, goal)
            local = broker.local_node(await leader(broker, "t", 0))
            await local.crash()
            await local.start()
            await all_in_sync(broker)
        await until(lambda: RECORDS in starts(broker), 3 * ANSWER_SECONDS)
        nursery.cancel_scope.cancel()
    assert set(done.accepted.values()) == {1}
    assert len(done) == RECORDS
