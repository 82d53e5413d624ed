"""Sources of settings: property files, TOML, environment, ``key=value`` options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.text.documents import read_toml
from kbroker.text.pairs import parse_pairs

from .property import ConfigError, Source

ENVIRONMENT_PREFIX = "KBROKER_CFG_"

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


class ConfigLayer(NamedTuple):
    """Settings from one place. ``origin`` names the place for users, ``source`` for clients."""

    origin: str
    values: Mapping[str, str]
    source: Source = Source.STATIC_BROKER


def read_options(options: Iterable[str]) -> dict[str, str]:
    """Parse ``key=value`` command-line options; the last one of each name applies.

    Raises:
        ConfigError: An option has no ``=``, or no name before it.
    """
    try:
        return {name: value.strip() for name, value in parse_pairs(options).items()}
    except ValueError as error:
        raise ConfigError(str(error)) from None


def read_environment(
    environ: Mapping[str, str], prefix: str = ENVIRONMENT_PREFIX
) -> dict[str, str]:
    """Return the settings in environment variables, named as in Kafka's container image.

    After the prefix, ``_`` means a dot, ``__`` an underscore, ``___`` a dash:
    ``KBROKER_CFG_LOG_RETENTION_MS`` is ``log.retention.ms``.
    """
    return {
        _name_of_variable(variable.removeprefix(prefix)): value
        for variable, value in environ.items()
        if variable.startswith(prefix) and variable != prefix
    }


def _name_of_variable(text: str) -> str:
    parts = text.lower().replace("___", "-").split("__")
    return "_".join(part.replace("_", ".") for part in parts)


def variable_of(name: str, prefix: str = ENVIRONMENT_PREFIX) -> str:
    """Return the environment variable that `read_environment` reads for a setting."""
    escaped = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return prefix + escaped.upper()


def read_file(path: Path) -> dict[str, str]:
    """Read a ``.toml`` file or, with any other extension, a Java properties file.

    Raises:
        ConfigError: The file cannot be read or parsed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"Configuration file {path}: cannot read it: {reason}") from error
    try:
        return parse_toml(_text(data)) if path.suffix == ".toml" else parse_properties(_text(data))
    except ConfigError as error:
        raise ConfigError(f"Configuration file {path}: {error}") from None


def _text(data: bytes) -> str:
    # Java reads Latin-1, but most files are written as UTF-8.
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse the format of ``java.util.Properties``: comments, continued lines, escapes.

    Raises:
        ConfigError: A ``\uXXXX`` escape is invalid; the message has the line number.
    """
    values = {}
    for number, line in _logical_lines(text):
        end = _end_of_name(line)
        rest = line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        values[_unescape(line[:end], number)] = _unescape(rest, number)
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with its number, without blank lines and comments."""
    joined, started = "", 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, natural in enumerate(lines, start=1):
        line = natural.lstrip(_BLANKS)
        if not joined and (not line or line[0] in "#!"):
            continue
        started = started if joined else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 and number < len(lines):
            joined += line[:-1]
            continue
        yield started, joined + line
        joined = ""


def _end_of_name(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter != "\\":
            out.append(letter)
            position += 1
            continue
        escaped = text[position + 1 : position + 2]
        if escaped == "u":
            out.append(_unicode(text[position + 2 : position + 6], number))
            position += 6
        else:
            out.append(_ESCAPES.get(escaped, escaped))
            position += 2
    return "".join(out)


def _unicode(digits: str, number: int) -> str:
    try:
        if len(digits) != 4:
            raise ValueError(digits)
        return chr(int(digits, 16))
    except ValueError:
        raise ConfigError(f"line {number}: \\u needs four hexadecimal digits") from None


def parse_toml(text: str) -> dict[str, str]:
    """Read settings from TOML: tables joined by dots, arrays as lists.

    A name that is also the prefix of another name must be quoted in TOML, because a key cannot be
    both a value and a table: ``"max.connections" = 5``.

    Raises:
        ConfigError: The TOML is invalid, or a value has an unsupported type.
    """
    try:
        document = read_toml(text)
    except ValueError as error:
        hint = 'quote a name that is a prefix of another name: "max.connections" = 5'
        raise ConfigError(f"{error} ({hint})") from None
    return dict(_flat(document, ""))


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, property_text(prefix + key, value)


def property_text(name: str, value: object) -> str:
    """Return a setting in Kafka's notation for a value from TOML or Python.

    Raises:
        ConfigError: The value has an unsupported type.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case list() if not any(isinstance(item, list | dict) for item in value):
            return ",".join(property_text(name, item) for item in value)
    raise ConfigError(f"{name}: expected a string, number, boolean or a list of these")
