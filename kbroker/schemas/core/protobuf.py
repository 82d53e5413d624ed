"""Files of Protobuf: their text, and the messages and enums that they declare."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from .errors import invalid_schema, schema_too_large
from .limits import TEXT_MAX, Budget
from .parsed import Difference
from .protobuf_reading import Reading
from .protobuf_types import Declared, Field, Message
from .protobuf_words import Words, inside, named, tokens_of, typed

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
NUMBER_MAX = 2**29 - 1
WELL_KNOWN = ("google/protobuf/", "google/type/", "confluent/")
"""Files that everybody has."""
_NO_BASE64 = re.compile(r"[^A-Za-z0-9+/=\s]")
_NO_SPACE_BEFORE, _NO_SPACE_AFTER = frozenset(";,)]>"), frozenset("([<-")


class ProtobufSchema:
    """A file of Protobuf that is well-formed. `texts` are those that it imports, by their names.

    `text` may also be a FileDescriptorProto in base64.
    """

    def __init__(self, text: str, texts: Mapping[str, str] | None = None) -> None:
        tokens = tokens_of(text_of(text))
        self.canonical = _joined(tokens)
        if not tokens:
            raise invalid_schema("it is empty")
        self.own = _Parser(tokens).file()
        self.known = Declared(self.own.package)
        for each in texts or {}:
            self._add(_Parser(tokens_of(text_of((texts or {})[each]))).file())
        self._add(self.own)
        self._check_imports(texts or {})
        self._check_types()

    def _add(self, declared: Declared) -> None:
        self.known.messages |= declared.messages
        self.known.enums |= declared.enums

    def _check_imports(self, texts: Mapping[str, str]) -> None:
        for each in self.own.imports:
            if each not in texts and not each.startswith(WELL_KNOWN):
                raise invalid_schema(f"import {each} is none of its references")

    def _check_types(self) -> None:
        has_foreign = any(each.startswith(WELL_KNOWN) for each in self.own.imports)
        for message in self.own.messages.values():
            for each in message.fields.values():
                found = self.known.resolved(each.type, message.name)
                known = found in self.known.messages or found in self.known.enums
                if each.type not in SCALARS and not known and not has_foreign:
                    raise invalid_schema(f"there is no type {each.type} in {message.name}")

    @property
    def normalized(self) -> str:
        """White space and comments say nothing already."""
        return self.canonical

    def differences(self, writer: ProtobufSchema, budget: Budget) -> Iterator[Difference]:
        """As `parsed.Parsed`."""
        return iter(Reading(self, writer, budget).all())


def text_of(text: str) -> str:
    """The text of a file that may have come as its descriptor. Raises RegistryError."""
    if _NO_BASE64.search(text) is not None or not text.strip():
        return text
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        return text
    from .protobuf_descriptor import text_of_descriptor

    return text_of_descriptor(data)


def _joined(tokens: list[str]) -> str:
    """The text of tokens: one statement a line, indented."""
    lines: list[str] = []
    line, depth, inner = "", 0, 0
    for index, token in enumerate(tokens):
        inner += (token in "[(") - (token in "])")
        if token == "}" and not inner:
            if line:
                lines.append("  " * depth + line)
                line = ""
            depth = max(0, depth - 1)
        before = tokens[index - 1] if index else ""
        is_close = token in _NO_SPACE_BEFORE or before in _NO_SPACE_AFTER or token == "<"
        line += token if not line or is_close else f" {token}"
        if token in ";{}" and not inner:
            if token == ";" and line == ";":
                line = ""  # a statement that says nothing
                continue
            lines.append("  " * depth + line)
            line = ""
            depth += token == "{"
    text = "\n".join([*lines, line] if line else lines) + "\n"
    if len(text) > TEXT_MAX:
        raise schema_too_large(f"with its lines indented it has more than {TEXT_MAX} characters")
    return text


class _Parser(Words):
    """Reads declarations. Raises RegistryError."""

    def __init__(self, tokens: list[str]) -> None:
        super().__init__(tokens)
        self._declared = Declared()

    def file(self) -> Declared:
        while not self.is_at_end:
            self._statement()
        return self._declared

    def _statement(self) -> None:
        word = self.next()
        declared = self._declared
        match word:
            case ";":
                return
            case "syntax" | "edition":
                self.expect("=")
                text = self.text()
                declared.syntax = text if word == "syntax" else "editions"
                if declared.syntax not in ("proto2", "proto3", "editions"):
                    raise invalid_schema(f"there is no syntax {declared.syntax}")
                self.expect(";")
            case "package":
                declared.package = self.name_with_dots()
                self.expect(";")
            case "import":
                if self.peek() in ("public", "weak"):
                    self.next()
                declared.imports.append(self.text())
                self.expect(";")
            case "option":
                self.skip_statement()
            case "message":
                self._message(declared.package)
            case "enum":
                self._enum(declared.package)
            case "service":
                self.name()
                self.skip_block()
            case "extend":
                self.name_with_dots()
                self.skip_block()
            case _:
                raise self.unexpected(word)

    def _message(self, scope: str) -> None:
        name = inside(scope, self.name())
        message = Message(name, has_defaults=self._declared.syntax == "proto3")
        if message.name in self._declared.messages:
            raise invalid_schema(f"{message.name} is declared twice")
        self._declared.messages[message.name] = message
        self.expect("{")
        self._elements(message)

    def _elements(self, message: Message) -> None:
        while (word := self.next()) != "}":
            match word:
                case ";":
                    continue
                case "message" if self._is_declaration():
                    self._message(message.name)
                case "enum" if self._is_declaration():
                    self._enum(message.name)
                case "extend" if self._is_declaration():
                    self.name_with_dots()
                    self.skip_block()
                case "oneof" if self._is_declaration():
                    self._oneof(message)
                case "option" | "reserved" | "extensions":
                    self.skip_statement()
                case _:
                    self._field(message, word)

    def _is_declaration(self) -> bool:
        return self.peek(1) == "{"

    def _oneof(self, message: Message) -> None:
        name = self.name()
        message.oneofs[name] = set()
        self.expect("{")
        while (word := self.next()) != "}":
            if word == "option":
                self.skip_statement()
            elif word != ";":
                self._field(message, word, name)

    def _field(self, message: Message, word: str, oneof: str = "") -> None:
        label, key = "", ""
        if word in ("repeated", "optional", "required"):
            label, word = word, self.next()
        if word == "group":
            self._group(message, label, oneof)
            return
        if word == "map" and self.peek() == "<":
            self.next()
            key = self.next()
            self.expect(",")
            word = self.name_with_dots()
            self.expect(">")
            label = "repeated"
            if key not in SCALARS - {"double", "float", "bytes"}:
                raise invalid_schema(f"{key} is no key of a map")
        kind = typed(word)
        name = self.name()
        self.expect("=")
        self._add(message, Field(name, self.number(), kind, label, oneof, key))
        if self.peek() == "[":
            self.skip_brackets()
        self.expect(";")

    def _group(self, message: Message, label: str, oneof: str) -> None:
        name = self.name()
        self.expect("=")
        inner = inside(message.name, name)
        self._add(message, Field(name.lower(), self.number(), inner, label, oneof))
        if self.peek() == "[":
            self.skip_brackets()
        self.expect("{")
        made = self._declared.messages[inner] = Message(inner, is_group=True)
        self._elements(made)

    def _add(self, message: Message, each: Field) -> None:
        if not 0 < each.number <= NUMBER_MAX or 19000 <= each.number < 20000:
            raise invalid_schema(f"{message.name}.{each.name} cannot have number {each.number}")
        if each.number in message.fields:
            raise invalid_schema(f"{message.name} has number {each.number} twice")
        message.fields[each.number] = each
        if each.oneof:
            message.oneofs[each.oneof].add(each.number)

    def _enum(self, scope: str) -> None:
        name = inside(scope, self.name())
        values: dict[str, int] = {}
        self.expect("{")
        while (word := self.next()) != "}":
            if word in ("option", "reserved"):
                self.skip_statement()
            elif word != ";":
                named(word)
                self.expect("=")
                sign = -1 if self.peek() == "-" else 1
                if sign < 0:
                    self.next()
                values[word] = sign * self.number()
                if self.peek() == "[":
                    self.skip_brackets()
                self.expect(";")
        if not values:
            raise invalid_schema(f"enum {name} has no values")
        self._declared.enums[name] = values
