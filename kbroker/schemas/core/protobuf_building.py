"""Builder of a Protobuf FileDescriptorProto, equal to the descriptor that protoc produces.

Nested messages, including map entries, keep protoc's order, because clients find a message by its index.
The builder omits custom options, which `descriptor.proto` does not define.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.message import Message

from .errors import invalid_schema
from .protobuf import ProtobufSchema
from .protobuf_known import well_known_messages
from .protobuf_syntax import (
    SCALARS,
    Element,
    EnumNode,
    EnumValueNode,
    ExtendNode,
    ExtensionsNode,
    FieldNode,
    ImportNode,
    MessageNode,
    OneofNode,
    OptionNode,
    PackageNode,
    ReservedNode,
    ServiceNode,
    Statement,
    SyntaxNode,
    extension_fields,
)
from .protobuf_tokens import TokenReader, full_name
from .protobuf_types import Declared

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    _Fields: TypeAlias = RepeatedCompositeFieldContainer[FieldDescriptorProto]
    _Messages: TypeAlias = RepeatedCompositeFieldContainer[DescriptorProto]
    _Ranges: TypeAlias = (
        RepeatedCompositeFieldContainer[DescriptorProto.ReservedRange]
        | RepeatedCompositeFieldContainer[DescriptorProto.ExtensionRange]
        | RepeatedCompositeFieldContainer[EnumDescriptorProto.EnumReservedRange]
    )

# File name in the descriptor; files that import this file use another name.
NAME = "default"
# End of the field number range (exclusive).
NUMBER_END = 2**29
ENUM_NUMBER_MAX = 2**31 - 1
_LABELS = {
    "": FieldDescriptorProto.LABEL_OPTIONAL,
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
_ESCAPE = re.compile(
    rb"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_ESCAPED = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
}  # fmt: skip


def descriptor_of(text: str, texts: Mapping[str, str]) -> bytes:
    """Return a serialized FileDescriptorProto.

    Args:
        text: Text of the file.
        texts: Texts of imported files by import path.

    Raises:
        RegistryError: The file is malformed or uses editions.
    """
    schema = ProtobufSchema(text, texts)
    if schema.own.syntax == "editions":
        raise invalid_schema("files with editions have no descriptor; request the text instead")
    common = well_known_messages()
    known = Declared(
        messages=common.messages | schema.known.messages, enums=common.enums | schema.known.enums
    )
    try:
        file = _Builder(schema.statements, known).file
        return file.SerializeToString(deterministic=True)
    except ValueError as error:  # a number is out of range
        raise invalid_schema(f"cannot build the descriptor: {error}") from None


class _Builder:
    """Builds the descriptor of one file from its statements. Raises RegistryError."""

    def __init__(self, statements: Iterable[Statement], known: Declared) -> None:
        self._known = known
        self.file = FileDescriptorProto(name=NAME)
        for each in statements:
            self._statement(each)

    def _statement(self, node: Statement) -> None:
        file = self.file
        match node:
            case SyntaxNode():
                if node.version != "proto2":  # protoc omits proto2
                    file.syntax = node.version
            case PackageNode():
                file.package = node.name
            case ImportNode():
                self._import(node)
            case OptionNode():
                _set_option(file.options, node)
            case MessageNode():
                self._message(file.message_type.add(name=node.name), node, file.package)
            case EnumNode():
                _build_enum(file.enum_type.add(name=node.name), node)
            case ExtendNode():
                self._extend(node, file.extension, file.message_type, file.package)
            case ServiceNode():
                self._service(file.service.add(name=node.name), _OptionReader(node.tokens))

    def _import(self, node: ImportNode) -> None:
        index = len(self.file.dependency)
        if node.modifier == "public":
            self.file.public_dependency.append(index)
        elif node.modifier == "weak":
            self.file.weak_dependency.append(index)
        self.file.dependency.append(node.path)

    # -- messages

    def _message(self, message: DescriptorProto, node: MessageNode, scope: str) -> None:
        scope = full_name(scope, message.name)
        for each in node.elements:
            self._element(message, each, scope)
        _add_synthetic_oneofs(message)

    def _element(self, message: DescriptorProto, node: Element, scope: str) -> None:
        match node:
            case MessageNode():
                self._message(message.nested_type.add(name=node.name), node, scope)
            case EnumNode():
                _build_enum(message.enum_type.add(name=node.name), node)
            case ExtendNode():
                self._extend(node, message.extension, message.nested_type, scope)
            case OneofNode():
                self._oneof(message, node, scope)
            case OptionNode():
                _set_option(message.options, node)
            case ReservedNode():
                _OptionReader(node.tokens).reserved(message, last=NUMBER_END - 1, end_offset=1)
            case ExtensionsNode():
                ranges = message.extension_range
                _OptionReader(node.tokens).ranges(ranges, last=NUMBER_END - 1, end_offset=1)
            case FieldNode():
                self._field(message.field.add(), message.nested_type, node, scope)

    def _oneof(self, message: DescriptorProto, node: OneofNode, scope: str) -> None:
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=node.name)
        for each in node.elements:
            if isinstance(each, OptionNode):
                _set_option(oneof.options, each)
            else:
                field = message.field.add(oneof_index=index)
                self._field(field, message.nested_type, each, scope)

    def _extend(self, node: ExtendNode, extensions: _Fields, nested: _Messages, scope: str) -> None:
        for each in extension_fields(node):
            field = extensions.add(extendee=self._qualified(node.extended, scope))
            self._field(field, nested, each, scope)

    # -- fields

    def _field(
        self, field: FieldDescriptorProto, nested: _Messages, node: FieldNode, scope: str
    ) -> None:
        field.label = _LABELS[node.label]
        if node.group is not None:
            self._group(field, nested, node, node.group, scope)
            return
        field.name = node.name
        if node.map_key:
            self._map(field, nested, node, scope)
        else:
            self._set_type(field, node.type, scope)
        _set_number_and_options(field, node)
        if node.label == "optional" and self.file.syntax == "proto3":
            field.proto3_optional = True

    def _map(
        self, field: FieldDescriptorProto, nested: _Messages, node: FieldNode, scope: str
    ) -> None:
        entry = nested.add(name=_camel(field.name) + "Entry")
        entry.options.map_entry = True
        label = FieldDescriptorProto.LABEL_OPTIONAL
        key = entry.field.add(name="key", number=1, label=label, json_name="key")
        value = entry.field.add(name="value", number=2, label=label, json_name="value")
        self._set_type(key, node.map_key, scope)
        self._set_type(value, node.type, scope)
        field.label = FieldDescriptorProto.LABEL_REPEATED
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{full_name(scope, entry.name)}"

    def _group(
        self,
        field: FieldDescriptorProto,
        nested: _Messages,
        node: FieldNode,
        message: MessageNode,
        scope: str,
    ) -> None:
        group = nested.add(name=node.name)
        field.name = node.name.lower()
        field.type = FieldDescriptorProto.TYPE_GROUP
        field.type_name = f".{full_name(scope, node.name)}"
        _set_number_and_options(field, node)
        self._message(group, message, scope)

    def _set_type(self, field: FieldDescriptorProto, name: str, scope: str) -> None:
        if name in SCALARS:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
            return
        field.type_name = self._qualified(name, scope)
        found = field.type_name.removeprefix(".")
        # If the file that declares the type is not available, `field.type` stays unset: readers
        # with that file can find out whether the type is an enum or a message.
        if found in self._known.enums:
            field.type = FieldDescriptorProto.TYPE_ENUM
        elif found in self._known.messages:
            field.type = FieldDescriptorProto.TYPE_MESSAGE

    def _qualified(self, name: str, scope: str) -> str:
        """Return the full name of a type with a leading dot, or an unknown name unchanged."""
        found = self._known.resolved(name, scope)
        is_known = found in self._known.messages or found in self._known.enums
        return f".{found}" if is_known else name

    # -- services

    def _service(self, service: ServiceDescriptorProto, tokens: _OptionReader) -> None:
        tokens.expect("{")
        while (token := tokens.next()) != "}":
            if token == "option":
                tokens.option(service.options)
            elif token == "rpc":
                self._method(service.method.add(name=tokens.name()), tokens)

    def _method(self, method: MethodDescriptorProto, tokens: _OptionReader) -> None:
        name, is_stream = tokens.method_type()
        method.input_type = self._qualified(name, self.file.package)
        if is_stream:
            method.client_streaming = True
        tokens.expect("returns")
        name, is_stream = tokens.method_type()
        method.output_type = self._qualified(name, self.file.package)
        if is_stream:
            method.server_streaming = True
        if tokens.peek() != "{":
            tokens.expect(";")
            return
        tokens.next()
        while (token := tokens.next()) != "}":
            if token == "option":
                tokens.option(method.options)


def _build_enum(enum: EnumDescriptorProto, node: EnumNode) -> None:
    for each in node.elements:
        match each:
            case OptionNode():
                _set_option(enum.options, each)
            case ReservedNode():
                _OptionReader(each.tokens).reserved(enum, last=ENUM_NUMBER_MAX, end_offset=0)
            case EnumValueNode():
                value = enum.value.add(name=each.name, number=each.number)
                if each.options:
                    _OptionReader(each.options).bracketed(value.options)


def _set_number_and_options(field: FieldDescriptorProto, node: FieldNode) -> None:
    """Set the number, the JSON name and the options of a field."""
    field.number = node.number
    field.json_name = _json_name(field.name)
    if node.options:
        _OptionReader(node.options).field_options(field)


def _set_option(options: Message, node: OptionNode) -> None:
    _OptionReader(node.tokens).option(options)


class _OptionReader(TokenReader):
    """Interprets parts that the parser keeps as tokens: options, ranges of numbers, methods."""

    # -- methods

    def method_type(self) -> tuple[str, bool]:
        """Read the parameter or return type of a method.

        Returns:
            The name of the type, and True if the type is a stream.
        """
        self.expect("(")
        is_stream = self.peek() == "stream" and self.peek(1) != ")"
        if is_stream:
            self.next()
        name = self.name_with_dots()
        self.expect(")")
        return name, is_stream

    # -- reserved numbers and extension ranges

    def reserved(
        self, declared: DescriptorProto | EnumDescriptorProto, *, last: int, end_offset: int
    ) -> None:
        """Add reserved names or numbers to a message or an enum.

        Args:
            declared: The message or enum.
            last: The number that `max` stands for.
            end_offset: 1 if range ends are exclusive in the descriptor, 0 if they are inclusive.
        """
        if re.match(r"[\"'A-Za-z_]", self.peek()) is None:
            self.ranges(declared.reserved_range, last=last, end_offset=end_offset)
            return
        while (token := self.next()) != ";":
            if token != ",":
                declared.reserved_name.append(_text_of(token) if token[0] in "\"'" else token)

    def ranges(self, ranges: _Ranges, *, last: int, end_offset: int) -> None:
        """Read numbers and ranges.

        Args:
            ranges: List in the descriptor to which the ranges are added.
            last: The number that `max` stands for.
            end_offset: 1 if range ends are exclusive in the descriptor, 0 if they are inclusive.
        """
        while True:
            start = end = self.signed()
            if self.peek() == "to":
                self.next()
                if self.peek() == "max":
                    self.next()
                    end = last
                else:
                    end = self.signed()
            ranges.add(start=start, end=end + end_offset)
            if self.peek() != ",":
                return
            self.next()

    # -- options

    def option(self, options: Message) -> None:
        """Set an option, from its name to the semicolon."""
        self._assign(options, self._option_name())
        self.expect(";")

    def bracketed(self, options: Message) -> None:
        """Set the options in brackets."""
        self.expect("[")
        while True:
            self._assign(options, self._option_name())
            if not self._has_more():
                return

    def field_options(self, field: FieldDescriptorProto) -> None:
        """Set the options of a field, which are in brackets."""
        self.expect("[")
        while True:
            name = self._option_name()
            if name == "default":
                field.default_value = self._default(field)
            elif name == "json_name":
                field.json_name = _text_of(self.next())
            else:
                self._assign(field.options, name)
            if not self._has_more():
                return

    def _has_more(self) -> bool:
        """Read a comma or the closing bracket after an option; return True after a comma."""
        if self.peek() != ",":
            self.expect("]")
            return False
        self.next()
        return True

    def _option_name(self) -> str:
        """Read an option name up to the equals sign; custom options are in parentheses."""
        parts = []
        while (token := self.next()) != "=":
            parts.append(token)
        return "".join(parts)

    def _value(self) -> list[str]:
        """Read the tokens of a value, up to its delimiter."""
        tokens: list[str] = []
        depth = 0
        while depth or self.peek() not in (",", ";", "]"):
            token = self.next()
            depth += (token in "{[<(") - (token in "}]>)")
            tokens.append(token)
        return tokens

    def _assign(self, options: Message, name: str) -> None:
        """Read the value of an option and set the option if it is built-in and of a simple type."""
        tokens = self._value()
        known = options.DESCRIPTOR.fields_by_name.get(name)
        is_simple = known is not None and isinstance(getattr(options, name), bool | int | str)
        if known is None or not is_simple or not tokens:
            return
        token = "".join(tokens)
        if known.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            setattr(options, name, token == "true")
        elif known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            setattr(options, name, "".join(map(_text_of, tokens)))
        elif known.enum_type is not None:
            value = known.enum_type.values_by_name.get(token)
            if value is not None:
                setattr(options, name, value.number)

    def _default(self, field: FieldDescriptorProto) -> str:
        """Return a default value in protoc's format."""
        tokens = self._value()
        if field.type == FieldDescriptorProto.TYPE_STRING:
            return "".join(map(_text_of, tokens))
        if field.type == FieldDescriptorProto.TYPE_BYTES:
            return _escape_c_style(b"".join(map(_bytes_of, tokens)))
        token = "".join(tokens)
        is_real = field.type in (FieldDescriptorProto.TYPE_DOUBLE, FieldDescriptorProto.TYPE_FLOAT)
        if is_real or not re.fullmatch(r"-?[0-9].*", token):
            return token
        sign, digits = ("-", token[1:]) if token[0] == "-" else ("", token)
        return sign + str(TokenReader([digits]).number())


def _add_synthetic_oneofs(message: DescriptorProto) -> None:
    """Put each optional proto3 field into a synthetic oneof after the other oneofs, as protoc does."""
    used_names = {each.name for each in message.field} | {each.name for each in message.oneof_decl}
    for field in message.field:
        if field.proto3_optional:
            name = f"_{field.name}"
            while name in used_names:
                name = f"X{name}"
            used_names.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)


def _camel(name: str) -> str:
    """Convert a name to upper camel case."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _json_name(name: str) -> str:
    """Convert a name to lower camel case, keeping the first letter."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _text_of(token: str) -> str:
    return _bytes_of(token).decode("utf-8", "replace")


def _bytes_of(token: str) -> bytes:
    """Return the bytes of a quoted string. Raises RegistryError."""
    if token[:1] not in ("'", '"'):
        raise invalid_schema(f"'{token[:100]}' is not a string")

    def unescape(match: re.Match[bytes]) -> bytes:
        hexadecimal, octal, short, long, other = match.groups()
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if short or long:
            code = int(short or long, 16)
            return chr(code if code <= 0x10FFFF else 0xFFFD).encode("utf-8", "replace")
        return _ESCAPED.get(other, other)

    return _ESCAPE.sub(unescape, token[1:-1].encode("utf-8", "replace"))


def _escape_c_style(data: bytes) -> str:
    """Return the bytes of a default value as text; non-printable bytes become octal escapes."""
    special = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x22: '\\"', 0x27: "\\'", 0x5C: "\\\\"}
    return "".join(
        special.get(each) or (chr(each) if 0x20 <= each < 0x7F else f"\\{each:03o}")
        for each in data
    )
