"""Tests of the decompression of batches before the append; small ones in the event loop."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from kbroker.handlers.produce_operation import EFFORT_AT_ONCE, LIGHT_COMPRESSED_BYTES_MAX
from kbroker.protocol import log_validator, records
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import CHUNK_BYTES, Codec, decompressed_chunks
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.log_validator import DECOMPRESSOR_EFFORT
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import Record, encode_batch, read_header, with_payload

from ..brokers import started
from ..wire import (
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    produce,
    produce_request,
    sequenced,
    values_of,
)

CODECS = list(Codec)[1:]
# A value that is small when compressed.
LARGE = bytes(CHUNK_BYTES + 50_000)


def garbage(codec: Codec, count: int = 1000) -> bytes:
    """Return a batch with valid header and CRC whose payload is no compressed stream."""
    header = read_header(encode_batch([Record(value=b"x")] * count))
    return with_payload(header._replace(attributes=codec), b"this is no gzip")[0]


def with_claimed_count(codec: Codec, count: int, value: bytes) -> bytes:
    """Return a batch with one record whose header claims `count` records."""
    data = encode_batch([Record(value=value, timestamp=1000)], codec=codec)
    header = read_header(data)._replace(record_count=count, last_offset_delta=count - 1)
    return with_payload(header, data[records.HEADER_SIZE :])[0]


@pytest.fixture
def chunks_in_event_loop(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list with an item per decompressed chunk: True if the event loop did it."""
    seen: list[bool] = []

    def recording_chunks(codec: int, data: Any, limit: int) -> Iterator[bytes]:
        chunks = decompressed_chunks(codec, data, limit)
        while True:
            seen.append(threading.current_thread() is threading.main_thread())
            try:
                chunk = next(chunks)
            except StopIteration:
                seen.pop()
                return
            yield chunk

    monkeypatch.setattr(log_validator, "decompressed_chunks", recording_chunks)
    return seen


@pytest.mark.parametrize("codec", CODECS)
async def test_invalid_compressed_batches_are_rejected(wire: Wire, codec: Codec) -> None:
    topic = await create_topic(wire, "t")
    for bad in (
        garbage(codec),
        with_claimed_count(codec, 400_000, b"x"),
        with_claimed_count(codec, 2, b"x"),
        with_claimed_count(codec, 2, LARGE),
    ):
        row = await produce(wire, topic, bad)
        assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert row.error_message
    row = await produce(wire, topic, batch([b"good", LARGE], codec=codec))
    assert (row.error_code, row.base_offset) == (0, 0)
    assert values_of(await fetch(wire, topic)) == [b"good", LARGE]


@pytest.mark.parametrize("codec", CODECS)
async def test_large_batches_are_decompressed_outside_event_loop(
    wire: Wire, chunks_in_event_loop: list[bool], codec: Codec
) -> None:
    topic = await create_topic(wire, "t")
    expands = batch([LARGE], codec=codec)
    noise = b"".join(number.to_bytes(4, "big") for number in range(0, 1 << 31, 1 << 18))
    large = batch([noise], codec=codec)
    assert len(expands) < LIGHT_COMPRESSED_BYTES_MAX < len(large)
    for data, thread in (
        (batch([b"small"], codec=codec), {True}),
        (large, {False}),
        (batch([LARGE]), set()),
        (expands, {True, False}),
    ):
        assert (await produce(wire, topic, data)).error_code == 0
        assert set(chunks_in_event_loop) == thread
        assert chunks_in_event_loop == sorted(chunks_in_event_loop, reverse=True)
        chunks_in_event_loop.clear()


async def test_pipelined_compressed_batches_keep_order(wire: Wire) -> None:
    """All requests are sent at once; some batches are large, some invalid."""
    topic = await create_topic(wire, "t")
    sent = 0
    for number in range(60):
        value = LARGE if number % 3 else b"small"
        data = sequenced(7, sent, [value], codec=number % 5)
        if number % 10 == 9:
            data = garbage(Codec.GZIP)
        else:
            sent += 1
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, data))
    responses = [await wire.receive() for _ in range(60)]
    rows = [response.responses[0].partition_responses[0] for response in responses]
    offsets = [row.base_offset for row in rows if not row.error_code]
    assert offsets == list(range(sent))
    assert [row.error_code for row in rows[9::10]] == [ErrorCode.INVALID_RECORD] * 6


async def test_event_loop_runs_between_many_batches(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition gets its own result, whether its batch is decompressed at once or later."""
    iteration = 0
    batches_by_iteration: Counter[int] = Counter()

    async def count_iterations() -> None:
        nonlocal iteration
        while True:
            iteration += 1
            await trio.lowlevel.checkpoint()

    def recording_chunks(codec: int, data: Any, limit: int) -> Iterator[bytes]:
        batches_by_iteration[iteration] += 1
        return decompressed_chunks(codec, data, limit)

    monkeypatch.setattr(log_validator, "decompressed_chunks", recording_chunks)
    most = EFFORT_AT_ONCE // DECOMPRESSOR_EFFORT
    count = 3 * most
    topic = await create_topic(wire, "t", count)
    rows = [
        ProduceRequest.Partition(
            index=number,
            records=garbage(Codec.GZIP) if number % 10 == 5 else batch(codec=Codec.LZ4),
        )
        for number in range(count)
    ]
    ask = produce_request(topic, None)
    ask.topic_data[0].partition_data = rows
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_iterations)
        response = await wire.ask(ApiKey.PRODUCE, 9, ask)
        nursery.cancel_scope.cancel()
    assert sum(batches_by_iteration.values()) >= count
    assert batches_by_iteration[min(batches_by_iteration)] <= most
    assert len(batches_by_iteration) > 1
    codes = [row.error_code for row in response.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_RECORD if n % 10 == 5 else 0 for n in range(count)]


async def test_decompressed_size_is_bounded() -> None:
    async with (
        started(decompressed_batch_max_bytes=100_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        for codec in CODECS:
            bomb = batch([bytes(1_000_000)], codec=codec)
            row = await produce(wire, topic, bomb)
            assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produce(wire, topic, batch(codec=Codec.ZSTD))).base_offset == 0


async def test_small_decompression_limit_applies_in_event_loop() -> None:
    async with (
        started(decompressed_batch_max_bytes=1000) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        row = await produce(wire, topic, batch([bytes(2000)], codec=Codec.GZIP))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_invalid_batch_with_acks_0_closes_connection(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    request = produce_request(topic, garbage(Codec.GZIP), acks=0)
    await wire.send(ApiKey.PRODUCE, 9, request, answered=False)
    await wire.wait_closed()
