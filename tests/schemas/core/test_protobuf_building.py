"""Descriptors built from Protobuf files."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from google.protobuf import (
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.protobuf import ProtobufSchema
from kbroker.schemas.core.protobuf_building import descriptor_of
from kbroker.schemas.core.protobuf_descriptor import text_of_descriptor

from .protobuf_files import HEAD, WHOLE, built


def classes(*files: FileDescriptorProto) -> dict[str, Any]:
    """Return the messages of the last file as classes of the protobuf library."""
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, descriptor_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClassesForFiles([files[-1].name], pool)


@pytest.mark.parametrize("module", [struct_pb2, timestamp_pb2, wrappers_pb2, type_pb2, api_pb2])
def test_descriptors_equal_those_of_protoc(module: ModuleType) -> None:
    known = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    texts = {
        each.name: text_of_descriptor(each.serialized_pb) for each in module.DESCRIPTOR.dependencies
    }
    made = built(text_of_descriptor(known.SerializeToString()), texts)
    made.name = known.name
    known.options.ClearField("cc_enable_arenas")
    assert made == known


def test_messages_of_descriptor_decode_encoded_data() -> None:
    made = classes(built(WHOLE))["p.M"](m={"k": {"s": [1, -1]}}, a=7, e=0, at={"seconds": 1})
    decoded = classes(built(WHOLE))["p.M"].FromString(made.SerializeToString())
    assert (decoded.m["k"].s, decoded.WhichOneof("choice"), decoded.at.seconds) == ([1, -1], "a", 1)
    assert decoded.HasField("e")


def test_descriptor_contains_all_declarations() -> None:
    (m,), (service,) = built(WHOLE).message_type, built(WHOLE).service
    assert built(WHOLE).options.java_package == "x"
    assert [each.name for each in m.nested_type] == ["MEntry", "N"]
    assert m.field[0].options.deprecated
    assert [(each.start, each.end) for each in m.reserved_range] == [(7, 8), (9, 12)]
    assert m.reserved_name == ["foo"]
    assert [each.name for each in m.oneof_decl] == ["choice", "_e"]
    assert m.enum_type[0].options.allow_alias
    assert (service.method[0].output_type, service.method[0].server_streaming) == (".p.M", True)
    assert service.method[0].options.deprecated


PROTO2 = """
syntax = "proto2"; package q;
import public "other.proto";
message M {
  optional string s = 1 [default = "a\\n\\"b\\x41\\101", json_name = "text"];
  optional bytes b = 2 [default = "\\001\\xff'"];
  optional double d = 3 [default = -inf]; required sint32 i = 4 [default = -0x10, (own.option) = {a: 1}];
  optional E e = 5 [default = Y]; optional bool t = 6 [default = true];
  repeated group G = 7 { optional other.O o = 1; }
  extensions 100 to 199, 1000 to max;
  enum E { X = 1; Y = -2 [deprecated = true]; reserved -9 to -7, 5 to max; reserved "Z"; }
  message some_thing { map<string, other.K> by_name = 1; }
}
extend M { optional int64 more_of_it = 100; }
"""


OTHER = 'syntax = "proto2"; package other; message O { required int32 a = 1; } enum K { U = 0; }'


def test_proto2_descriptor_contains_defaults_groups_and_extensions() -> None:
    file, other = built(PROTO2, {"other.proto": OTHER}), built(OTHER)
    other.name = "other.proto"
    found = classes(other, file)["q.M"]()
    assert (found.s, found.b, found.d, found.i) == ('a\n"bAA', b"\1\xff'", float("-inf"), -16)
    assert (found.e, found.t) == (-2, True)
    (m,) = file.message_type
    assert m.field[0].json_name == "text"
    assert file.extension[0].json_name == "moreOfIt"
    assert file.extension[0].extendee == ".q.M"
    assert m.field[6].type == FieldDescriptorProto.TYPE_GROUP
    assert m.nested_type[0].field[0].type_name == ".other.O"
    assert m.nested_type[1].field[0].type_name == ".q.M.some_thing.ByNameEntry"
    assert m.nested_type[1].nested_type[0].field[1].type == FieldDescriptorProto.TYPE_ENUM
    assert [(each.start, each.end) for each in m.extension_range] == [(100, 200), (1000, 2**29)]
    assert [(each.start, each.end) for each in m.enum_type[0].reserved_range] == [
        (-9, -7),
        (5, 2**31 - 1),
    ]
    assert list(file.public_dependency) == [0]
    assert file.syntax == ""


def test_type_of_missing_file_keeps_its_name() -> None:
    text = HEAD + 'import "google/type/money.proto"; message M { google.type.Money m = 1; }'
    (field,) = built(text).message_type[0].field
    assert field.type_name == "google.type.Money"
    assert not field.HasField("type")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            'option java_package "a"; option go_package = "b"; message M {}',
            "unexpected end of file",
        ),
        ("message M { option deprecated; reserved 1 = 2; }", "unexpected end of file"),
        ('message M { optional int32 a = 1 [json_name = "B" b]; }', "instead of ']'"),
    ],
)
def test_descriptor_with_malformed_option_is_rejected(text: str, why: str) -> None:
    """Descriptors parse options up to the end of the statement; registration skips them."""
    ProtobufSchema(text)
    with pytest.raises(RegistryError, match=why):
        descriptor_of(text, {})


def test_file_with_editions_has_no_descriptor() -> None:
    made = ProtobufSchema('edition = "2023"; message M { int32 a = 1; }')
    assert made.own.messages["M"].fields[1].name == "a"
    with pytest.raises(RegistryError, match="editions"):
        built('edition = "2023"; message M {}')
