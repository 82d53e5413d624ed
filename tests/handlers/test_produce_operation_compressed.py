"""Compressed batches are opened before they are taken: in the event loop while they are small."""

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
from kbroker.protocol.log_validator import OPENED_EFFORT
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
LARGE = bytes(CHUNK_BYTES + 50_000)
"""A value that takes few bytes in a compressed batch, and many when it is opened."""


def garbage(codec: Codec, count: int = 1000) -> bytes:
    """No stream of any codec, under a header and a CRC that fit."""
    header = read_header(encode_batch([Record(value=b"x")] * count))
    return with_payload(header._replace(attributes=codec), b"this is no gzip")[0]


def claiming(codec: Codec, count: int, value: bytes) -> bytes:
    """A batch of one record that says it has more."""
    data = encode_batch([Record(value=value, timestamp=1000)], codec=codec)
    header = read_header(data)._replace(record_count=count, last_offset_delta=count - 1)
    return with_payload(header, data[records.HEADER_SIZE :])[0]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each chunk that is decompressed, whether the event loop does it."""
    seen: list[bool] = []

    def noted(codec: int, data: Any, limit: int) -> Iterator[bytes]:
        chunks = decompressed_chunks(codec, data, limit)
        while True:
            seen.append(threading.current_thread() is threading.main_thread())
            try:
                chunk = next(chunks)
            except StopIteration:
                seen.pop()
                return
            yield chunk

    monkeypatch.setattr(log_validator, "decompressed_chunks", noted)
    return seen


@pytest.mark.parametrize("codec", CODECS)
async def test_garbage_takes_no_offsets(wire: Wire, codec: Codec) -> None:
    topic = await create_topic(wire, "t")
    for bad in (
        garbage(codec),
        claiming(codec, 400_000, b"x"),
        claiming(codec, 2, b"x"),
        claiming(codec, 2, LARGE),
    ):
        row = await produce(wire, topic, bad)
        assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert row.error_message
    row = await produce(wire, topic, batch([b"good", LARGE], codec=codec))
    assert (row.error_code, row.base_offset) == (0, 0)
    assert values_of(await fetch(wire, topic)) == [b"good", LARGE]


@pytest.mark.parametrize("codec", CODECS)
async def test_large_ones_are_opened_off_the_event_loop(
    wire: Wire, opened: list[bool], codec: Codec
) -> None:
    topic = await create_topic(wire, "t")
    expands = batch([LARGE], codec=codec)
    noise = b"".join(number.to_bytes(4, "big") for number in range(0, 1 << 31, 1 << 18))
    large = batch([noise], codec=codec)
    assert len(expands) < LIGHT_COMPRESSED_BYTES_MAX < len(large)
    for data, where in (
        (batch([b"small"], codec=codec), {True}),
        (large, {False}),
        (batch([LARGE]), set()),
        (expands, {True, False}),
    ):
        assert (await produce(wire, topic, data)).error_code == 0
        assert set(opened) == where
        assert opened == sorted(opened, reverse=True)
        opened.clear()


async def test_requests_of_a_connection_keep_their_order(wire: Wire) -> None:
    """All are sent before the first answer; some take long, some are no batches at all."""
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
    answers = [await wire.receive() for _ in range(60)]
    rows = [answer.responses[0].partition_responses[0] for answer in answers]
    taken = [row.base_offset for row in rows if not row.error_code]
    assert taken == list(range(sent))
    assert [row.error_code for row in rows[9::10]] == [ErrorCode.INVALID_RECORD] * 6


async def test_others_have_a_turn_between_many_batches(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row has its own answer, whether its batch was opened at once or later."""
    turn = 0
    opened: Counter[int] = Counter()

    async def take_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()

    def noted(codec: int, data: Any, limit: int) -> Iterator[bytes]:
        opened[turn] += 1
        return decompressed_chunks(codec, data, limit)

    monkeypatch.setattr(log_validator, "decompressed_chunks", noted)
    most = EFFORT_AT_ONCE // OPENED_EFFORT
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
        nursery.start_soon(take_turns)
        answer = await wire.ask(ApiKey.PRODUCE, 9, ask)
        nursery.cancel_scope.cancel()
    assert sum(opened.values()) >= count
    assert opened[min(opened)] <= most
    assert len(opened) > 1
    codes = [row.error_code for row in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_RECORD if n % 10 == 5 else 0 for n in range(count)]


async def test_output_is_bounded() -> None:
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


async def test_a_limit_below_what_is_opened_at_once() -> None:
    async with (
        started(decompressed_batch_max_bytes=1000) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t")
        row = await produce(wire, topic, batch([bytes(2000)], codec=Codec.GZIP))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_batch_that_cannot_be_read_with_acks_0(wire: Wire) -> None:
    """As for every refusal that nobody can be told of, the connection ends."""
    topic = await create_topic(wire, "t")
    asked = produce_request(topic, garbage(Codec.GZIP), acks=0)
    await wire.send(ApiKey.PRODUCE, 9, asked, answered=False)
    await wire.wait_closed()
