"""Dead-letter queues of share groups that fail or change while records are written (KIP-1191).

Members get records in all cases. Records that cannot be written to the queue are archived.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.coordinator_runtime import share_group_dlq
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.topics import CreatePartitionsRequest
from kbroker.protocol.record_stream import records_of
from kbroker.security.acls import AclOperation, AclResourceType

from ..brokers import started, started_on
from ..handlers.test_consumer_groups import set_config
from ..refusing_files import RefusingFiles
from ..replication.routed import all_in_sync
from ..security.test_access import acl_for, grant
from ..sharing import (
    ACCEPT,
    GROUP,
    REJECT,
    ShareMember,
    initialize,
    shared_topic,
    wait_until_stored,
)
from ..wire import Topic, Wire, batch, connected, create_topic, delete_topic, fetch, produce, until
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


# -- the topic


async def test_deleted_queue_topic_loses_records_until_created_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        group = await rejecting(broker, wire)
        await group.reject(2)
        await group.finish()
        await delete_topic(wire, QUEUE)
        with caplog.at_level(logging.ERROR):
            await group.reject(2)
            await group.finish()
        assert f"topic {QUEUE} does not exist" in caplog.text
        assert broker.node.share.dlq.counts.lost == {GROUP: 2}
        queue = await create_topic(wire, QUEUE, 2, ENABLED)
        await group.reject(2)
        await group.finish()
        assert await offsets_in(wire, queue, 2) == [6, 7]


async def test_deletion_of_queue_topic_during_write_archives_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as admin,
    ):
        await create_topic(admin, QUEUE, 1, ENABLED)
        await set_queue(admin)
        dlq, topics = broker.node.share.dlq, broker.node.cluster.topics
        replica = broker.node.partitions.replica(topics[QUEUE], 0)
        append = dlq._append

        async def append_after_deletion(*args: Any) -> None:
            monkeypatch.setattr(dlq, "_append", append)
            await delete_topic(admin, QUEUE)
            await until(lambda: replica.closed)
            await append(*args)

        group = await rejecting(broker, wire)
        monkeypatch.setattr(dlq, "_append", append_after_deletion)
        await group.reject()
        await group.finish()
        assert dlq.counts.lost == {GROUP: 1}, dlq.counts.written


async def test_added_partition_of_queue_topic_gets_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        topic = await shared_topic(broker, wire, 2)
        await produce(wire, topic, batch([b"a", b"b"]), partition=1)
        member = ShareMember(wire, topic)
        await member.fetch((1,))
        await member.acknowledge_partition((0, 0, REJECT), partition=1)
        await wait_until_stored(broker.node)
        cls = CreatePartitionsRequest
        row = cls.Topic(name=QUEUE, count=2, assignments=None)
        response = await wire.ask(ApiKey.CREATE_PARTITIONS, 3, cls(topics=[row], timeout_ms=5000))
        assert not response.results[0].error_code
        await member.acknowledge_partition((1, 1, REJECT), partition=1)
        await wait_until_stored(broker.node)
        for partition, offset in enumerate((0, 1)):
            found = await fetch(wire, queue, partitions=[partition])
            (record,) = records_of(found.records or b"")
            assert dict(record.headers)["__dlq.errors.offset"] == b"%d" % offset


# -- settings


async def test_queue_name_set_during_write_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, QUEUE, 1, ENABLED)
        other = await create_topic(wire, "dlq.other", 1, ENABLED)
        await set_queue(wire)
        outage = Outage(broker, monkeypatch)
        group = await rejecting(broker, wire)
        await group.reject(3)
        await set_queue(wire, "dlq.other")
        outage.is_over = True
        await group.finish()
        assert await offsets_in(wire, other) == [0, 1, 2]


async def test_queue_name_removed_during_write_archives_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        Outage(broker, monkeypatch)
        group = await rejecting(broker, wire)
        await group.reject(3)
        with caplog.at_level(logging.ERROR):
            await set_queue(wire, "")
            await group.finish()
        assert "errors.deadletterqueue.topic.name is not set" in caplog.text
        await group.reject()
        await group.finish()
        assert broker.node.share.dlq.counts.lost == {GROUP: 3}


async def test_change_of_copies_during_write_does_not_double_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first attempt wrote all records; with copies, fewer would fit into the next batch."""
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await create_topic(wire, QUEUE, 1, ENABLED | {"max.message.bytes": "3000"})
        await set_queue(wire)
        topic = await shared_topic(broker, wire)
        await produce(wire, topic, batch([b"x" * 1500] * 6))
        dlq = broker.node.share.dlq
        append = dlq._append

        async def lose_response(*args: Any) -> None:
            await append(*args)
            monkeypatch.setattr(dlq, "_append", append)
            await set_group(other, errors_deadletterqueue_copy_record_enable="true")
            raise OSError("the response is lost")

        async with connected(broker.endpoint) as other:
            monkeypatch.setattr(dlq, "_append", lose_response)
            member = ShareMember(wire, topic)
            await member.acquire()
            await member.acknowledge_partition((0, 5, REJECT))
            await wait_until_stored(broker.node)
        assert await offsets_in(wire, queue) == [0, 1, 2, 3, 4, 5]


async def test_lower_message_limit_during_write_splits_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        outage = Outage(broker, monkeypatch)
        topic = await shared_topic(broker, wire)
        await produce(wire, topic, batch([b"x"] * 10))
        member = ShareMember(wire, topic)
        await member.acquire()
        await member.acknowledge_partition((0, 9, REJECT))
        assert not await set_config(wire, ResourceType.TOPIC, QUEUE, "max.message.bytes", "1000")
        outage.is_over = True
        await wait_until_stored(broker.node)
        assert await offsets_in(wire, queue) == [*range(10)]
        assert not broker.node.share.dlq.counts.lost


async def test_producer_with_last_sequence_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_group_dlq, "ATTEMPTS_MAX", 1)
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        group = await rejecting(broker, wire)
        await group.reject()
        await group.finish()
        (share_partition,) = broker.node.share.partitions
        writer = share_partition.dead_letters
        assert writer.producer is not None
        writer.producer = writer.producer._replace(next_sequence=2**31 - 1)
        await group.reject()
        await group.finish()
        assert await offsets_in(wire, queue) == [0, 2]


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


# -- disks


@pytest.mark.parametrize("is_healed", [True, False])
async def test_full_disk_of_queue_does_not_stop_delivery(
    monkeypatch: pytest.MonkeyPatch, is_healed: bool
) -> None:
    if is_healed:
        monkeypatch.setattr(share_group_dlq, "ATTEMPTS_MAX", 1000)
    files = RefusingFiles()
    async with (
        started_on(
            files, ["/data/a", "/data/b"], share_coordinator_state_topic_num_partitions="1"
        ) as broker,
        connected(broker.endpoint) as wire,
    ):
        queue = await create_topic(wire, QUEUE, 1, ENABLED)
        await set_queue(wire)
        topic = await create_topic(wire, "t")
        for number in range(RECORDS):
            await produce(wire, topic, batch([b"%d" % number]))
        await produce(wire, await create_topic(wire, "unused"), batch())
        await initialize(broker.node, topic)
        logs = {
            each: broker.node.partitions.replica(broker.node.cluster.topics[each], 0).log
            for each in ("t", "__share_group_state", QUEUE)
        }
        directories = [log.directory.split("/")[2] for log in logs.values()]
        assert directories == ["a", "a", "b"]
        group = Rejecting(broker, wire, topic)
        files.refuse("/data/b")
        await group.reject(3)
        if is_healed:
            files.heal()
        await group.finish()
        files.heal()
        await until(lambda: logs[QUEUE].read_only_reason is None)
        await group.reject(3)
        await group.finish()
        assert await offsets_in(wire, queue) == [0, 1, 2, 4, 5, 6][0 if is_healed else 3 :]


# -- other nodes


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


async def test_queue_with_offline_leader_archives_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with three_nodes() as broker:
        first, second, _ = broker.nodes
        topic = await filled_on_first(broker, [second.id])
        await second.crash()
        async with connected(first.endpoint) as wire:
            group = Rejecting(broker, wire, topic)
            with caplog.at_level(logging.ERROR):
                await group.reject(3)
                await group.finish()
            assert "LEADER_NOT_AVAILABLE" in caplog.text
            await second.start()
            await group.reject(3)
            await group.finish()
        async with connected(second.endpoint) as wire:
            queue = Topic(QUEUE, second.node.cluster.topics[QUEUE].id)
            assert await offsets_in(wire, queue) == [4, 5, 6]


async def test_queue_that_inter_broker_principal_may_not_write_archives_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    async with three_nodes(
        authorizer_class_name=authorizer, allow_everyone_if_no_acl_found=True
    ) as broker:
        first, second, third = broker.nodes
        topic = await filled_on_first(broker, [second.id, first.id, third.id])
        async with connected(first.endpoint) as wire:
            await grant(wire, acl_for(AclResourceType.TOPIC, AclOperation.WRITE, QUEUE))
            group = Rejecting(broker, wire, topic)
            with caplog.at_level(logging.ERROR):
                await group.reject(3)
                await group.finish()
            assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
            assert first.node.share.dlq.counts.lost == {GROUP: 3}
