"""Consumers that read from a follower in their rack (KIP-392), on real nodes and with a real client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, TopicPartition

from kbroker.broker import Broker
from kbroker.handlers.fetch_operation import FetchOperation
from kbroker.storage.segment import Slice
from tests.brokers import started
from tests.wire import Topic, batch, connected, fetch, produce, until, values_of

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER, FOLLOWER = 1, 2


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start node 1 in rack a and node 2 in rack b."""
    async with started(
        nodes=1, broker_rack="a", replica_selector_class=SELECTOR, replica_lag_time_max_ms=600_000
    ) as broker:
        await broker.add_node(rack="b")
        yield broker


async def filled(broker: Broker) -> Topic:
    """Create a topic with one record that is on both nodes."""
    placed = [[LEADER, FOLLOWER]]
    created = await broker.node.cluster.create_topic("t", placed, {}, cause="test")
    topic = Topic(created.name, created.id)
    async with connected(broker.endpoint) as wire:
        assert (await produce(wire, topic, batch([b"a"]))).error_code == 0
    log = broker.local_node(FOLLOWER).node.partitions.named_hosted("t", 0).log
    await until(lambda: log.high_watermark == 1)
    return topic


async def test_follower_serves_committed_records_only(broker: Broker) -> None:
    """This holds even if the follower is unreachable and the leader continues."""
    topic = await filled(broker)
    async with (
        connected(broker.endpoint) as leader,
        connected(broker.local_node(FOLLOWER).endpoint) as follower,
    ):
        assert (await fetch(leader, topic, rack_id="b")).preferred_read_replica == FOLLOWER
        assert values_of(await fetch(follower, topic, rack_id="b")) == [b"a"]
        broker.links.cut(FOLLOWER, LEADER)
        assert (await produce(leader, topic, batch([b"b"]), acks=1)).error_code == 0
        for wire in (leader, follower):
            row = await fetch(wire, topic, 1)
            assert (row.error_code, row.high_watermark, values_of(row)) == (0, 1, [])
        broker.links.heal(broker.links.cuts)
        await until(
            lambda: (
                broker.local_node(FOLLOWER).node.partitions.named_hosted("t", 0).log.high_watermark
                == 2
            )
        )
        assert values_of(await fetch(follower, topic, 1, rack_id="b")) == [b"b"]


def read_one(bootstrap_servers: str) -> bytes | None:
    """Return the first record of the topic, read by a client in rack b."""
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "g",
        "client.rack": "b",
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(20)
        return None if message is None or message.error() else message.value()
    finally:
        consumer.close()


async def test_client_reads_from_the_replica_in_its_rack(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker)
    read_at: list[int] = []
    found = FetchOperation._found

    def record_reader(work: FetchOperation, *args: Any) -> Slice:
        if work.follower is None:
            read_at.append(work.node.id)
        return found(work, *args)

    monkeypatch.setattr(FetchOperation, "_found", record_reader)
    assert await trio.to_thread.run_sync(partial(read_one, broker.bootstrap_servers)) == b"a"
    assert set(read_at) == {FOLLOWER}
