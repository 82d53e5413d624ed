"""Objects of JSON as values of Avro: what JSON has no word for stands in it as text.

====================================  ==============================================================
in the schema                         in JSON
====================================  ==============================================================
bytes, fixed                          text, each of whose characters (up to U+00FF) stands for a byte
decimal                               text such as "1.25", or a number
date                                  text such as "2026-03-01", or a number of days
timestamp-millis, -micros             text with an offset from UTC, or a number as Avro counts
local-timestamp-millis, -micros       text without one, or a number as Avro counts
time-millis, time-micros              a number as Avro counts
union                                 the value alone: it is of the first type that takes it. If none
                                      does, an object of one type's name and the value, as Avro's JSON
                                      has it
a field that is not there             null if its type has null, else its default
====================================  ==============================================================

All else is what it is called. These are the forms in which a lake gives its values back
(`kbroker.pipelines.lake.reading`), which leaves out what is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, TypeGuard

from kbroker.text.documents import read_json

from .avro import Encoder, Parsed
from .schema_registry import UnencodableError

_NAMED = frozenset({"record", "error", "enum", "fixed"})
_BITS = {"int": 32, "long": 64}
_FLOAT_MAX = (2 - 2**-23) * 2.0**127
_EPOCH = datetime(1970, 1, 1)
_SHOWN_MAX = 60
"""How many characters of a wrong value are shown."""

Kind: TypeAlias = Mapping[str, Any]
"""A type as fastavro has parsed it: `type`, and what else that needs."""


class JsonEncoder:
    """Encodes objects of JSON by a schema that has a number. It can be used by several threads."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._takers: dict[str, Callable[[Kind, object], object]] = {
            "null": _null, "boolean": _boolean, "int": _whole, "long": _whole,
            "float": _floating, "double": _floating, "string": _string, "enum": _enum,
            "bytes": _bytes, "fixed": _bytes,
            "bytes-decimal": _decimal, "fixed-decimal": _decimal, "int-date": _date,
            "long-timestamp-millis": _timestamp, "long-timestamp-micros": _timestamp,
            "long-local-timestamp-millis": _timestamp, "long-local-timestamp-micros": _timestamp,
            "array": self._array, "map": self._map, "record": self._record, "error": self._record,
        }  # fmt: skip

    @property
    def says(self) -> str:
        """What values are encoded as, for messages."""
        return f"{self._encoder.schema['name']} (schema {self._encoder.schema_id})"

    def encode(self, text: bytes) -> bytes:
        """The value of an object of JSON.

        Raises:
            UnencodableError: it is none, or does not fit the schema.
        """
        try:
            document = read_json(text, exact=True)
        except ValueError as error:
            raise UnencodableError(f"it is no JSON object: {error}") from None
        if not isinstance(document, dict):
            raise UnencodableError(f"it is no JSON object, but {_shown(document)}")
        try:
            fields = self._record(self._encoder.schema, document)
        except _Misfit as error:
            raise UnencodableError(str(error)) from None
        return self._encoder.encode(fields, branches_named=True)

    def _value(self, kind: Parsed, value: object) -> object:
        """A value as fastavro takes it for a type. Raises _Misfit."""
        if isinstance(kind, list):
            return self._branch(kind, value)
        if isinstance(kind, str):
            kind = self._encoder.named.get(kind, {"type": kind})
        name = kind["type"]
        if not isinstance(name, str) or name in self._encoder.named:
            return self._value(name, value)
        take = self._takers.get(f"{name}-{kind.get('logicalType')}") or self._takers[name]
        return take(kind, value)

    def _branch(self, kinds: list[Parsed], value: object) -> object:
        """A value in a union, with the name of its type there."""
        if value is None and "null" in kinds:
            return None
        some = [kind for kind in kinds if kind != "null"]
        named = {_name(kind): kind for kind in some}
        for name, kind in named.items():
            try:
                return name, self._value(kind, value)
            except _Misfit:
                if len(some) == 1 and not _is_wrapped(value, named):
                    raise
        if _is_wrapped(value, named):
            ((name, inner),) = value.items()
            return name, self._value(named[name], inner)
        raise _Misfit(value, f"in the union of {', '.join(map(_name, kinds))}")

    def _record(self, kind: Kind, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _Misfit(value, f"a record {kind['name']}")
        names = [field["name"] for field in kind["fields"]]
        if more := value.keys() - set(names):
            raise _Misfit(value[min(more)], f"a field of {kind['name']}").at(min(more))
        found = {}
        for name, field in zip(names, kind["fields"], strict=True):
            try:
                if name in value:
                    found[name] = self._value(field["type"], value[name])
                elif _has_null(field["type"]):
                    found[name] = None
                elif "default" not in field:
                    raise _Missing
            except _Misfit as error:
                raise error.at(name) from None
        return found

    def _array(self, kind: Kind, value: object) -> list[object]:
        if not isinstance(value, list):
            raise _Misfit(value, "an array")
        return [
            self._inside(kind["items"], each, f"[{number}]") for number, each in enumerate(value)
        ]

    def _map(self, kind: Kind, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _Misfit(value, "a map")
        return {key: self._inside(kind["values"], each, key) for key, each in value.items()}

    def _inside(self, kind: Parsed, value: object, where: str) -> object:
        try:
            return self._value(kind, value)
        except _Misfit as error:
            raise error.at(where) from None


class _Misfit(Exception):
    """A value is not what the schema wants in its place."""

    def __init__(self, value: object, wanted: str) -> None:
        super().__init__()
        self._why = f"{_shown(value)} is not {wanted}"
        self._path = ""

    def at(self, name: str) -> _Misfit:
        """The same, said from one level further out."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{name}{dot}{self._path}"
        return self

    def __str__(self) -> str:
        return f"{self._path}: {self._why}"


class _Missing(_Misfit):
    """A field is not there, and has no default."""

    def __init__(self) -> None:
        super().__init__(None, "")
        self._why = "it is missing and has no default"


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _name(kind: Parsed) -> str:
    """What fastavro, and Avro's JSON, call a type in a union."""
    if isinstance(kind, str):
        return kind
    return str(kind["name"] if kind["type"] in _NAMED else kind["type"])


def _has_null(kind: Parsed) -> bool:
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


def _is_wrapped(value: object, named: Mapping[str, object]) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in named


def _null(kind: Kind, value: object) -> None:
    if value is not None:
        raise _Misfit(value, "null")


def _boolean(kind: Kind, value: object) -> bool:
    if not isinstance(value, bool):
        raise _Misfit(value, "true or false")
    return value


def _whole(kind: Kind, value: object) -> int:
    limit = 1 << _BITS[kind["type"]] - 1
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise _Misfit(value, f"a whole number of {_BITS[kind['type']]} bits")
    return value


def _floating(kind: Kind, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _Misfit(value, "a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    is_too_large = math.isinf(found) and not isinstance(value, float)
    if is_too_large or (kind["type"] == "float" and _FLOAT_MAX < abs(found) < math.inf):
        raise _Misfit(value, f"so small that it is a {kind['type']}")
    return found


def _string(kind: Kind, value: object) -> str:
    if not isinstance(value, str):
        raise _Misfit(value, "text")
    return value


def _enum(kind: Kind, value: object) -> str:
    if value not in kind["symbols"]:
        raise _Misfit(value, f"one of {', '.join(kind['symbols'])}")
    return str(value)


def _bytes(kind: Kind, value: object) -> bytes:
    try:
        found = _string(kind, value).encode("latin-1")
    except UnicodeEncodeError:
        raise _Misfit(value, "text whose characters stand for bytes") from None
    if len(found) != kind.get("size", len(found)):
        raise _Misfit(value, f"text of {kind['size']} characters, one for each byte")
    return found


def _decimal(kind: Kind, value: object) -> Decimal:
    precision, scale = kind["precision"], kind.get("scale", 0)
    wanted = f"a decimal of {precision} digits, {scale} of them after the point"
    if isinstance(value, bool | float) or not isinstance(value, int | str | Decimal):
        raise _Misfit(value, wanted)
    try:
        found = Decimal(value)
    except InvalidOperation:
        raise _Misfit(value, wanted) from None
    _, digits, exponent = found.as_tuple()
    # Looked at before fastavro counts it out: an exponent may be huge.
    count = len(digits) if any(digits) else 0
    if not isinstance(exponent, int) or not 0 <= exponent + scale <= precision - count:
        raise _Misfit(value, wanted)
    return found


def _date(kind: Kind, value: object) -> date | int:
    if not isinstance(value, str):
        return _whole(kind, value)
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise _Misfit(value, "a date") from None


def _timestamp(kind: Kind, value: object) -> int:
    """What Avro counts: milliseconds or microseconds since the epoch."""
    if not isinstance(value, str):
        return _whole(kind, value)
    logical = kind["logicalType"]
    is_local = logical.startswith("local")
    wanted = f"a {logical}: a time {'without an' if is_local else 'with its'} offset from UTC"
    try:
        found = datetime.fromisoformat(value)
        if (found.tzinfo is None) != is_local:
            raise ValueError
        if found.tzinfo is not None:
            found = found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise _Misfit(value, wanted) from None
    unit = timedelta(milliseconds=1) if logical.endswith("millis") else timedelta(microseconds=1)
    count, left = divmod(found - _EPOCH, unit)
    if left:
        raise _Misfit(value, f"a {logical}: it is finer than a millisecond")
    return count
