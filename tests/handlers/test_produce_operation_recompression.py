"""Tests of the recompression of batches with another codec than the topic's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.handlers.produce_operation import LIGHT_BYTES_MAX
from kbroker.protocol import log_validator
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, Compressor
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import (
    HEADER_SIZE,
    Record,
    encode_batch,
    iter_headers,
    read_header,
    read_records,
    with_payload,
)
from kbroker.runtime.heavy_work import HeavyWork

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
    sequenced,
    until,
)

T = Topic("t")
NAMES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
HEAVY, LIGHT = b"x" * 2 * LIGHT_BYTES_MAX, b"x"


def numbered(count: int, size: int = 1000) -> list[Record]:
    return [
        Record(b"key %d" % n, b"%d " % n * (size // 5), 1000 + 7 * n, [("h", b"1")])
        for n in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", list(Codec))
async def test_recompression_changes_only_codec(wire: Wire, name: str, source: Codec) -> None:
    await create_topic(wire, "t", configs={"compression.type": name})
    for size in (10, 3000):  # light and heavy
        sent = encode_batch(numbered(20, size), codec=source)
        row = await produce(wire, T, sent)
        assert row.error_code == 0
        found = (await fetch(wire, T, row.base_offset)).records
        [(_, header)] = iter_headers(found)
        assert header.codec == NAMES[name]
        base = row.base_offset
        assert list(read_records(found)) == [
            record._replace(offset=base + record.offset) for record in read_records(sent)
        ]
        if source == NAMES[name]:
            assert found[HEADER_SIZE:] == sent[HEADER_SIZE:]


async def test_recompressed_batch_gets_log_append_time(wire: Wire) -> None:
    configs = {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"}
    await create_topic(wire, "t", configs=configs)
    row = await produce(wire, T, encode_batch(numbered(20)))
    assert row.log_append_time_ms > 1_600_000_000_000
    found = (await fetch(wire, T)).records
    assert {record.timestamp for record in read_records(found)} == {row.log_append_time_ms}


async def test_pipelined_recompressed_batches_keep_order(start: Start) -> None:
    """Heavy and light batches alternate. Another order would violate the producer's sequences."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", configs={"compression.type": "zstd"})
        for number in range(40):
            value = HEAVY if number % 3 else LIGHT
            records = sequenced(7, number, [value], codec=number % 2)
            await wire.send(ApiKey.PRODUCE, 9, produce_request(T, records))
        responses = [await wire.receive() for _ in range(40)]
        rows = [response.responses[0].partition_responses[0] for response in responses]
        assert [row.error_code for row in rows] == [0] * 40
        assert [row.base_offset for row in rows] == list(range(40))


async def test_duplicate_of_recompressed_batch_is_acknowledged(wire: Wire) -> None:
    await create_topic(wire, "t", configs={"compression.type": "gzip"})
    records = sequenced(7, 0, [HEAVY])
    assert [(await produce(wire, T, records)).base_offset for _ in range(2)] == [0, 0]


async def test_each_partition_of_request_gets_own_result(wire: Wire) -> None:
    """Some batches are stored at once, some are recompressed, and some are rejected."""
    await create_topic(wire, "plain")
    await create_topic(wire, "packed", 3, configs={"compression.type": "lz4"})
    cls = ProduceRequest

    def rows(*records: bytes) -> list[ProduceRequest.Partition]:
        return [cls.Partition(index=n, records=data) for n, data in enumerate(records)]

    bad = bytearray(batch([HEAVY]))
    bad[-1] ^= 1
    ask = cls(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            cls.Topic(name="plain", partition_data=rows(batch([HEAVY]))),
            cls.Topic(
                name="packed", partition_data=rows(batch([LIGHT]), bytes(bad), batch([HEAVY]))
            ),
            cls.Topic(name="unknown", partition_data=rows(batch([LIGHT]))),
        ],
    )
    response = await wire.ask(ApiKey.PRODUCE, 9, ask)
    assert [
        [(row.index, row.error_code) for row in topic.partition_responses]
        for topic in response.responses
    ] == [
        [(0, 0)],
        [(0, 0), (1, ErrorCode.CORRUPT_MESSAGE), (2, 0)],
        [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
    ]


async def test_request_completes_if_one_partition_is_durable_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush of that partition is notified only once, before the request starts to wait."""
    async with started(tmp_path / "data") as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 2, configs={"compression.type": "gzip"})

        async def run_slowly(self: HeavyWork, work: Callable[[], bytes]) -> bytes:
            replica = broker.node.partitions.named_replica("t", 0)
            await until(lambda: replica.log.high_watermark == replica.log.log_end_offset)
            return work()

        monkeypatch.setattr(HeavyWork, "run", run_slowly)
        rows = [ProduceRequest.Partition(index=n, records=batch([HEAVY])) for n in range(2)]
        topic = ProduceRequest.Topic(name="t", partition_data=rows)
        response = await wire.ask(
            ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])
        )
        assert [row.error_code for row in response.responses[0].partition_responses] == [0, 0]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_batch_with_damaged_stream_is_rejected(wire: Wire, codec: Codec) -> None:
    await create_topic(wire, "t", configs={"compression.type": "uncompressed"})
    sound = encode_batch(numbered(5), codec=codec)
    damaged = with_damaged_stream(sound)
    assert (await produce(wire, T, damaged)).error_code == ErrorCode.INVALID_RECORD
    assert (await produce(wire, T, sound)).base_offset == 0


def with_damaged_stream(data: bytes) -> bytes:
    """Return the batch with a damaged stream and a valid CRC."""
    header = read_header(data)
    payload = bytearray(data[HEADER_SIZE:])
    payload[:8] = b"\xff" * 8
    return with_payload(header, payload)[0]


async def test_decompressed_size_is_bounded_for_recompression() -> None:
    async with (
        started(decompressed_batch_max_bytes=100_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t", configs={"compression.type": "lz4"})
        bomb = batch([bytes(1_000_000)], codec=Codec.ZSTD)
        assert len(bomb) < 1000
        assert (await produce(wire, T, bomb)).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_batch_above_limit_after_recompression_is_rejected(wire: Wire) -> None:
    configs = {"compression.type": "uncompressed", "max.message.bytes": "10000"}
    await create_topic(wire, "t", configs=configs)
    grows = batch([bytes(50_000)], codec=Codec.GZIP)
    assert (await produce(wire, T, grows)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await produce(wire, T, batch([b"small"]))).base_offset == 0


async def test_heavy_batches_are_recompressed_outside_event_loop(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop: list[bool] = []

    def recording_compressor(*args: Any) -> Compressor:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return Compressor(*args)

    monkeypatch.setattr(log_validator, "Compressor", recording_compressor)
    await create_topic(wire, "t", configs={"compression.type": "zstd"})
    for records in (batch([HEAVY]), batch([LIGHT], codec=Codec.GZIP), batch([LIGHT])):
        assert (await produce(wire, T, records)).error_code == 0
    assert in_loop == [False, False, True]


async def test_recompression_with_acks_0_keeps_order(wire: Wire) -> None:
    await create_topic(wire, "t", configs={"compression.type": "gzip"})
    await wire.send(ApiKey.PRODUCE, 9, produce_request(T, batch([HEAVY]), acks=0), answered=False)
    assert (await produce(wire, T, batch([LIGHT]))).base_offset == 1
