"""The descriptor of a file of Protobuf, as its compiler makes it from the text.

Messages in messages are in the order in which the compiler has them, with those that stand for entries of maps
among them: clients find a message by its place. Options that are not of `descriptor.proto` are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from .errors import invalid_schema
from .protobuf import SCALARS, ProtobufSchema, text_of
from .protobuf_known import known_messages
from .protobuf_types import Declared
from .protobuf_words import Words, inside, named, tokens_of, typed

NAME = "default"
"""Of a file: who refers to it knows it by one of his own."""
NUMBER_END = 2**29
"""Behind the greatest number of a field."""
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
    """A FileDescriptorProto. Raises RegistryError.

    Parameters: `texts` are those that the file imports, by their names.
    """
    schema = ProtobufSchema(text, texts)
    if schema.own.syntax == "editions":
        raise invalid_schema("files of editions are given out as texts only")
    common = known_messages()
    known = Declared(
        messages=common.messages | schema.known.messages, enums=common.enums | schema.known.enums
    )
    builder = _Builder(tokens_of(text_of(text)), known)
    try:
        return builder.file().SerializeToString(deterministic=True)
    except ValueError as error:  # a number that descriptors have no room for
        raise invalid_schema(f"there is no descriptor of it: {error}") from None


class _Builder(Words):
    """Builds what the words of one file declare. Raises RegistryError."""

    def __init__(self, tokens: list[str], known: Declared) -> None:
        super().__init__(tokens)
        self._known = known
        self._file = FileDescriptorProto(name=NAME)

    def file(self) -> FileDescriptorProto:
        """All of it."""
        while not self.is_at_end:
            self._statement(self.next())
        return self._file

    def _statement(self, word: str) -> None:
        file = self._file
        match word:
            case "syntax":
                self.expect("=")
                syntax = self.text()
                if syntax != "proto2":  # as the compiler leaves it out
                    file.syntax = syntax
                self.expect(";")
            case "package":
                file.package = self.name_with_dots()
                self.expect(";")
            case "import":
                self._import()
            case "option":
                self._option(file.options)
            case "message":
                self._message(file.message_type.add(name=self.name()), file.package)
            case "enum":
                self._enum(file.enum_type.add(name=self.name()))
            case "extend":
                self._extend(file.extension, file.message_type, file.package)
            case "service":
                self._service(file.service.add(name=self.name()))

    def _import(self) -> None:
        index = len(self._file.dependency)
        if self.peek() == "public":
            self._file.public_dependency.append(index)
        elif self.peek() == "weak":
            self._file.weak_dependency.append(index)
        if self.peek() in ("public", "weak"):
            self.next()
        self._file.dependency.append(self.text())
        self.expect(";")

    # -- messages

    def _message(self, message: DescriptorProto, scope: str) -> None:
        scope = inside(scope, message.name)
        self.expect("{")
        while (word := self.next()) != "}":
            self._element(message, scope, word)
        _add_choices_of_one(message)

    def _element(self, message: DescriptorProto, scope: str, word: str) -> None:
        is_declaration = self.peek(1) == "{"
        match word:
            case ";":
                return
            case "message" if is_declaration:
                self._message(message.nested_type.add(name=self.name()), scope)
            case "enum" if is_declaration:
                self._enum(message.enum_type.add(name=self.name()))
            case "extend" if is_declaration:
                self._extend(message.extension, message.nested_type, scope)
            case "oneof" if is_declaration:
                self._oneof(message, scope)
            case "option":
                self._option(message.options)
            case "reserved":
                self._reserved(message, last=NUMBER_END - 1, beyond=1)
            case "extensions":
                self._ranges(message.extension_range, last=NUMBER_END - 1, beyond=1)
            case _:
                self._field(message.field.add(), message.nested_type, scope, word)

    def _oneof(self, message: DescriptorProto, scope: str) -> None:
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=self.name())
        self.expect("{")
        while (word := self.next()) != "}":
            if word == "option":
                self._option(oneof.options)
            elif word != ";":
                field = message.field.add(oneof_index=index)
                self._field(field, message.nested_type, scope, word)

    def _extend(self, extensions: Any, nested: Any, scope: str) -> None:
        extended = self.name_with_dots()
        self.expect("{")
        while (word := self.next()) != "}":
            if word != ";":
                field = extensions.add(extendee=self._full(extended, scope))
                self._field(field, nested, scope, word)

    # -- fields

    def _field(self, field: FieldDescriptorProto, nested: Any, scope: str, word: str) -> None:
        label = word if word in _LABELS else ""
        field.label = _LABELS[label]
        if label:
            word = self.next()
        if word == "group":
            self._group(field, nested, scope)
            return
        if word == "map" and self.peek() == "<":
            self._map(field, nested, scope)
        else:
            self._set_type(field, typed(word), scope)
            field.name = self.name()
            self._end_of_field(field)
        if label == "optional" and self._file.syntax == "proto3":
            field.proto3_optional = True

    def _end_of_field(self, field: FieldDescriptorProto) -> None:
        self.expect("=")
        field.number = self.number()
        field.json_name = _json_name(field.name)
        if self.peek() == "[":
            self._field_options(field)
        self.expect(";")

    def _map(self, field: FieldDescriptorProto, nested: Any, scope: str) -> None:
        entry = nested.add()
        entry.options.map_entry = True
        label = FieldDescriptorProto.LABEL_OPTIONAL
        key = entry.field.add(name="key", number=1, label=label, json_name="key")
        value = entry.field.add(name="value", number=2, label=label, json_name="value")
        self.expect("<")
        self._set_type(key, self.name(), scope)
        self.expect(",")
        self._set_type(value, self.name_with_dots(), scope)
        self.expect(">")
        field.name = self.name()
        entry.name = _camel(field.name) + "Entry"
        field.label = FieldDescriptorProto.LABEL_REPEATED
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{inside(scope, entry.name)}"
        self._end_of_field(field)

    def _group(self, field: FieldDescriptorProto, nested: Any, scope: str) -> None:
        group = nested.add(name=self.name())
        field.name = group.name.lower()
        field.type = FieldDescriptorProto.TYPE_GROUP
        field.type_name = f".{inside(scope, group.name)}"
        self.expect("=")
        field.number = self.number()
        field.json_name = _json_name(field.name)
        if self.peek() == "[":
            self._field_options(field)
        self._message(group, scope)

    def _set_type(self, field: FieldDescriptorProto, name: str, scope: str) -> None:
        if name in SCALARS:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
            return
        field.type_name = self._full(name, scope)
        found = field.type_name.removeprefix(".")
        # Of one in a file that is not here, who has that file sees what it is.
        if found in self._known.enums:
            field.type = FieldDescriptorProto.TYPE_ENUM
        elif found in self._known.messages:
            field.type = FieldDescriptorProto.TYPE_MESSAGE

    def _full(self, name: str, scope: str) -> str:
        """What a type's name means, with a dot in front; the name as it is where that is not known."""
        found = self._known.resolved(name, scope)
        is_known = found in self._known.messages or found in self._known.enums
        return f".{found}" if is_known else name

    # -- enums

    def _enum(self, enum: EnumDescriptorProto) -> None:
        self.expect("{")
        while (word := self.next()) != "}":
            if word == "option":
                self._option(enum.options)
            elif word == "reserved":
                self._reserved(enum, last=ENUM_NUMBER_MAX, beyond=0)
            elif word != ";":
                self.expect("=")
                value = enum.value.add(name=named(word), number=self._signed())
                if self.peek() == "[":
                    self._bracketed(value.options)
                self.expect(";")

    # -- services

    def _service(self, service: Any) -> None:
        self.expect("{")
        while (word := self.next()) != "}":
            if word == "option":
                self._option(service.options)
            elif word == "rpc":
                self._method(service.method.add(name=self.name()))

    def _method(self, method: Any) -> None:
        method.input_type, is_stream = self._of_method()
        if is_stream:
            method.client_streaming = True
        self.expect("returns")
        method.output_type, is_stream = self._of_method()
        if is_stream:
            method.server_streaming = True
        if self.peek() == "{":
            self.next()
            while (word := self.next()) != "}":
                if word == "option":
                    self._option(method.options)
        else:
            self.expect(";")

    def _of_method(self) -> tuple[str, bool]:
        """The type that a method takes or returns, and whether it is a stream of them."""
        self.expect("(")
        is_stream = self.peek() == "stream" and self.peek(1) != ")"
        if is_stream:
            self.next()
        name = self.name_with_dots()
        self.expect(")")
        return self._full(name, self._file.package), is_stream

    # -- numbers that are not used

    def _reserved(self, declared: Any, *, last: int, beyond: int) -> None:
        if re.match(r"[\"'A-Za-z_]", self.peek()) is None:
            self._ranges(declared.reserved_range, last=last, beyond=beyond)
            return
        while (word := self.next()) != ";":
            if word != ",":
                declared.reserved_name.append(_text_of(word) if word[0] in "\"'" else word)

    def _ranges(self, ranges: Any, *, last: int, beyond: int) -> None:
        """Numbers and ranges of them; `beyond` is how far behind the last number one is said to end."""
        while True:
            start = end = self._signed()
            if self.peek() == "to":
                self.next()
                if self.peek() == "max":
                    self.next()
                    end = last
                else:
                    end = self._signed()
            ranges.add(start=start, end=end + beyond)
            if self.peek() != ",":
                break
            self.next()
        self.skip_statement()

    def _signed(self) -> int:
        if self.peek() == "-":
            self.next()
            return -self.number()
        return self.number()

    # -- options

    def _option(self, options: Any) -> None:
        self._assign(options, self._option_name())
        self.expect(";")

    def _bracketed(self, options: Any) -> None:
        self.expect("[")
        while True:
            self._assign(options, self._option_name())
            if self.next() != ",":
                return

    def _field_options(self, field: FieldDescriptorProto) -> None:
        self.expect("[")
        while True:
            name = self._option_name()
            if name == "default":
                field.default_value = self._default(field)
            elif name == "json_name":
                field.json_name = _text_of(self.next())
            else:
                self._assign(field.options, name)
            if self.next() != ",":
                return

    def _option_name(self) -> str:
        """Up to the equals sign; that of an option of its own is in brackets."""
        parts = []
        while (word := self.next()) != "=":
            parts.append(word)
        return "".join(parts)

    def _value(self) -> list[str]:
        """The words of a value, up to what ends it."""
        words: list[str] = []
        depth = 0
        while depth or self.peek() not in (",", ";", "]"):
            word = self.next()
            depth += (word in "{[<(") - (word in "}]>)")
            words.append(word)
        return words

    def _assign(self, options: Any, name: str) -> None:
        """Set an option of Protobuf's own, of a simple type."""
        words = self._value()
        known = options.DESCRIPTOR.fields_by_name.get(name)
        is_simple = known is not None and isinstance(getattr(options, name), bool | int | str)
        if known is None or not is_simple or not words:
            return
        word = "".join(words)
        if known.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            setattr(options, name, word == "true")
        elif known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            setattr(options, name, "".join(map(_text_of, words)))
        elif known.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            value = known.enum_type.values_by_name.get(word)
            if value is not None:
                setattr(options, name, value.number)

    def _default(self, field: FieldDescriptorProto) -> str:
        """As the compiler writes it down."""
        words = self._value()
        if field.type == FieldDescriptorProto.TYPE_STRING:
            return "".join(map(_text_of, words))
        if field.type == FieldDescriptorProto.TYPE_BYTES:
            return _c_escaped(b"".join(map(_bytes_of, words)))
        word = "".join(words)
        is_real = field.type in (FieldDescriptorProto.TYPE_DOUBLE, FieldDescriptorProto.TYPE_FLOAT)
        if is_real or not re.fullmatch(r"-?[0-9].*", word):
            return word
        sign, digits = ("-", word[1:]) if word[0] == "-" else ("", word)
        return sign + str(Words([digits]).number())


def _add_choices_of_one(message: DescriptorProto) -> None:
    """A field of proto3 that is optional is the only one of a choice, behind all others."""
    taken = {each.name for each in message.field} | {each.name for each in message.oneof_decl}
    for field in message.field:
        if field.proto3_optional:
            name = f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)


def _camel(name: str) -> str:
    """The name without underscores: what follows one, or is the first, is a capital."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _json_name(name: str) -> str:
    """The same as JSON has it: the first letter stays."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _text_of(word: str) -> str:
    return _bytes_of(word).decode("utf-8", "replace")


def _bytes_of(word: str) -> bytes:
    """What stands between quotes. Raises RegistryError."""
    if word[:1] not in ("'", '"'):
        raise invalid_schema(f"'{word[:100]}' is no text")

    def unescaped(found: re.Match[bytes]) -> bytes:
        hexadecimal, octal, short, long, other = found.groups()
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if short or long:
            code = int(short or long, 16)
            return chr(code if code <= 0x10FFFF else 0xFFFD).encode("utf-8", "replace")
        return _ESCAPED.get(other, other)

    return _ESCAPE.sub(unescaped, word[1:-1].encode("utf-8", "replace"))


def _c_escaped(data: bytes) -> str:
    """Bytes as a default has them: what is no printable ASCII in octal."""
    special = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x22: '\\"', 0x27: "\\'", 0x5C: "\\\\"}
    return "".join(
        special.get(each) or (chr(each) if 0x20 <= each < 0x7F else f"\\{each:03o}")
        for each in data
    )
