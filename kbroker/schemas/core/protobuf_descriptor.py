"""Conversion of a Protobuf FileDescriptorProto to the text of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.message import DecodeError

from .errors import invalid_schema
from .limits import DEPTH_MAX

_LABELS = {1: "optional", 2: "required", 3: "repeated"}
_FILE_OPTIONS: Final = (
    "java_package",
    "java_outer_classname",
    "java_multiple_files",
    "go_package",
    "objc_class_prefix",
    "csharp_namespace",
)


def text_of_descriptor(data: bytes) -> str:
    """Return the text of a serialized FileDescriptorProto. Raises RegistryError."""
    try:
        file = FileDescriptorProto.FromString(data)
    except DecodeError:
        raise invalid_schema("neither a Protobuf file nor a FileDescriptorProto") from None
    return "\n".join(_Writer(file).lines()) + "\n"


class _Writer:
    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._is_proto3 = file.syntax == "proto3"

    def lines(self) -> Iterator[str]:
        file = self._file
        yield f"syntax = {_quoted(file.syntax or 'proto2')};"
        if file.package:
            yield f"package {file.package};"
        public = frozenset(file.public_dependency)
        for index, each in enumerate(file.dependency):
            modifier = "public " if index in public else ""
            yield f"import {modifier}{_quoted(each)};"
        for name in _FILE_OPTIONS:
            if file.options.HasField(name):
                yield f"option {name} = {_literal(getattr(file.options, name))};"
        for message in file.message_type:
            yield from self._message(message, 0)
        for enum in file.enum_type:
            yield from self._enum(enum)
        for service in file.service:
            yield from self._service(service)

    def _message(self, message: DescriptorProto, depth: int) -> Iterator[str]:
        if depth > DEPTH_MAX:
            raise invalid_schema(f"nested deeper than {DEPTH_MAX} levels")
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        yield f"message {message.name} {{"
        yield from _reserved(message)
        oneofs = _fields_of_oneofs(message)
        nested = iter(message.nested_type)
        for each in message.field:
            if each.HasField("oneof_index") and not each.proto3_optional:
                if each.oneof_index in oneofs:
                    yield from self._oneof(message, each.oneof_index, oneofs.pop(each.oneof_index))
            else:
                if _name_of_type(each) in maps:
                    yield from self._until_entry(nested, depth + 1)
                yield self._field(each, maps)
        for _ in message.nested_type:
            yield from self._until_entry(nested, depth + 1)
        for enum in message.enum_type:
            yield from self._enum(enum)
        yield "}"

    def _until_entry(self, nested: Iterator[DescriptorProto], depth: int) -> Iterator[str]:
        """Yield messages up to the next map entry, which the compiler counts as a nested message."""
        for each in nested:
            if each.options.map_entry:
                return
            yield from self._message(each, depth)

    def _oneof(
        self, message: DescriptorProto, index: int, fields: list[FieldDescriptorProto]
    ) -> Iterator[str]:
        if not 0 <= index < len(message.oneof_decl):
            raise invalid_schema(f"{message.name} has no oneof {index}")
        yield f"oneof {message.oneof_decl[index].name} {{"
        for each in fields:
            yield f"{_type_of(each)} {each.name} = {each.number}{_options(each)};"
        yield "}"

    def _field(self, each: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
        entry = maps.get(_name_of_type(each))
        if entry is not None and len(entry.field) == 2:
            key, value = map(_type_of, entry.field)
            return f"map<{key}, {value}> {each.name} = {each.number}{_options(each)};"
        label = f"{_LABELS[each.label]} "
        if self._is_proto3 and each.label == 1 and not each.proto3_optional:
            label = ""
        return f"{label}{_type_of(each)} {each.name} = {each.number}{_options(each)};"

    def _enum(self, enum: EnumDescriptorProto) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        if enum.options.allow_alias:
            yield "option allow_alias = true;"
        for each in enum.value:
            yield f"{each.name} = {each.number};"
        yield "}"

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        yield f"service {service.name} {{"
        for each in service.method:
            input_type = f"{'stream ' if each.client_streaming else ''}{each.input_type}"
            output_type = f"{'stream ' if each.server_streaming else ''}{each.output_type}"
            yield f"rpc {each.name} ({input_type}) returns ({output_type});"
        yield "}"


def _fields_of_oneofs(message: DescriptorProto) -> dict[int, list[FieldDescriptorProto]]:
    """Return the fields of each oneof of a message, by the index of the oneof."""
    found: dict[int, list[FieldDescriptorProto]] = {}
    for each in message.field:
        if each.HasField("oneof_index"):
            found.setdefault(each.oneof_index, []).append(each)
    return found


def _reserved(message: DescriptorProto) -> Iterator[str]:
    for each in message.reserved_range:
        last = each.end - 1
        yield (
            f"reserved {each.start};" if each.start == last else f"reserved {each.start} to {last};"
        )
    if message.reserved_name:
        yield f"reserved {', '.join(map(_quoted, message.reserved_name))};"


def _name_of_type(each: FieldDescriptorProto) -> str:
    """Return the unqualified name of a field's message type."""
    return str(each.type_name.rpartition(".")[2])


def _type_of(each: FieldDescriptorProto) -> str:
    if each.type_name:
        return str(each.type_name)
    return str(FieldDescriptorProto.Type.Name(each.type)).removeprefix("TYPE_").lower()


def _options(each: FieldDescriptorProto) -> str:
    options = []
    if each.HasField("default_value"):
        options.append(f"default = {_default(each)}")
    if each.options.HasField("deprecated"):
        options.append(f"deprecated = {_literal(each.options.deprecated)}")
    if each.options.HasField("packed"):
        options.append(f"packed = {_literal(each.options.packed)}")
    return f" [{', '.join(options)}]" if options else ""


def _default(each: FieldDescriptorProto) -> str:
    if each.type == FieldDescriptorProto.TYPE_STRING:
        return _quoted(each.default_value)
    if each.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{each.default_value}"'  # already escaped (descriptor.proto)
    return str(each.default_value)


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else _quoted(str(value))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
