"""Malformed message sets in the Produce versions that accept them: none may be stored."""

from __future__ import annotations

import random
import struct
import zlib
from contextlib import suppress

import pytest

from kbroker.broker import Broker
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.message_sets import is_message_set, read_messages
from kbroker.protocol.records import read_records

from ..message_sets import message, messages, to_batch, wrapper
from ..wire import Topic, Wire, create_topic, fetch, produce

ROUNDS = 1500
EXPECTED = {
    0,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # a mutated magic of a record batch
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_RECORD,
}


def mutated(rng: random.Random) -> bytes:
    """Return a message set with a few bytes changed, mostly with correct CRCs."""
    magic = rng.randrange(2)
    data = messages([b"a" * rng.randrange(40), None, b"c"][: rng.randint(1, 3)], magic)
    if rng.random() < 0.5:
        data = with_changes(data, rng) if rng.random() < 0.5 else data
        data = wrapper(data, rng.randint(1, 3), magic)
    return with_changes(data, rng)


def with_changes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out))
        how = rng.randrange(4)
        if how == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[at : at + 4] = struct.pack(">i", rng.choice((-1, -2, 0, 7, 2**31 - 1, -(2**31))))
        elif how == 2:
            del out[at : at + rng.randint(1, 8)]
        else:
            out[at:at] = rng.randbytes(rng.randint(1, 8))
        if not out:
            return b""
    return with_right_crcs(out) if rng.random() < 0.8 else bytes(out)


def with_right_crcs(out: bytearray) -> bytes:
    position = 0
    while position + 16 < len(out):
        (size,) = struct.unpack_from(">i", out, position + 8)
        end = position + 12 + size
        if size < 5 or end > len(out):
            break
        struct.pack_into(">I", out, position + 12, zlib.crc32(out[position + 16 : end]))
        position = end
    return bytes(out)


@pytest.mark.slow
async def test_mutated_message_sets_are_rejected_or_readable(
    broker: Broker, wire: Wire, request: pytest.FixtureRequest
) -> None:
    """Each set is rejected with a specific error, or its stored records are readable."""
    rng = random.Random(request.config.getoption("--seed"))
    topic = await create_topic(wire, "t")
    seen: dict[int, int] = {}
    for _ in range(ROUNDS):
        row = await produce(wire, topic, mutated(rng), rng.randrange(3))
        assert row.error_code in EXPECTED, row
        seen[row.error_code] = seen.get(row.error_code, 0) + 1
    assert broker.node.context.error_log.unhandled_errors == 0
    assert min(seen.get(code, 0) for code in (0, 2, 87)) > ROUNDS // 50, seen
    await _read_everything(wire, topic)
    print("answers:", seen)


async def _read_everything(wire: Wire, topic: Topic) -> None:
    end = (await fetch(wire, topic, max_bytes=1)).high_watermark
    offset = count = 0
    while offset < end:
        row = await fetch(wire, topic, offset)
        records = list(read_records(row.records))
        assert [record.offset for record in records] == list(range(offset, offset + len(records)))
        for version in range(4):
            magic = 0 if version < 2 else 1
            old = await fetch(wire, topic, offset, version)
            assert old.error_code == 0
            assert next(read_messages(old.records, magic)).offset >= offset
        offset, count = records[-1].offset + 1, count + len(records)
    assert count == end > 0


@pytest.mark.slow
@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
async def test_message_set_that_expands_too_much_is_rejected(
    wire: Wire, codec: int, magic: int
) -> None:
    """The wrapper expands to 80 MB of zeros."""
    topic = await create_topic(wire, "t", configs={"max.message.bytes": "10000000"})
    data = wrapper(message(bytes(80_000_000), magic=magic), codec, magic)
    row = await produce(wire, topic, data, 2)
    assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await fetch(wire, topic)).high_watermark == 0


def test_generator_produces_valid_and_invalid_message_sets() -> None:
    """Message sets that all have wrong CRCs would test only the CRC check."""
    rng = random.Random(0)
    good = 0
    for _ in range(200):
        with suppress(KafkaError):
            data = mutated(rng)
            good += is_message_set(data) and to_batch(data) is not None
    assert 20 < good < 180
