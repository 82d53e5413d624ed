"""Dead-letter queues of share groups that fail or change while records are written (KIP-1191).

Members get records in all cases. Records that cannot be written to the queue are archived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.coordinator_runtime import share_group_dlq
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.record_stream import records_of

from ..brokers import started
from ..handlers.test_consumer_groups import set_config
from ..replication.routed import all_in_sync
from ..sharing import (
    ACCEPT,
    GROUP,
    REJECT,
    ShareMember,
    initialize,
    shared_topic,
    wait_until_stored,
)
from ..wire import Topic, Wire, batch, connected, create_topic, fetch, produce
from .test_share_group_dlq import create_topic_on

QUEUE = "dlq.errors"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
RECORDS = 40


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_group_dlq, "BACKOFF_SECONDS", 0.02)


async def set_group(wire: Wire, **configs: str) -> None:
    """Set configs of the group; names have `_` for each dot."""
    for name, value in configs.items():
        key = name.replace("_", ".")
        assert not await set_config(wire, ResourceType.GROUP, GROUP, key, value)


async def set_queue(wire: Wire, name: str = QUEUE) -> None:
    await set_group(wire, errors_deadletterqueue_topic_name=name)


class Rejecting:
    """A member that rejects one record after another.

    Each record is a batch, so that the member acquires them one by one.
    """

    def __init__(self, broker: Broker, wire: Wire, topic: Topic) -> None:
        self.broker = broker
        self.member = ShareMember(wire, topic)
        self.next = 0

    async def reject(self, count: int = 1) -> None:
        """Acquire and reject records, each of which must arrive at once."""
        for _ in range(count):
            offset = self.next
            assert await self.member.acquire(max_records=1) == [(offset, offset, 1)]
            row = await self.member.acknowledge_partition((offset, offset, REJECT))
            assert not row.error_code
            self.next += 1

    async def finish(self) -> None:
        """Wait until all rejected records are archived, and accept the next one."""
        await wait_until_stored(self.broker.node)
        offset = self.next
        assert await self.member.acquire(max_records=1) == [(offset, offset, 1)]
        await self.member.acknowledge_partition((offset, offset, ACCEPT))
        self.next += 1
        await wait_until_stored(self.broker.node)
        (share_partition,) = self.broker.node.share.partitions
        assert share_partition.delivery is not None
        assert share_partition.delivery.start_offset == self.next


async def rejecting(broker: Broker, wire: Wire) -> Rejecting:
    """Create a topic with records of one batch each, and a member."""
    topic = await shared_topic(broker, wire)
    for number in range(RECORDS):
        await produce(wire, topic, batch([b"%d" % number]))
    return Rejecting(broker, wire, topic)


async def offsets_in(wire: Wire, queue: Topic, partitions: int = 1) -> list[int]:
    """Return the source offsets of the records in a queue, sorted."""
    found = []
    for partition in range(partitions):
        row = await fetch(wire, queue, partitions=[partition], max_wait_ms=0)
        assert not row.error_code
        found += [
            int(dict(record.headers)["__dlq.errors.offset"] or b"")
            for record in records_of(row.records or b"")
        ]
    return sorted(found)


class Outage:
    """An outage of a dead-letter queue: each write fails while `is_over` is False."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        self._append = broker.node.share.dlq._append
        monkeypatch.setattr(share_group_dlq, "ATTEMPTS_MAX", 1000)
        monkeypatch.setattr(broker.node.share.dlq, "_append", self._fail)

    async def _fail(self, *args: Any) -> None:
        if not self.is_over:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        await self._append(*args)


# -- bounds


async def test_records_that_wait_for_queue_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as records in flight, so a queue that fails does not accumulate records."""
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        await set_group(wire, share_partition_max_record_locks="100")
        outage = Outage(broker, monkeypatch)
        topic = await shared_topic(broker, wire)
        for _ in range(4):
            await produce(wire, topic, batch([b"x"] * 50))
        member = ShareMember(wire, topic)
        for first in (0, 50):
            assert await member.acquire(max_records=50) == [(first, first + 49, 1)]
            await member.acknowledge_partition((first, first + 49, REJECT))
        assert not (await member.fetch(max_wait_ms=50)).responses
        (share_partition,) = broker.node.share.partitions
        assert sum(each.last - each.first + 1 for each in share_partition.dead_letters.queue) <= 100
        outage.is_over = True
        assert await member.acquire(max_records=50) == [(100, 149, 1)], "the delivery continues"
        await wait_until_stored(broker.node)
        assert await offsets_in(wire, queue) == [*range(100)]


@asynccontextmanager
async def three_nodes(**settings: Any) -> AsyncIterator[Broker]:
    async with started(
        nodes=3,
        default_replication_factor=3,
        auto_leader_rebalance_enable=False,
        share_coordinator_state_topic_num_partitions=3,
        **settings,
    ) as broker:
        yield broker


async def filled_on_first(broker: Broker, queue_nodes: list[int]) -> Topic:
    """Create a topic that the first node leads, and a queue."""
    first, second, third = (each.id for each in broker.nodes)
    await create_topic_on(broker, QUEUE, queue_nodes, errors_deadletterqueue_group_enable="true")
    topic = await create_topic_on(broker, "t", [first, second, third])
    await initialize(broker.running(), topic)
    await all_in_sync(broker)
    async with connected(broker.nodes[0].endpoint) as wire:
        for number in range(RECORDS):
            await produce(wire, topic, batch([b"%d" % number]), acks=-1)
        await set_queue(wire)
    return topic
