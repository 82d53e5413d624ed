"""Values of Avro and Protobuf by their schemas, and bytes that mean no good."""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, struct_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from kbroker.schemas.core.bytes_read import TooMuch, Unfit
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.framing import Frame, frame_of
from kbroker.schemas.core.protobuf_descriptor import text_of_descriptor
from kbroker.schemas.core.values import AVRO, JSON, PROTOBUF, Content
from kbroker.schemas.core.values_read import Values, values_of

from ..client import record

STEPS = 5_000


def values(schema: Any, kind: str = AVRO) -> Values:
    text = schema if isinstance(schema, str) and kind == PROTOBUF else json.dumps(schema)
    return values_of(Content(kind, text), {})


def read(schema: Any, body: bytes, kind: str = AVRO, steps: int = STEPS) -> Any:
    found = values(schema, kind).read(Frame(1, None, body), steps)
    assert json.loads(found.text) == found.document
    return found.document


def proto(text: str, body: bytes, steps: int = STEPS) -> Any:
    return read(f'syntax = "proto3"; {text}', b"\0" + body, PROTOBUF, steps)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


def avro_bytes(text: bytes) -> bytes:
    return zigzag(len(text)) + text


# -- Avro


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
def test_values_of_avro_are_read(schema: Any, body: bytes, value: Any) -> None:
    assert read(schema, body) == value


def test_a_uuid_of_sixteen_bytes_is_a_text() -> None:
    found = uuid.UUID(int=7)
    schema = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert read(schema, found.bytes) == str(found)


def test_a_schema_that_has_itself_in_it_is_read() -> None:
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
def test_few_bytes_do_not_become_much(schema: Any, body: bytes) -> None:
    with pytest.raises(TooMuch):
        read(schema, body)


@pytest.mark.parametrize(
    ("schema", "body", "why"),
    [
        ("int", b"", "whole number"),
        ("int", b"\xff" * 11, "whole number"),
        ("int", b"\2\2", "1 bytes are left"),
        ("boolean", b"\7", "boolean"),
        ("string", zigzag(-1), "a size of -1"),
        ("string", zigzag(2**62) + b"x", "there are 1"),
        ("string", avro_bytes(b"\xff"), "no UTF-8"),
        (["null", "int"], b"\4", "no branch 2"),
        (["null", "int"], b"\1", "no branch -1"),
        ([], b"\0", "no branch 0"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "no symbol 1"),
        ({"type": "map", "values": "null"}, b"\2", "whole number"),
        (record("R", ("n", ["null", "R"])), b"\2" * 1000 + b"\0", "deeper"),
        ({"type": "array", "items": "long"}, b"\2", "whole number"),
    ],
)
def test_bytes_that_are_no_value_of_avro_are_told_why(schema: Any, body: bytes, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        read(schema, body)


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
        except (Unfit, TooMuch):
            continue


# -- Protobuf

FILE = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
message First {}
message M {
  message Inner { sint32 s = 1; Inner again = 2; }
  enum E { NONE = 0; BIG = 5; ALSO = 5; }
  E e = 1;
  repeated int32 packed = 2;
  map<string, Inner> named = 3;
  oneof one { bool yes = 4; bytes no = 5; }
  google.protobuf.Timestamp at = 6;
  optional int64 maybe = 7;
  Inner inner = 8;
}
"""
SECOND = b"\2\2"
"""The message behind the first one."""


def test_messages_of_protobuf_are_read_as_google_reads_them() -> None:
    file = FileDescriptorProto()
    descriptor_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_of_descriptor(file.SerializeToString())
    found = read(text, b"\0", PROTOBUF)
    assert found == {}
    index = next(
        at for at, each in enumerate(file.message_type) if each.name == "FileDescriptorProto"
    )
    told = read(text, b"\2" + zigzag(index) + file.SerializeToString(), PROTOBUF, 100_000)
    assert told == json_format.MessageToDict(file, preserving_proto_field_name=True)


def test_what_everybody_has_is_known() -> None:
    told = struct_pb2.Struct()
    told.update({"a": [1, None, {"b": "x"}]})
    text = 'import "google/protobuf/struct.proto"; message M { google.protobuf.Struct s = 1; }'
    data = told.SerializeToString()
    inner = proto(text, b"\x0a" + varint(len(data)) + data)["s"]["fields"]["a"]["list_value"]
    assert inner["values"][0] == {"number_value": 1.0}
    assert inner["values"][1] == {"null_value": "NULL_VALUE"}


def test_fields_that_are_not_written_have_the_values_of_proto3() -> None:
    zeros = {"e": "NONE", "packed": [], "named": {}}
    assert read(FILE, SECOND, PROTOBUF) == zeros
    assert read(FILE, b"\0", PROTOBUF) == {}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\x08\x05", {"e": "BIG"}),
        (b"\x08\x06", {"e": 6}),
        (b"\x12\x03\x01\xac\x02\x10\x03", {"packed": [1, 300, 3]}),
        (b"\x10" + varint(-3), {"packed": [-3]}),
        (b"\x1a\x05\x0a\x01k\x12\x00", {"named": {"k": {"s": 0}}}),
        (b"\x1a\x00", {"named": {"": {}}}),
        (b"\x2a\x01\xff", {"no": "/w=="}),
        (b"\x38\x00", {"maybe": 0}),
        (b"\x32\x02\x08\x07", {"at": {"seconds": 7, "nanos": 0}}),
        (b"\x42\x02\x08\x03\x42\x02\x12\x00", {"inner": {"s": -2, "again": {"s": 0}}}),
        (b"\xa0\x06\x01\xa0\x06\x02", {"100": [1, 2]}),
        (b"\xa3\x06\x08\x01\xa4\x06", {"100": [{"1": [1]}]}),
        (b"\x0a\x01x", {"1": ["eA=="]}),
    ],
)
def test_fields_of_protobuf_are_read(body: bytes, told: Any) -> None:
    found = read(FILE, SECOND + body, PROTOBUF)
    assert {name: found[name] for name in told} == told


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (b"\0", "p.First"),
        (b"\2\2", "p.M"),
        (b"\4\2\0", "p.M.Inner"),
        (b"\2\4", None),
        (b"\4\2\2", None),
        (b"\2\1", None),
        (zigzag(2**40), None),
        (zigzag(-1), None),
        (b"\4\2", None),
    ],
)
def test_the_message_is_the_one_that_is_named(indexes: bytes, message: str | None) -> None:
    schema = values(FILE, PROTOBUF)
    for frame in (Frame(1, None, indexes), Frame(1, indexes, b"")):
        if message is None:
            with pytest.raises(Unfit):
                schema.read(frame, STEPS)
        else:
            assert schema.read(frame, STEPS).message == message


def nested(depth: int) -> bytes:
    found = b""
    for _ in range(depth):
        found = b"\x12" + varint(len(found)) + found
    return found


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x08", "whole number"),
        (b"\x12\x05\x01", "5 bytes more"),
        (b"\x12" + varint(2**63), "bytes more"),
        (b"\x42" + varint(len(nested(500))) + nested(500), "deeper"),
        (b"\x1b" * 300, "deeper|end"),
        (b"\xa3\x06" * 300, "deeper"),
        (b"\xa3\x06", "does not end"),
        (b"\xa4\x06", "has not begun"),
        (b"\x00\x00", "number 0"),
        (b"\x0f", "as nothing is"),
        (b"\x2a\x7f", "there are to be"),
    ],
)
def test_bytes_that_are_no_message_are_told_why(body: bytes, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        read(FILE, SECOND + body, PROTOBUF)


def test_few_bytes_do_not_become_many_fields() -> None:
    fields = " ".join(f"int32 f{n} = {n};" for n in range(1, 200))
    text = f"message M {{ repeated N all = 1; }} message N {{ {fields} }}"
    with pytest.raises(TooMuch):
        proto(text, b"\x0a\x00" * 100)
    long_name = f"message M {{ repeated E e = 1; }} enum E {{ {'X' * 50_000} = 0; }}"
    with pytest.raises(TooMuch):
        proto(long_name, b"\x0a" + varint(1000) + b"\0" * 1000)


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
        with pytest.raises(Unfit, match="no JSON"):
            read(True, wrong, JSON)


def test_what_is_long_is_the_same_json() -> None:
    schema = {"type": "array", "items": "string"}
    assert read(schema, b"\xa0\x1f" + b"\4\xc3\xa9" * 2_000 + b"\0") == ["é"] * 2_000
