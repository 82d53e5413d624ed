"""Avro and Protobuf values: random bytes and schema headers."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.schemas.core.byte_reader import InvalidValue, LimitExceeded
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.framing import Frame, frame_of
from kbroker.schemas.core.value_readers import values_of
from kbroker.schemas.core.values import AVRO, JSON, PROTOBUF, Content

from ..client import record
from .read_values import FILE, read

# -- Avro


EVERYTHING = record(
    "R",
    ("a", {"type": "array", "items": ["null", "string", "R"]}),
    ("m", {"type": "map", "values": "bytes"}),
    ("d", {"type": "bytes", "logicalType": "decimal", "scale": 3}),
    ("x", "double"),
)


@given(st.binary(max_size=80))
def test_random_bytes_are_decoded_or_rejected(body: bytes) -> None:
    for each, kind in ((EVERYTHING, AVRO), (FILE, PROTOBUF), (True, JSON)):
        try:
            read(each, body, kind, steps=500)
        except (InvalidValue, LimitExceeded):
            continue


# -- frames


def test_schema_header_takes_precedence_over_prefix() -> None:
    guid = uuid.UUID(int=5)
    assert frame_of(b"\0\0\0\0\7x", None) == Frame(7, None, b"x")
    assert frame_of(b"\1" + guid.bytes + b"x", None) == Frame(str(guid), None, b"x")
    framed = b"\0\0\0\0\7x"
    assert frame_of(framed, b"\1" + guid.bytes + b"\2") == Frame(str(guid), b"\2", framed)
    assert frame_of(framed, b"no header of theirs") == Frame(7, None, b"x")
    for none in (b"", b"\0", b"\0\0\0\0", b"\1" * 16, b"text of any kind"):
        assert frame_of(none, None) is None


@pytest.mark.parametrize("content", [Content(AVRO, "{"), Content("XML", "<a/>")])
def test_malformed_schema_has_no_decoder(content: Content) -> None:
    with pytest.raises(RegistryError):
        values_of(content, {})


def test_json_value_is_returned_unchanged_up_to_nesting_limit() -> None:
    assert read({"type": "object"}, b'{"a": [1]}', JSON) == {"a": [1]}
    for wrong in (b"", b"{", b"\xff", b"[" * 5_000):
        with pytest.raises(InvalidValue, match="invalid JSON"):
            read(True, wrong, JSON)


def test_long_value_is_serialized_to_equal_json() -> None:
    schema = {"type": "array", "items": "string"}
    assert read(schema, b"\xa0\x1f" + b"\4\xc3\xa9" * 2_000 + b"\0") == ["é"] * 2_000
