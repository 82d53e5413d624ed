from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.primitives import (
    DecodeError,
    finish_uvarint,
    read_uvarint,
    read_varint,
    skip_tags,
    uuid_from,
    write_uvarint,
    write_varint,
)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varints_are_little_endian_groups_of_seven_bits(value: int, raw: str) -> None:
    assert write_uvarint(value).hex() == raw
    assert read_uvarint(b"\xee" + bytes.fromhex(raw) + b"\xee", 1) == (value, 1 + len(raw) // 2)


@pytest.mark.parametrize(("value", "raw"), [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f")])
def test_signed_varints_are_zigzag(value: int, raw: str) -> None:
    assert write_varint(value).hex() == raw
    assert read_varint(bytes.fromhex(raw), 0) == (value, 1)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_round_trip(value: int) -> None:
    raw = write_varint(value)
    assert read_varint(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("raw", ["ffffffff10", "8080808080", "808080808001"])
def test_an_unsigned_varint_has_at_most_32_bits(raw: str) -> None:
    with pytest.raises(DecodeError):
        read_uvarint(bytes.fromhex(raw), 0)
    with pytest.raises(DecodeError):
        finish_uvarint(bytes.fromhex(raw), 1, int(raw[:2], 16))


def test_unknown_tags_are_skipped() -> None:
    # tag 5 with 2 bytes, tag 300 with none
    raw = bytes.fromhex("05 02 abcd  ac02 00  ee")
    assert skip_tags(raw, 0, 2) == len(raw) - 1


def test_too_many_unknown_tags_are_rejected() -> None:
    assert skip_tags(b"\x01\x00" * 64, 0, 64) == 128
    with pytest.raises(DecodeError):
        skip_tags(b"\x01\x00" * 65, 0, 65)
    with pytest.raises(DecodeError):
        skip_tags(b"\x01" + b"\x01\x00" * 128, 0, 0x80)  # a count of two bytes: 128


def test_uuids_are_cached() -> None:
    raw = bytes(range(16))
    assert uuid_from(raw).bytes == raw
    assert uuid_from(raw) is uuid_from(bytes(range(16)))
