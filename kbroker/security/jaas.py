"""Parser for Kafka's ``sasl.jaas.config``: a login module and its options.

``org.apache.kafka.common.security.plain.PlainLoginModule required username="a" user_a="secret";``
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+
    | //[^\n]*
    | /\*.*?\*/
    | "(?P<quoted>(?:[^"\\]|\\.)*)"
    | '(?P<single>(?:[^'\\]|\\.)*)'
    | (?P<sign>[=;{}])
    | (?P<word>[^\s="';{}]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_USER = "user_"

# Returns the value of a listener setting, for one mechanism if given; empty if unset.
Lookup: TypeAlias = Callable[[str, str | None], str]


class BadJaas(ValueError):
    """Invalid JAAS text. The message never quotes the text, which contains secrets."""


class LoginModule(NamedTuple):
    """A login module: class name and options."""

    name: str
    options: Mapping[str, str]

    @property
    def short_name(self) -> str:
        """Class name without the package."""
        return self.name.rpartition(".")[2]

    @property
    def users(self) -> dict[str, str]:
        """Passwords by user, from the ``user_NAME`` options."""
        return {
            name.removeprefix(_USER): value
            for name, value in self.options.items()
            if name.startswith(_USER)
        }


def parse_jaas(text: str) -> LoginModule:
    """Parse one login module. Raises BadJaas."""
    return _parse_module(_tokenize(text))


def parse_modules(text: str) -> list[LoginModule]:
    """Parse consecutive login modules, as in a section of a JAAS login file.

    Raises:
        BadJaas: A module cannot be parsed.
    """
    return [_parse_module(tokens) for tokens in _split_after(_tokenize(text), ";")]


def parse_login_file(text: str) -> dict[str, list[LoginModule]]:
    """Parse a JAAS login file: login modules by section name.

    Raises:
        BadJaas: A section or a module cannot be parsed.
    """
    sections = {}
    for tokens in _split_after(_split_braces(_tokenize(text)), "};"):
        if len(tokens) < 3 or tokens[1] != "{" or not _is_sign(tokens[1]) or tokens[-1] != "};":
            raise BadJaas("JAAS file: it does not consist of sections NAME { ... };")
        sections[str(tokens[0])] = [_parse_module(each) for each in _split_after(tokens[2:-1], ";")]
    return sections


def _split_after(tokens: list[str], end: str) -> list[list[str]]:
    """Split tokens after each sign `end`."""
    parts: list[list[str]] = [[]]
    for token in tokens:
        parts[-1].append(token)
        if _is_sign(token) and token == end:
            parts.append([])
    return parts if parts[-1] else parts[:-1]


def _split_braces(tokens: list[str]) -> list[str]:
    """Join each `}` with the following `;`, so that section ends differ from module ends."""
    joined: list[str] = []
    for token in tokens:
        if token == ";" and joined and joined[-1] == "}" and _is_sign(joined[-1]):
            joined[-1] = _Sign("};")
        else:
            joined.append(token)
    return joined


def _parse_module(tokens: list[str]) -> LoginModule:
    if len(tokens) < 2 or tokens[1].lower() not in _FLAGS:
        raise BadJaas("it does not begin with a login module and `required`")
    if tokens[-1] != ";":
        raise BadJaas("the final `;` is missing")
    options = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise BadJaas("it has an option that is not NAME=VALUE, or several login modules")
    for name, equals, value in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if equals != "=" or _is_sign(name) or _is_sign(value):
            raise BadJaas("it has an option that is not NAME=VALUE, or several login modules")
        options[str(name)] = str(value)
    return LoginModule(str(tokens[0]), options)


def jaas_text(name: str, options: Mapping[str, str]) -> str:
    """Return a login module as text that `parse_jaas` and Java can parse."""
    words = [f"{_quote_name(key)}={_quote(value)}" for key, value in options.items()]
    return " ".join([name, "required", *words]) + ";"


def _quote_name(text: str) -> str:
    """Quote an option name unless it is a word; Java accepts only words."""
    return text if re.fullmatch(r"\w+", text, re.ASCII) else _quote(text)


def _quote(text: str) -> str:
    for escaped, character in (("\\", "\\"), ('"', '"'), *_CONTROLS.items()):
        text = text.replace(character, f"\\{escaped}")
    return f'"{text}"'


class _Sign(str):
    """A punctuation token, as opposed to a value."""

    __slots__ = ()


def _is_sign(token: str) -> bool:
    return isinstance(token, _Sign)


def _tokenize(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadJaas(f"the quotation mark at character {at + 1} is not closed")
        at = match.end()
        quoted = match["quoted"] if match["quoted"] is not None else match["single"]
        if quoted is not None:
            found.append(_ESCAPED.sub(lambda one: _CONTROLS.get(one[1], one[1]), quoted))
        elif match["sign"]:
            found.append(_Sign(match["sign"]))
        elif match["word"]:
            found.append(match["word"])
    return found
