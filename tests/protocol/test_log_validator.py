"""Validation of produced batches in any number of steps."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from lz4 import frame

from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.log_validator import validate_at_once
from kbroker.protocol.lz4_header import with_correct_checksum, with_old_checksum
from kbroker.protocol.record_walk import ORDINARY_MAX
from kbroker.protocol.records import (
    DEFAULT_RULES,
    HEADER_SIZE,
    NO_LIMIT,
    ProduceRules,
    Record,
    check_crc,
    encode_batch,
    placed,
    read_header,
    read_records,
    with_payload,
)

from .malformed import MALFORMED_RECORDS, PADDED_RECORDS, batch_of, record, varint
from .validating import HOUR, NOW, as_stored, validate_produced

COMPACTED = ProduceRules(compacted=True)
TEN = [Record(b"k", b"value %d" % n, NOW + n) for n in range(10)]


def rejection_code(batch: bytes, rules: ProduceRules = DEFAULT_RULES) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate_produced(batch, 9, NOW, rules)
    return caught.value.code


PLACES = {"alone": (0, 1), "first": (0, 20), "in the middle": (11, 20), "last": (19, 20)}


@pytest.mark.slow
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("position", PLACES)
@pytest.mark.parametrize("name", MALFORMED_RECORDS)
def test_malformed_record_is_rejected(name: str, position: str, codec: Codec) -> None:
    index, count = PLACES[position]
    parts = [record(number) for number in range(count)]
    good = b"".join(parts)
    parts[index] = MALFORMED_RECORDS[name](index)
    content = b"".join(parts)
    assert validate_produced(batch_of(good, codec, count), 9, NOW)
    batch = batch_of(content, codec, count)
    for rules in (DEFAULT_RULES, COMPACTED, ProduceRules(log_append_time=True)):
        assert rejection_code(batch, rules) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", PADDED_RECORDS)
def test_padded_varints_are_accepted(name: str, codec: Codec) -> None:
    content = b"".join(map(PADDED_RECORDS[name], range(70)))
    assert validate_produced(batch_of(content, codec, 70), 9, NOW)


@pytest.mark.parametrize("codec", list(Codec))
def test_number_of_headers_is_limited(codec: Codec) -> None:
    rules = ProduceRules(max_headers=30, max_record_headers=10)

    def batch_with_headers(*counts: int) -> bytes:
        return encode_batch(
            [Record(timestamp=NOW, headers=[("h", b"")] * count) for count in counts], codec=codec
        )

    assert validate_produced(batch_with_headers(10, 10, 10, 0), 9, NOW, rules)
    assert rejection_code(batch_with_headers(1, 11), rules) == ErrorCode.INVALID_RECORD
    # The Java client splits such a batch and retries.
    assert rejection_code(batch_with_headers(10, 10, 10, 1), rules) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", list(Codec))
def test_number_of_records_is_limited(codec: Codec) -> None:
    rules = ProduceRules(max_records=10)
    assert validate_produced(encode_batch(TEN, codec=codec), 9, NOW, rules)
    batch = encode_batch([*TEN, Record(timestamp=NOW)], codec=codec)
    assert rejection_code(batch, rules) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [20, 200, 20_000])
def test_size_of_a_decompressed_record_is_limited(size: int, codec: Codec) -> None:
    batch = encode_batch([Record(timestamp=NOW), Record(None, bytes(size), NOW)], codec=codec)
    body = len(encode_batch([Record(None, bytes(size), NOW)])) - HEADER_SIZE - len(varint(size))
    assert validate_produced(batch, 9, NOW, ProduceRules(max_record_bytes=body))
    rules = ProduceRules(max_record_bytes=body - 1)
    if codec:
        assert rejection_code(batch, rules) == ErrorCode.INVALID_RECORD
    else:
        assert validate_produced(
            batch, 9, NOW, rules
        )  # uncompressed batches cannot be decompression bombs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_accepted_batch_equals_what_a_reader_finds(seed: int) -> None:
    """A damaged batch is accepted only if all its records can be read, with these times."""
    draw = random.Random(seed)
    accepted, codes = 0, set[ErrorCode]()
    for _ in range(40):
        size = draw.choice([5, 100])
        count = draw.choice([2, 15, 90])
        times = [NOW + draw.choice([0, 1, 63, 64, 9000, -5]) for _ in range(count)]
        batch = encode_batch([Record(b"k", bytes(size), time) for time in times])
        content = bytearray(batch[HEADER_SIZE:])
        position = draw.randrange(len(content))
        content[position] = draw.choice([0, 1, 2, content[position] ^ 1 << draw.randrange(8)])
        bad, _ = with_payload(read_header(batch), bytes(content))
        try:
            header = validate_produced(bad, 9, NOW, ProduceRules(timestamp_after_max_ms=NO_LIMIT))
        except KafkaError as error:
            codes.add(error.code)
            continue
        accepted += 1
        found = list(read_records(bad))
        assert [record.offset for record in found] == list(range(count))
        assert header.max_timestamp == max(-1, *(record.timestamp for record in found))
    assert accepted
    assert codes == {ErrorCode.INVALID_RECORD}


NOT_ORDINARY: dict[str, tuple[list[Record], ProduceRules]] = {
    "many records": ([Record(timestamp=NOW)] * (ORDINARY_MAX + 1), DEFAULT_RULES),
    "headers": ([Record(timestamp=NOW, headers=[("h", b"")])], DEFAULT_RULES),
    "times far apart": ([Record(timestamp=NOW), Record(timestamp=NOW + 64)], DEFAULT_RULES),
    "log append time": ([Record(timestamp=NOW)], ProduceRules(log_append_time=True)),
    "late records": ([Record(timestamp=NOW + 2 * HOUR)], DEFAULT_RULES),
    "early records": ([Record(timestamp=NOW - 2)], ProduceRules(timestamp_before_max_ms=1)),
    "no keys": ([Record(timestamp=NOW)], COMPACTED),
}


@pytest.mark.parametrize("name", NOT_ORDINARY)
def test_unusual_batch_is_not_validated_at_once(name: str) -> None:
    records, rules = NOT_ORDINARY[name]
    assert validate_at_once(memoryview(encode_batch(records)), 9, NOW, rules) is None


@pytest.mark.parametrize("count", [1, 3])
def test_changed_byte_is_judged_the_same_at_once(count: int) -> None:
    batch = encode_batch([Record(b"key", bytes(70), NOW + n) for n in range(count)])
    header, content = read_header(batch), batch[HEADER_SIZE:]
    accepted = refused = 0
    for position in range(len(content)):
        for byte in (
            0,
            1,
            2,
            0x7F,
            0x80,
            0xFF,
            *(content[position] ^ 1 << bit for bit in range(8)),
        ):
            changed = content[:position] + bytes([byte]) + content[position + 1 :]
            bad = memoryview(with_payload(header, changed)[0])
            accepted += validate_at_once(bad, 9, NOW, DEFAULT_RULES) is not None
            try:
                as_stored(bad, 9, NOW)  # compares both ways
            except KafkaError:
                refused += 1
    assert accepted > 500 * count
    assert refused > 50 * count


@pytest.mark.parametrize("base", [NO_LIMIT, NO_LIMIT - 1, -NO_LIMIT - 1, -NO_LIMIT])
def test_time_outside_a_java_long_is_judged_the_same_at_once(base: int) -> None:
    header = read_header(encode_batch([Record(timestamp=NOW)]))._replace(base_timestamp=base)
    unlimited = ProduceRules(timestamp_after_max_ms=NO_LIMIT)
    for delta in (-64, -2, -1, 0, 1, 2, 63):
        content = record(0, time=varint(delta))
        batch, _ = with_payload(header, content)
        for rules in (DEFAULT_RULES, unlimited):
            with suppress(KafkaError):
                as_stored(batch, 9, NOW, rules)  # compares both ways


@pytest.mark.slow
@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("count", [20, 2000])
def test_batch_in_another_codec_is_recompressed(source: Codec, target: Codec, count: int) -> None:
    records = [Record(b"k%d" % i, b"v" * 50, 1000 + i, [("h", None)]) for i in range(count)]
    batch = encode_batch(records, codec=source, producer_id=1, producer_epoch=0, base_sequence=4)
    header = read_header(batch)
    written, changed = as_stored(batch, 9, NOW, ProduceRules(codec=target))
    assert changed.codec == target
    assert check_crc(written, 0, changed)
    stored = b"".join(map(bytes, placed(written, changed, 0, -1)))
    assert list(read_records(stored)) == list(read_records(batch))
    alike = {"batch_length", "crc", "attributes"}
    for name, before, after in zip(header._fields, header, changed, strict=True):
        assert before == after or name in alike


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, (1, 9, -1)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-7, 3, 22))],
)
def test_recompression_uses_the_configured_level(codec: Codec, levels: tuple[int, ...]) -> None:
    text = b"".join(b"%d %d;" % (i, i * i) for i in range(5000))
    batch = encode_batch([Record(b"k", text, 0)])
    sizes = []
    for level in levels:
        written, _ = as_stored(batch, 9, NOW, ProduceRules(codec=codec, compression_level=level))
        assert [record.value for record in read_records(written)] == [text]
        sizes.append(len(written))
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("codec", [None, *Codec])
def test_batch_above_the_limit_after_recompression_is_rejected(codec: Codec | None) -> None:
    batch = encode_batch([Record(b"k", bytes(100_000), NOW)], codec=Codec.GZIP)
    rules = ProduceRules(codec=codec, max_decompressed=10_000)
    assert rejection_code(batch, rules) == ErrorCode.MESSAGE_TOO_LARGE
    grown = ProduceRules(codec=Codec.NONE, max_message_bytes=90_000)
    assert rejection_code(batch, grown) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", list(Codec))
def test_broken_stream_is_not_recompressed(codec: Codec) -> None:
    batch = encode_batch([Record(b"k", b"v" * 100, 0)] * 5, codec=codec)
    payload = b"\xff\xff\xff\x0f" + batch[HEADER_SIZE + 4 :]
    broken, _ = with_payload(read_header(batch), payload)
    rules = ProduceRules(codec=Codec.NONE if codec else Codec.GZIP)
    assert rejection_code(broken, rules) == ErrorCode.INVALID_RECORD


# Records that fill several blocks of 64 KiB.
LARGE = encode_batch([Record(b"k", b"%d " % n * 60, NOW) for n in range(1000)])[HEADER_SIZE:]


def lz4(data: bytes = LARGE, **options: int) -> bytes:
    stream: bytes = frame.compress(data, **{"block_linked": False, "store_size": False, **options})
    return stream


UNREADABLE_LZ4: dict[str, Callable[[], bytes]] = {
    "dependent blocks": lambda: lz4(block_linked=True),
    "defaults of python-lz4": lambda: frame.compress(LARGE),
    "two frames": lambda: lz4(LARGE[:100]) + lz4(LARGE[100:]),
    "an empty frame first": lambda: lz4(b"") + lz4(),
    "a skippable frame first": lambda: struct.pack("<II", 0x184D2A50, 3) + b"abc" + lz4(),
    "a frame behind": lambda: lz4() + lz4(b""),
    "a byte behind": lambda: lz4() + b"x",
    "no end mark": lambda: lz4()[:-4],
    "wrong header checksum": lambda: lz4()[:6] + b"\x00" + lz4()[7:],
    "checksum of Kafka before 0.10": lambda: with_old_checksum(lz4()),
    "a block of no bytes first": lambda: lz4()[:7] + struct.pack("<I", 1 << 31) + lz4()[7:],
    "a dictionary": lambda: with_correct_checksum(lz4()[:4] + b"\x61\x40" + bytes(5) + lz4()[7:]),
    "another version": lambda: with_correct_checksum(lz4()[:4] + b"\xa0" + lz4()[5:]),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("name", UNREADABLE_LZ4)
def test_lz4_stream_that_java_cannot_read_is_rejected(name: str) -> None:
    header = read_header(encode_batch([Record(timestamp=NOW)] * 1000, codec=Codec.LZ4))
    assert validate_produced(with_payload(header, lz4())[0], 9, NOW)
    batch, _ = with_payload(header, UNREADABLE_LZ4[name]())
    for rules in (DEFAULT_RULES, COMPACTED, ProduceRules(codec=Codec.GZIP)):
        assert rejection_code(batch, rules) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("size", [4, 5, 6, 7])
@pytest.mark.parametrize("option", ["block_checksum", "content_checksum", "store_size"])
def test_lz4_streams_of_independent_blocks_are_accepted(option: str, size: int) -> None:
    header = read_header(encode_batch([Record(timestamp=NOW)] * 1000, codec=Codec.LZ4))
    stream = lz4(LARGE, block_size=size, **{option: True})
    assert validate_produced(with_payload(header, stream)[0], 9, NOW)
