"""The parser of Protobuf files: from words to statements, in the order of the file.

Options, ranges, services and extensions are kept as words, because schemas are registered without a
look at them. Whoever needs one reads its words; the fields of an extension by `extension_fields`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .errors import invalid_schema
from .protobuf_words import Words, named, typed

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
    """The version of the language; `editions` for a file with an edition."""

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
    """An option: the words from its name up to the semicolon."""

    words: list[str]


@dataclass(slots=True)
class ReservedNode:
    """Reserved names or numbers: the words up to the semicolon."""

    words: list[str]


@dataclass(slots=True)
class ExtensionsNode:
    """Numbers for extensions: the words up to the semicolon."""

    words: list[str]


@dataclass(slots=True)
class ExtendNode:
    """Fields that are added to the message `extended`: the words of the block, with its braces."""

    extended: str
    words: list[str]


@dataclass(slots=True)
class ServiceNode:
    """A service and the words of its block, with its braces."""

    name: str
    words: list[str]


@dataclass(slots=True)
class EnumValueNode:
    """A value of an enum; `options` are words in brackets, empty for none."""

    name: str
    number: int
    options: list[str]


@dataclass(slots=True)
class EnumNode:
    name: str
    elements: list[EnumValueNode | OptionNode | ReservedNode] = field(default_factory=list)


@dataclass(slots=True)
class FieldNode:
    """A field: `name` is that of the message if the field is a group, which `group` then declares.

    `map_key` is the type of the keys if the field is a map, and `type` that of the values. `options`
    are words in brackets, empty for none.
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
    """Parse a file. Raises RegistryError if it is not well-formed."""
    return _Parser(tokens).file()


def extension_fields(node: ExtendNode) -> list[FieldNode]:
    """Parse the fields of an extension. Raises RegistryError if they are not well-formed."""
    return _Parser(node.words).extension()


class _Parser(Words):
    """Reads words once, from the first to the last; recursion is as deep as the braces are nested."""

    def file(self) -> list[Statement]:
        statements: list[Statement] = []
        while not self.is_at_end:
            if (word := self.next()) != ";":
                statements.append(self._statement(word))
        return statements

    def extension(self) -> list[FieldNode]:
        self.expect("{")
        fields = []
        while (word := self.next()) != "}":
            if word != ";":
                fields.append(self._field(word))
        return fields

    def _statement(self, word: str) -> Statement:
        match word:
            case "syntax" | "edition":
                return self._syntax(word)
            case "package":
                package = PackageNode(self.name_with_dots())
                self.expect(";")
                return package
            case "import":
                return self._import()
            case "option":
                return OptionNode(self.statement_words())
            case "message":
                return self._message()
            case "enum":
                return self._enum()
            case "service":
                return ServiceNode(self.name(), self.block_words())
            case "extend":
                return self._extend()
        raise self.unexpected(word)

    def _syntax(self, keyword: str) -> SyntaxNode:
        self.expect("=")
        text = self.text()
        version = text if keyword == "syntax" else "editions"
        if version not in ("proto2", "proto3", "editions"):
            raise invalid_schema(f"there is no syntax {version}")
        self.expect(";")
        return SyntaxNode(version)

    def _import(self) -> ImportNode:
        modifier = self.next() if self.peek() in ("public", "weak") else ""
        node = ImportNode(self.text(), modifier)
        self.expect(";")
        return node

    def _extend(self) -> ExtendNode:
        return ExtendNode(self.name_with_dots(), self.block_words())

    def _message(self) -> MessageNode:
        message = MessageNode(self.name())
        self._elements(message)
        return message

    def _elements(self, message: MessageNode) -> None:
        self.expect("{")
        while (word := self.next()) != "}":
            if word != ";":
                message.elements.append(self._element(word))

    def _element(self, word: str) -> Element:
        is_declaration = self.peek(1) == "{"
        match word:
            case "message" if is_declaration:
                return self._message()
            case "enum" if is_declaration:
                return self._enum()
            case "extend" if is_declaration:
                return self._extend()
            case "oneof" if is_declaration:
                return self._oneof()
            case "option":
                return OptionNode(self.statement_words())
            case "reserved":
                return ReservedNode(self.statement_words())
            case "extensions":
                return ExtensionsNode(self.statement_words())
        return self._field(word)

    def _oneof(self) -> OneofNode:
        oneof = OneofNode(self.name())
        self.expect("{")
        while (word := self.next()) != "}":
            if word == "option":
                oneof.elements.append(OptionNode(self.statement_words()))
            elif word != ";":
                oneof.elements.append(self._field(word))
        return oneof

    def _field(self, word: str) -> FieldNode:
        label, key = "", ""
        if word in LABELS:
            label, word = word, self.next()
        if word == "group":
            return self._group(label)
        if word == "map" and self.peek() == "<":
            key, word = self._map()
        kind = typed(word)
        name = self.name()
        self.expect("=")
        node = FieldNode(name, self.number(), kind, label, key, self._bracketed_words())
        self.expect(";")
        return node

    def _map(self) -> tuple[str, str]:
        """Read the types of the keys and of the values of a map."""
        self.expect("<")
        key = self.next()
        self.expect(",")
        value = self.name_with_dots()
        self.expect(">")
        if key not in _KEYS:
            raise invalid_schema(f"{key} is no key of a map")
        return key, value

    def _group(self, label: str) -> FieldNode:
        name = self.name()
        self.expect("=")
        message = MessageNode(name)
        node = FieldNode(name, self.number(), name, label, "", self._bracketed_words(), message)
        self._elements(message)
        return node

    def _enum(self) -> EnumNode:
        enum = EnumNode(self.name())
        self.expect("{")
        while (word := self.next()) != "}":
            if word == "option":
                enum.elements.append(OptionNode(self.statement_words()))
            elif word == "reserved":
                enum.elements.append(ReservedNode(self.statement_words()))
            elif word != ";":
                named(word)
                self.expect("=")
                enum.elements.append(EnumValueNode(word, self.signed(), self._bracketed_words()))
                self.expect(";")
        return enum

    def _bracketed_words(self) -> list[str]:
        return self.bracket_words() if self.peek() == "[" else []
