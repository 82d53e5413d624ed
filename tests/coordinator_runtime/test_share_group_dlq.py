"""Dead-letter queues of share groups whose topics are led by other nodes (KIP-1191)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.coordinator_runtime import share_group_dlq
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.topics import CreateTopicsRequest
from kbroker.protocol.record_stream import records_of

from ..brokers import started
from ..handlers.test_consumer_groups import set_config
from ..replication.harness import log_on
from ..replication.routed import all_in_sync, leader, routed
from ..sharing import ACCEPT, GROUP, REJECT, ShareMember, initialize, wait_until_stored
from ..wire import Topic, batch, connected, fetch, produce_request, until

QUEUE = "dlq.errors"
RECORDS = 10


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(share_group_dlq, "BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(share_group_dlq, "ATTEMPTS_MAX", 100)
    async with started(
        nodes=3,
        default_replication_factor=3,
        auto_leader_rebalance_enable=False,
        share_coordinator_state_topic_num_partitions=3,
    ) as broker:
        yield broker


async def create_topic_on(broker: Broker, name: str, nodes: list[int], **configs: str) -> Topic:
    """Create a topic with one partition; the first node leads it."""
    cls = CreateTopicsRequest
    row = cls.Topic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[cls.Assignment(partition_index=0, broker_ids=nodes)],
        configs=[cls.Config(name=n.replace("_", "."), value=v) for n, v in configs.items()],
    )
    async with routed(broker) as wire:
        response = await wire.ask(ApiKey.CREATE_TOPICS, 7, cls(topics=[row]))
    (created,) = response.topics
    assert not created.error_code, created
    return Topic(name, created.topic_id)


async def filled(broker: Broker) -> Topic:
    """Create a topic that node 0 leads, with records and a dead-letter queue on node 1."""
    first, second, third = (each.id for each in broker.nodes)
    await create_topic_on(
        broker, QUEUE, [second, first, third], errors_deadletterqueue_group_enable="true"
    )
    topic = await create_topic_on(broker, "t", [first, second, third])
    await initialize(broker.running(), topic)
    await all_in_sync(broker)
    async with routed(broker) as wire:
        for number in range(RECORDS):
            await wire.ask(
                ApiKey.PRODUCE, 9, produce_request(topic, batch([b"%d" % number]), acks=-1)
            )
    async with connected(broker.nodes[0].endpoint) as wire:
        for name, value in {"topic.name": QUEUE, "copy.record.enable": "true"}.items():
            name = f"errors.deadletterqueue.{name}"
            assert not await set_config(wire, ResourceType.GROUP, GROUP, name, value)
    return topic


async def queued_values(broker: Broker) -> list[bytes | None]:
    """Return the values in the dead-letter queue, read from its leader."""
    node = broker.local_node(await leader(broker, QUEUE, 0))
    topic = node.node.cluster.topics[QUEUE]
    async with connected(node.endpoint) as wire:
        row = await fetch(wire, Topic(QUEUE, topic.id))
    assert not row.error_code
    return [record.value for record in records_of(row.records or b"")]


async def test_queue_on_another_node_gets_records(broker: Broker) -> None:
    topic = await filled(broker)
    async with connected(broker.nodes[0].endpoint) as wire:
        member = ShareMember(wire, topic)
        assert await member.acquire() == [(0, 9, 1)]
        await member.acknowledge_partition((0, 3, REJECT), (4, 9, ACCEPT))
        await wait_until_stored(broker.nodes[0].node)
    assert await queued_values(broker) == [b"%d" % number for number in range(4)]


async def test_records_are_written_once_if_queue_changes_leader(broker: Broker) -> None:
    topic = await filled(broker)
    async with connected(broker.nodes[0].endpoint) as wire:
        member = ShareMember(wire, topic)
        await member.acquire()
        await member.acknowledge_partition((0, 1, REJECT))
        await wait_until_stored(broker.nodes[0].node)
        await broker.nodes[1].crash()
        await member.acknowledge_partition((2, 3, REJECT))
        await wait_until_stored(broker.nodes[0].node)
    assert await queued_values(broker) == [b"%d" % number for number in range(4)]


async def test_new_leader_writes_records_that_wait_for_queue(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_forever(*args: Any) -> None:
        await trio.sleep_forever()

    topic = await filled(broker)
    monkeypatch.setattr(broker.nodes[0].node.share.dlq, "_try_to_write", wait_forever)
    async with connected(broker.nodes[0].endpoint) as wire:
        member = ShareMember(wire, topic)
        await member.acquire()
        row = await member.acknowledge_partition((0, 3, REJECT), (4, 8, ACCEPT))
        assert not row.error_code
    await broker.nodes[0].crash()
    second = broker.local_node(await leader(broker, "t", 0))
    log = log_on(broker, second.id, "t")
    await until(lambda: log.high_watermark == RECORDS)
    async with connected(second.endpoint) as wire:
        assert await ShareMember(wire, topic, "b").acquire() == [(9, 9, 1)]
        await wait_until_stored(second.node)
    assert await queued_values(broker) == [b"%d" % number for number in range(4)]
