"""Protobuf compatibility: a case for each rule that Confluent documents."""

from __future__ import annotations

import pytest

from kbroker.schemas.core.limits import Budget
from kbroker.schemas.core.protobuf import ProtobufSchema

from .protobuf_files import message


def kinds(new: str, old: str) -> list[str]:
    """Return the reasons why a reader with the new file cannot read data of the old one."""
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
def test_reader_accepts_compatible_writer_schema(new: str, old: str) -> None:
    assert kinds(new, old) == []


@pytest.mark.parametrize(
    ("new", "old", "why"), [row[1:] for row in REFUSES], ids=[row[0] for row in REFUSES]
)
def test_reader_rejects_incompatible_writer_schema(new: str, old: str, why: str) -> None:
    assert why in kinds(new, old)
