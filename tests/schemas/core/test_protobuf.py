"""Files of Protobuf: a case for each of the rules that Confluent documents."""

from __future__ import annotations

import base64
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
from google.protobuf.struct_pb2 import DESCRIPTOR

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.limits import Budget
from kbroker.schemas.core.protobuf import ProtobufSchema
from kbroker.schemas.core.protobuf_building import descriptor_of
from kbroker.schemas.core.protobuf_descriptor import text_of_descriptor

HEAD = 'syntax = "proto3"; package p; '


def message(body: str, more: str = "") -> str:
    return f"{HEAD} message M {{ {body} }} {more}"


def kinds(new: str, old: str) -> list[str]:
    """Why a reader with the new file cannot read what was written with the old one."""
    found = ProtobufSchema(new).differences(ProtobufSchema(old), Budget())
    return [each.kind for each in found]


PLAIN = message("int32 a = 1; string b = 2;")
FITS = [
    ("the same", PLAIN, PLAIN),
    ("a field more", message("int32 a = 1; string b = 2; bool c = 3;"), PLAIN),
    ("a field less", message("int32 a = 1;"), PLAIN),
    ("another name", message("int32 z = 1; string b = 2;"), PLAIN),
    ("integers of the same wire type", message("uint64 a = 1; string b = 2;"), PLAIN),
    ("bytes for a text", message("int32 a = 1; bytes b = 2;"), PLAIN),
    ("an enum for an integer", message("E a = 1; string b = 2; enum E { X = 0; }"), PLAIN),
    ("a message more", message("int32 a = 1; string b = 2;", "message N {}"), PLAIN),
    ("a repeated text", message("int32 a = 1; repeated string b = 2;"), PLAIN),
    ("a field in a new choice", message("oneof o { int32 a = 1; } string b = 2;"), PLAIN),
    ("another package", PLAIN.replace("package p", "package q"), PLAIN),
]
REFUSES = [
    ("a message less", PLAIN, message("", "message N {}"), "MESSAGE_REMOVED"),
    ("another scalar", message("string a = 1;"), PLAIN, "FIELD_SCALAR_KIND_CHANGED"),
    ("zigzag", message("sint32 a = 1;"), PLAIN, "FIELD_SCALAR_KIND_CHANGED"),
    ("fixed", message("fixed32 a = 1;"), PLAIN, "FIELD_SCALAR_KIND_CHANGED"),
    ("a message for a scalar", message("N a = 1; message N {}"), PLAIN, "FIELD_KIND_CHANGED"),
    (
        "another message",
        message("N a = 1; message N {} message O {}"),
        message("O a = 1; message N {} message O {}"),
        "FIELD_NAMED_TYPE_CHANGED",
    ),
    ("a repeated number", message("repeated int32 a = 1;"), PLAIN, "FIELD_NUMERIC_LABEL_CHANGED"),
    (
        "one of a choice less",
        message("oneof o { int32 a = 1; }"),
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        "ONEOF_FIELD_REMOVED",
    ),
    (
        "fields that exclude each other now",
        message("oneof o { int32 a = 1; string b = 2; }"),
        PLAIN,
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
    ),
    (
        "a required field more",
        "message M { required int32 a = 1; }",
        "message M { }",
        "REQUIRED_FIELD_ADDED",
    ),
    (
        "a required field less",
        "message M { }",
        "message M { required int32 a = 1; }",
        "REQUIRED_FIELD_REMOVED",
    ),
]


@pytest.mark.parametrize(("new", "old"), [row[1:] for row in FITS], ids=[row[0] for row in FITS])
def test_a_reader_takes(new: str, old: str) -> None:
    assert kinds(new, old) == []


@pytest.mark.parametrize(
    ("new", "old", "why"), [row[1:] for row in REFUSES], ids=[row[0] for row in REFUSES]
)
def test_a_reader_does_not_take(new: str, old: str, why: str) -> None:
    assert why in kinds(new, old)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "message M {",
        message("int32 a = 1; int32 b = 1;"),
        message("int32 a = 0;"),
        message("int32 a;"),
        message("Unknown a = 1;"),
        message("map<double, int32> a = 1;"),
        'syntax = "proto9"; message M {}',
        HEAD + 'import "other.proto"; message M {}',
        "message M { option a = " + "{" * 1000 + ";",
        base64.b64encode(b"nonsense").decode(),
    ],
)
def test_what_is_no_file_is_refused(text: str) -> None:
    with pytest.raises(RegistryError):
        ProtobufSchema(text)


WHOLE = """
syntax = "proto3";
// about it
package p;
import "google/protobuf/timestamp.proto";
option java_package = "x";
message M {
  reserved 7, 9 to 11; reserved "foo";
  map<string, N> m = 1 [deprecated = true];
  oneof choice { int32 a = 2; N n = 3; }
  optional E e = 4; google.protobuf.Timestamp at = 5;
  message N { repeated sint64 s = 1 [packed = false]; }
  enum E { option allow_alias = true; X = 0; Y = -1; Z = 0; }
}
service S { rpc Go (M) returns (stream M) { option deprecated = true; } }
"""


def test_comments_and_white_space_do_not_make_another_file() -> None:
    made = ProtobufSchema(WHOLE)
    assert "about it" not in made.canonical
    assert ProtobufSchema(made.canonical).canonical == made.canonical
    assert (
        ProtobufSchema(WHOLE.replace("\n", " ").replace("// about it", "")).canonical
        == made.canonical
    )
    assert made.own.enums["p.M.E"] == {"X": 0, "Y": -1, "Z": 0}


def test_descriptors_are_read_as_the_text_that_they_are_of() -> None:
    made = ProtobufSchema(base64.b64encode(DESCRIPTOR.serialized_pb).decode())
    assert made.own.package == "google.protobuf"
    assert made.own.messages["google.protobuf.Struct"].fields[1].map_key == "string"
    assert ProtobufSchema(made.canonical).canonical == made.canonical
    plain = FileDescriptorProto(name="x.proto", syntax="proto3", package="p")
    plain.message_type.add(name="M").field.add(name="a", number=1, label=1, type=5)
    text = base64.b64encode(plain.SerializeToString()).decode()
    assert ProtobufSchema(text).canonical == ProtobufSchema(message("int32 a = 1;")).canonical


# -- descriptors


def built(text: str, texts: dict[str, str] | None = None) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(descriptor_of(text, texts or {}))


def classes(*files: FileDescriptorProto) -> dict[str, Any]:
    """The messages of the last file, as Protobuf's own library has them."""
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, descriptor_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClassesForFiles([files[-1].name], pool)


@pytest.mark.parametrize("module", [struct_pb2, timestamp_pb2, wrappers_pb2, type_pb2, api_pb2])
def test_descriptors_are_those_that_the_compiler_makes(module: ModuleType) -> None:
    known = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    texts = {
        each.name: text_of_descriptor(each.serialized_pb) for each in module.DESCRIPTOR.dependencies
    }
    made = built(text_of_descriptor(known.SerializeToString()), texts)
    made.name = known.name
    known.options.ClearField("cc_enable_arenas")
    assert made == known


def test_messages_of_a_descriptor_read_what_was_written() -> None:
    made = classes(built(WHOLE))["p.M"](m={"k": {"s": [1, -1]}}, a=7, e=0, at={"seconds": 1})
    again = classes(built(WHOLE))["p.M"].FromString(made.SerializeToString())
    assert (again.m["k"].s, again.WhichOneof("choice"), again.at.seconds) == ([1, -1], "a", 1)
    assert again.HasField("e")


def test_a_descriptor_has_all_that_the_file_says() -> None:
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


def test_a_descriptor_of_proto2_has_defaults_groups_and_extensions() -> None:
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


def test_messages_and_maps_keep_their_places_when_a_descriptor_becomes_a_text() -> None:
    text = message("N n = 1; message N {} map<string, N> m = 2; message O {} enum E { X = 0; }")
    first = built(text)
    (m,) = first.message_type
    assert [each.name for each in m.nested_type] == ["N", "MEntry", "O"]
    again = built(text_of_descriptor(first.SerializeToString()))
    assert [each.name for each in again.message_type[0].nested_type] == ["N", "MEntry", "O"]


def test_defaults_are_kept_when_a_descriptor_becomes_a_text() -> None:
    """Those of bytes are escaped in a descriptor, those of texts are not."""
    file = FileDescriptorProto(name="default", package="p", syntax="proto2")
    message = file.message_type.add(name="M")
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    for number, (type_, default) in enumerate(
        [
            (FieldDescriptorProto.TYPE_BYTES, r"\000a\"\\n\377"),
            (FieldDescriptorProto.TYPE_STRING, 'x"\\n\n'),
            (FieldDescriptorProto.TYPE_INT32, "-7"),
        ],
        1,
    ):
        message.field.add(
            name=f"f{number}", number=number, label=optional, type=type_, default_value=default
        )
    text = text_of_descriptor(file.SerializeToString())
    assert r'"\000a\"\\n\377"' in text
    again = built(text)
    assert [each.default_value for each in again.message_type[0].field] == [
        each.default_value for each in message.field
    ]


def test_a_type_of_a_file_that_is_not_here_keeps_its_name() -> None:
    text = HEAD + 'import "google/type/money.proto"; message M { google.type.Money m = 1; }'
    (field,) = built(text).message_type[0].field
    assert field.type_name == "google.type.Money"
    assert not field.HasField("type")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('option java_package "a"; option go_package = "b"; message M {}', "ends too early"),
        ("message M { option deprecated; reserved 1 = 2; }", "ends too early"),
        ('message M { optional int32 a = 1 [json_name = "B" b]; }', "not expected in place of ']'"),
    ],
)
def test_descriptor_of_malformed_option_is_refused(text: str, why: str) -> None:
    """An option ends where its statement ends, although registering a schema does not read it."""
    ProtobufSchema(text)
    with pytest.raises(RegistryError, match=why):
        descriptor_of(text, {})


def test_there_is_no_descriptor_of_a_file_of_editions() -> None:
    made = ProtobufSchema('edition = "2023"; message M { int32 a = 1; }')
    assert made.own.messages["M"].fields[1].name == "a"
    with pytest.raises(RegistryError, match="editions"):
        built('edition = "2023"; message M {}')


HEX = "0x" + "f" * 6000


@pytest.mark.parametrize("number", [HEX, "9" * 5000, "0" + "7" * 5000, str(2**40), str(-(2**40))])
@pytest.mark.parametrize(
    "text",
    [
        "message M { optional int32 a = %s; }",
        "message M { optional int32 a = 1 [default = %s]; }",
        "message M { reserved %s; }",
        "message M { reserved 1 to %s; }",
        "message M { extensions 100 to %s; }",
        "enum E { A = %s; }",
        "enum E { A = 0; reserved %s; }",
        "message M { } extend M { optional int32 a = %s; }",
        "message M { repeated group G = %s { } }",
        'option java_package = "x"; option optimize_for = %s;',
    ],
)
def test_number_of_any_length_is_read_or_refused(text: str, number: str) -> None:
    told = ""
    try:
        descriptor_of(f'syntax = "proto2"; {text % number}', {})
    except RegistryError as error:
        told = error.message
    assert len(told) < 1000


def test_text_with_blanks_is_told_from_a_descriptor_at_once() -> None:
    for text in ("A" + " " * 1_000_000 + "!", "A" * 500_000 + " " * 500_000 + "="):
        with pytest.raises(RegistryError):
            ProtobufSchema(text)
