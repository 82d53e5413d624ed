"""Protobuf schemas: parsing, validation, and the canonical text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping

from .errors import invalid_schema, schema_too_large
from .limits import TEXT_MAX, Budget
from .parsed import Difference
from .protobuf_compatibility import CompatibilityChecker
from .protobuf_syntax import (
    SCALARS,
    Element,
    EnumNode,
    EnumValueNode,
    FieldNode,
    ImportNode,
    MessageNode,
    OneofNode,
    PackageNode,
    Statement,
    SyntaxNode,
    statements_of,
)
from .protobuf_tokens import full_name, tokens_of
from .protobuf_types import Declared, Field, Message

NUMBER_MAX = 2**29 - 1
# Path prefixes of files that every client has.
WELL_KNOWN = ("google/protobuf/", "google/type/", "confluent/")
_NO_BASE64 = re.compile(r"[^A-Za-z0-9+/=\s]")
_NO_SPACE_BEFORE, _NO_SPACE_AFTER = frozenset(";,)]>"), frozenset("([<-")


class ProtobufSchema:
    """A well-formed Protobuf file.

    Args:
        text: Text of the file, or a FileDescriptorProto in base64.
        texts: Texts of imported files by import path.

    Attributes:
        own: Declarations of the file itself.
        known: Declarations of the file and of its imports.
    """

    def __init__(self, text: str, texts: Mapping[str, str] | None = None) -> None:
        tokens = tokens_of(text_of(text))
        self.canonical = _format_tokens(tokens)
        if not tokens:
            raise invalid_schema("the file is empty")
        self.statements = statements_of(tokens)
        self.own = _Declarations(self.statements).declared
        self.known = Declared(self.own.package)
        for each in texts or {}:
            statements = statements_of(tokens_of(text_of((texts or {})[each])))
            self._add_known(_Declarations(statements).declared)
        self._add_known(self.own)
        self._check_imports(texts or {})
        self._check_types()

    def _add_known(self, declared: Declared) -> None:
        self.known.messages |= declared.messages
        self.known.enums |= declared.enums

    def _check_imports(self, texts: Mapping[str, str]) -> None:
        for each in self.own.imports:
            if each not in texts and not each.startswith(WELL_KNOWN):
                raise invalid_schema(f"import {each} is not among its references")

    def _check_types(self) -> None:
        # The texts of well-known files are not available here, so any name may be one of their types.
        imports_well_known = any(each.startswith(WELL_KNOWN) for each in self.own.imports)
        for message in self.own.messages.values():
            for each in message.fields.values():
                found = self.known.resolved(each.type, message.name)
                is_known = found in self.known.messages or found in self.known.enums
                if each.type not in SCALARS and not is_known and not imports_well_known:
                    raise invalid_schema(f"unknown type {each.type} in {message.name}")

    @property
    def normalized(self) -> str:
        """The canonical text, which is already independent of white space and comments."""
        return self.canonical

    def differences(self, writer: ProtobufSchema, budget: Budget) -> Iterator[Difference]:
        """Implement `parsed.ParsedSchema`."""
        return iter(CompatibilityChecker(self, writer, budget).differences())


def text_of(text: str) -> str:
    """Return the text of a file, converting it from a descriptor if needed. Raises RegistryError."""
    if _NO_BASE64.search(text) is not None or not text.strip():
        return text
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        return text
    from .protobuf_descriptor import text_of_descriptor

    return text_of_descriptor(data)


def _format_tokens(tokens: list[str]) -> str:
    """Join tokens to a text with one indented statement per line."""
    lines: list[str] = []
    line, depth, bracket_depth = "", 0, 0
    for index, token in enumerate(tokens):
        bracket_depth += (token in "[(") - (token in "])")
        if token == "}" and not bracket_depth:
            if line:
                lines.append("  " * depth + line)
                line = ""
            depth = max(0, depth - 1)
        previous = tokens[index - 1] if index else ""
        has_no_space = token in _NO_SPACE_BEFORE or previous in _NO_SPACE_AFTER or token == "<"
        line += token if not line or has_no_space else f" {token}"
        if token in ";{}" and not bracket_depth:
            if token == ";" and line == ";":
                line = ""  # skip an empty statement
                continue
            lines.append("  " * depth + line)
            line = ""
            depth += token == "{"
    text = "\n".join([*lines, line] if line else lines) + "\n"
    if len(text) > TEXT_MAX:
        raise schema_too_large(f"more than {TEXT_MAX} characters after formatting")
    return text


class _Declarations:
    """Collects the declarations of one file. Raises RegistryError."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self.declared = Declared()
        for each in statements:
            self._statement(each)

    def _statement(self, node: Statement) -> None:
        declared = self.declared
        match node:
            case SyntaxNode():
                declared.syntax = node.version
            case PackageNode():
                declared.package = node.name
            case ImportNode():
                declared.imports.append(node.path)
            case MessageNode():
                self._message(node, declared.package)
            case EnumNode():
                self._enum(node, declared.package)

    def _message(self, node: MessageNode, scope: str) -> None:
        name = full_name(scope, node.name)
        message = Message(name, has_defaults=self.declared.syntax == "proto3")
        if name in self.declared.messages:
            raise invalid_schema(f"{name} is declared twice")
        self.declared.messages[name] = message
        self._elements(message, node.elements)

    def _elements(self, message: Message, elements: Iterable[Element]) -> None:
        for each in elements:
            match each:
                case MessageNode():
                    self._message(each, message.name)
                case EnumNode():
                    self._enum(each, message.name)
                case OneofNode():
                    message.oneofs[each.name] = set()
                    for inner in each.elements:
                        if isinstance(inner, FieldNode):
                            self._field(message, inner, each.name)
                case FieldNode():
                    self._field(message, each)

    def _field(self, message: Message, node: FieldNode, oneof: str = "") -> None:
        if node.group is not None:
            group_name = full_name(message.name, node.name)
            _add_field(
                message, Field(node.name.lower(), node.number, group_name, node.label, oneof)
            )
            group = self.declared.messages[group_name] = Message(group_name, is_group=True)
            self._elements(group, node.group.elements)
            return
        label = "repeated" if node.map_key else node.label
        _add_field(message, Field(node.name, node.number, node.type, label, oneof, node.map_key))

    def _enum(self, node: EnumNode, scope: str) -> None:
        name = full_name(scope, node.name)
        values = {
            each.name: each.number for each in node.elements if isinstance(each, EnumValueNode)
        }
        if not values:
            raise invalid_schema(f"enum {name} has no values")
        self.declared.enums[name] = values


def _add_field(message: Message, each: Field) -> None:
    """Add a field to a message. Raises RegistryError if its number is invalid or in use."""
    if not 0 < each.number <= NUMBER_MAX or 19000 <= each.number < 20000:
        raise invalid_schema(f"{message.name}.{each.name} has an invalid number {each.number}")
    if each.number in message.fields:
        raise invalid_schema(f"{message.name} uses number {each.number} twice")
    message.fields[each.number] = each
    if each.oneof:
        message.oneofs[each.oneof].add(each.number)
