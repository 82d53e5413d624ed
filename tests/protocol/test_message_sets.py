"""Message formats 0 and 1, compared with kafka-python and Kafka 3.9, and malformed sets."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kbroker.protocol import message_sets
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.message_sets import (
    Message,
    MessageSet,
    from_batches,
    is_message_set,
    read_messages,
)
from kbroker.protocol.records import (
    Marker,
    ProduceRules,
    Record,
    encode_batch,
    end_transaction_marker,
    read_header,
    read_records,
)

from ..message_sets import LOG_APPEND_TIME, message, messages, to_batch, wrapper
from .validating import validate_produced

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python loads its schemas through a deprecated function of importlib.
    from kafka.record import MemoryRecords, MemoryRecordsBuilder

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
# kafka-python needs another package for LZ4 in format 0. test_lz4_header.py has Kafka's bytes.
FORMATS_OF_KAFKA_PYTHON = [
    (magic, codec) for magic in (0, 1) for codec in CODECS if (magic, codec) != (0, Codec.LZ4)
]
VALUES = (b"", None, b"x" * 300)
MIB = 1 << 20


def converted(data: bytes, rules: ProduceRules | None = None) -> list[Record]:
    """Return the records of a message set after its conversion to a batch."""
    batch = to_batch(data) if rules is None else to_batch(data, rules)
    assert batch is not None
    validate_produced(memoryview(batch), 2, 10**12)
    return [record._replace(headers=()) for record in read_records(batch)]


def refusal(data: bytes, rules: ProduceRules | None = None) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        converted(data, rules)
    assert caught.value.message
    return caught.value.code


def read_by_kafka_python(data: bytes) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    sets: Any = MemoryRecords(data)
    return [(r.offset, r.timestamp, r.key, r.value) for r in read_all_batches(sets)]


def read_all_batches(sets: Any) -> list[Any]:
    found = []
    while sets.has_next():
        found += list(sets.next_batch())
    return found


def convert_in_steps(data: bytes, magic: int, first_offset: int = 0, max_bytes: int = MIB) -> bytes:
    """Run `from_batches` with as many steps as it takes."""
    response = result_of(
        from_batches(
            data, magic, first_offset=first_offset, max_bytes=max_bytes, max_content=100 * MIB
        )
    )
    return response.data


def result_of(steps: Iterator[MessageSet | None]) -> MessageSet:
    """Return the message set that a conversion produces."""
    return next(each for each in steps if each is not None)


# -- conversion of produced sets


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_message_set_is_converted_to_one_batch(magic: int, codec: Codec) -> None:
    data = messages(VALUES, magic)
    if codec:
        data = wrapper(data, codec, magic)
    batch = to_batch(data)
    assert batch is not None
    header = read_header(batch)
    times = [1000, 1001, 1002] if magic else [-1, -1, -1]
    assert header.size == len(batch)
    assert (header.attributes, header.record_count, header.last_offset_delta) == (codec, 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (times[0], times[2])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    keys = [b"k0", b"k1", b"k2"]
    assert converted(data) == [
        Record(key, value, time, (), offset)
        for offset, (key, value, time) in enumerate(zip(keys, VALUES, times, strict=True))
    ]


@pytest.mark.parametrize(("magic", "codec"), FORMATS_OF_KAFKA_PYTHON)
def test_message_set_of_kafka_python_is_converted(magic: int, codec: Codec) -> None:
    builder: Any = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=MIB)
    for i, value in enumerate(VALUES):
        builder.append(timestamp=1000 + i, key=None, value=value)
    builder.close()
    expected = [(i, 1000 + i if magic else -1, value) for i, value in enumerate(VALUES)]
    found = converted(builder.buffer())
    assert [(r.offset, r.timestamp, r.value) for r in found] == expected


@pytest.mark.parametrize("magic", [0, 1])
def test_incomplete_message_at_the_end_is_ignored(magic: int) -> None:
    """Kafka ignores such ends in every set, because consumers may receive partial messages."""
    one = message(b"a", magic=magic)
    for size in range(len(one)):
        assert len(converted(one + one[:size])) == 1
        assert to_batch(one[:size]) is None
        assert len(converted(wrapper(one + one[:size], Codec.GZIP, magic))) == 1


def test_inner_offsets_of_a_wrapper_are_ignored() -> None:
    """Some clients send wrong offsets, and Kafka renumbers the messages."""
    content = message(b"a", offset=7) + message(b"b", offset=7) + message(b"c", offset=0)
    assert [r.offset for r in converted(wrapper(content, Codec.GZIP))] == [0, 1, 2]


def test_messages_of_a_log_append_time_wrapper_get_its_timestamp() -> None:
    """The messages get the wrapper's timestamp (KIP-32), but the batch does not keep the bit."""
    data = wrapper(messages(VALUES), Codec.GZIP, attributes=LOG_APPEND_TIME, timestamp=77)
    assert [r.timestamp for r in converted(data)] == [77] * 3
    batch = to_batch(data)
    assert batch is not None
    assert not read_header(batch).is_log_append_time


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_log_append_time_bit_for_a_log_append_time_topic_is_rejected(codec: Codec) -> None:
    rules = ProduceRules(log_append_time=True)
    for magic in (0, 1):
        data = message(magic=magic, attributes=LOG_APPEND_TIME)
        if codec:
            data = wrapper(message(magic=magic), codec, magic, attributes=LOG_APPEND_TIME)
        if magic == 0:
            assert len(converted(data, rules)) == 1, "format 0 has no LogAppendTime bit"
        else:
            assert refusal(data, rules) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("timestamp", [-2, -(2**63), 2**63 - 1])
def test_impossible_timestamp_is_rejected(timestamp: int) -> None:
    assert refusal(message(timestamp=timestamp)) == ErrorCode.INVALID_TIMESTAMP


def test_extreme_timestamps_are_converted() -> None:
    found = list(
        read_records(to_batch(message(timestamp=-1) + message(timestamp=2**63 - 2)) or b"")
    )
    assert [record.timestamp for record in found] == [-1, 2**63 - 2]


CORRUPT, INVALID, LARGE = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.MESSAGE_TOO_LARGE,
)


def rejected_message_sets(magic: int) -> dict[str, tuple[bytes, ErrorCode]]:
    """Return message sets that Kafka 3.9 rejects, with Kafka's error.

    Where Kafka returns UNKNOWN_SERVER_ERROR, kbroker returns INVALID_RECORD.
    """
    good, other = message(magic=magic), message(magic=1 - magic)
    zipped = wrapper(good, Codec.GZIP, magic)
    return {
        "wrong crc": (message(magic=magic, crc=5), CORRUPT),
        "wrong crc behind a good one": (good + message(magic=magic, crc=5), CORRUPT),
        "wrong crc within": (wrapper(message(magic=magic, crc=5), Codec.GZIP, magic), CORRUPT),
        "size too small": (struct.pack(">qiIbb", 0, 6, 0, magic, 0) + bytes(20), CORRUPT),
        "size negative": (struct.pack(">qiIbb", 0, -1, 0, magic, 0) + bytes(20), CORRUPT),
        "key beyond the message": (message(magic=magic, key_size=100), INVALID),
        "value beyond the message": (message(magic=magic, value_size=100), INVALID),
        "value of 2 GB": (message(magic=magic, value_size=2**31 - 1), INVALID),
        "codec 5": (message(magic=magic, attributes=5), INVALID),
        "codec 7": (message(magic=magic, attributes=7), INVALID),
        "zstd": (wrapper(good, Codec.ZSTD, magic), INVALID),
        "two wrappers": (zipped + zipped, INVALID),
        "a message and a wrapper": (good + zipped, INVALID),
        "a wrapper and a message": (zipped + good, INVALID),
        "nested wrappers": (wrapper(zipped, Codec.GZIP, magic), INVALID),
        "another format behind": (good + other, INVALID),
        "another format within": (wrapper(other, Codec.GZIP, magic), INVALID),
        "a batch behind": (good + encode_batch([Record()]), INVALID),
        "nothing within": (wrapper(b"", Codec.GZIP, magic), INVALID),
        "a part of one within": (wrapper(good[:-1], Codec.GZIP, magic), INVALID),
        "a wrapper without value": (message(None, magic=magic, attributes=1), INVALID),
        "no gzip": (message(b"garbage", magic=magic, attributes=1), INVALID),
        "no snappy": (message(b"\xff" * 9, magic=magic, attributes=2), INVALID),
        "no lz4": (message(b"garbage", magic=magic, attributes=3), INVALID),
    }


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("case", rejected_message_sets(0))
def test_malformed_set_is_rejected(case: str, magic: int) -> None:
    data, code = rejected_message_sets(magic)[case]
    assert refusal(data) == code


def test_bytes_after_the_value_are_ignored() -> None:
    """Kafka ignores these bytes as well."""
    assert [r.value for r in converted(message(b"v", tail=b"zz"))] == [b"v"]


# -- limits


def test_message_and_set_sizes_are_limited() -> None:
    """A converted batch must fit the limit. Its messages are not split into several batches."""
    rules = ProduceRules(max_message_bytes=1000)
    assert refusal(message(b"x" * 1000), rules) == LARGE
    assert refusal(message(b"x" * 100) * 20, rules) == LARGE
    assert refusal(message(b"") * 200, rules) == LARGE
    assert refusal(message(bytes(1500), attributes=1), rules) == LARGE
    assert len(converted(message(b"x" * 100) * 5, rules)) == 5
    assert len(converted(wrapper(message(b"x" * 100) * 20, Codec.GZIP), rules)) == 20


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_decompressed_size_of_a_wrapper_is_limited(codec: Codec) -> None:
    rules = ProduceRules(max_decompressed=10_000)
    data = wrapper(message(b"x" * 20_000), codec)
    assert refusal(data, rules) == LARGE


def test_number_of_messages_in_a_wrapper_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_sets, "MESSAGES_MAX", 10)
    assert len(converted(wrapper(message() * 10, Codec.GZIP))) == 10
    assert refusal(wrapper(message() * 11, Codec.GZIP)) == LARGE


def test_message_sets_are_recognized_by_their_magic() -> None:
    assert all(is_message_set(data) for data in (message(magic=0), message(), b"", bytes(16)))
    assert not any(is_message_set(data) for data in (encode_batch([Record()]), None))


# -- conversion for consumers

RECORDS = (
    Record(b"k", b"a", 5000, [("header", b"lost")]),
    Record(None, b"b", -1),
    Record(b"", None, 4000),
)


def stored_batch(
    codec: int = 0, base_offset: int = 100, records: Sequence[Record] = RECORDS, **settings: Any
) -> bytes:
    return encode_batch(records, codec=codec, base_offset=base_offset, leader_epoch=3, **settings)


@pytest.mark.parametrize(("magic", "codec"), FORMATS_OF_KAFKA_PYTHON)
def test_batches_become_a_set_that_kafka_python_reads(magic: int, codec: Codec) -> None:
    data = convert_in_steps(stored_batch(codec) + stored_batch(Codec.NONE, 103), magic)
    expected = [
        (offset + i, record.timestamp if magic else None, record.key, record.value)
        for offset in (100, 103)
        for i, record in enumerate(RECORDS)
    ]
    assert read_by_kafka_python(data) == expected


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS[1:])
def test_wrapper_has_last_offset_and_maximum_timestamp(magic: int, codec: Codec) -> None:
    """The wrapper has no key. Inner offsets are relative in format 1 and absolute in format 0."""
    (outer,) = read_messages(convert_in_steps(stored_batch(codec), magic), magic)
    assert (outer.offset, outer.attributes, outer.key) == (102, codec, None)
    assert outer.timestamp == (5000 if magic else -1)
    content = b"".join(message_sets._decompress_wrapper(outer, magic, MIB))
    inner = list(read_messages(content, magic))
    assert [m.offset for m in inner] == ([0, 1, 2] if magic else [100, 101, 102])
    assert [m.timestamp for m in inner] == ([5000, -1, 4000] if magic else [-1] * 3)
    assert [(m.attributes, m.key, m.value) for m in inner] == [
        (0, record.key, record.value) for record in RECORDS
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_conversion_back_returns_the_same_records(codec: Codec) -> None:
    found = converted(convert_in_steps(stored_batch(codec), 1))
    assert found == [r._replace(headers=(), offset=i) for i, r in enumerate(RECORDS)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_log_append_time_is_converted(codec: Codec) -> None:
    data = stored_batch(codec, log_append_time=9000)
    for each in read_messages(convert_in_steps(data, 1), 1):
        assert (each.attributes, each.timestamp) == (codec | LOG_APPEND_TIME, 9000)
    for each in read_messages(convert_in_steps(data, 0), 0):
        assert (each.attributes, each.timestamp) == (codec, -1)
    assert {
        timestamp for _, timestamp, _, _ in read_by_kafka_python(convert_in_steps(data, 1))
    } == {9000}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY])
def test_offset_gaps_are_kept(magic: int, codec: Codec) -> None:
    """Compaction leaves gaps at the start, within, and at the end of a batch."""
    kept = [Record(b"k", b"v", 1000, (), offset) for offset in (102, 105, 107)]
    data = bytearray(stored_batch(codec, 100, kept, keep_offsets=True))
    struct.pack_into(">i", data, 23, 19)  # the batch ends at 119, whose record was removed
    found = read_by_kafka_python(convert_in_steps(bytes(data), magic))
    assert [offset for offset, _, _, _ in found] == [102, 105, 107]
    assert convert_in_steps(bytes(data), magic, 108) == b"", (
        "there are no records from offset 108 on"
    )


def test_records_before_the_first_offset_are_omitted_if_uncompressed() -> None:
    """Single messages are omitted. Wrappers keep them, and clients skip them."""
    for codec, expected in ((Codec.NONE, [101, 102]), (Codec.GZIP, [100, 101, 102])):
        found = read_by_kafka_python(convert_in_steps(stored_batch(codec), 1, 101))
        assert [offset for offset, _, _, _ in found] == expected
    assert convert_in_steps(stored_batch() + stored_batch(0, 103), 1, 104)[:8] == struct.pack(
        ">q", 104
    )


def test_control_batches_are_omitted() -> None:
    marker = end_transaction_marker(
        Marker(True, 0), producer_id=5, producer_epoch=0, timestamp=1, base_offset=103
    )
    data = stored_batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    found = read_by_kafka_python(convert_in_steps(data + marker + stored_batch(0, 104), 1))
    assert [offset for offset, _, _, _ in found] == [100, 101, 102, 104, 105, 106]
    assert convert_in_steps(marker, 1) == b""


def test_zstd_batch_ends_the_set_or_is_an_error() -> None:
    """A leading zstd batch is an error. Otherwise the set contains the batches before it."""
    with pytest.raises(KafkaError) as caught:
        convert_in_steps(stored_batch(Codec.ZSTD), 1)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    found = read_by_kafka_python(
        convert_in_steps(stored_batch() + stored_batch(Codec.ZSTD, 103) + stored_batch(0, 106), 1)
    )
    assert [offset for offset, _, _, _ in found] == [100, 101, 102]


def test_damaged_records_end_the_set_before_them() -> None:
    broken = bytearray(stored_batch(0, 103))
    broken[61] = 0xFF
    with pytest.raises(KafkaError) as caught:
        convert_in_steps(bytes(broken), 1)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert len(read_by_kafka_python(convert_in_steps(stored_batch() + bytes(broken), 1))) == 3


def test_whole_batches_within_the_limit_and_at_least_one() -> None:
    data = stored_batch() + stored_batch(0, 103) + stored_batch(0, 106)
    one = len(convert_in_steps(stored_batch(), 1))
    for max_bytes, batches in ((0, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (3 * one, 3)):
        assert len(convert_in_steps(data, 1, max_bytes=max_bytes)) == batches * one


def test_decompressed_content_of_a_set_is_limited() -> None:
    records = [Record(None, bytes(1000), 1)] * 10
    data = b"".join(stored_batch(Codec.GZIP, 10 * i, records) for i in range(10))
    response = result_of(from_batches(data, 1, first_offset=0, max_bytes=MIB, max_content=25_000))
    assert [each.offset for each in read_messages(response.data, 1)] == [9, 19, 29]
    assert 30_000 < response.content_bytes < 32_000


def test_batch_above_the_conversion_limits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_sets, "MESSAGES_MAX", 2)
    with pytest.raises(KafkaError) as caught:
        convert_in_steps(stored_batch(), 1)
    assert caught.value.code == LARGE
    with pytest.raises(KafkaError) as caught:
        result_of(
            from_batches(
                stored_batch(Codec.GZIP, 0, [Record(None, bytes(5000))]),
                1,
                first_offset=0,
                max_bytes=MIB,
                max_content=MIB,
                max_decompressed=1000,
            )
        )
    assert caught.value.code == LARGE


def test_incomplete_batch_at_the_end_is_ignored() -> None:
    assert convert_in_steps(stored_batch() + stored_batch(0, 103)[:-1], 1) == convert_in_steps(
        stored_batch(), 1
    )
    assert convert_in_steps(stored_batch()[:-1], 1) == b""


def test_message_attributes_are_decoded() -> None:
    (found,) = read_messages(message(b"v", b"k", attributes=9, offset=4), 1)
    assert found == Message(4, 9, 1000, b"k", b"v", len(message(b"v", b"k")))
    assert (found.codec, found.is_log_append_time) == (1, True)
    (found,) = read_messages(message(None, magic=0, attributes=9), 0)
    assert (found.codec, found.is_log_append_time, found.timestamp) == (1, False, -1)


def test_raw_snappy_is_read() -> None:
    """librdkafka wrote raw snappy, while Java wrote the framing of the xerial library."""
    import snappy

    raw = snappy.compress(messages(VALUES))
    assert raw != compress(Codec.SNAPPY, messages(VALUES))
    assert len(converted(message(raw, attributes=Codec.SNAPPY))) == 3
