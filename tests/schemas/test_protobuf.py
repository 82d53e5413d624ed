"""Files of Protobuf: a case for each of the rules that Confluent documents."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.struct_pb2 import DESCRIPTOR

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.limits import Budget
from kbroker.schemas.core.protobuf import ProtobufSchema

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
