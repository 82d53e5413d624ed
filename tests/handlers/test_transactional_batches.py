"""Tests of transactional Produce requests: appended and rejected batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest

from ..brokers import started
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    produce,
    produce_request,
    request,
    sequenced,
    until,
)

# Produce versions of transaction protocols 1 and 2 (KIP-890).
FIRST, SECOND = range(3, 12), range(12, 14)
BOTH = [9, 11, 12, 13]


class Producer(NamedTuple):
    """A transactional producer; `name` is its transactional ID."""

    name: str
    id: int
    epoch: int


def transactional_batch(
    producer: Producer,
    sequence: int = 0,
    values: Iterable[bytes] = (b"x",),
    *,
    transactional: bool = True,
) -> bytes:
    """Encode a batch of the producer's transaction."""
    return sequenced(
        producer.id, sequence, values, epoch=producer.epoch, transactional=transactional
    )


async def init(wire: Wire, name: str = "tx") -> Producer:
    await wire.ask(
        ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key=name, key_type=1)
    )
    ask = request(ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
    response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, ask)
    assert not response.error_code
    return Producer(name, response.producer_id, response.producer_epoch)


async def add(wire: Wire, producer: Producer, topic: Topic, *partitions: int) -> None:
    """Add partitions to the transaction like clients of protocol 1."""
    cls = type(request(ApiKey.ADD_PARTITIONS_TO_TXN))
    ask = cls(
        v3_and_below_transactional_id=producer.name,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[cls.Topic(name=topic.name, partitions=list(partitions))],
    )
    response = await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, ask)
    (row,) = response.results_by_topic_v3_and_below
    assert not any(each.partition_error_code for each in row.results_by_partition)


async def end(wire: Wire, producer: Producer, version: int = 5, *, commit: bool = True) -> Producer:
    """End the transaction; return the producer with its next epoch."""
    ask = request(
        ApiKey.END_TXN,
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    response = await wire.ask(ApiKey.END_TXN, version, ask)
    assert not response.error_code
    if version < 5:
        return producer
    return Producer(producer.name, response.producer_id, response.producer_epoch)


async def begin(wire: Wire, producer: Producer, topic: Topic, version: int) -> None:
    """Add partition 0 to the transaction if this version requires it."""
    if version in FIRST:
        await add(wire, producer, topic, 0)


async def write(
    wire: Wire, producer: Producer, topic: Topic, version: int, sequence: int = 0, **settings: Any
) -> Any:
    """Produce a transactional batch and return its row of the response."""
    return await produce(
        wire,
        topic,
        transactional_batch(producer, sequence),
        version,
        transactional_id=producer.name,
        **settings,
    )


async def last_stable_offset(wire: Wire, topic: Topic) -> int:
    offset: int = (await fetch(wire, topic)).last_stable_offset
    return offset


@pytest.mark.parametrize("version", BOTH)
async def test_transactions_commit_and_abort_in_both_protocols(wire: Wire, version: int) -> None:
    topic, producer = await create_topic(wire, "t"), await init(wire)
    last_end = 4 if version in FIRST else 5
    for sequence, offset, commit in ((0, 0, True), (2, 3, False)):
        await begin(wire, producer, topic, version)
        if version in SECOND:
            sequence = 0
        for i in (0, 1):
            row = await write(wire, producer, topic, version, sequence + i)
            assert (row.error_code, row.base_offset) == (0, offset + i)
        duplicate = await write(wire, producer, topic, version, sequence)
        assert (duplicate.error_code, duplicate.base_offset) == (0, offset), (
            "a duplicate gets its first offset"
        )
        assert await last_stable_offset(wire, topic) == offset
        producer = await end(wire, producer, last_end, commit=commit)
        assert await last_stable_offset(wire, topic) == offset + 3


@pytest.mark.parametrize("version", FIRST)
async def test_batch_for_partition_outside_of_transaction_is_rejected(
    wire: Wire, version: int
) -> None:
    topic, producer = await create_topic(wire, "t", 2), await init(wire)
    code = ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    for _ in ("no transaction", "without this partition"):
        row = await write(wire, producer, topic, version)
        assert (row.error_code, row.base_offset, row.log_start_offset) == (code, -1, -1)
        await add(wire, producer, topic, 1)
    assert (await fetch(wire, topic)).high_watermark == 0


async def test_protocol_2_checks_producer_without_partition_verification() -> None:
    async with (
        started(transaction_partition_verification_enable=False) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic, producer = await create_topic(wire, "t"), await init(wire)
        row = await write(wire, producer._replace(id=producer.id + 1), topic, 12)
        assert row.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", BOTH)
async def test_batch_of_fenced_or_unknown_producer_is_rejected(wire: Wire, version: int) -> None:
    topic, old = await create_topic(wire, "t"), await init(wire)
    producer = await init(wire)
    assert producer.epoch == old.epoch + 1
    for name, other, code in (
        ("fenced", old, ErrorCode.INVALID_PRODUCER_EPOCH),
        ("later", producer._replace(epoch=9), ErrorCode.INVALID_PRODUCER_EPOCH),
        ("other id", producer._replace(id=4711), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ("unknown", producer._replace(name="?"), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ):
        assert (await write(wire, other, topic, version)).error_code == code, name
    await begin(wire, producer, topic, version)
    assert (await write(wire, producer, topic, version)).error_code == 0
    row = await write(wire, old, topic, version, 1)
    assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", SECOND)
async def test_new_epoch_starts_at_sequence_0(wire: Wire, version: int) -> None:
    """The rule includes unknown producers. The rejected batch leaves the transaction open."""
    topic, producer = await create_topic(wire, "t", 2), await init(wire)
    for _ in ("unknown", "with a new epoch"):
        row = await write(wire, producer, topic, version, 3)
        assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await write(wire, producer, topic, version)).error_code == 0
        producer = await end(wire, producer)


@pytest.mark.parametrize("version", BOTH)
async def test_non_transactional_batch_is_rejected_during_transaction(
    wire: Wire, version: int
) -> None:
    """Without an open transaction it is appended, even with a transactional ID in the request."""
    topic, producer = await create_topic(wire, "t"), await init(wire)
    non_transactional = transactional_batch(producer, 0, transactional=False)
    assert (await produce(wire, topic, batch(), version, transactional_id="tx")).error_code == 0
    assert (
        await produce(wire, topic, non_transactional, version, transactional_id="tx")
    ).error_code == 0
    await begin(wire, producer, topic, version)
    assert (await write(wire, producer, topic, version, 1)).error_code == 0
    row = await produce(wire, topic, transactional_batch(producer, 2, transactional=False), version)
    assert row.error_code == ErrorCode.INVALID_TXN_STATE
    assert await last_stable_offset(wire, topic) == 2


@pytest.mark.parametrize("version", [3, 9, 13])
async def test_transactional_batch_without_transactional_id_fails_request(
    wire: Wire, version: int
) -> None:
    """One such batch fails the whole request, before any other check."""
    topic, producer = await create_topic(wire, "t", 2), await init(wire)
    for acks in (-1, 7):
        ask = produce_request(topic, batch(), acks=acks)
        ask.topic_data[0].partition_data.append(
            ProduceRequest.Partition(index=1, records=transactional_batch(producer))
        )
        response = await wire.ask(ApiKey.PRODUCE, version, ask)
        rows = response.responses[0].partition_responses
        assert [(row.index, row.error_code, row.base_offset) for row in rows] == [
            (0, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1),
            (1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1),
        ]
    assert (await fetch(wire, topic)).high_watermark == 0


@pytest.mark.parametrize("version", SECOND)
async def test_partitions_of_request_are_added_in_one_record(
    broker: Broker, wire: Wire, version: int
) -> None:
    """Partitions with invalid batches are not added."""
    topic, producer = await create_topic(wire, "t", 3), await init(wire)
    shard = broker.node.transactions.shard("tx")
    before = shard.replica.log.log_end_offset
    ask = produce_request(topic, transactional_batch(producer), transactional_id="tx")
    rows = ask.topic_data[0].partition_data
    rows += [
        ProduceRequest.Partition(index=index, records=transactional_batch(producer))
        for index in (1, 2, 9)
    ]
    rows[2].records = b"\0" * 80
    response = await wire.ask(ApiKey.PRODUCE, version, ask)
    codes = [row.error_code for row in response.responses[0].partition_responses]
    assert codes[:2] == [0, 0]
    assert codes[2] in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert codes[3] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shard.replica.log.log_end_offset == before + 1
    assert shard.coordinator.transactions["tx"].partitions == {("t", 0), ("t", 1)}


@pytest.mark.parametrize("version", SECOND)
async def test_pipelined_transactional_batches_keep_order(wire: Wire, version: int) -> None:
    """The second batch waits until the first one is part of the transaction and appended."""
    topic, producer = await create_topic(wire, "t"), await init(wire)
    for _ in range(3):
        data = b"".join(
            wire.frame(
                ApiKey.PRODUCE,
                version,
                produce_request(
                    topic, transactional_batch(producer, sequence), transactional_id="tx"
                ),
            )
            for sequence in range(5)
        )
        await wire.send_bytes(data)
        for _ in range(5):
            ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
            assert row.error_code == 0
        producer = await end(wire, producer)
    assert await last_stable_offset(wire, topic) == 18


@pytest.mark.parametrize("version", BOTH)
async def test_transactional_batches_are_recompressed_in_order(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t", configs={"compression.type": "gzip"})
    producer = await init(wire)
    await begin(wire, producer, topic, version)
    large = transactional_batch(producer, values=[b"x" * 20_000])
    row = await produce(wire, topic, large, version, transactional_id="tx")
    assert row.error_code == 0
    assert (await write(wire, producer, topic, version, 1)).error_code == 0
    await end(wire, producer)
    assert await last_stable_offset(wire, topic) == 3


async def test_rejected_transactional_batch_with_acks_0_closes_connection(
    broker: Broker, wire: Wire
) -> None:
    topic, producer = await create_topic(wire, "t"), await init(wire)
    ask = produce_request(topic, transactional_batch(producer), acks=0, transactional_id="tx")
    await wire.send_bytes(wire.frame(ApiKey.PRODUCE, 12, ask))
    log = broker.node.partitions.named_replica("t", 0).log
    await until(lambda: log.log_end_offset == 1)
    refused = produce_request(
        topic, transactional_batch(producer._replace(epoch=5)), acks=0, transactional_id="tx"
    )
    await wire.send_bytes(wire.frame(ApiKey.PRODUCE, 12, refused))
    await wire.wait_closed()


@pytest.mark.parametrize("version", [1, 2])
async def test_late_marker_does_not_end_next_transaction(wire: Wire, version: int) -> None:
    """Markers of protocol 2 must have the epoch of the next transaction."""
    topic, producer = await create_topic(wire, "t"), await init(wire)
    assert (await write(wire, producer, topic, 12)).error_code == 0
    cls = type(request(ApiKey.WRITE_TXN_MARKERS))
    marker = cls.Marker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=True,
        topics=[cls.Topic(name="t", partition_indexes=[0])],
        transaction_version=2,
    )
    response = await wire.ask(ApiKey.WRITE_TXN_MARKERS, version, cls(markers=[marker]))
    ((row,),) = (each.partitions for each in response.markers[0].topics)
    assert row.error_code == (ErrorCode.INVALID_PRODUCER_EPOCH if version == 2 else 0)
    assert await last_stable_offset(wire, topic) == (0 if version == 2 else 2)


async def test_expired_transactional_ids_are_removed_at_configured_interval() -> None:
    async with (
        started(
            transactional_id_expiration_ms=1,
            transaction_remove_expired_transaction_cleanup_interval_ms=10,
        ) as broker,
        connected(broker.endpoint) as wire,
    ):
        await init(wire)
        coordinator = broker.node.transactions.shard("tx").coordinator
        await until(lambda: not coordinator.transactions)
