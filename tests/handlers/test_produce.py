"""Tests of valid Produce requests; tests/fuzz/test_batches.py tests invalid ones."""

from __future__ import annotations

import struct
import time
import uuid

import pytest
from crc32c import crc32c

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import Record, check_crc, encode_batch, read_header, read_records

from ..brokers import Start, started
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
    values_of,
)

VERSIONS = range(3, 14)


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
async def test_produce_returns_offsets(start: Start, version: int, acks: int) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        for expected in (0, 2):
            row = await produce(wire, topic, batch([b"a", b"b"]), version, acks=acks, partition=1)
            assert (row.index, row.error_code, row.base_offset) == (1, 0, expected)
            assert row.log_append_time_ms == -1
            assert row.log_start_offset == (0 if version >= 5 else -1)
        assert values_of(await fetch(wire, topic, partitions=[1])) == [b"a", b"b"] * 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_produce_to_unknown_partition_returns_error(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, batch(), version, partition=5)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (row.base_offset, row.log_append_time_ms) == (-1, -1)
    row = await produce(wire, Topic("missing", uuid.uuid4()), batch(), version)
    by_id = version >= 13
    assert row.error_code == (100 if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("version", [13])
async def test_produce_by_topic_id_is_accepted(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    ask = produce_request(Topic("ignored", topic.id), batch())
    response = await wire.ask(ApiKey.PRODUCE, version, ask)
    assert response.responses[0].topic_id == topic.id
    assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("codec", list(Codec))
async def test_batches_are_stored_unchanged(start: Start, codec: Codec) -> None:
    """With `compression.type=producer`, only the base offset and the leader epoch change."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())
        sent = batch([b"a" * 1000, b"b"], codec=codec)
        await produce(wire, topic, sent)
        stored = bytes((await fetch(wire, topic, 1)).records)
        assert stored[:8] == struct.pack(">q", 1)
        assert stored[12:16] == struct.pack(">i", 0)
        assert stored[8:12] == sent[8:12]
        assert stored[16:] == sent[16:]


@pytest.mark.parametrize("version", VERSIONS)
async def test_produce_to_internal_topic_is_rejected(wire: Wire, version: int) -> None:
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
    cls = type(request(ApiKey.METADATA))
    metadata_request = cls(topics=[cls.Topic(name="__consumer_offsets")])
    response = await wire.ask(ApiKey.METADATA, 12, metadata_request)
    topic = Topic("__consumer_offsets", response.topics[0].topic_id)
    assert response.topics[0].is_internal
    row = await produce(wire, topic, batch(), version)
    assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# -- timestamps


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_log_append_time_replaces_timestamps(wire: Wire, version: int, codec: Codec) -> None:
    topic = await create_topic(wire, "t", configs={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    sent = batch([Record(None, b"a", 5000), Record(None, b"b", 7000)], codec=codec)
    row = await produce(wire, topic, sent, version)
    assert before <= row.log_append_time_ms <= now_ms()
    stored = (await fetch(wire, topic)).records
    header = read_header(stored)
    assert header.is_log_append_time
    assert header.max_timestamp == row.log_append_time_ms
    assert header.base_timestamp == 5000, "the base timestamp is unchanged"
    assert check_crc(stored, 0, header)
    assert {record.timestamp for record in read_records(stored)} == {row.log_append_time_ms}


@pytest.mark.parametrize("version", VERSIONS)
async def test_create_time_far_in_the_future_is_rejected(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    late = now_ms() + 2 * 3_600_000
    rows = [Record(None, b"0", now_ms()), Record(None, b"1", late), Record(None, b"2", late)]
    row = await produce(wire, topic, batch(rows), version)
    assert row.error_code == ErrorCode.INVALID_TIMESTAMP
    assert (row.base_offset, row.log_append_time_ms) == (-1, -1)
    if version >= 8:
        assert [error.batch_index for error in row.record_errors] == [1, 2]
        assert row.error_message
    soon = now_ms() + 3_000_000
    assert (await produce(wire, topic, batch([Record(None, b"", soon)]), version)).error_code == 0


async def test_create_time_far_in_the_past_is_rejected(wire: Wire) -> None:
    topic = await create_topic(wire, "t", configs={"message.timestamp.before.max.ms": "10000"})
    old = batch([Record(None, b"", now_ms() - 20_000)])
    assert (await produce(wire, topic, old)).error_code == ErrorCode.INVALID_TIMESTAMP
    young = batch([Record(None, b"", now_ms() - 5_000)])
    assert (await produce(wire, topic, young)).error_code == 0


async def test_impossible_max_timestamp_is_recomputed(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    data = bytearray(batch([Record(None, b"", 5000), Record(None, b"", 9000)]))
    struct.pack_into(">q", data, 35, 4000)  # below the first timestamp
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    assert (await produce(wire, topic, bytes(data))).error_code == 0
    stored = (await fetch(wire, topic)).records
    assert read_header(stored).max_timestamp == 9000
    assert check_crc(stored, 0, read_header(stored))


# -- sizes


@pytest.mark.parametrize("version", VERSIONS)
async def test_batch_above_topic_limit_is_rejected(wire: Wire, version: int) -> None:
    """The limit applies to the compressed size; a batch of exactly that size is accepted."""
    topic = await create_topic(wire, "t", configs={"max.message.bytes": "1000"})
    overhead = len(batch([b"x" * 500])) - 500
    fits = batch([b"x" * (1000 - overhead)])
    assert len(fits) == 1000
    assert (await produce(wire, topic, fits, version)).error_code == 0
    row = await produce(wire, topic, batch([b"x" * (1001 - overhead)]), version)
    assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
    packed = batch([bytes(100_000)], codec=Codec.GZIP)
    assert len(packed) < 1000
    assert (await produce(wire, topic, packed, version)).error_code == 0


async def test_batch_above_default_limit_is_rejected(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    overhead = len(batch([bytes(1_000_000)])) - 1_000_000
    row = await produce(wire, topic, batch([bytes(1_048_588 - overhead)]))
    assert row.error_code == 0
    row = await produce(wire, topic, batch([bytes(1_048_589 - overhead)]))
    assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_batch_above_segment_size_is_rejected(start: Start) -> None:
    async with start(log_segment_bytes=1_048_576) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", configs={"max.message.bytes": "5000000"})
        row = await produce(wire, topic, batch([bytes(2_000_000)]))
        assert row.error_code == ErrorCode.RECORD_LIST_TOO_LARGE
        assert (await produce(wire, topic, batch([bytes(1_000_000)]))).error_code == 0


# -- idempotence


def numbered(
    sequence: int, values: list[bytes] | None = None, *, pid: int = 7, epoch: int = 0
) -> bytes:
    return sequenced(pid, sequence, values or [b"%d" % sequence], epoch=epoch)


@pytest.mark.parametrize("version", VERSIONS)
async def test_duplicates_of_last_five_batches_are_acknowledged(wire: Wire, version: int) -> None:
    """Duplicates get their first offsets; an older batch is out of order."""
    topic = await create_topic(wire, "t")
    for i in range(8):
        row = await produce(wire, topic, numbered(i), version)
        assert (row.error_code, row.base_offset) == (0, i)
    for i in (7, 3, 5, 4, 6):
        row = await produce(wire, topic, numbered(i), version)
        assert (row.error_code, row.base_offset) == (0, i)
    row = await produce(wire, topic, numbered(2), version)
    assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    row = await produce(wire, topic, numbered(8), version)
    assert row.base_offset == 8
    assert values_of(await fetch(wire, topic)) == [b"%d" % i for i in range(9)]


async def test_duplicate_returns_first_log_append_time(wire: Wire) -> None:
    topic = await create_topic(wire, "t", configs={"message.timestamp.type": "LogAppendTime"})
    first = await produce(wire, topic, numbered(0))
    while now_ms() <= first.log_append_time_ms:
        pass
    retry = await produce(wire, topic, numbered(0))
    assert retry.log_append_time_ms == first.log_append_time_ms


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(numbered(5, epoch=1), 45, id="gap"),
        pytest.param(numbered(2, [b"2", b"3"], epoch=1), 45, id="same first, other last"),
        pytest.param(numbered(1, [b"1", b"2", b"3"], epoch=1), 45, id="overlap"),
        pytest.param(numbered(3, epoch=2), 45, id="new epoch not at 0"),
        pytest.param(numbered(3, epoch=0), 47, id="lower epoch"),
        pytest.param(numbered(2, epoch=0), 47, id="lower epoch of a duplicate"),
    ],
)
async def test_wrong_sequence_or_epoch_is_rejected(wire: Wire, data: bytes, code: int) -> None:
    topic = await create_topic(wire, "t")
    for i in range(3):
        assert (await produce(wire, topic, numbered(i, epoch=1))).error_code == 0
    row = await produce(wire, topic, data)
    assert row.error_code == code
    assert (await fetch(wire, topic)).high_watermark == 3
    assert (await produce(wire, topic, numbered(3, epoch=1))).error_code == 0


async def test_new_producer_epoch_starts_at_sequence_0(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, numbered(0))
    assert (await produce(wire, topic, numbered(0, epoch=1))).base_offset == 1
    assert (await produce(wire, topic, numbered(1, epoch=0))).error_code == 47


async def test_unknown_producer_can_start_at_any_sequence(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    assert (await produce(wire, topic, numbered(1234, pid=99))).error_code == 0
    assert (await produce(wire, topic, numbered(1235, pid=99))).error_code == 0


async def test_sequences_wrap_to_0(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    last = 2**31 - 1
    assert (await produce(wire, topic, numbered(last - 1, [b"a", b"b"]))).error_code == 0
    assert (await produce(wire, topic, numbered(0))).base_offset == 2
    across = numbered(1)
    assert (await produce(wire, topic, across)).base_offset == 3
    retry = await produce(wire, topic, numbered(last - 1, [b"a", b"b"]))
    assert (retry.error_code, retry.base_offset) == (0, 0)


async def test_sequences_of_one_batch_can_wrap(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, numbered(2**31 - 2, [b"a", b"b", b"c", b"d"]))
    assert row.error_code == 0
    assert (await produce(wire, topic, numbered(2))).base_offset == 4


async def test_sequences_are_tracked_per_partition_and_producer(wire: Wire) -> None:
    topic = await create_topic(wire, "t", 2)
    for partition in (0, 1):
        for pid in (1, 2):
            row = await produce(wire, topic, numbered(0, pid=pid), partition=partition)
            assert (row.error_code, row.base_offset) == (0, pid - 1)


async def test_pipelined_batches_after_failed_one_are_out_of_order(wire: Wire) -> None:
    """Five batches are in flight; all of them can be retried."""
    topic = await create_topic(wire, "t")
    await produce(wire, topic, numbered(0))
    bad = bytearray(numbered(1))
    bad[-1] ^= 1
    for data in (bytes(bad), numbered(2), numbered(3), numbered(4), numbered(5)):
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, data))
    codes = [(await wire.receive()).responses[0].partition_responses[0] for _ in range(5)]
    assert [row.error_code for row in codes] == [2, 45, 45, 45, 45]
    for i in range(1, 6):
        assert (await produce(wire, topic, numbered(i))).base_offset == i


async def test_init_producer_id_returns_unique_usable_ids(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    ids = set()
    for version in range(6):
        for _ in range(3):
            ask = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=60_000)
            response = await wire.ask(ApiKey.INIT_PRODUCER_ID, version, ask)
            assert (response.error_code, response.producer_epoch) == (0, 0)
            ids.add(response.producer_id)
            row = await produce(wire, topic, numbered(0, pid=response.producer_id))
            assert row.error_code == 0
    assert len(ids) == 18


async def test_producer_ids_are_unique_across_blocks(broker: Broker, wire: Wire) -> None:
    """Nodes allocate producer IDs in blocks of 1,000."""
    ids = set()
    ask = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=60_000)
    for _ in range(12):
        data = b"".join(wire.frame(ApiKey.INIT_PRODUCER_ID, 4, ask) for _ in range(100))
        await wire.send_bytes(data)
        ids |= {(await wire.receive()).producer_id for _ in range(100)}
    assert len(ids) == 1200


# -- a single node


async def test_min_insync_replicas_is_capped_by_replication_factor(wire: Wire) -> None:
    """Kafka 4 never requires more in-sync replicas than the topic has replicas."""
    topic = await create_topic(wire, "t", configs={"min.insync.replicas": "2"})
    for acks in (1, -1):
        assert (await produce(wire, topic, batch(), acks=acks)).error_code == 0


async def test_request_with_many_partitions_is_acknowledged(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 100)
        rows = [ProduceRequest.Partition(index=i, records=batch([b"%d" % i])) for i in range(100)]
        ask = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.Topic(name="t", partition_data=rows)],
        )
        response = await wire.ask(ApiKey.PRODUCE, 9, ask)
        done = response.responses[0].partition_responses
        assert [(row.index, row.error_code) for row in done] == [(i, 0) for i in range(100)]


async def test_produce_does_not_create_topics(wire: Wire) -> None:
    """Only Metadata requests create topics."""
    row = await produce(wire, Topic("missing"), batch())
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_topics_use_broker_settings_by_default() -> None:
    async with (
        started(message_max_bytes=500, log_message_timestamp_type="LogAppendTime") as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        row = await produce(wire, topic, batch([bytes(600)]))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produce(wire, topic, batch())).log_append_time_ms > 0


async def test_batches_keep_headers_keys_and_nulls(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        some = [
            Record(b"k", b"v", now_ms(), [("h", b"1"), ("h", None), ("", b"")]),
            Record(None, None, now_ms()),
            Record(b"", b"", now_ms()),
        ]
        for codec in Codec:
            await produce(wire, topic, encode_batch(some, codec=codec))
        found = list(read_records((await fetch(wire, topic)).records))
        assert [(r.key, r.value, list(r.headers)) for r in found] == [
            (r.key, r.value, list(r.headers)) for r in some
        ] * len(Codec)
