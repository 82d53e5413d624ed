"""Dead-letter queues of share groups (KIP-1191)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.coordinator_runtime import share_group_dlq
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest
from kbroker.protocol.record_stream import records_of
from kbroker.protocol.records import Record
from kbroker.testing.clock import MovableClock

from ..brokers import started
from ..sharing import (
    ACCEPT,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    ShareMember,
    shared_topic,
    wait_until_stored,
)
from ..wire import Topic, Wire, batch, connected, create_topic, fetch, produce, until
from .test_consumer_groups import set_config

DLQ = "dlq.errors"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
REJECTED = b"Offset rejected by client."
EXCEEDED = b"Offset delivery count exceeded the threshold."


async def set_group(wire: Wire, name: str, value: str) -> None:
    assert not await set_config(wire, ResourceType.GROUP, GROUP, name, value)


async def enable_queue(wire: Wire, *, copies: bool = False, partitions: int = 1) -> Topic:
    """Create a dead-letter queue topic and set it for the group."""
    queue = await create_topic(wire, DLQ, partitions, ENABLED)
    await set_queue(wire, copies=copies)
    return queue


async def set_queue(wire: Wire, *, copies: bool = False) -> None:
    await set_group(wire, "errors.deadletterqueue.topic.name", DLQ)
    copied = "true" if copies else "false"
    await set_group(wire, "errors.deadletterqueue.copy.record.enable", copied)


async def filled(broker: Broker, wire: Wire, records: int = 10, partitions: int = 1) -> Topic:
    topic = await shared_topic(broker, wire, partitions)
    for index in range(partitions):
        await produce(wire, topic, batch([b"%d" % n for n in range(records)]), partition=index)
    return topic


async def dead_letters(
    broker: Broker, wire: Wire, queue: Topic, partition: int = 0
) -> list[Record]:
    """Return the records of a dead-letter queue once no more are to be written."""
    await wait_until_stored(broker.node)
    row = await fetch(wire, queue, partitions=[partition])
    assert not row.error_code
    return list(records_of(row.records or b""))


def origin_of(record: Record) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return offset, delivery count and cause of a dead letter."""
    headers = dict(record.headers)
    return (
        headers["__dlq.errors.offset"],
        headers["__dlq.errors.delivery.count"],
        headers["__dlq.errors.message"],
    )


async def test_rejected_records_are_written_with_headers_only() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        member = ShareMember(wire, await filled(broker, wire))
        assert await member.acquire() == [(0, 9, 1)]
        row = await member.acknowledge_partition((0, 3, [REJECT, ACCEPT, GAP, REJECT]))
        assert not row.error_code
        first, second = await dead_letters(broker, wire, queue)
        assert (first.key, first.value) == (None, None)
        assert list(first.headers) == [
            ("__dlq.errors.topic", b"t"),
            ("__dlq.errors.partition", b"0"),
            ("__dlq.errors.offset", b"0"),
            ("__dlq.errors.group", GROUP.encode()),
            ("__dlq.errors.delivery.count", b"1"),
            ("__dlq.errors.message", REJECTED),
        ]
        assert origin_of(second) == (b"3", b"1", REJECTED)
        counts = broker.node.share.dlq.counts
        assert (counts.written, counts.produced_batches) == ({GROUP: 2}, {GROUP: 1})
        assert not counts.lost
        assert not counts.failed_batches
        (share_partition,) = broker.node.share.partitions
        assert share_partition.delivery is not None
        assert share_partition.delivery.start_offset == 4


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_copied_records_keep_key_value_and_headers(codec: Codec) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire, copies=True)
        topic = await shared_topic(broker, wire)
        records = [
            Record(b"k%d" % n, b"v%d" % n if n else None, 0, [("h", b"%d" % n), ("h", None)])
            for n in range(3)
        ]
        await produce(wire, topic, batch(records, codec=codec))
        member = ShareMember(wire, topic)
        await member.acquire()
        await member.acknowledge_partition((0, 2, [REJECT, ACCEPT, REJECT]))
        found = await dead_letters(broker, wire, queue)
        assert [(each.key, each.value) for each in found] == [(b"k0", None), (b"k2", b"v2")]
        assert list(found[1].headers)[:3] == [
            ("h", b"2"),
            ("h", None),
            ("__dlq.errors.topic", b"t"),
        ]
        assert len(found[1].headers) == 8


async def test_partitions_map_to_partitions_of_queue() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire, partitions=2)
        topic = await filled(broker, wire, 1, partitions=3)
        member = ShareMember(wire, topic)
        for index in range(3):
            await member.fetch((index,))
            await member.acknowledge_partition((0, 0, REJECT), partition=index)
        found = {
            index: sorted(
                dict(each.headers)["__dlq.errors.partition"] or b""
                for each in await dead_letters(broker, wire, queue, index)
            )
            for index in range(2)
        }
        assert found == {0: [b"0", b"2"], 1: [b"1"]}


async def test_released_records_at_delivery_limit_are_written() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        await set_group(wire, "share.delivery.count.limit", "2")
        member = ShareMember(wire, await filled(broker, wire, 2))
        for deliveries in (1, 2):
            assert await member.acquire() == [(0, 1, deliveries)]
            await member.acknowledge_partition((0, 1, RELEASE))
        found = await dead_letters(broker, wire, queue)
        assert [origin_of(each) for each in found] == [
            (b"0", b"2", EXCEEDED),
            (b"1", b"2", EXCEEDED),
        ]


async def test_expired_locks_at_delivery_limit_are_written() -> None:
    clock = MovableClock()
    async with started(None, clock) as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        await set_group(wire, "share.delivery.count.limit", "2")
        member = ShareMember(wire, await filled(broker, wire, 1))
        for deliveries in (1, 2):
            assert await member.acquire() == [(0, 0, deliveries)]
            clock.coordinator.add(31_000)
            broker.node.share.partitions.clock_moved()
        found = await dead_letters(broker, wire, queue)
        assert [origin_of(each) for each in found] == [(b"0", b"2", EXCEEDED)]


async def test_session_end_at_delivery_limit_writes_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        await set_group(wire, "share.delivery.count.limit", "2")
        topic = await filled(broker, wire, 1)
        for deliveries in (1, 2):
            async with connected(broker.endpoint) as other:
                assert await ShareMember(other, topic).acquire() == [(0, 0, deliveries)]
            await until(lambda: not len(broker.node.share.sessions))
        found = await dead_letters(broker, wire, queue)
        assert [origin_of(each) for each in found] == [(b"0", b"2", EXCEEDED)]
        assert not len(broker.node.share.partitions), "the last session ended"


async def test_batches_respect_message_limit_of_queue() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        configs = ENABLED | {"max.message.bytes": "2000"}
        queue = await create_topic(wire, DLQ, configs=configs)
        await set_queue(wire, copies=True)
        topic = await shared_topic(broker, wire)
        await produce(wire, topic, batch([b"x" * 600] * 20, codec=Codec.GZIP))
        await produce(wire, topic, batch([b"y" * 3000]))
        member = ShareMember(wire, topic)
        await member.acquire()
        await member.acknowledge_partition((0, 20, REJECT))
        found = await dead_letters(broker, wire, queue)
        assert [dict(each.headers)["__dlq.errors.offset"] for each in found] == [
            b"%d" % n for n in range(21)
        ]
        assert {each.value for each in found[:20]} == {b"x" * 600}
        assert found[20].value is None, "a record that is too large is written without its value"


# -- settings


@pytest.mark.parametrize(
    ("configs", "name", "reason"),
    [
        (None, DLQ, "does not exist"),
        ({}, DLQ, "is not enabled"),
        (ENABLED, "errors", "does not start with dlq."),
        (ENABLED | {"max.message.bytes": "100"}, DLQ, "MESSAGE_TOO_LARGE"),
    ],
)
async def test_records_are_archived_if_queue_is_unusable(
    configs: dict[str, str] | None, name: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        if configs is not None:
            await create_topic(wire, name, configs=configs)
        member = ShareMember(wire, await filled(broker, wire))
        await set_group(wire, "errors.deadletterqueue.topic.name", name)
        await member.acquire()
        with caplog.at_level(logging.ERROR):
            await member.acknowledge_partition((0, 9, REJECT))
            await wait_until_stored(broker.node)
        assert reason in caplog.text
        assert "archived 10 records of t-0" in caplog.text
        counts = broker.node.share.dlq.counts
        assert counts.lost == {GROUP: 10}
        is_sent = reason == "MESSAGE_TOO_LARGE"
        assert counts.produced_batches.total() == counts.failed_batches.total()
        assert bool(counts.failed_batches) == is_sent
        (share_partition,) = broker.node.share.partitions
        assert share_partition.delivery is not None
        assert share_partition.delivery.start_offset == 10


async def test_missing_queue_topic_is_created() -> None:
    async with (
        started(errors_deadletterqueue_auto_create_topics_enable=True) as broker,
        connected(broker.endpoint) as wire,
    ):
        await set_queue(wire)
        member = ShareMember(wire, await filled(broker, wire))
        await member.acquire()
        await member.acknowledge_partition((0, 0, REJECT))
        await wait_until_stored(broker.node)
        topic = broker.node.cluster.topics[DLQ]
        assert topic.configs == {
            "errors.deadletterqueue.group.enable": "true",
            "message.timestamp.type": "CreateTime",
        }
        assert len(await dead_letters(broker, wire, Topic(DLQ, topic.id))) == 1


async def test_broker_settings_of_dead_letter_queues_change_at_run_time() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        for name, value in {
            "errors.deadletterqueue.auto.create.topics.enable": "true",
            "errors.deadletterqueue.topic.name.prefix": "failed.",
        }.items():
            assert not await set_config(wire, ResourceType.BROKER, "", name, value)
        await set_group(wire, "errors.deadletterqueue.topic.name", "failed.orders")
        member = ShareMember(wire, await filled(broker, wire))
        await member.acquire()
        await member.acknowledge_partition((0, 0, REJECT))
        await wait_until_stored(broker.node)
        topic = broker.node.cluster.topics["failed.orders"]
        assert len(await dead_letters(broker, wire, Topic(topic.name, topic.id))) == 1


async def test_share_version_1_has_no_dead_letter_queue() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        member = ShareMember(wire, await filled(broker, wire))
        await member.acquire()
        await set_share_version(wire, 1)
        await member.acknowledge_partition((0, 0, REJECT))
        assert not await dead_letters(broker, wire, queue)
        await set_share_version(wire, 2)
        await member.acknowledge_partition((1, 1, REJECT))
        assert len(await dead_letters(broker, wire, queue)) == 1


async def set_share_version(wire: Wire, level: int) -> None:
    update = UpdateFeaturesRequest.Feature(
        feature="share.version", max_version_level=level, upgrade_type=1 if level > 1 else 3
    )
    response = await wire.ask(
        ApiKey.UPDATE_FEATURES, 1, UpdateFeaturesRequest(feature_updates=[update])
    )
    assert not response.error_code, response


# -- failures


async def test_failed_write_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_group_dlq, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(share_group_dlq, "PRODUCE_TIMEOUT_MS", 0)
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        member = ShareMember(wire, await filled(broker, wire))
        await member.acquire()
        await member.acknowledge_partition((0, 4, REJECT), (5, 9, ACCEPT))
        found = await dead_letters(broker, wire, queue)
        assert [origin_of(each)[0] for each in found] == [b"%d" % n for n in range(5)], (
            "an attempt that timed out is not written twice"
        )


async def test_exhausted_attempts_archive_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def reject(*args: Any) -> None:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    monkeypatch.setattr(share_group_dlq, "BACKOFF_SECONDS", 0.001)
    async with started() as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        monkeypatch.setattr(broker.node.share.dlq, "_append", reject)
        member = ShareMember(wire, await filled(broker, wire))
        await member.acquire()
        with caplog.at_level(logging.ERROR):
            await member.acknowledge_partition((0, 9, REJECT))
            assert not await dead_letters(broker, wire, queue)
        counts = broker.node.share.dlq.counts
        assert (counts.produced_batches, counts.failed_batches) == ({GROUP: 5}, {GROUP: 1})
        assert "5 attempts failed, the last one with: NOT_ENOUGH_REPLICAS" in caplog.text
        (share_partition,) = broker.node.share.partitions
        assert share_partition.delivery is not None
        assert share_partition.delivery.start_offset == 10


async def test_records_that_wait_for_queue_survive_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_forever(*args: Any) -> None:
        await trio.sleep_forever()

    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        queue = await enable_queue(wire)
        monkeypatch.setattr(broker.node.share.dlq, "_try_to_write", wait_forever)
        topic = await filled(broker, wire)
        member = ShareMember(wire, topic)
        await member.acquire()
        row = await member.acknowledge_partition((0, 3, [REJECT, ACCEPT, ACCEPT, REJECT]))
        assert not row.error_code, "the response does not wait for the queue"
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        member = ShareMember(wire, topic)
        assert await member.acquire() == [(4, 9, 1)]
        found = await dead_letters(broker, wire, queue)
        assert [origin_of(each) for each in found] == [
            (b"0", b"1", REJECTED),
            (b"3", b"1", REJECTED),
        ]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await ShareMember(wire, topic).acquire()
        assert len(await dead_letters(broker, wire, queue)) == 2, "no record is written again"
