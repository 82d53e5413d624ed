"""Values of Avro and Protobuf by their schemas, and bytes that mean no good."""

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
def test_no_bytes_do_anything_but_fit_or_not(body: bytes) -> None:
    for each, kind in ((EVERYTHING, AVRO), (FILE, PROTOBUF), (True, JSON)):
        try:
            read(each, body, kind, steps=500)
        except (InvalidValue, LimitExceeded):
            continue


# -- frames


def test_a_header_goes_before_what_bytes_begin_with() -> None:
    guid = uuid.UUID(int=5)
    assert frame_of(b"\0\0\0\0\7x", None) == Frame(7, None, b"x")
    assert frame_of(b"\1" + guid.bytes + b"x", None) == Frame(str(guid), None, b"x")
    framed = b"\0\0\0\0\7x"
    assert frame_of(framed, b"\1" + guid.bytes + b"\2") == Frame(str(guid), b"\2", framed)
    assert frame_of(framed, b"no header of theirs") == Frame(7, None, b"x")
    for none in (b"", b"\0", b"\0\0\0\0", b"\1" * 16, b"text of any kind"):
        assert frame_of(none, None) is None


@pytest.mark.parametrize("content", [Content(AVRO, "{"), Content("XML", "<a/>")])
def test_what_is_no_schema_reads_nothing(content: Content) -> None:
    with pytest.raises(RegistryError):
        values_of(content, {})


def test_json_is_what_it_is_and_no_deeper_than_it_may_be() -> None:
    assert read({"type": "object"}, b'{"a": [1]}', JSON) == {"a": [1]}
    for wrong in (b"", b"{", b"\xff", b"[" * 5_000):
        with pytest.raises(InvalidValue, match="invalid JSON"):
            read(True, wrong, JSON)


def test_what_is_long_is_the_same_json() -> None:
    schema = {"type": "array", "items": "string"}
    assert read(schema, b"\xa0\x1f" + b"\4\xc3\xa9" * 2_000 + b"\0") == ["é"] * 2_000
