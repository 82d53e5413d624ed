"""Files of Protobuf: their text, and the messages and enums that they declare."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from .errors import RegistryError, invalid_schema
from .limits import DEPTH_MAX, Budget
from .parsed import Difference
from .protobuf_reading import Reading
from .protobuf_types import Declared, Field, Message

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
TOKENS_MAX = 300_000
WELL_KNOWN = ("google/protobuf/", "google/type/", "confluent/")
"""Files that everybody has."""
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*(?s:.*?)\*/)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z_][A-Za-z0-9_.]*|\.[A-Za-z_][A-Za-z0-9_.]*|[0-9.][A-Za-z0-9_.]*(?:(?<=[eE])[+-][0-9]+)?)
    |(?P<mark>[][{}()<>;=,:/+-])""",
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NO_SPACE_BEFORE, _NO_SPACE_AFTER = frozenset(";,)]>"), frozenset("([<-")


class ProtobufSchema:
    """A file of Protobuf that is well-formed. `texts` are those that it imports, by their names.

    `text` may also be a FileDescriptorProto in base64.
    """

    def __init__(self, text: str, texts: Mapping[str, str] | None = None) -> None:
        tokens = _tokens(_as_text(text))
        self.canonical = _joined(tokens)
        self.own = _Parser(tokens).file()
        if not (self.own.messages or self.own.enums):
            raise invalid_schema("it declares neither a message nor an enum")
        self.known = Declared(self.own.package)
        for each in texts or {}:
            self._add(_Parser(_tokens(_as_text((texts or {})[each]))).file())
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


def _as_text(text: str) -> str:
    """The text of a file that may have come as its descriptor. Raises RegistryError."""
    if re.fullmatch(r"[A-Za-z0-9+/\s]+={0,2}\s*", text) is None:
        return text
    try:
        data = base64.b64decode(text)
    except binascii.Error:
        return text
    from .protobuf_descriptor import text_of_descriptor

    return text_of_descriptor(data)


def _tokens(text: str) -> list[str]:
    """The words and marks of a text. Raises RegistryError."""
    tokens: list[str] = []
    at, depth = 0, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            raise invalid_schema(f"line {line}: {text[at : at + 20]!r} is not understood")
        at = found.end()
        if found.lastgroup == "skip":
            continue
        token = found.group()
        depth += (token in "{[<(") - (token in "}]>)")
        if depth > DEPTH_MAX:
            raise invalid_schema(f"it is nested deeper than {DEPTH_MAX} levels")
        tokens.append(token)
        if len(tokens) > TOKENS_MAX:
            raise invalid_schema(f"it has more than {TOKENS_MAX} words")
    return tokens


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
    return "\n".join([*lines, line] if line else lines) + "\n"


class _Parser:
    """Reads declarations. Raises RegistryError."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._declared = Declared()

    def file(self) -> Declared:
        while self._at < len(self._tokens):
            self._statement()
        return self._declared

    def _statement(self) -> None:
        word = self._next()
        declared = self._declared
        match word:
            case ";":
                return
            case "syntax" | "edition":
                self._expect("=")
                declared.syntax = self._text() if word == "syntax" else "editions"
                if declared.syntax not in ("proto2", "proto3", "editions"):
                    raise invalid_schema(f"there is no syntax {declared.syntax}")
                self._expect(";")
            case "package":
                declared.package = self._name_with_dots()
                self._expect(";")
            case "import":
                if self._peek() in ("public", "weak"):
                    self._next()
                declared.imports.append(self._text())
                self._expect(";")
            case "option":
                self._skip_statement()
            case "message":
                self._message(declared.package)
            case "enum":
                self._enum(declared.package)
            case "service":
                self._name()
                self._skip_block()
            case "extend":
                self._name_with_dots()
                self._skip_block()
            case _:
                raise self._unexpected(word)

    def _message(self, scope: str) -> None:
        name = _inside(scope, self._name())
        message = Message(name, has_defaults=self._declared.syntax == "proto3")
        if message.name in self._declared.messages:
            raise invalid_schema(f"{message.name} is declared twice")
        self._declared.messages[message.name] = message
        self._expect("{")
        self._elements(message)

    def _elements(self, message: Message) -> None:
        while (word := self._next()) != "}":
            match word:
                case ";":
                    continue
                case "message" if self._is_declaration():
                    self._message(message.name)
                case "enum" if self._is_declaration():
                    self._enum(message.name)
                case "extend" if self._is_declaration():
                    self._name_with_dots()
                    self._skip_block()
                case "oneof" if self._is_declaration():
                    self._oneof(message)
                case "option" | "reserved" | "extensions":
                    self._skip_statement()
                case _:
                    self._field(message, word)

    def _is_declaration(self) -> bool:
        return self._tokens[self._at + 1 : self._at + 2] == ["{"]

    def _oneof(self, message: Message) -> None:
        name = self._name()
        message.oneofs[name] = set()
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                self._skip_statement()
            elif word != ";":
                self._field(message, word, name)

    def _field(self, message: Message, word: str, oneof: str = "") -> None:
        label, key = "", ""
        if word in ("repeated", "optional", "required"):
            label, word = word, self._next()
        if word == "group":
            self._group(message, label, oneof)
            return
        if word == "map" and self._peek() == "<":
            self._next()
            key = self._next()
            self._expect(",")
            word = self._name_with_dots()
            self._expect(">")
            label = "repeated"
            if key not in SCALARS - {"double", "float", "bytes"}:
                raise invalid_schema(f"{key} is no key of a map")
        kind = _typed(word)
        name = self._name()
        self._expect("=")
        self._add(message, Field(name, self._number(), kind, label, oneof, key))
        if self._peek() == "[":
            self._skip_brackets()
        self._expect(";")

    def _group(self, message: Message, label: str, oneof: str) -> None:
        name = self._name()
        self._expect("=")
        inner = _inside(message.name, name)
        self._add(message, Field(name.lower(), self._number(), inner, label, oneof))
        if self._peek() == "[":
            self._skip_brackets()
        self._expect("{")
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
        name = _inside(scope, self._name())
        values: dict[str, int] = {}
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved"):
                self._skip_statement()
            elif word != ";":
                _named(word)
                self._expect("=")
                sign = -1 if self._peek() == "-" else 1
                if sign < 0:
                    self._next()
                values[word] = sign * self._number()
                if self._peek() == "[":
                    self._skip_brackets()
                self._expect(";")
        if not values:
            raise invalid_schema(f"enum {name} has no values")
        self._declared.enums[name] = values

    # -- words

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise invalid_schema("the file ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._unexpected(found, token)

    def _unexpected(self, found: str, wanted: str = "") -> RegistryError:
        around = " ".join(self._tokens[max(0, self._at - 5) : self._at])[:200]
        instead = f" in place of '{wanted}'" if wanted else ""
        return invalid_schema(f"'{found[:100]}' is not expected{instead}: {around}")

    def _name(self) -> str:
        return _named(self._next())

    def _name_with_dots(self) -> str:
        return _typed(self._next())

    def _text(self) -> str:
        word = self._next()
        if word[:1] not in ("'", '"'):
            raise self._unexpected(word, "a text")
        return word[1:-1]

    def _number(self) -> int:
        word = self._next()
        try:
            return int(word, 8 if re.fullmatch(r"0[0-7]+", word) else 0)
        except ValueError:
            raise self._unexpected(word, "a number") from None

    def _skip_statement(self) -> None:
        depth = 0
        while (word := self._next()) != ";" or depth:
            depth += (word in "{[(") - (word in "}])")

    def _skip_brackets(self) -> None:
        depth = 0
        while True:
            word = self._next()
            depth += (word in "{[") - (word in "}]")
            if not depth:
                return

    def _skip_block(self) -> None:
        if self._peek() != "{":
            raise self._unexpected(self._next(), "{")
        self._skip_brackets()


def _named(word: str) -> str:
    if not _NAME.match(word):
        raise invalid_schema(f"'{word[:100]}' is no name")
    return word


def _typed(word: str) -> str:
    for part in word.removeprefix(".").split("."):
        _named(part)
    return word


def _inside(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
