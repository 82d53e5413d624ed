"""Lazy reading of batches: the same records as read in one piece, and a bounded cost per step."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.protocol import compression
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.record_stream import (
    RECORDS_PER_STEP,
    OversizedRecord,
    RecordHeaders,
    batch_records,
    first_record_since,
    latest_record_of,
    record_lists,
    record_times,
    stream_records,
)
from kbroker.protocol.records import (
    HEADER_SIZE,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    FoundRecord,
    Record,
    encode_batch,
    read_header,
    read_records,
    with_payload,
)

SOME_BYTES = st.one_of(st.none(), st.binary(max_size=300))
RECORDS = st.lists(
    st.builds(
        Record,
        SOME_BYTES,
        SOME_BYTES,
        st.integers(min_value=0, max_value=1 << 40),
        st.lists(st.tuples(st.text(max_size=5), SOME_BYTES), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def bomb(record: bytes, count: int, codec: Codec = Codec.ZSTD, max_timestamp: int = 0) -> bytes:
    """Return a batch of many identical records."""
    header = read_header(encode_batch([Record(None, b"", 0)]))._replace(
        attributes=int(codec),
        last_offset_delta=count - 1,
        record_count=count,
        max_timestamp=max_timestamp,
    )
    return with_payload(header, compress(codec, record * count))[0]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "CHUNK_BYTES", 64)


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.sampled_from(list(Codec)), st.integers(0, 50), st.booleans())
def test_stream_has_the_records_of_the_batch(
    records: Sequence[Record], codec: Codec, start: int, stamped: bool
) -> None:
    batch = encode_batch(
        records, base_offset=10, codec=codec, log_append_time=1 << 41 if stamped else None
    )
    header = read_header(batch)
    expected = list(read_records(batch))
    assert list(batch_records(batch, header)) == expected
    assert [list(each.headers) for each in batch_records(batch, header)] == [
        each.headers for each in expected
    ]
    later = list(batch_records(batch, header, start_offset=10 + start))
    assert later == expected[start:]
    lists = list(record_lists(batch, header, start_offset=10 + start))
    assert [each for some in lists for each in some] == expected[start:]
    times = list(record_times(batch, header))
    assert [o for each in times for o in each.offsets] == [each.offset for each in expected]
    assert [t for each in times for t in each.timestamps] == [each.timestamp for each in expected]
    latest = max(expected, key=lambda each: each.timestamp)
    *_, found = latest_record_of(batch, header)
    assert found == (latest.offset, latest.timestamp, -1)
    for wanted in {each.timestamp for each in expected[:5]}:
        first = (
            next(
                each for each in expected if each.timestamp >= wanted and each.offset >= 10 + start
            )
            if any(e.timestamp >= wanted and e.offset >= 10 + start for e in expected)
            else None
        )
        steps = first_record_since(batch, header, wanted, start_offset=10 + start)
        record = next(filter(None, steps), None)
        assert record == (None if first is None else (first.offset, first.timestamp, -1))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("codec", list(Codec))
def test_oversized_records_are_reported_without_content(codec: Codec) -> None:
    records = [Record(b"k", b"v", 1), Record(b"k", bytes(5000), 2), Record(b"k", b"w", 3)]
    batch = encode_batch(records, codec=codec)
    steps = stream_records(batch, read_header(batch), record_bytes_max=1000)
    found = [each for each in steps if each is not None]
    assert [each.timestamp for each in found] == [1, 2, 3]
    assert [isinstance(each, OversizedRecord) for each in found] == [False, True, False]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("change", [b"\x01", b"\x0c\x00", b"\x0e\x00\x00\x00\x01\x01\x00"])
def test_malformed_records_are_corrupt(codec: Codec, change: bytes) -> None:
    whole = b"\x0c\x00\x00\x00\x01\x01\x00"
    header = read_header(encode_batch([Record(None, None, 0)]))._replace(
        attributes=int(codec), last_offset_delta=2, record_count=3
    )
    batch, header = with_payload(header, compress(codec, whole + change + whole))
    for read in (stream_records, record_lists, record_times, latest_record_of):
        with pytest.raises(KafkaError) as raised:
            list(read(batch, header))
        assert raised.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", list(Codec))
def test_missing_and_left_over_bytes_are_corrupt(codec: Codec) -> None:
    batch = encode_batch([Record(b"k", bytes(1000), 1)] * 3, codec=codec)
    header = read_header(batch)
    for count in (2, 4):
        claimed = header._replace(record_count=count, last_offset_delta=3)
        for read in (stream_records, record_lists, record_times):
            with pytest.raises(KafkaError, match=r"after the last record|truncated"):
                list(read(batch, claimed))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_records_above_the_size_limit_are_rejected(codec: Codec) -> None:
    batch = encode_batch([Record(b"k", bytes(100_000), 1)], codec=codec)
    for read in (stream_records, record_lists, record_times):
        with pytest.raises(KafkaError) as raised:
            list(read(batch, read_header(batch), max_decompressed=50_000))
        assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [10, 5000])
def test_lookup_by_time_fails_at_a_record_above_the_limit(codec: Codec, size: int) -> None:
    """Earlier records are found. The limit applies to compressed batches only, as in Kafka."""
    records = [Record(None, bytes(number), time) for number, time in ((1, 1), (size, 2), (1, 3))]
    batch = encode_batch(records, codec=codec)
    header = read_header(batch)
    body = len(encode_batch(records[1:2])) - HEADER_SIZE - len(write_varint(size + 6))

    def find(limit: int, timestamp: int | None) -> FoundRecord | None:
        if timestamp is None:
            *_, found = latest_record_of(batch, header, max_record_bytes=limit)
            return found
        *_, found = first_record_since(batch, header, timestamp, max_record_bytes=limit)
        return found

    for limit, timestamps in ((body, [1, 2, 3]), (body - 1, [1] if codec else [1, 2, 3])):
        for timestamp in timestamps:
            assert find(limit, timestamp) == (timestamp - 1, timestamp, -1)
    for wanted in (2, 3, None) if codec else ():
        with pytest.raises(KafkaError, match=r"more than max\.decompressed\.message") as raised:
            find(body - 1, wanted)
        assert raised.value.code == ErrorCode.INVALID_RECORD


def test_latest_record_before_a_record_above_the_limit_is_found() -> None:
    records = [Record(None, b"", 2), Record(None, bytes(100), 1)]
    batch = encode_batch(records, codec=Codec.ZSTD)
    *_, found = latest_record_of(batch, read_header(batch), max_record_bytes=50)
    assert found == (0, 2, -1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_huge_batches_are_walked_in_little_memory(codec: Codec) -> None:
    value = bytes(1_000_000)
    body = b"\x00\x00\x00\x01" + write_varint(len(value)) + value + b"\x00"
    batch = bomb(write_varint(len(body)) + body, 30, codec)
    tracemalloc.start()
    try:
        steps = sum(1 for _ in record_times(batch, read_header(batch)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert steps >= 100
    assert peak < 3_000_000


def test_record_lists_have_limited_length() -> None:
    batch = bomb(b"\x0c\x00\x00\x00\x01\x01\x00", 3000)
    lengths = [len(each) for each in record_lists(batch, read_header(batch))]
    assert sum(lengths) == 3000
    assert max(lengths) <= RECORDS_PER_STEP


@pytest.mark.parametrize("timestamp", [TIMESTAMP_MIN, TIMESTAMP_MAX])
def test_record_lists_wrap_timestamps(timestamp: int) -> None:
    """The sum of base and delta may exceed 64 bits, as in Java."""
    batch = encode_batch([Record(b"k", b"v", 0), Record(b"k", b"v", 5)])
    header = read_header(batch)._replace(base_timestamp=timestamp)
    expected = list(batch_records(batch, header))
    assert [each for some in record_lists(batch, header) for each in some] == expected


def test_millions_of_headers_are_parsed_on_iteration_only() -> None:
    count = 5_000_000
    body = b"\x00\x00\x00\x01\x01" + write_varint(count) + b"\x00\x01" * count
    batch = bomb(write_varint(len(body)) + body, 1)
    tracemalloc.start()
    try:
        [record] = batch_records(batch, read_header(batch))
        some = list(islice(record.headers, 3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert some == [("", None)] * 3
    assert len(record.headers) == count
    assert record.headers[:2] == [("", None)] * 2
    assert peak < 5 * len(body)


def test_headers_are_a_sequence() -> None:
    [record] = batch_records(
        batch := encode_batch([Record(None, b"v", 1, [("a", b"1"), ("b", None)])]),
        read_header(batch),
    )
    assert isinstance(record.headers, RecordHeaders)
    assert record.headers == [("a", b"1"), ("b", None)]
    assert record.headers == [("a", b"1"), ("b", None)]
    assert record.headers != [("a", b"1")]
    assert (record.headers[0], record.headers[-1]) == (("a", b"1"), ("b", None))
    assert record.headers[::-1] == [("b", None), ("a", b"1")]
    with pytest.raises(IndexError):
        record.headers[2]


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x04\x00\x01", b"\x02\x01\x01", b"\x02\x00\x01\x00"]
)
def test_malformed_headers_are_corrupt(data: bytes) -> None:
    with pytest.raises(KafkaError) as raised:
        list(RecordHeaders(data))
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
