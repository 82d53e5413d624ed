"""Tests of clients that know only message formats 0 and 1: Produce 0 to 2 and Fetch 0 to 3."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.handlers import down_conversion
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.message_sets import read_messages
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import (
    Marker,
    Record,
    end_transaction_marker,
    read_header,
    read_records,
)
from kbroker.runtime.batch_reads import BatchReads
from kbroker.runtime.batch_reads import Result as ReadResult
from kbroker.runtime.cpu_shares import CpuAccount
from kbroker.runtime.heavy_work import HeavyWork, Result, Steps

from ..brokers import Start
from ..message_sets import LOG_APPEND_TIME, message, messages, to_batch, wrapper
from ..wire import (
    ANSWER_SECONDS,
    NEVER,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    until,
    values_of,
)

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def magic_of(fetch_version: int) -> int:
    return 0 if fetch_version < 2 else 1


def values_in_old_format(row: Any, version: int) -> list[bytes | None]:
    """Return the values in a row of a Fetch response below version 4, with wrappers unpacked."""
    assert row.error_code == 0, row
    magic = magic_of(version)
    found: list[bytes | None] = []
    for each in read_messages(row.records or b"", magic):
        if each.codec:
            whole = message(each.value, magic=magic, attributes=each.attributes)
            found += [record.value for record in read_records(to_batch(whole) or b"")]
        else:
            found.append(each.value)
    return found


def offsets_in_old_format(row: Any, version: int) -> list[int]:
    return [each.offset for each in read_messages(row.records or b"", magic_of(version))]


# -- produce


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
async def test_old_messages_are_readable_by_old_and_new_clients(
    start: Start, version: int, magic: int, codec: Codec
) -> None:
    values: list[bytes | None] = [b"a", None, b"c" * 100]
    sent = messages(values, magic)
    if codec:
        sent = wrapper(sent, codec, magic)
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for expected in (0, 3):
            row = await produce(wire, topic, sent, version)
            assert (row.index, row.error_code, row.base_offset) == (0, 0, expected)
            assert (row.log_append_time_ms, row.log_start_offset) == (-1, -1)
        new = await fetch(wire, topic)
        assert values_of(new) == values * 2
        assert read_header(new.records).codec == codec
        for fetch_version in range(4):
            row = await fetch(wire, topic, 0, fetch_version)
            assert row.high_watermark == 6
            assert values_in_old_format(row, fetch_version) == values * 2


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_messages_get_log_append_time(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t", configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    row = await produce(wire, topic, messages([b"a", b"b"]), version)
    (stamp,) = {record.timestamp for record in read_records((await fetch(wire, topic)).records)}
    assert before <= stamp <= before + 10_000
    assert row.log_append_time_ms == (stamp if version == 2 else -1)
    found = await fetch(wire, topic, 0, 2)
    for each in read_messages(found.records, 1):
        assert (each.timestamp, each.attributes) == (stamp, LOG_APPEND_TIME)


@pytest.mark.parametrize("magic", [0, 1])
async def test_timestamp_limits_do_not_apply_to_format_0(wire: Wire, magic: int) -> None:
    """Messages of format 0 have no timestamp, which is stored as -1."""
    limits = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"}
    topic = await create_topic(wire, "t", configs=limits)
    row = await produce(wire, topic, message(magic=magic, timestamp=5), 2)
    assert row.error_code == (ErrorCode.INVALID_TIMESTAMP if magic else 0)
    if not magic:
        (record,) = read_records((await fetch(wire, topic)).records)
        assert record.timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
async def test_compacted_topic_rejects_old_messages_without_key(wire: Wire, codec: Codec) -> None:
    topic = await create_topic(wire, "t", configs={"cleanup.policy": "compact"})
    for data, code in (
        (message(b"v", None), ErrorCode.INVALID_RECORD),
        (message(b"v", b"k") + message(b"v", None), ErrorCode.INVALID_RECORD),
        (message(b"v", b"k"), 0),
    ):
        sent = wrapper(data, codec) if codec else data
        assert (await produce(wire, topic, sent, 2)).error_code == code
    assert (await fetch(wire, topic)).high_watermark == 1


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_invalid_old_messages_are_rejected(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t", configs={"max.message.bytes": "1000"})
    cases: dict[ErrorCode, bytes | None] = {
        ErrorCode.CORRUPT_MESSAGE: message(crc=1),
        ErrorCode.MESSAGE_TOO_LARGE: message(b"x" * 2000),
        ErrorCode.INVALID_RECORD: message(attributes=7),
        ErrorCode.INVALID_TIMESTAMP: message(timestamp=int(time.time() * 1000) + 7_200_000),
    }
    for code, data in cases.items():
        row = await produce(wire, topic, data, version)
        assert (row.error_code, row.base_offset, row.log_append_time_ms) == (code, -1, -1)
    assert (await produce(wire, topic, None, version)).error_code == ErrorCode.INVALID_RECORD
    row = await produce(wire, topic, message(), version, partition=7)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = await produce(wire, Topic("missing"), message(), version)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = await produce(wire, topic, message(), version, acks=5)
    assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert (await fetch(wire, topic)).high_watermark == 0


@pytest.mark.parametrize("data", [b"", bytes(10), message()[:-1]])
async def test_incomplete_old_message_is_ignored(wire: Wire, data: bytes) -> None:
    """Like Kafka, the broker appends nothing and returns no offset."""
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, data, 2)
    assert (row.error_code, row.base_offset) == (0, -1)
    row = await produce(wire, topic, message(), 2)
    assert (row.error_code, row.base_offset) == (0, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_produce_request_accepts_record_batch(wire: Wire, version: int) -> None:
    """Like Kafka, the broker accepts it from such clients, but zstd requires a newer version."""
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, batch([b"a"], codec=Codec.GZIP), version)
    assert (row.error_code, row.base_offset) == (0, 0)
    row = await produce(wire, topic, batch([b"a"], codec=Codec.ZSTD), version)
    assert row.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("magic", [0, 1])
async def test_new_produce_request_rejects_old_messages(wire: Wire, magic: int) -> None:
    topic = await create_topic(wire, "t")
    for version in (3, 8, 13):
        row = await produce(wire, topic, message(magic=magic), version)
        assert row.error_code == ErrorCode.INVALID_RECORD


async def test_invalid_message_fails_only_its_partition(wire: Wire) -> None:
    topic = await create_topic(wire, "t", 3)
    rows = [
        ProduceRequest.Partition(index=0, records=messages([b"0"])),
        ProduceRequest.Partition(index=1, records=message(crc=1)),
        ProduceRequest.Partition(index=2, records=wrapper(messages([b"2"]), Codec.GZIP)),
    ]
    request = [ProduceRequest.Topic(name="t", partition_data=rows)]
    response = await wire.ask(ApiKey.PRODUCE, 2, ProduceRequest(acks=-1, topic_data=request))
    codes = [row.error_code for row in response.responses[0].partition_responses]
    assert codes == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    for index, expected in ((0, [b"0"]), (1, []), (2, [b"2"])):
        assert values_of(await fetch(wire, topic, partitions=[index])) == expected


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_invalid_message_with_acks_0_closes_connection(
    broker: Broker, wire: Wire, version: int
) -> None:
    topic = await create_topic(wire, "t")
    quiet = produce_request(topic, message(b"a"), acks=0)
    await wire.send(ApiKey.PRODUCE, version, quiet, answered=False)
    assert values_of(await fetch(wire, topic, max_wait_ms=5000)) == [b"a"]
    bad = produce_request(topic, message(crc=1), acks=0)
    await wire.send(ApiKey.PRODUCE, version, bad, answered=False)
    assert await wire.wait_closed() == b""
    assert broker.node.context.error_log.unhandled_errors == 0


async def test_pipelined_old_and_new_produce_requests_keep_order(wire: Wire) -> None:
    """Offsets and responses follow the order of the requests, converted or not."""
    topic = await create_topic(wire, "t")
    rng = random.Random(1)
    now_ms = int(time.time() * 1000)  # much older timestamps would roll the segment
    sent: list[bytes] = []
    for i in range(60):
        value = b"%d" % i
        sent.append(value)
        if rng.random() < 0.5:
            old = message(value, timestamp=now_ms)
            await wire.send(ApiKey.PRODUCE, 2, produce_request(topic, old))
        else:
            await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([value])))
    for i in range(60):
        response = await wire.receive()
        assert response.responses[0].partition_responses[0].base_offset == i
    assert values_of(await fetch(wire, topic)) == sent


class HeldWork(HeavyWork):
    """Offloaded CPU work that waits until a test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.released = trio.Event()

    async def run_in_steps(self, begin: Callable[[], Steps[Result]], client: CpuAccount) -> Result:
        self.begun += 1
        await self.released.wait()
        return await super().run_in_steps(begin, client)


class HeldReads(BatchReads):
    """Reads of stored batches that wait until a test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.released = trio.Event()

    async def read(
        self,
        begin: Callable[[], Iterator[ReadResult | None]],
        client: Hashable,
        charge: Callable[[float], None],
    ) -> ReadResult | None:
        self.begun += 1
        await self.released.wait()
        return await super().read(begin, client, charge)


@pytest.fixture
def held_reads(monkeypatch: pytest.MonkeyPatch) -> HeldReads:
    """Return the reads of all nodes that are started after this fixture."""
    reads = HeldReads()
    monkeypatch.setattr("kbroker.node.node.BatchReads", lambda in_thread: reads)
    return reads


@pytest.fixture
def held_work(broker: Broker) -> HeldWork:
    broker.node.heavy_work = HeldWork()
    return broker.node.heavy_work


async def test_conversion_does_not_block_other_connections(
    broker: Broker, wire: Wire, held_work: HeldWork
) -> None:
    """The next request of the same connection waits; earlier responses are sent."""
    topic = await create_topic(wire, "t")
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"first"])))
    await wire.send(ApiKey.PRODUCE, 2, produce_request(topic, message(b"second")))
    await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"third"])))
    assert (await wire.receive()).responses[0].partition_responses[0].base_offset == 0
    await until(lambda: held_work.begun)
    async with connected(broker.endpoint) as other:
        assert await other.works()
        assert (await fetch(other, topic)).high_watermark == 1
        held_work.released.set()
        for offset in (1, 2):
            response = await wire.receive()
            assert response.responses[0].partition_responses[0].base_offset == offset
        assert values_of(await fetch(other, topic)) == [b"first", b"second", b"third"]


async def test_topic_deleted_during_conversion_is_unknown(
    broker: Broker, wire: Wire, held_work: HeldWork
) -> None:
    topic = await create_topic(wire, "t")
    await wire.send(ApiKey.PRODUCE, 2, produce_request(topic, message()))
    await until(lambda: held_work.begun)
    async with connected(broker.endpoint) as other:
        await delete_topic(other, "t")
    held_work.released.set()
    row = (await wire.receive()).responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_connection_is_not_idle_during_conversion(
    broker: Broker, wire: Wire, held_work: HeldWork
) -> None:
    topic = await create_topic(wire, "t")
    await wire.send(ApiKey.PRODUCE, 2, produce_request(topic, message(), acks=0), answered=False)
    await until(lambda: held_work.begun)
    (connection,) = broker.server.connections
    assert connection.owes_replies
    held_work.released.set()
    await until(lambda: not connection.owes_replies)


async def test_request_memory_is_accounted_until_conversion_ends(
    broker: Broker, wire: Wire, held_work: HeldWork
) -> None:
    """The memory limit must include requests that wait for their conversion."""
    topic = await create_topic(wire, "t")
    data = message(bytes(900_000))
    await wire.send(ApiKey.PRODUCE, 2, produce_request(topic, data))
    await until(lambda: held_work.begun)
    assert broker.node.limits.memory.used > 500_000
    held_work.released.set()
    assert (await wire.receive()).responses[0].partition_responses[0].error_code == 0
    assert broker.node.limits.memory.used == 0


async def test_messages_are_stored_if_client_disconnects_during_conversion(
    broker: Broker, held_work: HeldWork
) -> None:
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await wire.send(ApiKey.PRODUCE, 2, produce_request(topic, message(b"a")))
        await until(lambda: held_work.begun)
    held_work.released.set()
    await until(lambda: not broker.server.connections)
    async with connected(broker.endpoint) as wire:
        assert values_of(await fetch(wire, topic)) == [b"a"]


# -- fetch


@pytest.mark.slow
@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("codec", CODECS)
async def test_record_batches_are_converted_for_old_consumers(
    start: Start, version: int, codec: Codec
) -> None:
    """Headers are lost. Offsets are kept, and timestamps from version 2 on."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        records = [Record(b"k", b"%d" % i, 1000 + i, [("h", b"x")]) for i in range(3)]
        for _ in range(3):
            await produce(wire, topic, batch(records, codec=codec))
        row = await fetch(wire, topic, 3, version)
        assert values_in_old_format(row, version) == [b"0", b"1", b"2"] * 2
        last = list(read_messages(row.records, magic_of(version)))[-1]
        assert (last.offset, last.timestamp) == (8, 1002 if version > 1 else -1)


@pytest.mark.parametrize("version", range(4))
async def test_old_consumers_cannot_fetch_zstd_batches(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"a"]))
    await produce(wire, topic, batch([b"b"], codec=Codec.ZSTD))
    assert values_in_old_format(await fetch(wire, topic, 0, version), version) == [b"a"]
    row = await fetch(wire, topic, 1, version)
    assert row.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values_of(await fetch(wire, topic, 1, 4)) == [b"b"]


@pytest.mark.parametrize("version", range(4))
async def test_old_fetch_returns_errors_and_empty_responses(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    row = await fetch(wire, topic, 0, version, max_wait_ms=50)
    assert (row.error_code, row.high_watermark, bytes(row.records)) == (0, 0, b"")
    row = await fetch(wire, topic, 5, version, max_wait_ms=NEVER)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    row = await fetch(wire, Topic("missing"), 0, version, max_wait_ms=NEVER)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = await wire.ask(ApiKey.FETCH, version, FetchRequest(max_wait_ms=NEVER, min_bytes=1))
    assert response.responses == []


@pytest.mark.parametrize("version", range(4))
async def test_append_wakes_pending_old_fetch(broker: Broker, wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    await wire.send(ApiKey.FETCH, version, fetch_request(topic, max_wait_ms=NEVER))
    async with connected(broker.endpoint) as other:
        await produce(other, topic, messages([b"a"]), 2)
    response = await wire.receive()
    assert values_in_old_format(response.responses[0].partitions[0], version) == [b"a"]


@pytest.mark.parametrize("version", range(4))
async def test_partition_limit_applies_to_converted_batches(wire: Wire, version: int) -> None:
    """The limit applies after the conversion, which adds bytes. One batch is always sent."""
    topic = await create_topic(wire, "t")
    for _ in range(5):
        await produce(wire, topic, batch([b"x"] * 100))
    one = 100 * len(message(b"x", magic=magic_of(version)))
    for limit, expected in ((10, 100), (2 * one - 1, 100), (2 * one, 200), (1 << 20, 500)):
        row = await fetch(wire, topic, 0, version, partition_max_bytes=limit)
        assert len(values_in_old_format(row, version)) == expected
        assert expected == 100 or len(row.records) <= limit


async def test_request_limit_applies_to_version_3(wire: Wire) -> None:
    """KIP-74 added the limit. The first partition always returns at least one batch."""
    topic = await create_topic(wire, "t", 3)
    for index in range(3):
        await produce(wire, topic, batch([b"x" * 1000]), partition=index)
    for limit, expected in ((0, 1), (1, 1), (2500, 2), (1 << 20, 3)):
        request = fetch_request(topic, partitions=range(3), max_bytes=limit)
        response = await wire.ask(ApiKey.FETCH, 3, request)
        rows = response.responses[0].partitions
        assert [len(values_in_old_format(row, 3)) for row in rows] == [1] * expected + [0] * (
            3 - expected
        )


async def test_every_partition_returns_a_batch_below_version_3(wire: Wire) -> None:
    """Old clients never change the order of partitions, so the last ones would starve."""
    topic = await create_topic(wire, "t", 3)
    for index in range(3):
        await produce(wire, topic, batch([b"x" * 1000]), partition=index)
    for version in (0, 1, 2):
        request = fetch_request(topic, partitions=range(3), partition_max_bytes=100)
        response = await wire.ask(ApiKey.FETCH, version, request)
        rows = response.responses[0].partitions
        assert [len(values_in_old_format(row, version)) for row in rows] == [1, 1, 1]


async def test_uncompressed_bytes_per_old_fetch_are_bounded(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound covers all partitions; the next fetch returns the rest."""
    monkeypatch.setattr(down_conversion, "CONTENT_BYTES_MAX", 25_000)
    topic = await create_topic(wire, "t", 2)
    for index in (0, 1):
        for _ in range(10):
            await produce(wire, topic, batch([bytes(10_000)], codec=1), partition=index)
    request = fetch_request(topic, partitions=(0, 1))
    response = await wire.ask(ApiKey.FETCH, 2, request)
    first, second = response.responses[0].partitions
    assert offsets_in_old_format(first, 2) == [0, 1, 2]
    assert offsets_in_old_format(second, 2) == []
    assert offsets_in_old_format(await fetch(wire, topic, 3, 2), 2) == [3, 4, 5]


# -- control batches


def append_marker(broker: Broker, name: str) -> None:
    """Append a control batch like the end of a transaction does."""
    replica = broker.node.partitions.named_replica(name, 0)
    marker = end_transaction_marker(
        Marker(True, 0), producer_id=7, producer_epoch=0, timestamp=broker.node.clock.log_ms()
    )
    replica.append(memoryview(marker), read_header(marker), broker.node.clock.log_ms())


async def wait_until_committed(broker: Broker, name: str, end_offset: int) -> None:
    log = broker.node.partitions.named_replica(name, 0).log
    await until(lambda: log.high_watermark == end_offset)


@pytest.mark.parametrize("version", range(4))
async def test_old_fetch_skips_control_batches(broker: Broker, wire: Wire, version: int) -> None:
    """The fetch skips them even if its limit is exceeded; otherwise the consumer would be stuck."""
    topic = await create_topic(wire, "t")
    for _ in range(5):
        append_marker(broker, "t")
    await produce(wire, topic, batch([b"x" * 500]))
    row = await fetch(wire, topic, 0, version, partition_max_bytes=100)
    assert values_in_old_format(row, version) == [b"x" * 500]
    assert offsets_in_old_format(row, version) == [5]


@pytest.mark.parametrize("version", range(4))
async def test_control_batch_at_log_end_does_not_complete_old_fetch(
    broker: Broker, wire: Wire, version: int
) -> None:
    """An immediate empty response would make the consumer poll in a busy loop."""
    topic = await create_topic(wire, "t")
    append_marker(broker, "t")
    await wait_until_committed(broker, "t", 1)
    row = await fetch(wire, topic, 0, version, max_wait_ms=50)
    assert (row.error_code, row.high_watermark, bytes(row.records)) == (0, 1, b"")
    await wire.send(ApiKey.FETCH, version, fetch_request(topic, max_wait_ms=NEVER))
    assert await wire.is_silent(0.1)
    append_marker(broker, "t")
    assert await wire.is_silent(0.1)
    async with connected(broker.endpoint) as other:
        await produce(other, topic, batch([b"a"]))
    row = (await wire.receive()).responses[0].partitions[0]
    assert values_in_old_format(row, version) == [b"a"]


async def test_append_during_conversion_of_control_batch_completes_fetch(
    held_reads: HeldReads, broker: Broker, wire: Wire
) -> None:
    topic = await create_topic(wire, "t")
    append_marker(broker, "t")
    await wait_until_committed(broker, "t", 1)
    await wire.send(ApiKey.FETCH, 2, fetch_request(topic, max_wait_ms=NEVER))
    await until(lambda: held_reads.begun)
    async with connected(broker.endpoint) as other:
        await produce(other, topic, batch([b"a"]))
    held_reads.released.set()
    row = (await wire.receive()).responses[0].partitions[0]
    assert values_in_old_format(row, 2) == [b"a"]


async def test_pending_old_fetch_does_not_delay_stop(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        append_marker(broker, "t")
        await wait_until_committed(broker, "t", 1)
        await wire.send(ApiKey.FETCH, 2, fetch_request(topic, max_wait_ms=NEVER))
        assert await wire.is_silent(0.05)
        with trio.fail_after(ANSWER_SECONDS):
            await broker.node.release_waits()
            row = (await wire.receive()).responses[0].partitions[0]
        assert (row.error_code, bytes(row.records)) == (0, b"")
