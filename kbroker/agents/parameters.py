"""Parameters of tools: their JSON schemas, and the arguments of a call checked against them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from kbroker.config import ConfigError, Scope, plain_numbers
from kbroker.text.documents import Json
from kbroker.text.times import utc_text

# Maximum length of a name in arguments: Kafka's limit for topics, and far above usual group IDs.
TOPIC_LENGTH_MAX = 249
NAME_LENGTH_MAX = 1_000
# Maximum length of a configuration value in arguments, in characters.
CONFIG_LENGTH_MAX = 10_000
# Maximum number of elements of a list or an object in arguments.
ELEMENTS_MAX = 100
# Maximum number of partitions in arguments.
PARTITIONS_MAX = 1_000
# Maximum length of a message about invalid arguments, because the message may quote them.
MESSAGE_LENGTH_MAX = 500


class BadArguments(Exception):
    """The arguments of a call are invalid; the message states why."""


class Parameter(NamedTuple):
    """A parameter of a tool; a default in the schema applies if the argument is missing."""

    schema: Mapping[str, Json]
    required: bool = False

    def with_default(self, value: str) -> Parameter:
        """Return this parameter with a default.

        Args:
            value: The default.
        """
        return Parameter({**self.schema, "default": value})


def text(
    description: str, *, required: bool = False, length_max: int = NAME_LENGTH_MAX
) -> Parameter:
    """Return a parameter that takes a string that is not empty."""
    schema: dict[str, Json] = {"type": "string", "minLength": 1, "maxLength": length_max}
    return Parameter(schema | {"description": description}, required)


def topic(description: str = "Name of the topic.", *, required: bool = True) -> Parameter:
    """Return a parameter that takes a topic name."""
    return text(description, required=required, length_max=TOPIC_LENGTH_MAX)


def choice(
    description: str, values: Sequence[str], *, default: str | None = None, required: bool = False
) -> Parameter:
    """Return a parameter that takes one of some strings."""
    schema: dict[str, Json] = {"type": "string", "enum": list(values), "description": description}
    return Parameter(schema if default is None else schema | {"default": default}, required)


def integer(
    description: str,
    least: int | None = None,
    most: int | None = None,
    *,
    default: int | None = None,
    required: bool = False,
) -> Parameter:
    """Return a parameter that takes an integer between two limits, both inclusive."""
    schema: dict[str, Json] = {"type": "integer", "description": description}
    limits: dict[str, Json] = {"minimum": least, "maximum": most, "default": default}
    return Parameter(schema | {k: v for k, v in limits.items() if v is not None}, required)


def flag(description: str, *, default: bool = False) -> Parameter:
    """Return a parameter that takes true or false."""
    return Parameter({"type": "boolean", "description": description, "default": default})


def integers(description: str) -> Parameter:
    """Return a parameter that takes a list of integers that are not negative."""
    items: dict[str, Json] = {"type": "integer", "minimum": 0}
    return Parameter(_array(description, items, PARTITIONS_MAX))


def texts(description: str) -> Parameter:
    """Return a parameter that takes a list of strings."""
    items: dict[str, Json] = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX}
    return Parameter(_array(description, items, ELEMENTS_MAX))


def choices(description: str, values: Sequence[str]) -> Parameter:
    """Return a parameter that takes a list of some strings."""
    items: dict[str, Json] = {"type": "string", "enum": list(values)}
    return Parameter(_array(description, items, len(values)))


def objects(
    description: str, parameters: Mapping[str, Parameter], *, most: int = ELEMENTS_MAX
) -> Parameter:
    """Return a required parameter that takes a list of objects with the given fields."""
    return Parameter(_array(description, object_schema(parameters), most), required=True)


def _array(description: str, items: dict[str, Json], most: int) -> dict[str, Json]:
    array: dict[str, Json] = {"type": "array", "items": items, "minItems": 1, "maxItems": most}
    return array | {"description": description}


def pairs(description: str) -> Parameter:
    """Return a parameter that takes an object whose values are strings."""
    values: dict[str, Json] = {"type": "string", "maxLength": CONFIG_LENGTH_MAX}
    return _mapping(description, values, ELEMENTS_MAX)


def offsets(description: str) -> Parameter:
    """Return a parameter that takes an object with an offset by partition number."""
    values: dict[str, Json] = {"type": "integer", "minimum": 0}
    found = _mapping(description, values, PARTITIONS_MAX)
    return Parameter({**found.schema, "propertyNames": {"pattern": "^[0-9]{1,9}$"}})


def _mapping(description: str, values: dict[str, Json], most: int) -> Parameter:
    schema: dict[str, Json] = {"type": "object", "additionalProperties": values}
    return Parameter(
        schema | {"description": description, "maxProperties": most, "minProperties": 1}
    )


def object_schema(parameters: Mapping[str, Parameter]) -> dict[str, Json]:
    """Return the JSON schema of an object with these fields and no others.

    Args:
        parameters: The fields by name.
    """
    return {
        "type": "object",
        "properties": {name: dict(each.schema) for name, each in parameters.items()},
        "required": [name for name, each in parameters.items() if each.required],
        "additionalProperties": False,
    }


class Arguments:
    """Checked arguments of a call, with the defaults of missing ones. Create them with `check`."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """Return a string that is required or has a default."""
        value = self._values[name]
        assert isinstance(value, str)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None if it is missing."""
        return None if self._values.get(name) is None else self.text(name)

    def number(self, name: str) -> int:
        """Return an integer that is required or has a default."""
        value = self._values[name]
        assert isinstance(value, (int, float))  # JSON schemas accept 1.0 as an integer
        return int(value)

    def optional_number(self, name: str) -> int | None:
        """Return an integer, or None if it is missing."""
        return None if self._values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        return bool(self._values[name])

    def numbers(self, name: str) -> list[int]:
        """Return a list of integers; empty if it is missing."""
        return [int(each) for each in self._list(name) if isinstance(each, (int, float))]

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; empty if it is missing."""
        return [each for each in self._list(name) if isinstance(each, str)]

    def objects(self, name: str) -> list[dict[str, Json]]:
        """Return a list of objects; empty if it is missing."""
        return [each for each in self._list(name) if isinstance(each, dict)]

    def pairs(self, name: str) -> dict[str, str]:
        """Return an object whose values are strings; empty if it is missing."""
        return {key: value for key, value in self._items(name) if isinstance(value, str)}

    def settings(self, name: str, scope: Scope) -> dict[str, str]:
        """Return settings by name, with values such as 2d as plain numbers; empty if it is missing.

        Raises:
            BadArguments: A value has an unknown unit.
        """
        try:
            return plain_numbers(scope, self.pairs(name))
        except ConfigError as error:
            raise BadArguments(_short(f"{name}: {error}")) from None

    def offsets(self, name: str) -> dict[int, int]:
        """Return an offset by partition number; empty if it is missing."""
        return {
            int(key): int(value)
            for key, value in self._items(name)
            if isinstance(value, (int, float))
        }

    def given(self, *names: str) -> list[str]:
        """Return those of the names that have a value."""
        return [name for name in names if self._values.get(name) is not None]

    def _list(self, name: str) -> list[Json]:
        value = self._values.get(name)
        return value if isinstance(value, list) else []

    def _items(self, name: str) -> list[tuple[str, Json]]:
        value = self._values.get(name)
        return list(value.items()) if isinstance(value, dict) else []


def check(parameters: Mapping[str, Parameter], given: Mapping[str, Json]) -> Arguments:
    """Check the arguments of a call and add the defaults of missing ones.

    Args:
        parameters: The parameters by name.
        given: The arguments as the client sent them.

    Returns:
        The arguments.

    Raises:
        BadArguments: An argument is unknown, missing, or does not match its schema.
    """
    values = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(values.keys() - parameters.keys())
    if unknown:
        valid = ", ".join(parameters) or "none"
        raise BadArguments(f"unknown argument {_short(unknown[0])!r} (valid: {valid})")
    error = best_match(Draft202012Validator(object_schema(parameters)).iter_errors(values))
    if error is not None:
        where = "".join(f"[{each!r}]" if at else str(each) for at, each in enumerate(error.path))
        raise BadArguments(_short(f"{where}: {error.message}" if where else error.message))
    defaults = {
        name: each.schema["default"]
        for name, each in parameters.items()
        if "default" in each.schema
    }
    return Arguments(defaults | values)


def now_ms() -> int:
    """Return the current time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def parse_past_time_ms(given: str, until_ms: int) -> int:
    """Return a time in ms since the epoch; a time without a zone is UTC.

    A time in the future selects the end of every partition, so it is a mistake.

    Args:
        given: The time in ISO 8601.
        until_ms: Current time, in ms since the epoch.

    Raises:
        BadArguments: The text is not a time, or the time is after `until_ms`.
    """
    try:
        when = datetime.fromisoformat(given)
        found = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadArguments(
            f"{given[:50]!r} is not a time; expected ISO 8601 such as 2026-01-31T12:00:00Z"
        ) from None
    if found > until_ms:
        raise BadArguments(
            f"{given[:50]!r} is in the future, now is {utc_text(until_ms)}; give a past time"
        )
    return found


def _short(message: str) -> str:
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return f"{message[:MESSAGE_LENGTH_MAX]}... ({len(message)} characters)"
