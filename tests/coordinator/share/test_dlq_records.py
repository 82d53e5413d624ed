"""Records of dead-letter queues: headers, and bounded copies of stored records (KIP-1191)."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator import CopiedRecords, DeadLetters, DeadLetterSource
from kbroker.coordinator.share.dlq_records import (
    CLIENT_REJECT,
    HEADERS_ADDED,
    copy_records,
    size_bound,
)
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import HEADER_SIZE, ProduceRules, Record, encode_batch, read_header

SOURCE = DeadLetterSource("group", "orders", 3)
LETTERS = DeadLetters(5, 9, 2, CLIENT_REJECT)


def copied(batch: bytes, first: int = 0, bytes_max: int = 10_000, **rules: Any) -> CopiedRecords:
    header = read_header(batch)
    *steps, found = copy_records(batch, header, first, bytes_max, ProduceRules(**rules))
    assert not any(steps)
    assert found is not None
    return found


def test_record_names_its_origin() -> None:
    record = SOURCE.record(LETTERS, 7, None, 1234)
    assert (record.key, record.value, record.timestamp) == (None, None, 1234)
    assert list(record.headers) == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"group"),
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", b"Offset rejected by client."),
    ]
    assert len(record.headers) == HEADERS_ADDED


def test_copied_record_keeps_its_own_headers_first() -> None:
    record = SOURCE.record(LETTERS, 7, Record(b"k", b"v", 1, (("a", None),)), 1234)
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", 1234)
    assert [name for name, _ in record.headers][:2] == ["a", "__dlq.errors.topic"]


@pytest.mark.parametrize("headers", [(), (("a", None), ("\udcff", b"b" * 300))])
def test_size_bound_is_not_below_encoded_size(headers: Any) -> None:
    record = Record(b"k" * 500, b"v" * 70_000, 1 << 62, headers)
    assert len(encode_batch([record])) - HEADER_SIZE <= size_bound(record)


def test_records_are_copied_up_to_size_limit() -> None:
    batch = encode_batch([Record(None, b"x" * 100, n) for n in range(10)], codec=Codec.GZIP)
    found = copied(batch, first=2, bytes_max=450)
    assert (found.first, found.end, sorted(found.records)) == (2, 5, [2, 3, 4])


def test_large_record_is_not_copied() -> None:
    records = [Record(None, b"x" * size, 0) for size in (10, 5000, 10)]
    found = copied(encode_batch(records, codec=Codec.GZIP), bytes_max=1000)
    assert (found.end, sorted(found.records)) == (3, [0, 2])


def test_record_with_too_many_headers_is_not_copied() -> None:
    headers = [("a", b"")] * 10
    records = [Record(None, b"x", 0, headers), Record(None, b"x", 0, headers[:4])]
    assert sorted(copied(encode_batch(records), max_record_headers=10).records) == [1]


def test_malformed_records_are_not_copied() -> None:
    batch = bytearray(encode_batch([Record(None, b"x" * 20, 0) for _ in range(4)]))
    record_size = (len(batch) - HEADER_SIZE) // 4
    batch[HEADER_SIZE + 2 * record_size] = 0x01  # a negative length
    found = copied(bytes(batch))
    assert (found.end, len(found.records) < 4) == (4, True)
