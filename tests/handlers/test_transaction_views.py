"""Tests of DescribeProducers for idempotent producers."""

from __future__ import annotations

from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import DescribeProducersRequest
from kbroker.protocol.records import Record

from ..brokers import Start
from ..wire import Wire, batch, connected, create_topic, produce


async def describe(wire: Wire, name: str, *partitions: int) -> list[Any]:
    cls = DescribeProducersRequest
    ask = cls(topics=[cls.Topic(name=name, partition_indexes=list(partitions))])
    (topic,) = (await wire.ask(ApiKey.DESCRIBE_PRODUCERS, 0, ask)).topics
    assert topic.name == name
    rows: list[Any] = topic.partitions
    return rows


async def test_idempotent_producers_of_partition_are_described(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a", 2)
        await produce(wire, topic, batch())
        for producer_id, epoch in ((9, 2), (8, 0)):
            records = [Record(None, b"x", 1000 + producer_id)] * 3
            ids = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": 0}
            assert (await produce(wire, topic, batch(records, **ids))).error_code == 0
        first, second = await describe(wire, "a", 0, 1)
        assert (first.partition_index, first.error_code) == (0, 0)
        assert [
            (
                row.producer_id,
                row.producer_epoch,
                row.last_sequence,
                row.last_timestamp,
                row.coordinator_epoch,
                row.current_txn_start_offset,
            )
            for row in first.active_producers
        ] == [(8, 0, 2, 1008, -1, -1), (9, 2, 2, 1009, -1, -1)]
        assert (second.error_code, second.active_producers) == (0, [])


async def test_describe_producers_of_unknown_partition_returns_error(wire: Wire) -> None:
    await create_topic(wire, "a")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name, index, code in (
        ("a", 1, unknown),
        ("a", -1, unknown),
        ("b", 0, unknown),
        ("a/b", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        (row,) = await describe(wire, name, index)
        assert (row.partition_index, row.error_code, row.active_producers) == (index, code, [])
        assert row.error_message
