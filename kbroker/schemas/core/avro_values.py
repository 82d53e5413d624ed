"""Decoder of Avro data to JSON.

A union becomes the plain value, without the name of its branch. Bytes become strings in the form of
`Source.bytes_text`. Decimals and UUIDs become strings. Values of other logical types become the underlying value.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from .avro_types import Type
from .byte_reader import InvalidValue, Source, check_depth, cost_of, number

# Maximum size and scale of a decimal that becomes a decimal string; others become bytes.
DECIMAL_BYTES_MAX = 64
SCALE_MAX = 1000
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_Read: TypeAlias = Callable[[Source, Type, int], object]


def avro_value(root: Type, source: Source) -> object:
    """Decode all bytes of a source. Raises InvalidValue or LimitExceeded."""
    value = _value(source, root, 0)
    if source.at < source.end:
        raise InvalidValue(f"{source.end - source.at} bytes follow the value")
    return value


def _value(source: Source, kind: Type, depth: int) -> object:
    source.spend()
    return _READ[kind.kind](source, kind, depth)


def _boolean(source: Source, _kind: Type, _depth: int) -> bool:
    byte = source.take(1)[0]
    if byte > 1:
        raise InvalidValue(f"byte {source.at - 1}: invalid boolean {byte}")
    return byte == 1


def _integer(source: Source, _kind: Type, _depth: int) -> int:
    return source.zigzag()


def _float(source: Source, _kind: Type, _depth: int) -> object:
    return number(_FLOAT.unpack(source.take(4))[0])


def _double(source: Source, _kind: Type, _depth: int) -> object:
    return number(_DOUBLE.unpack(source.take(8))[0])


def _string(source: Source, _kind: Type, _depth: int) -> str:
    return source.text(source.zigzag())


def _bytes(source: Source, kind: Type, _depth: int) -> str:
    return _logical(source, source.take(source.zigzag()), kind)


def _fixed(source: Source, kind: Type, _depth: int) -> str:
    return _logical(source, source.take(kind.size), kind)


def _logical(source: Source, data: bytes, kind: Type) -> str:
    match kind.other_properties.get("logicalType"):
        case "decimal" if 0 < len(data) <= DECIMAL_BYTES_MAX:
            scale = kind.other_properties.get("scale", 0)
            if type(scale) is int and 0 <= scale <= SCALE_MAX:
                return _decimal(int.from_bytes(data, "big", signed=True), scale)
        case "uuid" if len(data) == 16:
            return str(uuid.UUID(bytes=data))
    return source.bytes_text(data)


def _decimal(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, part = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' * (unscaled < 0)}{whole}{'.' * bool(part)}{part}"


def _enum(source: Source, kind: Type, _depth: int) -> str:
    index = source.zigzag()
    if not 0 <= index < len(kind.symbols):
        raise InvalidValue(f"{kind.name} has no symbol {index}")
    symbol = kind.symbols[index]
    source.spend(cost_of(symbol))
    return symbol


def _union(source: Source, kind: Type, depth: int) -> object:
    index = source.zigzag()
    if not 0 <= index < len(kind.items):
        raise InvalidValue(
            f"byte {source.at}: invalid branch {index} of a union of {len(kind.items)}"
        )
    return _value(source, kind.items[index], depth)


def _record(source: Source, kind: Type, depth: int) -> dict[str, object]:
    check_depth(depth)
    found = {}
    for each in kind.fields:
        source.spend(cost_of(each.name))
        found[each.name] = _value(source, each.type, depth + 1)
    return found


def _array(source: Source, kind: Type, depth: int) -> list[object]:
    check_depth(depth)
    return [_value(source, kind.items[0], depth + 1) for _ in _items(source)]


def _map(source: Source, kind: Type, depth: int) -> dict[str, object]:
    check_depth(depth)
    return {
        source.text(source.zigzag()): _value(source, kind.items[0], depth + 1)
        for _ in _items(source)
    }


def _items(source: Source) -> Iterator[None]:
    """Yield once for each item of an array or map, whose items are encoded in blocks."""
    while count := source.zigzag():
        if count < 0:  # the block size in bytes follows, for readers that skip blocks
            count = -count
            source.zigzag()
        for _ in range(count):
            yield


_READ: Mapping[str, _Read] = {
    "null": lambda _source, _kind, _depth: None,
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _double,
    "string": _string,
    "bytes": _bytes,
    "fixed": _fixed,
    "enum": _enum,
    "union": _union,
    "record": _record,
    "error": _record,
    "array": _array,
    "map": _map,
}
