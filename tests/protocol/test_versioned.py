"""Versioned keys and values in the logs of coordinators."""

from __future__ import annotations

import pytest

from kbroker.protocol.primitives import DecodeError, EncodeError
from kbroker.protocol.schema import Int32, message, wire
from kbroker.protocol.versioned import decode_versioned, encode_versioned, version_of


@message(versions="0-1")
class Pair:
    """A message with two versions."""

    first: Int32
    second: Int32 = wire(since=1, default=0)


@pytest.mark.parametrize(
    ("pair", "version", "encoded"),
    [
        (Pair(first=1), 0, "000000000001"),
        (Pair(first=1, second=2), 1, "00010000000100000002"),
    ],
)
def test_encoded_message_starts_with_its_version(pair: Pair, version: int, encoded: str) -> None:
    assert encode_versioned(pair, version).hex() == encoded
    assert version_of(bytes.fromhex(encoded)) == version
    assert decode_versioned(Pair, bytes.fromhex(encoded)) == pair


def test_missing_version_is_rejected() -> None:
    with pytest.raises(EncodeError):
        encode_versioned(Pair(first=1), 2)


@pytest.mark.parametrize(
    "encoded", ["", "00", "ffff00000001", "0000000000", "00000000000100", "00020000000100000002"]
)
def test_malformed_message_is_rejected(encoded: str) -> None:
    with pytest.raises(DecodeError):
        decode_versioned(Pair, bytes.fromhex(encoded))
