"""Tokenizer of Protobuf files, and a reader for the tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import RegistryError, invalid_schema
from .limits import DEPTH_MAX, DIGITS_MAX, check_name

TOKENS_MAX = 300_000
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*(?s:.*?)\*/)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<token>[A-Za-z_][A-Za-z0-9_.]*|\.[A-Za-z_][A-Za-z0-9_.]*|[0-9.][A-Za-z0-9_.]*(?:(?<=[eE])[+-][0-9]+)?)
    |(?P<mark>[][{}()<>;=,:/+-])""",
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def tokens_of(text: str) -> list[str]:
    """Split a text into tokens without white space and comments. Raises RegistryError."""
    tokens: list[str] = []
    at, depth = 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise invalid_schema(f"line {line}: {text[at : at + 20]!r} is not a valid token")
        at = match.end()
        if match.lastgroup == "skip":
            continue
        token = match.group()
        depth += (token in "{[<(") - (token in "}]>)")
        if depth > DEPTH_MAX:
            raise invalid_schema(f"nested deeper than {DEPTH_MAX} levels")
        tokens.append(token)
        if len(tokens) > TOKENS_MAX:
            raise invalid_schema(f"more than {TOKENS_MAX} tokens")
    return tokens


class TokenReader:
    """Sequential reader of tokens. Its methods raise RegistryError for unexpected tokens."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """True if all tokens have been read."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        """Return a token without reading it; an empty string after the last token.

        Args:
            ahead: Number of tokens between the read position and the returned token.
        """
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def next(self) -> str:
        """Read the next token."""
        if self._at >= len(self._tokens):
            raise invalid_schema("unexpected end of file")
        self._at += 1
        return self._tokens[self._at - 1]

    def expect(self, token: str) -> None:
        """Read a token that must be equal to `token`."""
        found = self.next()
        if found != token:
            raise self.unexpected(found, token)

    def unexpected(self, found: str, expected: str = "") -> RegistryError:
        """Return the error for the token that was read last.

        Args:
            found: The token.
            expected: The expected token, or a description of it; empty to omit it from the message.
        """
        last_tokens = " ".join(self._tokens[max(0, self._at - 5) : self._at])[:200]
        instead = f" instead of '{expected}'" if expected else ""
        return invalid_schema(f"unexpected '{found[:100]}'{instead} after: {last_tokens}")

    def name(self) -> str:
        """Read a name."""
        return check_simple_name(self.next())

    def name_with_dots(self) -> str:
        """Read a qualified name of a type or package."""
        return check_qualified_name(self.next())

    def text(self) -> str:
        """Read a quoted string and return it without quotes, with escapes unchanged."""
        token = self.next()
        if token[:1] not in ("'", '"'):
            raise self.unexpected(token, "a string")
        return token[1:-1]

    def number(self) -> int:
        """Read an unsigned integer."""
        token = self.next()
        if len(token) > DIGITS_MAX:
            raise self.unexpected(token, "a number")
        try:
            return int(token, 8 if re.fullmatch(r"0[0-7]+", token) else 0)
        except ValueError:
            raise self.unexpected(token, "a number") from None

    def signed(self) -> int:
        """Read an integer with an optional minus sign."""
        if self.peek() == "-":
            self.next()
            return -self.number()
        return self.number()

    def statement_tokens(self) -> list[str]:
        """Read up to the semicolon that ends the current statement."""
        begin, depth = self._at, 0
        while (token := self.next()) != ";" or depth:
            depth += (token in "{[(") - (token in "}])")
        return [*self._tokens[begin : self._at]]

    def bracket_tokens(self) -> list[str]:
        """Read a block in brackets or braces that starts at the next token."""
        begin, depth = self._at, 0
        while True:
            token = self.next()
            depth += (token in "{[") - (token in "}]")
            if not depth:
                return [*self._tokens[begin : self._at]]

    def block_tokens(self) -> list[str]:
        """Read a required block in braces."""
        if self.peek() != "{":
            raise self.unexpected(self.next(), "{")
        return self.bracket_tokens()


def check_simple_name(token: str) -> str:
    """Return the token if it is a name. Raises RegistryError."""
    if not _NAME.match(token):
        raise invalid_schema(f"'{token[:100]}' is not a name")
    return token


def check_qualified_name(token: str) -> str:
    """Return the token if it is a qualified name. Raises RegistryError."""
    check_name(token)
    for part in token.removeprefix(".").split("."):
        check_simple_name(part)
    return token


def full_name(scope: str, name: str) -> str:
    """Return the full name of a declaration. Raises RegistryError if it is too long."""
    full = f"{scope}.{name}" if scope else name
    check_name(full)
    return full
