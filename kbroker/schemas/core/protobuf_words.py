"""The words of a file of Protobuf, and what is read of them one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import RegistryError, invalid_schema
from .limits import DEPTH_MAX, DIGITS_MAX, check_name

TOKENS_MAX = 300_000
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*(?s:.*?)\*/)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z_][A-Za-z0-9_.]*|\.[A-Za-z_][A-Za-z0-9_.]*|[0-9.][A-Za-z0-9_.]*(?:(?<=[eE])[+-][0-9]+)?)
    |(?P<mark>[][{}()<>;=,:/+-])""",
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def tokens_of(text: str) -> list[str]:
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


class Words:
    """Reads words. Raises RegistryError for what is not expected."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether all words were read."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        """A word that comes later, the next one with 0; empty behind the last one."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def next(self) -> str:
        """The next word."""
        if self._at >= len(self._tokens):
            raise invalid_schema("the file ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def expect(self, token: str) -> None:
        """Read a word that has to be there."""
        found = self.next()
        if found != token:
            raise self.unexpected(found, token)

    def unexpected(self, found: str, wanted: str = "") -> RegistryError:
        """The error for a word that was read."""
        around = " ".join(self._tokens[max(0, self._at - 5) : self._at])[:200]
        instead = f" in place of '{wanted}'" if wanted else ""
        return invalid_schema(f"'{found[:100]}' is not expected{instead}: {around}")

    def name(self) -> str:
        """A word that is a name."""
        return named(self.next())

    def name_with_dots(self) -> str:
        """A word that is the name of a type or of a package."""
        return typed(self.next())

    def text(self) -> str:
        """What stands between quotes, as it stands there."""
        word = self.next()
        if word[:1] not in ("'", '"'):
            raise self.unexpected(word, "a text")
        return word[1:-1]

    def number(self) -> int:
        """A whole number without a sign."""
        word = self.next()
        if len(word) > DIGITS_MAX:
            raise self.unexpected(word, "a number")
        try:
            return int(word, 8 if re.fullmatch(r"0[0-7]+", word) else 0)
        except ValueError:
            raise self.unexpected(word, "a number") from None

    def signed(self) -> int:
        """A whole number that may have a minus sign."""
        if self.peek() == "-":
            self.next()
            return -self.number()
        return self.number()

    def statement_words(self) -> list[str]:
        """Read up to the semicolon that ends what has begun."""
        begin, depth = self._at, 0
        while (word := self.next()) != ";" or depth:
            depth += (word in "{[(") - (word in "}])")
        return [*self._tokens[begin : self._at]]

    def bracket_words(self) -> list[str]:
        """Read what stands in brackets, of which the first one comes next."""
        begin, depth = self._at, 0
        while True:
            word = self.next()
            depth += (word in "{[") - (word in "}]")
            if not depth:
                return [*self._tokens[begin : self._at]]

    def block_words(self) -> list[str]:
        """Read what stands in braces, and has to."""
        if self.peek() != "{":
            raise self.unexpected(self.next(), "{")
        return self.bracket_words()


def named(word: str) -> str:
    """The word, if it is a name."""
    if not _NAME.match(word):
        raise invalid_schema(f"'{word[:100]}' is no name")
    return word


def typed(word: str) -> str:
    """The word, if it is made of names."""
    check_name(word)
    for part in word.removeprefix(".").split("."):
        named(part)
    return word


def inside(scope: str, name: str) -> str:
    """Return the full name of a declaration. Raises RegistryError if it is too long."""
    full = f"{scope}.{name}" if scope else name
    check_name(full)
    return full
