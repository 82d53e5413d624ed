"""Filter expressions for records: ``value.user.country == "DE" and size > 100``.

A term compares a path with a string, a number, ``true``, ``false`` or ``null``; ``~`` tests for a
substring. Paths are ``key``, ``value`` (and JSON paths in them: ``value.a.0.b``), ``headers.NAME``,
``topic``, ``partition``, ``offset``, ``timestamp`` and ``size``. Terms are combined with ``and``,
``or``, ``not`` and parentheses. Regular expressions are not supported, as their run time is unbounded.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias


class RecordFields(Protocol):
    """The fields of a record, by path."""

    def __call__(self, path: list[str], /) -> object:
        """Return the value at a path, None if it is absent."""
        ...

    def text(self, path: list[str], /) -> str:
        """Return the value at a path as a string, empty beyond the search limit of the record."""
        ...


Test: TypeAlias = Callable[[RecordFields], bool]

# Maximum number of characters of an expression.
LENGTH_MAX = 1_000
# Maximum depth of parentheses and `not`.
DEPTH_MAX = 20
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d+(?:\.\d+)?)(?![\w.])"""
    r"""|(?P<word>[\w$-]+(?:\.[\w$-]+)*)|(?P<sign>==|!=|<=|>=|<|>|~|\(|\)))"""
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NAMED = {"true": True, "false": False, "null": None}
_PATHS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "size")


class BadExpression(ValueError):
    """An expression is malformed; the message states why.

    Attributes:
        position: Index of the first character that is wrong.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


class _Token(NamedTuple):
    """A token: its kind, its text, and the index of its first character."""

    kind: str
    text: str
    at: int


def parse(text: str) -> Test:
    """Parse an expression. Raises BadExpression."""
    if len(text) > LENGTH_MAX:
        raise BadExpression(f"longer than {LENGTH_MAX} characters", LENGTH_MAX)
    parser = _Parser(_tokens(text), len(text.rstrip()))
    test = parser.parse_or(0)
    if parser.remaining:
        raise BadExpression(f"unexpected {parser.remaining[0].text!r}", parser.position)
    return test


def path_of(text: str) -> list[str]:
    """Return the steps of a path such as ``value.user.country``. Raises BadExpression."""
    tokens = _tokens(text)
    if len(tokens) != 1 or tokens[0].kind != "word":
        raise BadExpression(f"invalid path {text[:40]!r}", 0)
    return _checked_path(tokens[0])


def _checked_path(token: _Token) -> list[str]:
    path = token.text.split(".")
    if token.kind != "word" or path[0] not in _PATHS:
        raise BadExpression(f"invalid path {token.text!r} (valid: {', '.join(_PATHS)})", token.at)
    return path


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise BadExpression(f"invalid syntax at {text[at : at + 20]!r}", at)
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token], end: int) -> None:
        self.remaining = tokens
        self._end = end

    @property
    def position(self) -> int:
        """Index of the first character that has not been parsed."""
        return self.remaining[0].at if self.remaining else self._end

    def _next(self) -> _Token:
        return self.remaining.pop(0) if self.remaining else _Token("", "the end", self._end)

    def _take(self, *wanted: str) -> str | None:
        """Take the next token if it is one of `wanted`."""
        if self.remaining and self.remaining[0].kind != "text" and self.remaining[0].text in wanted:
            return self.remaining.pop(0).text
        return None

    def parse_or(self, depth: int) -> Test:
        if depth > DEPTH_MAX:
            raise BadExpression("parentheses are nested too deeply", self.position)
        tests = [self._parse_and(depth)]
        while self._take("or"):
            tests.append(self._parse_and(depth))
        return tests[0] if len(tests) == 1 else lambda fields: any(test(fields) for test in tests)

    def _parse_and(self, depth: int) -> Test:
        tests = [self._parse_not(depth)]
        while self._take("and"):
            tests.append(self._parse_not(depth))
        return tests[0] if len(tests) == 1 else lambda fields: all(test(fields) for test in tests)

    def _parse_not(self, depth: int) -> Test:
        if self._take("not"):
            if depth > DEPTH_MAX:
                raise BadExpression("too many consecutive `not`", self.position)
            inner = self._parse_not(depth + 1)
            return lambda fields: not inner(fields)
        if self._take("("):
            test = self.parse_or(depth + 1)
            if not self._take(")"):
                raise BadExpression("missing closing parenthesis", self.position)
            return test
        return self._parse_term()

    def _parse_term(self) -> Test:
        path = _checked_path(self._next())
        sign = self._take("==", "!=", "~", *_COMPARE)
        if sign is None:
            return lambda fields: fields(path) not in (None, False)
        return _comparison(path, sign, self._parse_literal())

    def _parse_literal(self) -> object:
        kind, word, at = self._next()
        if kind == "text":
            try:
                return json.loads(word, strict=False)
            except ValueError:
                raise BadExpression(f"invalid JSON string {word}", at) from None
        if kind == "number":
            return float(word) if "." in word else int(word)
        if word in _NAMED:
            return _NAMED[word]
        raise BadExpression(
            f"invalid literal {word!r}: expected a string in double quotes or a number", at
        )


def _comparison(path: list[str], sign: str, literal: object) -> Test:
    if sign == "~":
        wanted = literal if isinstance(literal, str) else json.dumps(literal)
        return lambda fields: wanted in fields.text(path)
    if sign in ("==", "!="):
        is_equal = sign == "=="
        return lambda fields: _is_equal(fields(path), literal) is is_equal
    compare = _COMPARE[sign]

    def ordered(fields: RecordFields) -> bool:
        found = fields(path)
        if isinstance(literal, int | float) and isinstance(found, str):
            found = _number(found)
        try:
            return found is not None and bool(compare(found, literal))
        except TypeError:
            return False

    return ordered


def _is_equal(found: object, literal: object) -> bool:
    """Return True if two values are equal; strings from keys and headers compare as numbers."""
    if type(literal) in (int, float) and isinstance(found, str):
        return bool(_number(found) == literal)
    return isinstance(found, bool) is isinstance(literal, bool) and bool(found == literal)


def _number(text: str) -> float | None:
    try:
        return float(text) if len(text) < 40 else None
    except ValueError:
        return None


def text_of(found: object) -> str:
    """Return a value as a string; non-strings as JSON."""
    if isinstance(found, str):
        return found
    return "" if found is None else json.dumps(found, ensure_ascii=False)
