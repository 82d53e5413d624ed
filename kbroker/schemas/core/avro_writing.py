"""Encoder from JSON documents to Avro data; types that JSON lacks are represented as strings.

====================================  ==============================================================
Avro type                             JSON value
====================================  ==============================================================
bytes, fixed                          string with one character (up to U+00FF) per byte
decimal                               string such as "1.25", or a number
uuid on a fixed type                  string such as "6ba7b810-9dad-11d1-80b4-00c04fd430c8", or bytes
date                                  string such as "2026-03-01", or a number of days
timestamp-millis, -micros             string with a UTC offset, or a number in Avro's unit
local-timestamp-millis, -micros       string without a UTC offset, or a number in Avro's unit
float, double                         number, or "NaN", "Infinity" and "-Infinity"
union                                 the plain value: the first type that accepts it is used. If
                                      none does, an object of one type's name and the value, as in
                                      Avro's JSON encoding
a missing field                       null if its type allows null, else its default
====================================  ==============================================================

All other types have the JSON type of the same name. `avro_values` decodes to this form.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from .avro_types import Type
from .byte_reader import check_depth
from .value_writing import Mismatch, Steps, TooManySteps

_BITS = {"int": 32, "long": 64}
_FLOAT_MAX = (2 - 2**-23) * 2.0**127
_EPOCH = datetime(1970, 1, 1)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
UUID_BYTES = 16

# Returns the Avro data of a document.
_Write: TypeAlias = Callable[["_Writer", Type, object, int], bytes]


def avro_data(root: Type, document: object) -> bytes:
    """Encode a document whose fractional numbers are `Decimal`.

    Raises:
        Mismatch: The document does not match the type, or exceeds a limit.
    """
    return _Writer().write(root, document, 0)


class _Writer:
    """Encodes one document within a number of steps."""

    def __init__(self) -> None:
        self._steps = Steps()

    def write(self, kind: Type, value: object, depth: int) -> bytes:
        self._steps.spend(value)
        logical = kind.other_properties.get("logicalType")
        write = _LOGICAL.get((kind.kind, logical)) if isinstance(logical, str) else None
        return (write or _TYPES[kind.kind])(self, kind, value, depth)

    def union(self, kind: Type, value: object, depth: int) -> bytes:
        """Encode with the first branch that accepts the value."""
        branches = kind.items
        names = {_name(branch): index for index, branch in enumerate(branches)}
        is_wrapped = isinstance(value, dict) and len(value) == 1 and next(iter(value)) in names
        others = [index for index, branch in enumerate(branches) if branch.kind != "null"]
        if value is None and "null" in names:
            return _varint(names["null"])
        for index in others:
            try:
                return _varint(index) + self.write(branches[index], value, depth)
            except TooManySteps:
                raise
            except Mismatch:
                if len(others) == 1 and not is_wrapped:
                    raise
        if is_wrapped and isinstance(value, dict):
            ((name, inner),) = value.items()
            return _varint(names[name]) + self.write(branches[names[name]], inner, depth)
        raise Mismatch(value, f"any type of the union of {', '.join(names)}")

    def record(self, kind: Type, value: object, depth: int) -> bytes:
        check_writing_depth(value, depth)
        if not isinstance(value, dict):
            raise Mismatch(value, f"a record {kind.name}")
        if more := value.keys() - {field.name for field in kind.fields}:
            raise Mismatch(value[min(more)], f"a field of {kind.name}").at(min(more))
        parts = []
        for field in kind.fields:
            try:
                if field.name in value:
                    parts.append(self.write(field.type, value[field.name], depth + 1))
                elif _has_null(field.type):
                    parts.append(self.write(field.type, None, depth + 1))
                elif field.has_default:
                    parts.append(self.write(field.type, field.default, depth + 1))
                else:
                    raise Mismatch(None, "", reason="field is missing and has no default")
            except Mismatch as error:
                raise error.at(field.name) from None
        return b"".join(parts)

    def array(self, kind: Type, value: object, depth: int) -> bytes:
        check_writing_depth(value, depth)
        if not isinstance(value, list):
            raise Mismatch(value, "an array")
        items = [
            self._inside(kind.items[0], each, f"[{number}]", depth)
            for number, each in enumerate(value)
        ]
        return _blocks(items)

    def map(self, kind: Type, value: object, depth: int) -> bytes:
        check_writing_depth(value, depth)
        if not isinstance(value, dict):
            raise Mismatch(value, "a map")
        return _blocks(
            [
                _sized(key.encode()) + self._inside(kind.items[0], each, key, depth)
                for key, each in value.items()
            ]
        )

    def _inside(self, kind: Type, value: object, where: str, depth: int) -> bytes:
        try:
            return self.write(kind, value, depth + 1)
        except Mismatch as error:
            raise error.at(where) from None


def check_writing_depth(value: object, depth: int) -> None:
    """Raise Mismatch if a document is nested too deeply."""
    try:
        check_depth(depth)
    except ValueError as error:
        raise Mismatch(value, "", reason=str(error)) from None


def _blocks(items: list[bytes]) -> bytes:
    return _varint(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _varint(value: int) -> bytes:
    """Return a zigzag varint of 64 bits."""
    left = (value << 1) ^ (value >> 63)
    data = bytearray()
    while left > 0x7F:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    return bytes(data)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _name(kind: Type) -> str:
    """Return the name of a type in a union, as in Avro's JSON encoding."""
    return kind.name or kind.kind


def _has_null(kind: Type) -> bool:
    return kind.kind == "null" or any(branch.kind == "null" for branch in kind.items)


def _null(_writer: _Writer, _kind: Type, value: object, _depth: int) -> bytes:
    if value is not None:
        raise Mismatch(value, "null")
    return b""


def _boolean(_writer: _Writer, _kind: Type, value: object, _depth: int) -> bytes:
    if not isinstance(value, bool):
        raise Mismatch(value, "true or false")
    return b"\1" if value else b"\0"


def _integer(_writer: _Writer, kind: Type, value: object, _depth: int) -> bytes:
    bits = _BITS[kind.kind]
    limit = 1 << bits - 1
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise Mismatch(value, f"an integer of {bits} bits")
    return _varint(value)


def _floating(_writer: _Writer, kind: Type, value: object, _depth: int) -> bytes:
    if isinstance(value, str) and value in _SPECIAL:
        value = _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Mismatch(value, "a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    is_too_large = math.isinf(found) and not isinstance(value, float)
    if is_too_large or (kind.kind == "float" and _FLOAT_MAX < abs(found) < math.inf):
        raise Mismatch(value, f"within the range of {kind.kind}")
    return (_FLOAT if kind.kind == "float" else _DOUBLE).pack(found)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Mismatch(value, "a string")
    return value


def _string(_writer: _Writer, _kind: Type, value: object, _depth: int) -> bytes:
    try:
        return _sized(_text(value).encode())
    except UnicodeEncodeError:
        raise Mismatch(value, "a string of Unicode characters") from None


def _enum(_writer: _Writer, kind: Type, value: object, _depth: int) -> bytes:
    if not isinstance(value, str) or value not in kind.symbols:
        raise Mismatch(value, f"one of {', '.join(kind.symbols)}")
    return _varint(kind.symbols.index(value))


def _binary(_writer: _Writer, kind: Type, value: object, _depth: int) -> bytes:
    try:
        data = _text(value).encode("latin-1")
    except UnicodeEncodeError:
        raise Mismatch(value, "a string with characters U+0000 to U+00FF (one per byte)") from None
    return _in_size(kind, data, value)


def _in_size(kind: Type, data: bytes, value: object) -> bytes:
    """Return data of type bytes, or of type fixed if the size is correct."""
    if kind.kind == "bytes":
        return _sized(data)
    if len(data) != kind.size:
        raise Mismatch(value, f"a string of {kind.size} characters (one per byte)")
    return data


def _uuid(writer: _Writer, kind: Type, value: object, depth: int) -> bytes:
    if kind.size == UUID_BYTES and isinstance(value, str) and len(value) > UUID_BYTES:
        try:
            return uuid.UUID(value).bytes
        except ValueError:
            raise Mismatch(value, "a UUID") from None
    return _binary(writer, kind, value, depth)


def _decimal(_writer: _Writer, kind: Type, value: object, _depth: int) -> bytes:
    precision, scale = kind.other_properties.get("precision"), kind.other_properties.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return _binary(_writer, kind, value, _depth)  # Avro ignores an invalid logical type
    wanted = f"a decimal with precision {precision} and scale {scale}"
    if isinstance(value, bool | float) or not isinstance(value, int | str | Decimal):
        raise Mismatch(value, wanted)
    try:
        found = Decimal(value)
    except InvalidOperation:
        raise Mismatch(value, wanted) from None
    sign, digits, exponent = found.as_tuple()
    # Check the exponent before the number is expanded, because it may be huge.
    count = len(digits) if any(digits) else 0
    if not isinstance(exponent, int) or not 0 <= exponent + scale <= precision - count:
        raise Mismatch(value, wanted)
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** (exponent + scale)
    unscaled = -unscaled if sign else unscaled
    size = kind.size if kind.kind == "fixed" else unscaled.bit_length() // 8 + 1
    try:
        return _in_size(kind, unscaled.to_bytes(size, "big", signed=True), value)
    except OverflowError:
        raise Mismatch(value, f"{wanted} in {size} bytes") from None


def _date(writer: _Writer, kind: Type, value: object, depth: int) -> bytes:
    if not isinstance(value, str):
        return _integer(writer, kind, value, depth)
    try:
        return _varint((date.fromisoformat(value) - _EPOCH.date()).days)
    except ValueError:
        raise Mismatch(value, "a date") from None


def _timestamp(writer: _Writer, kind: Type, value: object, depth: int) -> bytes:
    """Encode milliseconds or microseconds since the epoch, depending on the logical type."""
    if not isinstance(value, str):
        return _integer(writer, kind, value, depth)
    logical = str(kind.other_properties["logicalType"])
    is_local = logical.startswith("local")
    wanted = f"a {logical}: a date and time {'without' if is_local else 'with'} a UTC offset"
    try:
        found = datetime.fromisoformat(value)
        if (found.tzinfo is None) != is_local:
            raise ValueError
        if found.tzinfo is not None:
            found = found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise Mismatch(value, wanted) from None
    unit = timedelta(milliseconds=1) if logical.endswith("millis") else timedelta(microseconds=1)
    count, left = divmod(found - _EPOCH, unit)
    if left:
        raise Mismatch(value, f"a {logical}: its precision is finer than the type's")
    return _varint(count)


_TYPES: Mapping[str, _Write] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _floating,
    "double": _floating,
    "string": _string,
    "bytes": _binary,
    "fixed": _binary,
    "enum": _enum,
    "union": _Writer.union,
    "record": _Writer.record,
    "error": _Writer.record,
    "array": _Writer.array,
    "map": _Writer.map,
}
# Writers by type and logical type; other logical types have no effect.
_LOGICAL: Mapping[tuple[str, str], _Write] = {
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("fixed", "uuid"): _uuid,
    ("int", "date"): _date,
    **{
        ("long", f"{local}timestamp-{unit}"): _timestamp
        for local in ("", "local-")
        for unit in ("millis", "micros")
    },
}
