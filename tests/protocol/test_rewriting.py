"""Rewritten batches with some of their records or none."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import (
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    Record,
    check_crc,
    encode_batch,
    read_header,
    read_records,
    with_timestamps,
)
from kbroker.protocol.rewriting import (
    decompress_records,
    raw_records,
    with_records,
    without_records,
)

MIB = 1 << 20
KEPT = {
    "base_offset": 100,
    "producer_id": 5,
    "producer_epoch": 2,
    "base_sequence": 9,
    "leader_epoch": 3,
}

fields = st.one_of(st.none(), st.binary(max_size=300))
listed = st.lists(
    st.builds(
        Record,
        key=fields,
        value=fields,
        timestamp=st.integers(0, 1 << 41),
        headers=st.lists(st.tuples(st.text(max_size=5), fields), max_size=2),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(records=listed, codec=st.sampled_from(list(Codec)), data=st.data())
def test_kept_records_are_unchanged(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = encode_batch(records, codec=codec, **KEPT)  # type: ignore[arg-type]
    header = read_header(batch)
    payload = decompress_records(batch, header, MIB)
    raw = list(raw_records(payload, header))
    assert [(record.key, record.has_value, record.offset) for record in raw] == [
        (record.key, record.value is not None, 100 + index) for index, record in enumerate(records)
    ]
    chosen = data.draw(st.sets(st.sampled_from(range(len(raw))), min_size=1))
    horizon = data.draw(st.one_of(st.none(), st.integers(0, 1 << 42)))
    kept = [raw[index] for index in sorted(chosen)]
    written, changed = with_records(header, payload, kept, delete_horizon=horizon)
    assert changed == read_header(written)
    assert check_crc(written, 0, changed)
    assert (changed.base_offset, changed.last_offset) == (100, header.last_offset)
    assert changed[9:12] == header[9:12]
    assert changed.delete_horizon == horizon
    whole = list(read_records(batch))
    assert list(read_records(written)) == [whole[index] for index in sorted(chosen)]
    assert changed.max_timestamp == max(whole[index].timestamp for index in chosen)


def test_second_rewrite_keeps_the_delete_horizon() -> None:
    records = [Record(b"a", None, 50), Record(b"b", b"1", 60)]
    header = read_header(batch := encode_batch(records))
    payload = decompress_records(batch, header, MIB)
    once, header = with_records(
        header, payload, list(raw_records(payload, header)), delete_horizon=5000
    )
    payload = decompress_records(once, header, MIB)
    twice, header = with_records(header, payload, list(raw_records(payload, header))[1:])
    assert header.delete_horizon == 5000
    assert [(record.key, record.timestamp) for record in read_records(twice)] == [(b"b", 60)]


def test_log_append_time_is_kept() -> None:
    batch = bytearray(encode_batch([Record(b"a", None, 5), Record(b"b", b"1", 9)]))
    header = with_timestamps(
        batch, read_header(batch), read_header(batch).attributes | LOG_APPEND_TIME_BIT, 1234
    )
    payload = decompress_records(batch, header, MIB)
    written, changed = with_records(
        header, payload, list(raw_records(payload, header))[:1], delete_horizon=99
    )
    assert changed.is_log_append_time
    assert [record.timestamp for record in read_records(written)] == [1234]


def test_batch_without_records_keeps_offsets_and_sequence() -> None:
    header = read_header(encode_batch([Record(b"a", b"1", 7)] * 3, codec=Codec.ZSTD, **KEPT))  # type: ignore[arg-type]
    batch, empty = without_records(header)
    assert len(batch) == HEADER_SIZE == empty.size
    assert check_crc(batch, 0, empty)
    assert (empty.record_count, empty.codec, empty.max_timestamp) == (0, Codec.NONE, 7)
    assert (empty.base_offset, empty.last_offset) == (100, 102)
    assert (empty.producer_id, empty.producer_epoch, empty.last_sequence) == (5, 2, 11)
    assert list(read_records(batch)) == []


@given(st.binary(max_size=80), st.integers(1, 5))
def test_arbitrary_bytes_raise_only_kafka_errors(payload: bytes, count: int) -> None:
    header = read_header(encode_batch([Record(b"k", b"v", 0)]))
    header = header._replace(record_count=count, last_offset_delta=count - 1)
    with suppress(KafkaError):
        for record in raw_records(payload, header):
            assert record.start < record.body < record.offset_start < record.end
