"""Avro values decoded with their schema."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from kbroker.schemas.core.byte_reader import InvalidValue, LimitExceeded

from ..client import record
from .read_values import read, zigzag


def avro_bytes(text: bytes) -> bytes:
    return zigzag(len(text)) + text


@pytest.mark.parametrize(
    ("schema", "body", "value"),
    [
        ("null", b"", None),
        ("boolean", b"\1", True),
        ("int", zigzag(-(2**31)), -(2**31)),
        ("long", zigzag(2**63 - 1), 2**63 - 1),
        ("float", struct.pack("<f", 0.5), 0.5),
        ("double", struct.pack("<d", float("-inf")), "-Infinity"),
        ("double", struct.pack("<d", float("nan")), "NaN"),
        ("string", avro_bytes("grüß".encode()), "grüß"),
        ("bytes", avro_bytes(b"\xff\0"), "/wA="),
        (["null", "string"], b"\2" + avro_bytes(b"x"), "x"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "YWI="),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\2", "B"),
        ({"type": "array", "items": "int"}, b"\4\2\4\2\6\0", [1, 2, 3]),
        ({"type": "array", "items": "int"}, b"\3\4\2\4\0", [1, 2]),
        ({"type": "map", "values": "int"}, b"\2" + avro_bytes(b"k") + b"\2\0", {"k": 1}),
        (record("R", ("a", "int"), ("b", "string")), b"\2\2x", {"a": 1, "b": "x"}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, b"\4\xff\x01", "-2.55"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, b"\2\7", "7"),
        ({"type": "bytes", "logicalType": "decimal", "scale": 10**9}, b"\2\7", "Bw=="),
        ({"type": "string", "logicalType": "uuid"}, avro_bytes(b"u"), "u"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\2", 1),
    ],
)  # fmt: skip
def test_avro_values_are_decoded(schema: Any, body: bytes, value: Any) -> None:
    assert read(schema, body) == value


def test_avro_uuid_of_16_bytes_is_decoded_to_string() -> None:
    found = uuid.UUID(int=7)
    schema = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert read(schema, found.bytes) == str(found)


def test_recursive_avro_value_is_decoded() -> None:
    schema = record("R", ("next", ["null", "R"]))
    assert read(schema, b"\2\2\0") == {"next": {"next": {"next": None}}}


NULLS = {"type": "array", "items": "null"}


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (NULLS, zigzag(2**40) + b"\0"),
        (NULLS, zigzag(-(2**63)) + b"\0\0"),
        ({"type": "array", "items": record("Empty")}, zigzag(2**62) + b"\0"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, zigzag(2**30)),
        (
            {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["S" * 50_000]}},
            zigzag(4000) + b"\0" * 4001,
        ),
        ({"type": "array", "items": record("R", ("f" * 50_000, "null"))}, zigzag(3000) + b"\0"),
    ],
)
def test_few_bytes_cannot_decode_to_huge_value(schema: Any, body: bytes) -> None:
    with pytest.raises(LimitExceeded):
        read(schema, body)


@pytest.mark.parametrize(
    ("schema", "body", "why"),
    [
        ("int", b"", "invalid varint"),
        ("int", b"\xff" * 11, "invalid varint"),
        ("int", b"\2\2", "1 bytes follow"),
        ("boolean", b"\7", "boolean"),
        ("string", zigzag(-1), "invalid size -1"),
        ("string", zigzag(2**62) + b"x", "found 1"),
        ("string", avro_bytes(b"\xff"), "invalid UTF-8"),
        (["null", "int"], b"\4", "invalid branch 2"),
        (["null", "int"], b"\1", "invalid branch -1"),
        ([], b"\0", "invalid branch 0"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "no symbol 1"),
        ({"type": "map", "values": "null"}, b"\2", "invalid varint"),
        (record("R", ("n", ["null", "R"])), b"\2" * 1000 + b"\0", "deeper"),
        ({"type": "array", "items": "long"}, b"\2", "invalid varint"),
    ],
)
def test_invalid_avro_value_is_rejected_with_reason(schema: Any, body: bytes, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        read(schema, body)
