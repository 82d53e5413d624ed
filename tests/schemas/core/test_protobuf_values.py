"""Protobuf messages decoded with their schema."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, struct_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kbroker.schemas.core.byte_reader import InvalidValue, LimitExceeded
from kbroker.schemas.core.framing import Frame
from kbroker.schemas.core.protobuf_descriptor import text_of_descriptor
from kbroker.schemas.core.values import PROTOBUF

from .read_values import FILE, STEPS, read, values, varint, zigzag


def proto(text: str, body: bytes, steps: int = STEPS) -> Any:
    return read(f'syntax = "proto3"; {text}', b"\0" + body, PROTOBUF, steps)


# Message indexes that select the second message of a file.
SECOND = b"\2\2"


def test_protobuf_messages_are_decoded_like_googles_library() -> None:
    file = FileDescriptorProto()
    descriptor_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_of_descriptor(file.SerializeToString())
    found = read(text, b"\0", PROTOBUF)
    assert found == {}
    index = next(
        at for at, each in enumerate(file.message_type) if each.name == "FileDescriptorProto"
    )
    decoded = read(text, b"\2" + zigzag(index) + file.SerializeToString(), PROTOBUF, 100_000)
    assert decoded == json_format.MessageToDict(file, preserving_proto_field_name=True)


def test_well_known_types_are_decoded() -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": [1, None, {"b": "x"}]})
    text = 'import "google/protobuf/struct.proto"; message M { google.protobuf.Struct s = 1; }'
    data = struct.SerializeToString()
    inner = proto(text, b"\x0a" + varint(len(data)) + data)["s"]["fields"]["a"]["list_value"]
    assert inner["values"][0] == {"number_value": 1.0}
    assert inner["values"][1] == {"null_value": "NULL_VALUE"}


def test_missing_proto3_fields_have_default_values() -> None:
    zeros = {"e": "NONE", "packed": [], "named": {}}
    assert read(FILE, SECOND, PROTOBUF) == zeros
    assert read(FILE, b"\0", PROTOBUF) == {}


@pytest.mark.parametrize(
    ("body", "expected"),
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
def test_protobuf_fields_are_decoded(body: bytes, expected: Any) -> None:
    found = read(FILE, SECOND + body, PROTOBUF)
    assert {name: found[name] for name in expected} == expected


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
def test_message_is_selected_by_indexes(indexes: bytes, message: str | None) -> None:
    schema = values(FILE, PROTOBUF)
    for frame in (Frame(1, None, indexes), Frame(1, indexes, b"")):
        if message is None:
            with pytest.raises(InvalidValue):
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
        (b"\x08", "invalid varint"),
        (b"\x12\x05\x01", "5 more bytes"),
        (b"\x12" + varint(2**63), "more bytes"),
        (b"\x42" + varint(len(nested(500))) + nested(500), "deeper"),
        (b"\x1b" * 300, "deeper|end"),
        (b"\xa3\x06" * 300, "deeper"),
        (b"\xa3\x06", "missing end"),
        (b"\xa4\x06", "unexpected end"),
        (b"\x00\x00", "number 0"),
        (b"\x0f", "invalid wire type 7"),
        (b"\x2a\x7f", "expected 127 bytes"),
    ],
)
def test_invalid_protobuf_message_is_rejected_with_reason(body: bytes, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        read(FILE, SECOND + body, PROTOBUF)


def test_few_bytes_cannot_decode_to_many_fields() -> None:
    fields = " ".join(f"int32 f{n} = {n};" for n in range(1, 200))
    text = f"message M {{ repeated N all = 1; }} message N {{ {fields} }}"
    with pytest.raises(LimitExceeded):
        proto(text, b"\x0a\x00" * 100)
    long_name = f"message M {{ repeated E e = 1; }} enum E {{ {'X' * 50_000} = 0; }}"
    with pytest.raises(LimitExceeded):
        proto(long_name, b"\x0a" + varint(1000) + b"\0" * 1000)
