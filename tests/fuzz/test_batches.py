"""Invalid record batches in every Produce version: none may be stored."""

from __future__ import annotations

import struct
import time

import pytest
from crc32c import crc32c

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import Record, encode_batch, read_header

from ..wire import Wire, batch, create_topic, fetch, produce, sequenced, values_of
from .mutate import HEADER_FIELDS

VERSIONS = (3, 5, 7, 8, 9, 12, 13)
CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD
GOOD = sequenced(9, 0, [b"first", b"second"])
PLAIN = batch([b"first", b"second"])


def altered(data: bytes, **fields: int) -> bytes:
    """Change header fields of a batch and fix its CRC; `_` in names stands for a space."""
    out = bytearray(data)
    for name, value in fields.items():
        position, form = HEADER_FIELDS[name.replace("_", " ")]
        struct.pack_into(form, out, position, value)
    if "crc" not in fields:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def magic_1() -> bytes:
    """Encode a message of format 1, as Kafka 0.10 wrote it."""
    body = struct.pack(">bbqi", 1, 0, 1000, -1) + struct.pack(">i", 1) + b"x"
    return struct.pack(">qiI", 0, len(body) + 4, crc32c(body)) + body


BAD: dict[str, tuple[bytes | None, set[int]]] = {
    "null": (None, {INVALID}),
    "empty": (b"", {INVALID}),
    "a few bytes": (bytes(12), {INVALID}),
    "half a header": (PLAIN[:40], {INVALID}),
    "base offset 1": (altered(PLAIN, base_offset=1), {INVALID}),
    "base offset -1": (altered(PLAIN, base_offset=-1), {INVALID}),
    "length too small": (altered(PLAIN, length=10), {CORRUPT, INVALID}),
    "length one less": (altered(PLAIN, length=len(PLAIN) - 13), {CORRUPT, INVALID}),
    "length too large": (altered(PLAIN, length=len(PLAIN)), {CORRUPT, INVALID}),
    "length negative": (altered(PLAIN, length=-1), {CORRUPT, INVALID}),
    "length of 2 GB": (altered(PLAIN, length=2**31 - 1), {CORRUPT, INVALID}),
    "cut": (PLAIN[:-1], {INVALID}),
    "wrong crc": (altered(PLAIN, crc=1), {CORRUPT}),
    "bit flip in a record": (PLAIN[:-1] + bytes([PLAIN[-1] ^ 1]), {CORRUPT}),
    "magic 0": (altered(PLAIN, magic=0), {INVALID}),
    "magic 1": (altered(PLAIN, magic=1), {INVALID}),
    "really magic 1": (magic_1(), {INVALID}),
    "magic 3": (altered(PLAIN, magic=3), {CORRUPT, INVALID}),
    "magic 127": (altered(PLAIN, magic=127), {CORRUPT, INVALID}),
    "magic -1": (altered(PLAIN, magic=-1), {CORRUPT, INVALID}),
    "codec 5": (altered(PLAIN, attributes=5), {INVALID, CORRUPT}),
    "codec 6": (altered(PLAIN, attributes=6), {INVALID, CORRUPT}),
    "codec 7": (altered(PLAIN, attributes=7), {INVALID, CORRUPT}),
    "control": (altered(PLAIN, attributes=0x20), {INVALID}),
    "control with a producer": (altered(GOOD, attributes=0x20), {INVALID}),
    "transactional control": (altered(GOOD, attributes=0x30), {INVALID, 53}),
    "transactional, no transactional id": (altered(GOOD, attributes=0x10), {53}),
    "transactional, no producer": (altered(PLAIN, attributes=0x10), {INVALID, 53}),
    "count -1": (altered(PLAIN, count=-1), {INVALID}),
    "count 0": (altered(PLAIN, count=0), {INVALID}),
    "count too few": (altered(PLAIN, count=1), {INVALID}),
    "count too many": (altered(PLAIN, count=3), {INVALID}),
    "count 2 G": (altered(PLAIN, count=2**31 - 1), {INVALID}),
    "count and delta agree, too many": (
        altered(PLAIN, count=2**31 - 1, last_offset_delta=2**31 - 2),
        {INVALID},
    ),
    "delta negative": (altered(PLAIN, last_offset_delta=-1), {INVALID}),
    "delta too large": (altered(PLAIN, last_offset_delta=2**31 - 1), {INVALID}),
    "no sequence": (altered(GOOD, base_sequence=-1), {INVALID}),
    "sequence below -1": (altered(GOOD, base_sequence=-5), {INVALID}),
    "epoch negative": (altered(GOOD, producer_epoch=-1), {INVALID}),
    "two batches": (PLAIN + PLAIN, {INVALID}),
    "a batch and a half": (PLAIN + PLAIN[:50], {INVALID}),
    "bytes behind": (PLAIN + b"\x00", {INVALID}),
}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", BAD)
async def test_bad_batch_is_rejected(wire: Wire, case: str, version: int) -> None:
    """Only its partition gets the error, and nothing is stored."""
    data, codes = BAD[case]
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, data, version)
    assert row.error_code in codes
    assert (row.base_offset, row.log_append_time_ms) == (-1, -1)
    assert bool(row.error_message) == (version >= 8), "versions with a message give the reason"
    assert (await fetch(wire, topic)).high_watermark == 0
    row = await produce(wire, topic, batch([b"good"]), version)
    assert (row.error_code, row.base_offset) == (0, 0)


@pytest.mark.parametrize("version", range(3, 14))
async def test_zstd_is_rejected_before_version_7(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, batch([b"z"], codec=4), version)
    assert row.error_code == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else 0)


# -- errors in records, which only topics with record checks detect


def records(payload: bytes, count: int = 1, codec: int = 0) -> bytes:
    """Return a batch around bytes that need not be records."""
    data = encode_batch([Record(b"k", b"v", 1000)] * count)
    out = bytearray(data[:61]) + payload
    struct.pack_into(">i", out, 8, len(out) - 12)
    return altered(bytes(out), attributes=codec)


def record(
    *,
    size: int | None = None,
    key: bytes = write_varint(1) + b"k",
    value: bytes = write_varint(1) + b"v",
    headers: bytes = write_varint(0),
    offset_delta: int = 0,
) -> bytes:
    """Encode a record from its fields."""
    body = b"\x00" + write_varint(0) + write_varint(offset_delta) + key + value + headers
    return write_varint(len(body) if size is None else size) + body


UNREADABLE = {
    "size beyond the batch": record(size=1000),
    "size negative": record(size=-1),
    "size too small": record(size=3),
    "key size -2": record(key=write_varint(-2)),
    "key beyond the record": record(key=write_varint(500) + b"k"),
    "value size -2": record(value=write_varint(-2)),
    "value of 2 GB": record(value=write_varint(2**31 - 1)),
    "header count negative": record(headers=write_varint(-1)),
    "header count beyond the record": record(headers=write_varint(1000)),
    "header key null": record(headers=write_varint(1) + write_varint(-1) + write_varint(0)),
    "header cut": record(headers=write_varint(1) + write_varint(5) + b"a"),
    "varint without end": b"\x80" * 12,
    "offset delta out of order": record(offset_delta=5),
    "no record": b"",
    "garbage": b"\xff" * 30,
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_unreadable_records_are_rejected_in_compacted_topic(wire: Wire, case: str) -> None:
    """Compaction needs keys, so the broker parses the records."""
    topic = await create_topic(wire, "t", configs={"cleanup.policy": "compact"})
    row = await produce(wire, topic, records(UNREADABLE[case]))
    assert row.error_code in (CORRUPT, INVALID)
    assert (await fetch(wire, topic)).high_watermark == 0
    row = await produce(wire, topic, batch([Record(b"k", b"v", 1)]))
    assert row.error_code == 0


@pytest.mark.parametrize("case", UNREADABLE)
async def test_lookup_by_time_survives_unreadable_records(wire: Wire, case: str) -> None:
    """Without compaction the broker stores them unparsed; later lookups must handle them."""
    topic = await create_topic(wire, "t")
    row = await produce(wire, topic, records(UNREADABLE[case]))
    if row.error_code:
        return
    for timestamp in (-3, 0, 1000, 2000):
        ask = await wire.ask(2, 7, _list(topic.name, timestamp))  # type: ignore[arg-type]
        assert ask.topics[0].partitions[0].error_code in (0, CORRUPT)
    assert (await fetch(wire, topic)).high_watermark == 1


def _list(name: str, timestamp: int) -> object:
    from kbroker.protocol.messages.list_offsets import ListOffsetsRequest as Ask

    rows = [Ask.Partition(partition_index=0, timestamp=timestamp)]
    return Ask(replica_id=-1, topics=[Ask.Topic(name=name, partitions=rows)])


@pytest.mark.parametrize("codec", range(1, 5))
async def test_broken_compressed_data_is_rejected_in_compacted_topic(
    wire: Wire, codec: int
) -> None:
    topic = await create_topic(wire, "t", configs={"cleanup.policy": "compact"})
    for payload in (b"", b"\x00" * 20, b"garbage that no codec reads"):
        row = await produce(wire, topic, records(payload, codec=codec))
        assert row.error_code in (CORRUPT, INVALID)
    good = batch([Record(b"k", b"v", 1)], codec=codec)
    cut = bytearray(good[:-3])
    struct.pack_into(">i", cut, 8, len(cut) - 12)
    row = await produce(wire, topic, altered(bytes(cut)))
    assert row.error_code in (CORRUPT, INVALID)
    assert (await produce(wire, topic, good)).error_code == 0


async def test_batch_within_batch_is_rejected_in_compacted_topic(wire: Wire) -> None:
    """The inner batch is not valid record data."""
    topic = await create_topic(wire, "t", configs={"cleanup.policy": "compact"})
    inner = batch([Record(b"k", b"v", 1)], codec=1)
    row = await produce(wire, topic, records(inner, codec=0))
    assert row.error_code in (CORRUPT, INVALID)


async def test_null_keys_are_rejected_in_compacted_topic(wire: Wire) -> None:
    topic = await create_topic(wire, "t", configs={"cleanup.policy": "compact"})
    some = [
        Record(b"k", b"0", 1),
        Record(None, b"1", 1),
        Record(b"k", b"2", 1),
        Record(None, b"", 1),
    ]
    for codec in range(5):
        row = await produce(wire, topic, batch(some, codec=codec))
        assert row.error_code == INVALID
        assert [e.batch_index for e in row.record_errors] == [1, 3]
    assert (await fetch(wire, topic)).high_watermark == 0


async def test_log_append_time_bit_of_client_is_cleared(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    now_ms = int(time.time() * 1000)
    data = encode_batch([Record(None, b"x", now_ms)], log_append_time=now_ms)
    assert read_header(data).is_log_append_time
    row = await produce(wire, topic, data)
    assert (row.error_code, row.log_append_time_ms) == (0, -1)
    stored = bytes((await fetch(wire, topic)).records)
    header = read_header(stored)
    assert not header.is_log_append_time
    assert header.crc == crc32c(stored[21:])


async def test_bad_batch_in_one_partition_does_not_affect_others(wire: Wire) -> None:
    from kbroker.protocol.messages.produce import ProduceRequest as Ask

    topic = await create_topic(wire, "t", 3)
    rows = [
        Ask.Partition(index=0, records=batch([b"0"])),
        Ask.Partition(index=1, records=altered(PLAIN, crc=1)),
        Ask.Partition(index=2, records=batch([b"2"])),
    ]
    ask = Ask(acks=-1, timeout_ms=1000, topic_data=[Ask.Topic(name="t", partition_data=rows)])
    response = await wire.ask(0, 9, ask)  # type: ignore[arg-type]
    codes = [row.error_code for row in response.responses[0].partition_responses]
    assert codes == [0, CORRUPT, 0]
    for index, expected in ((0, [b"0"]), (1, []), (2, [b"2"])):
        assert values_of(await fetch(wire, topic, partitions=[index])) == expected
