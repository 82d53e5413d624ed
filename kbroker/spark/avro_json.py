"""Conversion of JSON objects to Avro values; types that JSON lacks are represented as strings.

====================================  ==============================================================
Avro type                             JSON value
====================================  ==============================================================
bytes, fixed                          string with one character (up to U+00FF) per byte
decimal                               string such as "1.25", or a number
date                                  string such as "2026-03-01", or a number of days
timestamp-millis, -micros             string with a UTC offset, or a number in Avro's unit
local-timestamp-millis, -micros       string without a UTC offset, or a number in Avro's unit
time-millis, time-micros              a number in Avro's unit
union                                 the plain value: the first type that accepts it is used. If
                                      none does, an object of one type's name and the value, as in
                                      Avro's JSON encoding
a missing field                       null if its type allows null, else its default
====================================  ==============================================================

All other types have the JSON type of the same name. The lake reader
(`kbroker.pipelines.lake.reading`) returns values in the same form, without null fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, TypeGuard

from kbroker.client.schema_registry import UnencodableError
from kbroker.text.documents import read_json

from .avro import Encoder, Parsed

_NAMED = frozenset({"record", "error", "enum", "fixed"})
_BITS = {"int": 32, "long": 64}
_FLOAT_MAX = (2 - 2**-23) * 2.0**127
_EPOCH = datetime(1970, 1, 1)
# Maximum number of characters of a value in error messages.
_SHOWN_MAX = 60

# A type parsed by fastavro: `type` and its attributes.
AvroType: TypeAlias = Mapping[str, Any]


class JsonEncoder:
    """Encoder from JSON objects to values of one registered schema. It is thread-safe."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._converters: dict[str, Callable[[AvroType, object], object]] = {
            "null": _null, "boolean": _boolean, "int": _integer, "long": _integer,
            "float": _floating, "double": _floating, "string": _string, "enum": _enum,
            "bytes": _bytes, "fixed": _bytes,
            "bytes-decimal": _decimal, "fixed-decimal": _decimal, "int-date": _date,
            "long-timestamp-millis": _timestamp, "long-timestamp-micros": _timestamp,
            "long-local-timestamp-millis": _timestamp, "long-local-timestamp-micros": _timestamp,
            "array": self._array, "map": self._map, "record": self._record, "error": self._record,
        }  # fmt: skip

    @property
    def description(self) -> str:
        """Name and ID of the schema, for messages."""
        return f"{self._encoder.schema['name']} (schema {self._encoder.schema_id})"

    def encode(self, text: bytes) -> bytes:
        """Encode a JSON object.

        Args:
            text: The JSON object as UTF-8.

        Returns:
            The value in Confluent's wire format.

        Raises:
            UnencodableError: The text is not a JSON object, or does not match the schema.
        """
        try:
            document = read_json(text, exact=True)
        except ValueError as error:
            raise UnencodableError(f"not a JSON object: {error}") from None
        if not isinstance(document, dict):
            raise UnencodableError(f"not a JSON object: {_shown(document)}")
        try:
            fields = self._record(self._encoder.schema, document)
        except _MismatchError as error:
            raise UnencodableError(str(error)) from None
        return self._encoder.encode(fields, branches_named=True)

    def _value(self, kind: Parsed, value: object) -> object:
        """Return a value as fastavro expects it for a type. Raises _MismatchError."""
        if isinstance(kind, list):
            return self._branch(kind, value)
        if isinstance(kind, str):
            kind = self._encoder.named.get(kind, {"type": kind})
        name = kind["type"]
        if not isinstance(name, str) or name in self._encoder.named:
            return self._value(name, value)
        take = self._converters.get(f"{name}-{kind.get('logicalType')}") or self._converters[name]
        return take(kind, value)

    def _branch(self, kinds: list[Parsed], value: object) -> object:
        """Return the name of the union branch that accepts a value, and the converted value."""
        if value is None and "null" in kinds:
            return None
        some = [kind for kind in kinds if kind != "null"]
        named = {_name(kind): kind for kind in some}
        for name, kind in named.items():
            try:
                return name, self._value(kind, value)
            except _MismatchError:
                if len(some) == 1 and not _is_wrapped(value, named):
                    raise
        if _is_wrapped(value, named):
            ((name, inner),) = value.items()
            return name, self._value(named[name], inner)
        raise _MismatchError(value, f"any type of the union of {', '.join(map(_name, kinds))}")

    def _record(self, kind: AvroType, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _MismatchError(value, f"a record {kind['name']}")
        names = [field["name"] for field in kind["fields"]]
        if more := value.keys() - set(names):
            raise _MismatchError(value[min(more)], f"a field of {kind['name']}").at(min(more))
        found = {}
        for name, field in zip(names, kind["fields"], strict=True):
            try:
                if name in value:
                    found[name] = self._value(field["type"], value[name])
                elif _has_null(field["type"]):
                    found[name] = None
                elif "default" not in field:
                    raise _MissingError
            except _MismatchError as error:
                raise error.at(name) from None
        return found

    def _array(self, kind: AvroType, value: object) -> list[object]:
        if not isinstance(value, list):
            raise _MismatchError(value, "an array")
        return [
            self._inside(kind["items"], each, f"[{number}]") for number, each in enumerate(value)
        ]

    def _map(self, kind: AvroType, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _MismatchError(value, "a map")
        return {key: self._inside(kind["values"], each, key) for key, each in value.items()}

    def _inside(self, kind: Parsed, value: object, where: str) -> object:
        try:
            return self._value(kind, value)
        except _MismatchError as error:
            raise error.at(where) from None


class _MismatchError(Exception):
    """A value that does not match the schema, with its path in the document."""

    def __init__(self, value: object, wanted: str) -> None:
        super().__init__()
        self._reason = f"{_shown(value)} is not {wanted}"
        self._path = ""

    def at(self, name: str) -> _MismatchError:
        """Prepend a field name or index to the path."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{name}{dot}{self._path}"
        return self

    def __str__(self) -> str:
        return f"{self._path}: {self._reason}"


class _MissingError(_MismatchError):
    """A missing field without a default."""

    def __init__(self) -> None:
        super().__init__(None, "")
        self._reason = "field is missing and has no default"


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _name(kind: Parsed) -> str:
    """Return the name of a type in a union, as used by fastavro and Avro's JSON encoding."""
    if isinstance(kind, str):
        return kind
    return str(kind["name"] if kind["type"] in _NAMED else kind["type"])


def _has_null(kind: Parsed) -> bool:
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


def _is_wrapped(value: object, named: Mapping[str, object]) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in named


def _null(kind: AvroType, value: object) -> None:
    if value is not None:
        raise _MismatchError(value, "null")


def _boolean(kind: AvroType, value: object) -> bool:
    if not isinstance(value, bool):
        raise _MismatchError(value, "true or false")
    return value


def _integer(kind: AvroType, value: object) -> int:
    limit = 1 << _BITS[kind["type"]] - 1
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise _MismatchError(value, f"an integer of {_BITS[kind['type']]} bits")
    return value


def _floating(kind: AvroType, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _MismatchError(value, "a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    is_too_large = math.isinf(found) and not isinstance(value, float)
    if is_too_large or (kind["type"] == "float" and _FLOAT_MAX < abs(found) < math.inf):
        raise _MismatchError(value, f"within the range of {kind['type']}")
    return found


def _string(kind: AvroType, value: object) -> str:
    if not isinstance(value, str):
        raise _MismatchError(value, "a string")
    return value


def _enum(kind: AvroType, value: object) -> str:
    if value not in kind["symbols"]:
        raise _MismatchError(value, f"one of {', '.join(kind['symbols'])}")
    return str(value)


def _bytes(kind: AvroType, value: object) -> bytes:
    try:
        found = _string(kind, value).encode("latin-1")
    except UnicodeEncodeError:
        raise _MismatchError(
            value, "a string with characters U+0000 to U+00FF (one per byte)"
        ) from None
    if len(found) != kind.get("size", len(found)):
        raise _MismatchError(value, f"a string of {kind['size']} characters (one per byte)")
    return found


def _decimal(kind: AvroType, value: object) -> Decimal:
    precision, scale = kind["precision"], kind.get("scale", 0)
    wanted = f"a decimal with precision {precision} and scale {scale}"
    if isinstance(value, bool | float) or not isinstance(value, int | str | Decimal):
        raise _MismatchError(value, wanted)
    try:
        found = Decimal(value)
    except InvalidOperation:
        raise _MismatchError(value, wanted) from None
    _, digits, exponent = found.as_tuple()
    # Check the exponent before fastavro expands the number, which may have a huge exponent.
    count = len(digits) if any(digits) else 0
    if not isinstance(exponent, int) or not 0 <= exponent + scale <= precision - count:
        raise _MismatchError(value, wanted)
    return found


def _date(kind: AvroType, value: object) -> date | int:
    if not isinstance(value, str):
        return _integer(kind, value)
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise _MismatchError(value, "a date") from None


def _timestamp(kind: AvroType, value: object) -> int:
    """Return the milliseconds or microseconds since the epoch, depending on the logical type."""
    if not isinstance(value, str):
        return _integer(kind, value)
    logical = kind["logicalType"]
    is_local = logical.startswith("local")
    wanted = f"a {logical}: a date and time {'without' if is_local else 'with'} a UTC offset"
    try:
        found = datetime.fromisoformat(value)
        if (found.tzinfo is None) != is_local:
            raise ValueError
        if found.tzinfo is not None:
            found = found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise _MismatchError(value, wanted) from None
    unit = timedelta(milliseconds=1) if logical.endswith("millis") else timedelta(microseconds=1)
    count, left = divmod(found - _EPOCH, unit)
    if left:
        raise _MismatchError(value, f"a {logical}: its precision is finer than the type's")
    return count
