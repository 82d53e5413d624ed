"""Protobuf files written from descriptors."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.struct_pb2 import DESCRIPTOR

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.protobuf import ProtobufSchema
from kbroker.schemas.core.protobuf_descriptor import text_of_descriptor

from .protobuf_files import built, message


def test_descriptor_is_converted_to_its_source_text() -> None:
    made = ProtobufSchema(base64.b64encode(DESCRIPTOR.serialized_pb).decode())
    assert made.own.package == "google.protobuf"
    assert made.own.messages["google.protobuf.Struct"].fields[1].map_key == "string"
    assert ProtobufSchema(made.canonical).canonical == made.canonical
    plain = FileDescriptorProto(name="x.proto", syntax="proto3", package="p")
    plain.message_type.add(name="M").field.add(name="a", number=1, label=1, type=5)
    text = base64.b64encode(plain.SerializeToString()).decode()
    assert ProtobufSchema(text).canonical == ProtobufSchema(message("int32 a = 1;")).canonical


def test_descriptor_text_keeps_order_of_messages_and_maps() -> None:
    text = message("N n = 1; message N {} map<string, N> m = 2; message O {} enum E { X = 0; }")
    first = built(text)
    (m,) = first.message_type
    assert [each.name for each in m.nested_type] == ["N", "MEntry", "O"]
    decoded = built(text_of_descriptor(first.SerializeToString()))
    assert [each.name for each in decoded.message_type[0].nested_type] == ["N", "MEntry", "O"]


def test_descriptor_text_keeps_defaults() -> None:
    """Defaults of bytes are escaped in a descriptor; defaults of strings are not."""
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
    decoded = built(text)
    assert [each.default_value for each in decoded.message_type[0].field] == [
        each.default_value for each in message.field
    ]


def test_text_with_blanks_is_distinguished_from_descriptor_quickly() -> None:
    for text in ("A" + " " * 1_000_000 + "!", "A" * 500_000 + " " * 500_000 + "="):
        with pytest.raises(RegistryError):
            ProtobufSchema(text)
