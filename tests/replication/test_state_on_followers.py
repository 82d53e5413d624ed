"""State of followers other than records: producers, transactions, compaction, retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import WriteTxnMarkersRequest
from kbroker.protocol.records import Record, read_records

from ..brokers import started
from ..wire import Topic, batch, fetch, produce, sequenced, until
from .harness import (
    Links,
    links,
    log_on,
    place_topic,
    read_batches,
    replica_on,
    send,
    until_equal,
    until_leader,
    wire_to,
)

__all__ = ["links"]

PRODUCER = 7


async def part(
    broker: Broker, node_id: int, topic: Topic, sequence: int, *, transactional: bool = False
) -> Any:
    """Produce one batch of an idempotent producer and return its row of the response."""
    records = sequenced(PRODUCER, sequence, [b"x", b"y"], transactional=transactional)
    name = "tx" if transactional else None
    async with wire_to(broker.local_node(node_id)) as wire:
        return await produce(wire, topic, records, transactional_id=name)


async def test_new_leader_has_the_sequences_of_producers(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        for sequence in range(0, 14, 2):
            assert (await part(broker, 1, topic, sequence)).base_offset == sequence
        # Restart one of the possible next leaders, but not the other one.
        await broker.local_node(2).stop()
        await broker.local_node(2).start()
        await until(lambda: set(broker.node.cluster.topics["t"].partitions[0].isr) == {1, 2, 3})
        await broker.local_node(1).crash()
        leader = await until_leader(broker, "t", {2, 3})
        for sequence in range(4, 14, 2):
            retry = await part(broker, leader, topic, sequence)
            assert (retry.error_code, retry.base_offset) == (0, sequence)
        assert log_on(broker, leader, "t").log_end_offset == 14
        for sequence in (2, 16):
            skipped = await part(broker, leader, topic, sequence)
            assert skipped.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await part(broker, leader, topic, 14)).base_offset == 14


async def end_transaction(broker: Broker, topic: Topic, *, commit: bool) -> None:
    cls = WriteTxnMarkersRequest
    rows = [cls.Topic(name=topic.name, partition_indexes=[0])]
    marker = cls.Marker(
        producer_id=PRODUCER, producer_epoch=0, transaction_result=commit, topics=rows
    )
    async with wire_to(broker.local_node(1)) as wire:
        response = await wire.ask(ApiKey.WRITE_TXN_MARKERS, 1, cls(markers=[marker]))
    ((row,),) = (each.partitions for each in response.markers[0].topics)
    assert row.error_code == 0


async def test_new_leader_has_the_aborted_and_open_transactions(tmp_path: Path) -> None:
    settings = {"transaction_partition_verification_enable": False}
    async with started(tmp_path, nodes=3, **settings) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await part(broker, 1, topic, 0, transactional=True)  # 0 and 1
        await end_transaction(broker, topic, commit=False)  # 2
        await part(broker, 1, topic, 2, transactional=True)
        await end_transaction(broker, topic, commit=True)  # 5
        still_open = await part(broker, 1, topic, 4, transactional=True)
        assert (still_open.error_code, still_open.base_offset) == (0, 6)
        await broker.local_node(1).crash()
        leader = await until_leader(broker, "t", {2, 3})
        await until(lambda: log_on(broker, leader, "t").high_watermark == 8)
        async with wire_to(broker.local_node(leader)) as wire:
            row = await fetch(wire, topic, isolation_level=1)
        assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [
            (PRODUCER, 0)
        ]
        assert row.last_stable_offset == 6


COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1000",
    "min.cleanable.dirty.ratio": "0.01",
}


async def keyed(broker: Broker, topic: Topic, count: int) -> None:
    async with wire_to(broker.local_node(1)) as wire:
        for number in range(count):
            record = Record(b"k%d" % (number % 3), b"%d" % number * 50, 1000)
            assert (await produce(wire, topic, batch([record]))).error_code == 0


def last_values(broker: Broker, node_id: int) -> dict[bytes | None, bytes | None]:
    return {
        each.key: each.value for each in read_records(read_batches(log_on(broker, node_id, "t")))
    }


async def test_each_replica_compacts_its_own_log() -> None:
    async with started(nodes=2, log_cleaner_enable=False) as broker:
        topic = await place_topic(broker, "t", 1, 2, configs=COMPACTED)
        await keyed(broker, topic, 60)
        await until_equal(broker, "t", 1, 2)
        size = log_on(broker, 1, "t").segments.size
        assert await broker.local_node(2).node.maintenance.cleaner.clean_all() > 0
        assert log_on(broker, 2, "t").segments.size < size
        assert log_on(broker, 1, "t").segments.size == size
        await write_one_more(broker, topic)
        assert last_values(broker, 2) == last_values(broker, 1)


async def write_one_more(broker: Broker, topic: Topic) -> None:
    """Write one more record, which reaches both nodes."""
    await keyed(broker, topic, 1)
    await until(
        lambda: log_on(broker, 2, "t").high_watermark == log_on(broker, 1, "t").log_end_offset
    )


@pytest.mark.slow
async def test_follower_replicates_a_compacted_log(links: Links, tmp_path: Path) -> None:
    settings = {"log_cleaner_enable": False, "replica_lag_time_max_ms": 300}
    async with started(tmp_path, nodes=2, **settings) as broker:
        topic = await place_topic(broker, "t", 1, 2, configs=COMPACTED)
        with links.holding(2):
            await keyed(broker, topic, 60)
            assert await broker.local_node(1).node.maintenance.cleaner.clean_all() > 0
        await until_equal(broker, "t", 1, 2)
        await broker.local_node(2).stop()
        await broker.local_node(2).start()
        await write_one_more(broker, topic)
        assert last_values(broker, 2) == last_values(broker, 1)


async def test_only_the_leader_applies_retention() -> None:
    configs = {"internal.segment.bytes": "1000", "retention.bytes": "3000"}
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2, configs=configs)
        for _ in range(20):
            await send(broker, 1, topic, b"x" * 400)
        await until_equal(broker, "t", 1, 2)
        await broker.local_node(2).node.maintenance.log_manager_tasks.apply_retention_now()
        assert log_on(broker, 2, "t").log_start_offset == 0
        await broker.local_node(1).node.maintenance.log_manager_tasks.apply_retention_now()
        start = log_on(broker, 1, "t").log_start_offset
        assert start > 0
        await until(lambda: log_on(broker, 2, "t").log_start_offset == start)
        assert replica_on(broker, 2, "t").log.segments.size < 5000
