"""Parser of Protobuf files: turns tokens into statements, in file order.

The parser keeps options, ranges, services and extensions as tokens, because a registration does not need
their content. `extension_fields` parses the fields of an extension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .errors import invalid_schema
from .protobuf_tokens import TokenReader, check_qualified_name, check_simple_name

SCALARS = frozenset(
    [
        "double",
        "float",
        "int32",
        "int64",
        "uint32",
        "uint64",
        "sint32",
        "sint64",
        "fixed32",
        "fixed64",
        "sfixed32",
        "sfixed64",
        "bool",
        "string",
        "bytes",
    ]
)
_KEYS = SCALARS - {"double", "float", "bytes"}
LABELS = frozenset({"optional", "required", "repeated"})


@dataclass(slots=True)
class SyntaxNode:
    """The syntax version; `editions` for a file with an edition."""

    version: str


@dataclass(slots=True)
class PackageNode:
    name: str


@dataclass(slots=True)
class ImportNode:
    """An imported file; `modifier` is `public`, `weak` or empty."""

    path: str
    modifier: str


@dataclass(slots=True)
class OptionNode:
    """An option: the tokens from its name to the semicolon."""

    tokens: list[str]


@dataclass(slots=True)
class ReservedNode:
    """Reserved names or numbers: the tokens up to the semicolon."""

    tokens: list[str]


@dataclass(slots=True)
class ExtensionsNode:
    """Extension ranges: the tokens up to the semicolon."""

    tokens: list[str]


@dataclass(slots=True)
class ExtendNode:
    """Fields added to the message `extended`: the tokens of the block with its braces."""

    extended: str
    tokens: list[str]


@dataclass(slots=True)
class ServiceNode:
    """A service and the tokens of its block with its braces."""

    name: str
    tokens: list[str]


@dataclass(slots=True)
class EnumValueNode:
    """An enum value; `options` are tokens in brackets, empty if there are none."""

    name: str
    number: int
    options: list[str]


@dataclass(slots=True)
class EnumNode:
    name: str
    elements: list[EnumValueNode | OptionNode | ReservedNode] = field(default_factory=list)


@dataclass(slots=True)
class FieldNode:
    """A field.

    Attributes:
        name: Field name, or the message name of a group.
        type: Type of the field, or of the values of a map.
        map_key: Key type of a map; empty for other fields.
        options: Tokens in brackets; empty if there are none.
        group: Message that a group field declares.
    """

    name: str
    number: int
    type: str
    label: str
    map_key: str
    options: list[str]
    group: MessageNode | None = None


@dataclass(slots=True)
class OneofNode:
    name: str
    elements: list[FieldNode | OptionNode] = field(default_factory=list)


@dataclass(slots=True)
class MessageNode:
    name: str
    elements: list[Element] = field(default_factory=list)


Element: TypeAlias = (
    MessageNode
    | EnumNode
    | ExtendNode
    | OneofNode
    | FieldNode
    | OptionNode
    | ReservedNode
    | ExtensionsNode
)
Statement: TypeAlias = (
    SyntaxNode
    | PackageNode
    | ImportNode
    | OptionNode
    | MessageNode
    | EnumNode
    | ServiceNode
    | ExtendNode
)


def statements_of(tokens: Sequence[str]) -> list[Statement]:
    """Parse a file. Raises RegistryError if it is malformed."""
    return _Parser(tokens).file()


def extension_fields(node: ExtendNode) -> list[FieldNode]:
    """Parse the fields of an extension. Raises RegistryError if they are malformed."""
    return _Parser(node.tokens).extension()


class _Parser(TokenReader):
    """Recursive-descent parser that reads each token once. It recurses only into braces."""

    def file(self) -> list[Statement]:
        statements: list[Statement] = []
        while not self.is_at_end:
            if (token := self.next()) != ";":
                statements.append(self._statement(token))
        return statements

    def extension(self) -> list[FieldNode]:
        self.expect("{")
        fields = []
        while (token := self.next()) != "}":
            if token != ";":
                fields.append(self._field(token))
        return fields

    def _statement(self, token: str) -> Statement:
        match token:
            case "syntax" | "edition":
                return self._syntax(token)
            case "package":
                package = PackageNode(self.name_with_dots())
                self.expect(";")
                return package
            case "import":
                return self._import()
            case "option":
                return OptionNode(self.statement_tokens())
            case "message":
                return self._message()
            case "enum":
                return self._enum()
            case "service":
                return ServiceNode(self.name(), self.block_tokens())
            case "extend":
                return self._extend()
        raise self.unexpected(token)

    def _syntax(self, keyword: str) -> SyntaxNode:
        self.expect("=")
        text = self.text()
        version = text if keyword == "syntax" else "editions"
        if version not in ("proto2", "proto3", "editions"):
            raise invalid_schema(f"unknown syntax {version} (valid: proto2, proto3, editions)")
        self.expect(";")
        return SyntaxNode(version)

    def _import(self) -> ImportNode:
        modifier = self.next() if self.peek() in ("public", "weak") else ""
        node = ImportNode(self.text(), modifier)
        self.expect(";")
        return node

    def _extend(self) -> ExtendNode:
        return ExtendNode(self.name_with_dots(), self.block_tokens())

    def _message(self) -> MessageNode:
        message = MessageNode(self.name())
        self._elements(message)
        return message

    def _elements(self, message: MessageNode) -> None:
        self.expect("{")
        while (token := self.next()) != "}":
            if token != ";":
                message.elements.append(self._element(token))

    def _element(self, token: str) -> Element:
        is_declaration = self.peek(1) == "{"
        match token:
            case "message" if is_declaration:
                return self._message()
            case "enum" if is_declaration:
                return self._enum()
            case "extend" if is_declaration:
                return self._extend()
            case "oneof" if is_declaration:
                return self._oneof()
            case "option":
                return OptionNode(self.statement_tokens())
            case "reserved":
                return ReservedNode(self.statement_tokens())
            case "extensions":
                return ExtensionsNode(self.statement_tokens())
        return self._field(token)

    def _oneof(self) -> OneofNode:
        oneof = OneofNode(self.name())
        self.expect("{")
        while (token := self.next()) != "}":
            if token == "option":
                oneof.elements.append(OptionNode(self.statement_tokens()))
            elif token != ";":
                oneof.elements.append(self._field(token))
        return oneof

    def _field(self, token: str) -> FieldNode:
        label, key = "", ""
        if token in LABELS:
            label, token = token, self.next()
        if token == "group":
            return self._group(label)
        if token == "map" and self.peek() == "<":
            key, token = self._map()
        kind = check_qualified_name(token)
        name = self.name()
        self.expect("=")
        node = FieldNode(name, self.number(), kind, label, key, self._bracketed_tokens())
        self.expect(";")
        return node

    def _map(self) -> tuple[str, str]:
        """Read the key type and the value type of a map."""
        self.expect("<")
        key = self.next()
        self.expect(",")
        value = self.name_with_dots()
        self.expect(">")
        if key not in _KEYS:
            raise invalid_schema(f"{key} is not a valid map key type")
        return key, value

    def _group(self, label: str) -> FieldNode:
        name = self.name()
        self.expect("=")
        message = MessageNode(name)
        node = FieldNode(name, self.number(), name, label, "", self._bracketed_tokens(), message)
        self._elements(message)
        return node

    def _enum(self) -> EnumNode:
        enum = EnumNode(self.name())
        self.expect("{")
        while (token := self.next()) != "}":
            if token == "option":
                enum.elements.append(OptionNode(self.statement_tokens()))
            elif token == "reserved":
                enum.elements.append(ReservedNode(self.statement_tokens()))
            elif token != ";":
                check_simple_name(token)
                self.expect("=")
                enum.elements.append(EnumValueNode(token, self.signed(), self._bracketed_tokens()))
                self.expect(";")
        return enum

    def _bracketed_tokens(self) -> list[str]:
        return self.bracket_tokens() if self.peek() == "[" else []
