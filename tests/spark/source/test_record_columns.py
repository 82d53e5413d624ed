"""Columns contain the same data as the records; invalid batches are rejected."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    HEADER_SIZE,
    Marker,
    Record,
    encode_batch,
    end_transaction_marker,
    iter_headers,
    read_records,
)
from kbroker.spark.source.record_columns import RecordColumns, read_columns

_FIELD = st.none() | st.binary(max_size=200)
_RECORDS = st.lists(
    st.builds(
        Record,
        key=_FIELD,
        value=_FIELD,
        timestamp=st.integers(-1, 1 << 50),
        headers=st.lists(st.tuples(st.text(max_size=5), _FIELD), max_size=3),
    ),
    min_size=1,
    max_size=200,
)


def rows(columns: RecordColumns) -> list[Record]:
    """Return the columns as records."""
    headers = [list(columns.headers.get(number, ())) for number in range(len(columns))]
    numbers = columns.timestamps.tolist(), columns.offsets.tolist()
    fields = zip(columns.keys(), columns.values(), numbers[0], headers, numbers[1], strict=True)
    return [Record(*each) for each in fields]


def all_rows(buffer: bytes) -> list[Record]:
    return [row for columns in read_columns(buffer) for row in rows(columns)]


@given(st.lists(st.tuples(_RECORDS, st.sampled_from(Codec)), max_size=4))
@settings(max_examples=60)
def test_columns_equal_records(batches: list[tuple[list[Record], Codec]]) -> None:
    buffer, offset = b"", 7
    for records, codec in batches:
        buffer += encode_batch(records, base_offset=offset, codec=codec)
        offset += len(records) + 3

    assert all_rows(buffer) == list(read_records(buffer))


def test_columns_keep_gaps_large_offsets_and_append_time() -> None:
    kept = [Record(b"k", b"v" * 20_000, 5, (), 3), Record(None, None, 1 << 45, (), 70_000)]
    buffer = encode_batch(kept, base_offset=1, keep_offsets=True)
    stamped = [Record(b"a", b"b", 9), Record(b"c", b"d", 10)]
    buffer += encode_batch(stamped, base_offset=1 << 40, log_append_time=77)

    (columns,) = read_columns(buffer)

    assert rows(columns) == list(read_records(buffer))
    assert columns.timestamps.tolist()[2:] == [77, 77]
    assert columns.log_append_time.tolist() == [False, False, True, True]


def test_control_batches_and_truncated_end_are_skipped() -> None:
    one = encode_batch([Record(b"k", b"v")])
    marker = end_transaction_marker(
        Marker(True, 0), producer_id=1, producer_epoch=0, timestamp=3, base_offset=1
    )
    two = encode_batch([Record(b"k", b"w")], base_offset=2)

    assert [row.value for row in all_rows(one + marker + two + one[:65])] == [b"v", b"w"]


def test_column_groups_are_bounded_and_batches_selectable() -> None:
    buffer = b"".join(encode_batch([Record(None, bytes(1000))], base_offset=at) for at in range(9))

    groups = list(read_columns(buffer, group_bytes=3000))
    chosen = read_columns(
        buffer, [each for each in iter_headers(buffer) if each[1].base_offset > 6]
    )

    assert [len(group) for group in groups] == [3, 3, 3]
    assert [offset for group in chosen for offset in group.offsets.tolist()] == [7, 8]


def test_headers_are_skipped_on_request() -> None:
    headers = [("a", None), ("a", b"2")]
    buffer = encode_batch([Record(b"k", b"v"), Record(b"k", b"w", headers=headers)])

    (columns,) = read_columns(buffer, with_headers=False)
    (with_headers,) = read_columns(buffer)

    assert columns.headers == {}
    assert columns.values() == [b"v", b"w"]
    assert with_headers.headers == {1: headers}


def test_content_beyond_decompression_limit_is_rejected() -> None:
    buffer = encode_batch([Record(None, bytes(100_000))], codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as refused:
        list(read_columns(buffer, max_decompressed=50_000))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def read_as_java(buffer: bytes) -> Iterable[Record]:
    """Yield records; invalid UTF-8 in header keys becomes U+FFFD."""
    for record in read_records(buffer):
        headers = [
            (key.encode(errors="surrogateescape").decode(errors="replace"), value)
            for key, value in record.headers
        ]
        yield record._replace(headers=headers)


def outcome(read: Callable[[bytes], Iterable[Record]], buffer: bytes) -> list[Record] | ErrorCode:
    """Return the records that a reader returns, or the code of its error."""
    try:
        return list(read(buffer))
    except KafkaError as error:
        return error.code


def test_corrupt_bytes_are_handled_as_by_read_records() -> None:
    """The CRC is not checked here. Both readers must return equal records or fail."""
    chance = random.Random(5)
    records = [
        Record(bytes(chance.randrange(99)), bytes(200), 5000 + at, [("h", b"1")] * (at % 3))
        for at in range(20)
    ]
    sound = encode_batch(records)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(sound)
        at = chance.randrange(HEADER_SIZE, len(sound))
        damaged[at : at + 1] = chance.randbytes(1) if chance.random() < 0.7 else b"\xff" * 11
        found = outcome(all_rows, bytes(damaged))
        if found == ErrorCode.CORRUPT_MESSAGE:
            refused += 1
        else:
            assert found == outcome(read_as_java, bytes(damaged))
    assert 500 < refused < 3000
