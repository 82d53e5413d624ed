"""Keys and values of __transaction_state against the bytes that Kafka 4.3 writes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.primitives import DecodeError, EncodeError
from kbroker.protocol.transaction_log import (
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

# Written by Kafka 4.3's serializers (MessageUtil.toVersionPrefixedByteBuffer).
KEY = "000000056d792d7478"
ONGOING = [
    (
        "00000000001cbe991a1400070000ea60010000000200056dc3a974610000000200000000000000030001"
        "6200000001000000010000018bcfe5687b0000018bcfe56801"
    ),
    (
        "00010000001cbe991a1400070000ea600103066dc3a97461030000000000000003000262020000000100"
        "0000018bcfe5687b0000018bcfe5680100"
    ),
]
ONGOING_WITH_TAGS = ONGOING[1][:-2] + "0400080000000000000005010800000000000000060202000203020008"
EMPTY = [
    "000000000000000000010000000003e800ffffffff0000000000000009ffffffffffffffff",
    "000100000000000000010000000003e800000000000000000009ffffffffffffffff00",
]


def ongoing_value() -> TransactionLogValue:
    """Return the value that is encoded in `ONGOING`."""
    return TransactionLogValue(
        producer_id=123456789012,
        producer_epoch=7,
        timeout_ms=60000,
        status=1,
        partitions=[
            TransactionLogValue.Topic(topic="méta", partitions=[0, 3]),
            TransactionLogValue.Topic(topic="b", partitions=[1]),
        ],
        last_update_timestamp=1700000000123,
        start_timestamp=1700000000001,
    )


def ongoing_value_with_tags() -> TransactionLogValue:
    """Return the value that is encoded in `ONGOING_WITH_TAGS`."""
    value = ongoing_value()
    value.previous_producer_id = 5
    value.next_producer_id = 6
    value.next_producer_epoch = 8
    value.client_transaction_version = 2
    return value


def empty() -> TransactionLogValue:
    """Return the value that is encoded in `EMPTY`."""
    return TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        timeout_ms=1000,
        status=0,
        partitions=None,
        last_update_timestamp=9,
        start_timestamp=-1,
    )


def test_key_equals_that_of_kafka() -> None:
    assert encode_key("my-tx").hex() == KEY
    assert decode_key(memoryview(bytes.fromhex(KEY))) == "my-tx"


@pytest.mark.parametrize("version", [0, 1])
def test_value_equals_that_of_kafka(version: int) -> None:
    for value, encoded in ((ongoing_value(), ONGOING[version]), (empty(), EMPTY[version])):
        assert encode_value(value, version).hex() == encoded
        assert decode_value(memoryview(bytes.fromhex(encoded))) == value


def test_tagged_fields_equal_those_of_kafka() -> None:
    assert encode_value(ongoing_value_with_tags(), 1).hex() == ONGOING_WITH_TAGS
    assert decode_value(bytes.fromhex(ONGOING_WITH_TAGS)) == ongoing_value_with_tags()


def test_version_0_omits_the_tagged_fields() -> None:
    assert encode_value(ongoing_value_with_tags(), 0).hex() == ONGOING[0]


def test_unknown_version_is_rejected() -> None:
    with pytest.raises(EncodeError):
        encode_value(empty(), 2)
    with pytest.raises(DecodeError):
        decode_value(bytes.fromhex("0002" + EMPTY[1][4:]))


def test_unknown_key_type_is_ignored() -> None:
    assert decode_key(bytes.fromhex("0001" + KEY[4:])) is None


@pytest.mark.parametrize("encoded", ["", "00", KEY[:-2], KEY + "00", "ffff" + KEY[4:]])
def test_malformed_key_is_rejected(encoded: str) -> None:
    with pytest.raises(DecodeError):
        decode_key(bytes.fromhex(encoded))


@pytest.mark.parametrize("encoded", [*ONGOING, *EMPTY, ONGOING_WITH_TAGS])
def test_truncated_or_too_long_value_is_rejected(encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for end in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_value(whole[:end])
    with pytest.raises(DecodeError):
        decode_value(whole + b"\0")


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_only_decode_errors(data: bytes) -> None:
    for reader in (decode_key, decode_value):
        with suppress(DecodeError):
            reader(data)
