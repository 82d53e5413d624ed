"""Batches of format v2: other implementations, Kafka's bytes, and rejected batches."""

from __future__ import annotations

import datetime
import io
import random
import struct
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch as kio_read_batch
from kio.records.schema import NewRecordBatch as KioBatch
from kio.records.schema import Record as KioRecord
from kio.records.schema import RecordHeader as KioHeader
from kio.records.writers import write_new_batch as kio_write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import (
    CONTROL_BIT,
    DEFAULT_RULES,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    DecompressedTooLargeError,
    FoundRecord,
    Marker,
    ProduceRules,
    Record,
    RecordsRejectedError,
    check_crc,
    encode_batch,
    end_transaction_marker,
    first_record_at_or_after,
    iter_headers,
    placed,
    read_header,
    read_marker,
    read_records,
)

from .validating import as_stored, validate_produced

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated function of importlib.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

NOW = 1_700_000_000_000
HOUR = 3_600_000
MIB = 1024 * 1024
COMPACTED = ProduceRules(compacted=True)

RECORDS = [
    Record(b"key", b"value", NOW, (("h", b"x"), ("null", None), ("", b""))),
    Record(None, None, NOW + 70_000),
    Record(b"", b"", NOW - 1),
    Record("schlüssel".encode(), bytes(1000), NOW + 3, [("ключ", bytes(200))]),
]


def crc32c(data: bytes) -> int:
    """Compute CRC-32C bit by bit (RFC 3720), as the oracle for the library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def changed(batch: bytes, **fields: int) -> bytes:
    """Return the batch with other header fields and the matching CRC."""
    header = read_header(batch)._replace(**fields)
    return refreshed(struct.pack(">qiibIhiqqqhii", *header) + batch[HEADER_SIZE:])


def refreshed(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def with_payload(payload: bytes, codec: int = 0, count: int = 1) -> bytes:
    """Return a batch with a valid header and these bytes as records."""
    whole = encode_batch([Record(timestamp=NOW)])[:HEADER_SIZE] + payload
    return changed(
        whole,
        batch_length=len(whole) - 12,
        attributes=codec,
        record_count=count,
        last_offset_delta=count - 1,
    )


def plain(records: Sequence[Record]) -> list[tuple[object, ...]]:
    """Return records without offsets, with headers as lists."""
    return [(r.key, r.value, r.timestamp, list(r.headers)) for r in records]


def refusal(
    batch: bytes | None, rules: ProduceRules = DEFAULT_RULES, version: int = 9
) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate_produced(batch, version, NOW, rules)
    return caught.value


def rejection_code(
    batch: bytes | None, rules: ProduceRules = DEFAULT_RULES, version: int = 9
) -> ErrorCode:
    return refusal(batch, rules, version).code


def read_error(batch: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        list(read_records(batch))
    return caught.value.code


# --- header, CRC, offset assignment ------------------------------------------------------------


def test_header_fields_and_properties_are_read() -> None:
    batch = encode_batch(
        RECORDS,
        base_offset=1000,
        codec=Codec.LZ4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        leader_epoch=5,
        transactional=True,
    )
    header = read_header(b"??" + batch, 2)
    assert header.base_offset == 1000
    assert header.size == len(batch) == header.batch_length + 12
    assert (header.leader_epoch, header.magic, header.codec) == (5, 2, Codec.LZ4)
    assert header.crc == crc32c(batch[21:])
    assert (header.last_offset, header.next_offset, header.record_count) == (1003, 1004, 4)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 70_000)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (7, 2, 1)
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time


def test_batch_without_sequence_has_no_last_sequence() -> None:
    assert read_header(encode_batch(RECORDS)).last_sequence == -1


def test_incomplete_header_is_rejected() -> None:
    for size in (0, 60):
        with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
            read_header(bytes(size))
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read_header(bytes(100), 40)


def test_crc_detects_every_flipped_bit() -> None:
    batch = bytearray(encode_batch(RECORDS[:2]))
    header = read_header(batch)
    assert check_crc(batch, 0, header)
    assert check_crc(memoryview(b"ab" + batch + b"c"), 2, header)
    for bit in range(21 * 8, len(batch) * 8):
        batch[bit // 8] ^= 1 << bit % 8
        assert not check_crc(batch, 0, header)
        batch[bit // 8] ^= 1 << bit % 8


def test_crc_excludes_offset_and_leader_epoch() -> None:
    batch = encode_batch(RECORDS)
    head, records = placed(batch, read_header(batch), 2**40, 77)
    stored = bytes(head) + bytes(records)
    header = read_header(stored)
    assert (header.base_offset, header.leader_epoch) == (2**40, 77)
    assert check_crc(stored, 0, header)
    assert stored[16:] == batch[16:]
    assert [record.offset for record in read_records(stored)] == list(range(2**40, 2**40 + 4))


def test_placing_copies_no_records() -> None:
    batch = encode_batch(RECORDS)
    head, records = placed(memoryview(batch), read_header(batch), 5, 0)
    assert len(head) == HEADER_SIZE
    assert isinstance(records, memoryview)
    assert records.obj is batch


def test_headers_of_complete_batches_are_read() -> None:
    first, second = encode_batch(RECORDS), encode_batch(RECORDS[:1], base_offset=4)
    data = first + second
    assert [position for position, _ in iter_headers(data)] == [0, len(first)]
    for end in range(len(first), len(data)):
        assert [header.base_offset for _, header in iter_headers(data[:end])] == [0]
    assert list(iter_headers(first[:-1])) == []


@pytest.mark.parametrize("fields", [{"batch_length": 48}, {"batch_length": -1}, {"magic": 1}])
def test_invalid_header_is_rejected(fields: dict[str, int]) -> None:
    batch = encode_batch(RECORDS)
    headers = iter_headers(batch + changed(batch, **fields))
    assert next(headers)[0] == 0
    with pytest.raises(KafkaError, match=f"at byte {len(batch)}"):
        next(headers)


def test_import_loads_no_codec() -> None:
    script = (
        "import sys, kbroker.protocol.records;"
        "assert not {'lz4', 'snappy', 'cramjam', 'zstandard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# --- reading and writing ----------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_records_round_trip(codec: Codec) -> None:
    batch = encode_batch(RECORDS, base_offset=10, codec=codec)
    decoded = list(read_records(batch + encode_batch(RECORDS[:1], base_offset=14)))
    assert plain(decoded) == plain([*RECORDS, RECORDS[0]])
    assert [record.offset for record in decoded] == [10, 11, 12, 13, 14]


varied_records = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=20_000),
        timestamp=st.integers(-1, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=80), st.none() | st.binary(max_size=80))),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@given(records=varied_records, codec=st.sampled_from(Codec), base_offset=st.integers(0, 2**62))
@settings(max_examples=100)
def test_arbitrary_records_round_trip(
    records: list[Record], codec: Codec, base_offset: int
) -> None:
    batch = encode_batch(records, base_offset=base_offset, codec=codec)
    decoded = list(read_records(batch))
    assert plain(decoded) == plain(records)
    assert [record.offset - base_offset for record in decoded] == list(range(len(records)))
    header = read_header(batch)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert crc32c(batch[21:]) == header.crc


def test_offset_gaps_are_kept() -> None:
    records = [Record(b"k", b"v", NOW, offset=offset) for offset in (103, 104, 110)]
    batch = encode_batch(records, base_offset=100, keep_offsets=True)
    assert [record.offset for record in read_records(batch)] == [103, 104, 110]
    assert read_header(batch).last_offset == 110
    for offsets in ((99,), (105, 105), (107, 106)):
        wrong = [Record(offset=offset) for offset in offsets]
        with pytest.raises(ValueError, match="offsets"):
            encode_batch(wrong, base_offset=100, keep_offsets=True)


def test_empty_batch_is_rejected() -> None:
    with pytest.raises(ValueError, match="without records"):
        encode_batch([])


def test_log_append_time_is_the_timestamp_of_every_record() -> None:
    batch = encode_batch(RECORDS, log_append_time=NOW + 9)
    assert {record.timestamp for record in read_records(batch)} == {NOW + 9}
    assert read_header(batch).base_timestamp == NOW


def test_header_keys_that_are_not_utf8_survive() -> None:
    batch = bytearray(encode_batch([Record(headers=[("xy", b"1")])]))
    position = batch.rindex(b"xy")
    batch[position : position + 2] = b"\xff\xfe"
    (record,) = read_records(bytes(batch))
    assert encode_batch([record])[HEADER_SIZE:] == batch[HEADER_SIZE:]


def test_claimed_counts_and_lengths_allocate_nothing() -> None:
    huge = write_varint(2**31 - 1)
    payloads = [huge, b"\x10\0\0\0" + huge, b"\x10\0\0\0\x01\x01" + huge]
    tracemalloc.start()
    try:
        for payload in payloads:
            assert read_error(with_payload(payload + bytes(20), count=2**31 - 1)) == (
                ErrorCode.CORRUPT_MESSAGE
            )
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"\0\0\0\x03\x01\0",  # key length -2
        b"\0\0\0\x01\x03\0",  # value length -2
        b"\0\0\0\x01\x01\x01",  # -1 headers
        b"\0\0\0\x01\x01\x02\x01",  # header key null
        b"\0\0\0\x01\x01\x02\x02k\x03",  # header value length -2
        b"\0\0\0\x01\x01\x7e\x02k\x01",  # 63 headers
        b"\0\0\x02\x01\x01\0",  # offset delta above the last
        b"\0\0\x01\x01\x01\0",  # offset delta negative
        b"\0\0\0\x40\x01\0",  # key beyond the record
        b"\0\0\0\x01\x01\0\0",  # an excess byte
        b"\0\0\0\x01\x01",  # header count missing
        b"\0" + b"\xff" * 9 + b"\x02\0\x01\x01\0",  # timestamp delta of 65 bits
        b"\0" + b"\xff" * 11,  # varint without end
    ],
)
def test_malformed_records_are_rejected(body: bytes) -> None:
    good = b"\0\0\0\x01\x01\0"
    payload = write_varint(len(good)) + good
    assert len(list(read_records(with_payload(payload)))) == 1
    batch = with_payload(write_varint(len(body)) + body)
    assert read_error(batch) == ErrorCode.CORRUPT_MESSAGE
    assert rejection_code(batch, COMPACTED) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [7, 5, 0, -1, -7, 2**40])
def test_record_with_a_wrong_length_is_rejected(length: int) -> None:
    good = b"\0\0\0\x01\x01\0"
    other = write_varint(6) + b"\0\0\x02\x01\x01\0"
    assert len(list(read_records(with_payload(write_varint(6) + good + other, count=2)))) == 2
    # The bytes of both records are complete, one after the other.
    batch = with_payload(write_varint(length) + good + other, count=2)
    assert read_error(batch) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", list(Codec))
def test_record_count_must_match_the_records(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    for count in (3, 5):
        wrong = changed(batch, record_count=count, last_offset_delta=count - 1)
        assert read_error(wrong) == ErrorCode.CORRUPT_MESSAGE
        assert rejection_code(wrong, COMPACTED) == ErrorCode.INVALID_RECORD


# --- Kafka's own bytes ------------------------------------------------------------------------

# Written by Kafka 4.3's MemoryRecords: base offset 100, leader epoch 7, producer 4242 epoch 3,
# sequence 2147483646.
_KAFKA_HEAD = "0000000000000064000000{}0000000702{}000{}0000000" + (
    "20000018bcfe568000000018bcfe56806000000000000109200037ffffffe00000003"
)
KAFKA = {
    Codec.NONE: _KAFKA_HEAD.format("91", "0dce963b", 0)
    + "32000000012676616c75652076616c75652076616c75652030004c0006020a6b65792d31267661"
    + "6c75652076616c75652076616c75652031040268047831026e013c000c040a6b65792d32267661"
    + "6c75652076616c75652076616c7565203200",
    Codec.GZIP: _KAFKA_HEAD.format("76", "be54290c", 1)
    + "1f8b08000000000000ff3362606060542b4bcc294d5540260d187c18d898b8b2532b750db1481b"
    + "b23065b0541832e531da30f0b0809519615166c400007fda2fce60000000",
    Codec.SNAPPY: _KAFKA_HEAD.format("7f", "3b3935bd", 2)
    + "82534e415050590000000001000000010000003a602c32000000012676616c7565202e06002c30"
    + "004c0006020a6b65792d314a1f003431040268047831026e013c000c04052700324a2700043200",
    Codec.LZ4: _KAFKA_HEAD.format("7a", "aae496d8", 3)
    + "04224d186040823a000000c832000000012676616c7565200600cf30004c0006020a6b65792d31"
    + "1f0000e131040268047831026e013c000c0427001c32270050756520320000000000",
    Codec.ZSTD: _KAFKA_HEAD.format("74", "b7c4d9a7", 4)
    + "28b52ffd0058bc0100940232000000012676616c75652030004c0006020a6b65792d3131040268"
    + "047831026e013c000c0432320004002005a52e255492c29524010000",
}
KAFKA_RECORDS = [
    Record(None, b"value value value 0", NOW),
    Record(b"key-1", b"value value value 1", NOW + 3, [("h", b"x1"), ("n", None)]),
    Record(b"key-2", b"value value value 2", NOW + 6),
]
KAFKA_MARKERS = {
    False: "0000000000000037000000420000000902fcb8d4e90030000000000000018bcfe568000000018bcfe568"
    "0000000000000010920003ffffffff000000012000000008000000000c00000000000c00",
    True: "0000000000000037000000420000000902088602a10030000000000000018bcfe568000000018bcfe568"
    "0000000000000010920003ffffffff000000012000000008000000010c00000000000c00",
}


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_kafka_are_read(codec: Codec) -> None:
    batch = bytes.fromhex(KAFKA[codec])
    header = read_header(batch)
    assert (header.size, header.codec) == (len(batch), codec)
    assert check_crc(batch, 0, header)
    assert plain(list(read_records(batch))) == plain(KAFKA_RECORDS)
    ours = encode_batch(
        KAFKA_RECORDS,
        base_offset=100,
        codec=codec,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=2147483646,
        leader_epoch=7,
    )
    if codec == Codec.NONE:
        assert ours == batch
    ignored = {"crc": 0, "batch_length": 0}  # compressors may differ in their output
    assert read_header(ours)._replace(**ignored) == header._replace(**ignored)


@pytest.mark.parametrize("commit", [False, True])
def test_markers_of_kafka_are_read(commit: bool) -> None:
    batch = end_transaction_marker(
        Marker(commit, 12),
        producer_id=4242,
        producer_epoch=3,
        timestamp=NOW,
        base_offset=55,
        leader_epoch=9,
    )
    assert batch.hex() == KAFKA_MARKERS[commit]
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    (record,) = read_records(batch)
    assert record.key == (b"\0\0\0\x01" if commit else b"\0\0\0\0")
    assert read_marker(record) == Marker(commit, 12)


def test_other_control_records_are_not_markers() -> None:
    assert read_marker(Record(key=b"\0\0\0\x02", value=b"\0\0")) is None
    longer = Record(key=b"\0\x01\0\x01\0", value=b"\0\x01\0\0\0\x05more")
    assert read_marker(longer) == Marker(True, 5)
    for key, value in ((None, b""), (b"\0\0\0", b""), (b"\0\0\0\0", None), (b"\0\0\0\0", b"\0\0")):
        with pytest.raises(KafkaError, match="truncated"):
            read_marker(Record(key=key, value=value))


# --- foreign codecs ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_python_reads_encoded_batches(codec: Codec) -> None:
    batch = encode_batch(RECORDS, base_offset=50, codec=codec, producer_id=3, producer_epoch=1)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert [(r.key, r.value, r.timestamp, r.headers) for r in theirs] == plain(RECORDS)
    assert (theirs.base_offset, theirs.producer_id, theirs.producer_epoch) == (50, 3, 1)


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_kafka_python_are_read(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), True, 9, 4, 11, 1 << 20)
    # Enough records for the writer to keep the compressed form.
    records = RECORDS * 20
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = validate_produced(memoryview(batch), 9, NOW)
    assert header == read_header(batch)
    assert (header.codec, header.producer_id, header.base_sequence) == (codec, 9, 11)
    assert header.is_transactional
    assert plain(list(read_records(batch))) == plain(records)


def kio_record(record: Record, offset: int) -> KioRecord:
    moment = datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC)
    return KioRecord(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(moment),
        offset=i64(offset),
        key=record.key,
        value=record.value,
        headers=tuple(KioHeader(key=k.encode(), value=v) for k, v in record.headers),
    )


def test_batches_are_exchanged_with_kio() -> None:
    # kio keeps whole seconds and knows no compression.
    records = [r._replace(timestamp=NOW + n * 5000) for n, r in enumerate(RECORDS)]
    theirs = tuple(kio_record(record, n) for n, record in enumerate(records))
    out = io.BytesIO()
    kio_write_batch(
        out,
        KioBatch(
            producer_id=i64(8),
            producer_epoch=i16(1),
            base_sequence=i32(0),
            records=theirs,
            attributes=i16(0),
        ),
    )
    ours = encode_batch(records, producer_id=8, producer_epoch=1, base_sequence=0, leader_epoch=0)
    assert out.getvalue() == ours
    assert kio_read_batch(ours, 0)[0].records == theirs


# --- validation of produce --------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_valid_batch_keeps_its_header(codec: Codec) -> None:
    batch = encode_batch(
        RECORDS, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert validate_produced(memoryview(batch), 9, NOW) == read_header(batch)


def test_missing_batch_is_rejected() -> None:
    for nothing in (None, b"", bytes(16), bytes(11)):
        assert rejection_code(nothing) == ErrorCode.INVALID_RECORD


def test_nonzero_base_offset_of_a_client_is_rejected() -> None:
    assert rejection_code(encode_batch(RECORDS, base_offset=1)) == ErrorCode.INVALID_RECORD
    assert rejection_code(encode_batch(RECORDS, base_offset=-1)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_batch_length_below_the_header_is_rejected(length: int) -> None:
    batch = encode_batch(RECORDS)
    assert rejection_code(changed(batch, batch_length=length)) == ErrorCode.CORRUPT_MESSAGE


def test_batch_length_above_the_bytes_is_rejected() -> None:
    batch = encode_batch(RECORDS)
    for length in (len(batch) - 11, 2**31 - 1):
        assert rejection_code(changed(batch, batch_length=length)) == ErrorCode.INVALID_RECORD
    for end in range(len(batch)):
        assert rejection_code(batch[:end]) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_batch_length_below_the_bytes_is_rejected() -> None:
    assert rejection_code(encode_batch(RECORDS) + b"\0") == ErrorCode.INVALID_RECORD


def test_several_batches_are_rejected() -> None:
    assert rejection_code(encode_batch(RECORDS) * 2) == ErrorCode.INVALID_RECORD


def test_wrong_crc_is_rejected() -> None:
    batch = bytearray(encode_batch(RECORDS))
    batch[-1] ^= 1
    assert rejection_code(bytes(batch)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.INVALID_RECORD),
        (1, ErrorCode.INVALID_RECORD),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (127, ErrorCode.CORRUPT_MESSAGE),
        (-1, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_other_formats_are_rejected(magic: int, code: ErrorCode) -> None:
    assert rejection_code(changed(encode_batch(RECORDS), magic=magic)) == code
    # The oldest formats are shorter than a v2 header.
    assert rejection_code(changed(encode_batch(RECORDS), magic=magic)[:34]) == code


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_undefined_codec_is_rejected(codec: int) -> None:
    assert (
        rejection_code(changed(encode_batch(RECORDS), attributes=codec)) == ErrorCode.INVALID_RECORD
    )


def test_zstd_needs_produce_7() -> None:
    batch = encode_batch(RECORDS, codec=Codec.ZSTD)
    assert rejection_code(batch, version=6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert validate_produced(batch, 7, NOW).codec == Codec.ZSTD
    assert validate_produced(encode_batch(RECORDS, codec=Codec.LZ4), 3, NOW)


def test_control_batch_of_a_client_is_rejected() -> None:
    assert rejection_code(changed(encode_batch(RECORDS), attributes=CONTROL_BIT)) == (
        ErrorCode.INVALID_RECORD
    )


def test_transactional_batch_without_producer_id_is_rejected() -> None:
    batch = changed(encode_batch(RECORDS), attributes=TRANSACTIONAL_BIT)
    assert rejection_code(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [-1, 0, 3, 5, 2**31 - 1])
def test_record_count_must_match_the_last_offset_delta(count: int) -> None:
    assert (
        rejection_code(changed(encode_batch(RECORDS), record_count=count))
        == ErrorCode.INVALID_RECORD
    )


@pytest.mark.parametrize("delta", [-1, -5, 2, 4])
def test_last_offset_delta_must_match_the_record_count(delta: int) -> None:
    batch = changed(encode_batch(RECORDS), last_offset_delta=delta)
    assert rejection_code(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
def test_record_count_above_the_batch_size_is_rejected(codec: Codec) -> None:
    # The fields agree, but the log would advance by two billion offsets.
    count = 2**31 - 1
    batch = changed(
        encode_batch(RECORDS, codec=codec), record_count=count, last_offset_delta=count - 1
    )
    assert rejection_code(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("epoch", "sequence"), [(0, -1), (-1, 0), (0, -(2**31))])
def test_producer_id_without_epoch_or_sequence_is_rejected(epoch: int, sequence: int) -> None:
    batch = encode_batch(RECORDS, producer_id=0, producer_epoch=epoch, base_sequence=sequence)
    assert rejection_code(batch) == ErrorCode.INVALID_RECORD


def test_size_limit_is_exact_and_counts_compressed_bytes() -> None:
    records = [Record(value=bytes(10_000), timestamp=NOW)]
    for codec in (Codec.NONE, Codec.ZSTD):
        batch = encode_batch(records, codec=codec)
        validate_produced(batch, 9, NOW, ProduceRules(max_message_bytes=len(batch)))
        rules = ProduceRules(max_message_bytes=len(batch) - 1)
        assert rejection_code(batch, rules) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", list(Codec))
def test_null_keys_in_a_compacted_topic_are_rejected(codec: Codec) -> None:
    keys = [b"a", None, b"", None, b"e"]
    batch = encode_batch([Record(key, b"v", NOW) for key in keys], codec=codec)
    error = refusal(batch, COMPACTED)
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1, 3]
    keyed = encode_batch([Record(b"k", None, NOW)] * 5, codec=codec)
    assert validate_produced(keyed, 9, NOW, COMPACTED) == read_header(keyed)
    appended = ProduceRules(compacted=True, log_append_time=True)
    assert rejection_code(batch, appended) == ErrorCode.INVALID_RECORD
    assert validate_produced(keyed, 9, NOW, appended).is_log_append_time


def test_number_of_record_errors_is_limited() -> None:
    error = refusal(encode_batch([Record(timestamp=NOW)] * 12_000), COMPACTED)
    assert isinstance(error, RecordsRejectedError)
    assert len(error.record_errors) == 10_000


# --- timestamps -------------------------------------------------------------------------------


def batch_with_timestamps(*timestamps: int, codec: int = 0) -> bytes:
    return encode_batch([Record(b"k", b"v", timestamp) for timestamp in timestamps], codec=codec)


@pytest.mark.parametrize("codec", list(Codec))
def test_timestamps_too_far_ahead_are_rejected(codec: Codec) -> None:
    limit = NOW + HOUR
    batch = batch_with_timestamps(NOW, limit, limit + 1, codec=codec)
    error = refusal(batch)
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [2]
    assert (
        validate_produced(batch_with_timestamps(NOW, limit, codec=codec), 9, NOW).max_timestamp
        == limit
    )
    # Does not apply to topics with LogAppendTime.
    appended = validate_produced(batch, 9, NOW, ProduceRules(log_append_time=True))
    assert appended.max_timestamp == NOW


def test_timestamps_too_old_are_rejected() -> None:
    batch = batch_with_timestamps(NOW, NOW - HOUR, NOW - HOUR - 1, NOW)
    assert validate_produced(batch, 9, NOW) == read_header(batch)  # Kafka's default: no limit
    error = refusal(batch, ProduceRules(timestamp_before_max_ms=HOUR))
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [2]


def test_records_without_a_timestamp_have_no_limit() -> None:
    batch = batch_with_timestamps(-1, -1)
    assert validate_produced(batch, 9, NOW, ProduceRules(timestamp_before_max_ms=0))


def test_invalid_timestamp_determines_the_error_code() -> None:
    records = [Record(None, b"", NOW), Record(b"k", b"", NOW + 2 * HOUR)]
    error = refusal(encode_batch(records), COMPACTED)
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [0, 1]


def test_record_without_key_and_with_invalid_time_is_reported_once() -> None:
    records = [Record(None, b"", NOW + 2 * HOUR), Record(None, b"", NOW)]
    error = refusal(encode_batch(records), COMPACTED)
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [0, 1]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("claimed", [NOW + 2 * HOUR, -1, 0, NOW - 1, NOW + 50, 2**63 - 1])
@pytest.mark.parametrize("times", [(NOW, NOW + 5), (NOW + 5, NOW), (NOW, NOW + 5, -1, NOW + 1)])
def test_max_timestamp_is_that_of_the_records(
    times: tuple[int, ...], claimed: int, codec: Codec
) -> None:
    batch = changed(batch_with_timestamps(*times, codec=codec), max_timestamp=claimed)
    for rules in (DEFAULT_RULES, COMPACTED):
        header = validate_produced(batch, 9, NOW, rules)
        assert header.max_timestamp == NOW + 5
        stored = b"".join(map(bytes, placed(batch, header, 0, 0)))
        assert stored == place(batch_with_timestamps(*times, codec=codec), 0, 0)


def test_record_in_the_future_is_rejected_whatever_the_header_says() -> None:
    batch = changed(batch_with_timestamps(NOW, NOW + 2 * HOUR, NOW), max_timestamp=NOW)
    error = refusal(batch)
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [1]


def test_batch_of_records_without_time_has_none() -> None:
    batch = changed(batch_with_timestamps(-1, -1), max_timestamp=NOW)
    assert validate_produced(batch, 9, NOW).max_timestamp == -1


def place(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    parts = placed(batch, read_header(batch), base_offset, leader_epoch)
    return b"".join(map(bytes, parts))


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_stamped_without_touching_records(codec: Codec) -> None:
    batch = batch_with_timestamps(NOW - 5, NOW - 9, codec=codec)
    rules = ProduceRules(log_append_time=True)
    header = validate_produced(batch, 9, NOW, rules)
    expected = read_header(batch)._replace(
        attributes=codec | LOG_APPEND_TIME_BIT, max_timestamp=NOW
    )
    assert header._replace(crc=0) == expected._replace(crc=0)
    stored = b"".join(map(bytes, placed(batch, header, 10, 3)))
    assert check_crc(stored, 0, read_header(stored))
    assert crc32c(stored[21:]) == header.crc
    assert stored[HEADER_SIZE:] == batch[HEADER_SIZE:]
    assert read_header(stored).base_timestamp == NOW - 5
    assert [record.timestamp for record in read_records(stored)] == [NOW, NOW]


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_from_a_client_is_cleared(codec: Codec) -> None:
    batch = batch_with_timestamps(NOW, NOW + 1, codec=codec)
    claimed = changed(batch, attributes=codec | LOG_APPEND_TIME_BIT)
    header = validate_produced(claimed, 9, NOW)
    assert header == read_header(batch)
    # The records' own times are stored, not the batch's maximum timestamp.
    other = changed(claimed, max_timestamp=NOW + 5)
    assert validate_produced(other, 9, NOW) == read_header(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_from_a_client_is_rejected_as_in_kafka(codec: Codec) -> None:
    batch = batch_with_timestamps(NOW, NOW + 1, codec=codec)
    for stamp, rules in (
        (NOW + 2 * HOUR, DEFAULT_RULES),
        (-1, DEFAULT_RULES),
        (NOW, ProduceRules(log_append_time=True)),
        (NOW, ProduceRules(log_append_time=True, compacted=True)),
    ):
        attributes = codec | LOG_APPEND_TIME_BIT
        error = refusal(changed(batch, attributes=attributes, max_timestamp=stamp), rules)
        assert isinstance(error, RecordsRejectedError)
        assert error.code == ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in error.record_errors] == [0, 1]


# --- compressed batches that are decoded ------------------------------------------------------


def zeros(size: int) -> bytes:
    """Return the uncompressed bytes of one record with a key and `size` zeros."""
    return encode_batch([Record(b"k", bytes(size), NOW)])[HEADER_SIZE:]


@pytest.mark.slow
def test_decompression_bombs_use_memory_up_to_the_limit() -> None:
    rules = ProduceRules(compacted=True, max_decompressed=4 * MIB, max_message_bytes=2 * MIB)
    content = zeros(20 * MIB)
    bombs: list[tuple[Codec, Callable[[bytes], bytes]]] = [
        (Codec.GZIP, lambda data: compress(Codec.GZIP, data)),
        (Codec.SNAPPY, snappy.compress),
        (Codec.SNAPPY, lambda data: compress(Codec.SNAPPY, data)),
        (Codec.LZ4, lambda data: compress(Codec.LZ4, data)),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress),
    ]
    for codec, squeeze in bombs:
        batch = with_payload(squeeze(content), codec)
        tracemalloc.start()
        try:
            # The client splits the batch and retries.
            assert rejection_code(batch, rules) == ErrorCode.MESSAGE_TOO_LARGE
            assert tracemalloc.get_traced_memory()[1] < 6 * MIB
        finally:
            tracemalloc.stop()
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            list(read_records(batch, max_decompressed=4 * MIB))
        assert len(list(read_records(batch))) == 1


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_truncated_compressed_records_are_rejected(codec: Codec) -> None:
    stream = compress(codec, zeros(100))
    for end in range(len(stream)):
        assert (
            rejection_code(with_payload(stream[:end], codec), COMPACTED) == ErrorCode.INVALID_RECORD
        )


def test_zstd_window_of_two_gigabytes_is_rejected() -> None:
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 21 << 3) + bytes.fromhex("090000") + b"x"
    assert rejection_code(with_payload(frame, Codec.ZSTD), COMPACTED) == ErrorCode.INVALID_RECORD


def test_zstd_wrong_content_size_is_rejected() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(zeros(1000)))
    frame[6] ^= 1
    assert (
        rejection_code(with_payload(bytes(frame), Codec.ZSTD), COMPACTED)
        == ErrorCode.INVALID_RECORD
    )


def test_wrong_lz4_block_checksum_is_rejected() -> None:
    frame = bytearray(lz4.frame.compress(zeros(1000), block_checksum=True, block_linked=False))
    assert validate_produced(with_payload(bytes(frame), Codec.LZ4), 9, NOW, COMPACTED)
    frame[-5] ^= 1
    assert (
        rejection_code(with_payload(bytes(frame), Codec.LZ4), COMPACTED) == ErrorCode.INVALID_RECORD
    )


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_concatenated_frames_are_validated(codec: Codec) -> None:
    payload = zeros(1000)
    batch = with_payload(compress(codec, payload[:100]) + compress(codec, payload[100:]), codec)
    assert validate_produced(batch, 9, NOW, COMPACTED)
    assert plain(list(read_records(batch))) == [(b"k", bytes(1000), NOW, [])]


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_compressed_values_in_a_compressed_batch_are_accepted(codec: Codec) -> None:
    twice = compress(codec, compress(codec, zeros(10)))
    assert rejection_code(with_payload(twice, codec), COMPACTED) == ErrorCode.INVALID_RECORD


def test_offset_deltas_must_be_consecutive() -> None:
    # Both records have offset delta 0. The header is consistent.
    batch = with_payload(zeros(1) * 2, count=2)
    assert [record.offset for record in read_records(batch)] == [0, 0]
    assert rejection_code(batch, COMPACTED) == ErrorCode.INVALID_RECORD


TEN = [Record(b"k", b"value %d" % n, NOW + n) for n in range(10)]


def frames(deltas: Iterable[int] = range(10)) -> bytes:
    """Return uncompressed records with these offset deltas."""
    return b"".join(
        encode_batch([Record(b"k", b"v", NOW, (), delta)], keep_offsets=True)[HEADER_SIZE:]
        for delta in deltas
    )


def damaged_streams(codec: Codec) -> Iterator[bytes]:
    stream = compress(codec, frames())
    yield b"this is no stream of any codec"
    yield b""
    yield stream + b"x"
    yield from (stream[:end] for end in range(len(stream)))


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_undecompressible_records_are_rejected(codec: Codec) -> None:
    for stream in damaged_streams(codec):
        for count in (1, 10, 1000):
            batch = with_payload(stream, codec, count)
            assert rejection_code(batch) == ErrorCode.INVALID_RECORD, (stream, count)


WRONG_RECORDS = {
    "fewer than it claims": (frames(), 11),
    "far fewer than it claims": (frames(), 100_000),
    "more than it claims": (frames(), 9),
    "none": (b"", 1),
    "empty ones": (bytes(7 * 400_000), 400_000),
    "one that is too short": (b"\x02\x00" * 10, 10),
    "one of a negative length": (frames(range(9)) + b"\x0f" + frames([9])[1:], 10),
    "a length that does not end": (b"\xff" * 20, 2),
    "a length beyond the end": (frames(range(9)) + b"\x7e" + frames([9])[1:], 10),
    "bytes behind the last one": (frames() + b"x", 10),
    "a first one that is not the first": (frames(range(1, 11)), 10),
    "a last one that is not the last": (frames([*range(9), 3]), 10),
    "a last one that cannot be read": (frames()[:-1] + b"\x05", 10),
}


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize("name", WRONG_RECORDS)
def test_decompressed_records_that_differ_from_the_header_are_rejected(
    name: str, codec: Codec
) -> None:
    content, count = WRONG_RECORDS[name]
    batch = with_payload(compress(codec, content), codec, count)
    for rules in (ProduceRules(), ProduceRules(log_append_time=True), COMPACTED):
        assert rejection_code(batch, rules) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [1, 50, 60, 100, 10_000, 2_100_000])
def test_records_of_any_length_are_validated(codec: Codec, size: int) -> None:
    rules = ProduceRules(max_message_bytes=10 * MIB)
    batch = encode_batch([Record(b"k", bytes(size), NOW)] * 3, codec=codec)
    assert validate_produced(batch, 9, NOW, rules) == read_header(batch)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_recompressed_records_are_validated(codec: Codec) -> None:
    rules = ProduceRules(codec=Codec.NONE)
    batch = with_payload(compress(codec, frames()), codec, 11)
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        as_stored(batch, 9, NOW, rules)


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize("compacted", [True, False])
def test_batch_is_decompressed_up_to_the_limit_first(codec: Codec, compacted: bool) -> None:
    batch = encode_batch(TEN, codec=codec)
    size = len(encode_batch(TEN)) - HEADER_SIZE
    rules = ProduceRules(compacted=compacted, max_decompressed=size - 1)
    with pytest.raises(DecompressedTooLargeError):
        validate_produced(batch, 9, NOW, rules)
    assert validate_produced(batch, 9, NOW, replace(rules, max_decompressed=size))


# --- search by timestamp ----------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_first_record_at_or_after_a_timestamp_is_found(codec: Codec) -> None:
    def batch(base_offset: int, *timestamps: int) -> bytes:
        records = [Record(b"k", b"v", timestamp) for timestamp in timestamps]
        return encode_batch(records, base_offset=base_offset, codec=codec, leader_epoch=base_offset)

    log = batch(10, 100, 300, 200) + batch(13, 250) + batch(14, 400, 150, 500)
    expected = {
        0: (10, 100, 10),
        100: (10, 100, 10),
        101: (11, 300, 10),
        300: (11, 300, 10),
        301: (14, 400, 14),
        401: (16, 500, 14),
        500: (16, 500, 14),
    }
    for timestamp, found in expected.items():
        assert first_record_at_or_after(log, timestamp) == FoundRecord(*found)
    assert first_record_at_or_after(log, 501) is None
    assert first_record_at_or_after(b"", 0) is None
    assert first_record_at_or_after(log, 101, start_offset=12) == FoundRecord(12, 200, 10)
    assert first_record_at_or_after(log, 101, start_offset=13) == FoundRecord(13, 250, 13)


def test_timestamp_search_uses_log_append_time() -> None:
    log = encode_batch(RECORDS, base_offset=7, log_append_time=1000)
    assert first_record_at_or_after(log, 1000) == FoundRecord(7, 1000, -1)
    assert first_record_at_or_after(log, 1001) is None


def test_timestamp_search_ignores_a_too_high_header_maximum() -> None:
    log = changed(batch_with_timestamps(5, 6), max_timestamp=50) + encode_batch(
        [Record(timestamp=60)], base_offset=2
    )
    assert first_record_at_or_after(log, 40) == FoundRecord(2, 60, -1)


# --- arbitrary bytes --------------------------------------------------------------------------


def use_all(batch: bytes) -> None:
    """Run every reader on the batch. Only KafkaError may be raised."""
    for rules in (ProduceRules(), ProduceRules(compacted=True, max_decompressed=50_000)):
        with suppress(KafkaError):
            validate_produced(memoryview(batch), 9, NOW, rules)
    for reader in (
        lambda: list(read_records(batch, max_decompressed=50_000)),
        lambda: first_record_at_or_after(batch, 1, max_decompressed=50_000),
    ):
        with suppress(KafkaError):
            reader()


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_arbitrary_bytes_raise_only_kafka_errors(data: bytes) -> None:
    use_all(data)
    use_all(data[:16] + b"\x02" + data[17:])


@pytest.mark.slow
@given(
    codec=st.sampled_from(Codec),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "base_offset": st.integers(-(2**63), 2**63 - 1),
            "attributes": st.integers(0, 0x7F),
            "last_offset_delta": st.integers(-(2**31), 2**31 - 1),
            "base_timestamp": st.integers(-(2**63), 2**63 - 1),
            "max_timestamp": st.integers(-(2**63), 2**63 - 1),
            "record_count": st.integers(-(2**31), 2**31 - 1),
        },
    ),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5),
)
@settings(max_examples=500)
def test_mutated_batches_with_a_valid_crc_raise_only_kafka_errors(
    codec: Codec, fields: dict[str, int], changes: list[tuple[int, int]]
) -> None:
    batch = bytearray(changed(MUTATED[codec], **fields))
    for position, byte in changes:
        batch[HEADER_SIZE + position % (len(batch) - HEADER_SIZE)] = byte
    use_all(refreshed(bytes(batch)))


MUTATED = {codec: encode_batch(RECORDS[:3] * 3, codec=codec) for codec in Codec}


@pytest.mark.slow
def test_accepted_batches_can_be_read_back() -> None:
    # A topic that decodes batches never stores an unreadable one.
    draw = random.Random(7)
    accepted = 0
    keyed = [Record(b"k%d" % n, b"v", NOW + n, [("h", b"x")]) for n in range(6)]
    for _ in range(3000):
        batch = bytearray(encode_batch(keyed, codec=draw.choice(list(Codec))))
        batch[draw.randrange(HEADER_SIZE, len(batch))] = draw.randrange(256)
        good = refreshed(bytes(batch))
        with suppress(KafkaError):
            header = validate_produced(good, 9, NOW, COMPACTED)
            accepted += 1
            assert len(list(read_records(good))) == header.record_count
    assert accepted > 100


def test_header_is_a_tuple_in_wire_order() -> None:
    batch = encode_batch(RECORDS)
    assert struct.pack(">qiibIhiqqqhii", *read_header(batch)) == batch[:HEADER_SIZE]
    assert len(BatchHeader._fields) == 13
