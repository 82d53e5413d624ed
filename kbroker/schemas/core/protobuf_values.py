"""Messages of Protobuf, as JSON has them.

Fields have the names of the file, and what the file does not know stands under its number. Bytes are base64,
values of enums are their names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .bytes_read import Source, Unfit, base64_text, check_depth, cost_of, number
from .protobuf import ProtobufSchema
from .protobuf_known import known_messages
from .protobuf_syntax import SCALARS
from .protobuf_types import Declared, Field, Message

INDEXES_MAX = 64
"""How deep in other messages the one of a record may be declared."""
VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)
_FIXED = {
    "double": struct.Struct("<d"),
    "fixed64": struct.Struct("<Q"),
    "sfixed64": struct.Struct("<q"),
    "float": struct.Struct("<f"),
    "fixed32": struct.Struct("<I"),
    "sfixed32": struct.Struct("<i"),
}
_MESSAGE, _ENUM = "message", "enum"
_WIRES = {name: FIXED64 if each.size == 8 else FIXED32 for name, each in _FIXED.items()} | {
    "string": LENGTH,
    "bytes": LENGTH,
    _MESSAGE: LENGTH,
}
"""How types are written; all others are whole numbers."""
_ZEROS: Mapping[str, object] = {
    "bool": False,
    "string": "",
    "bytes": "",
    "float": 0.0,
    "double": 0.0,
}

# A message whose fields have the types that its schema says: scalars, lists and other messages.
_Values: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class _Known:
    """What is known of a field before its bytes are there."""

    name: str
    kind: str
    """A scalar, `message` or `enum`."""
    is_repeated: bool = False
    is_zero: bool = False
    """Whether it has a value where nothing was written."""
    message: str = ""
    symbols: Mapping[int, str] = field(default_factory=dict)
    entry: _Fields | None = None
    """The key and the value of a map."""

    @property
    def zero(self) -> object:
        """Its value where nothing was written."""
        if self.entry is not None or (self.kind == _MESSAGE and not self.is_repeated):
            return {}
        if self.is_repeated:
            return []
        return self.symbols.get(0, 0) if self.kind == _ENUM else _ZEROS.get(self.kind, 0)


class _Fields:
    """Those of a message, by their numbers."""

    __slots__ = ("by_number", "zeros")

    def __init__(self, by_number: dict[int, _Known]) -> None:
        self.by_number = by_number
        zeros = [each for each in by_number.values() if each.is_zero]
        self.zeros = [(each, 1 + cost_of(each.name) + cost_of(str(each.zero))) for each in zeros]


class ProtobufValues:
    """Reads messages of one file."""

    def __init__(self, schema: ProtobufSchema) -> None:
        known, common = schema.known, known_messages()
        self._all = Declared(
            messages=common.messages | known.messages, enums=common.enums | known.enums
        )
        self._package = schema.own.package
        self._declared: dict[str, list[str]] = {}
        """The messages that are declared in another one, or in the package."""
        for name, each in schema.own.messages.items():
            if not each.is_group:
                self._declared.setdefault(name.rpartition(".")[0], []).append(name)
        self._symbols = {
            name: {number: word for word, number in reversed(values.items())}
            for name, values in self._all.enums.items()
        }
        self._fields = {name: self._known(each) for name, each in self._all.messages.items()}

    def message_at(self, indexes: list[int]) -> str:
        """The name of a message by its place in the file, among those it is declared with. Raises Unfit."""
        scope = self._package
        for index in indexes:
            inside = self._declared.get(scope, ())
            if not 0 <= index < len(inside):
                place = "/".join(map(str, indexes))
                raise Unfit(f"its file declares no message at {place}")
            scope = inside[index]
        return scope

    def read(self, message: str, source: Source) -> _Values:
        """What all of the bytes say. Raises Unfit, TooMuch."""
        return self._read(self._fields[message], source, {}, 0)

    # -- what is known of a file

    def _known(self, message: Message) -> _Fields:
        fields = message.fields.values()
        return _Fields({each.number: self._field(each, message) for each in fields})

    def _field(self, each: Field, message: Message) -> _Known:
        is_repeated = each.label == "repeated"
        made = self._typed(each.name, each.type, message.name)
        if each.map_key:
            entry = _Fields({1: _Known("key", each.map_key), 2: made})
            return _Known(each.name, _MESSAGE, True, message.has_defaults, entry=entry)
        made.is_repeated = is_repeated
        made.is_zero = message.has_defaults and (
            is_repeated or (made.kind != _MESSAGE and not each.label and not each.oneof)
        )
        return made

    def _typed(self, name: str, kind: str, scope: str) -> _Known:
        if kind in SCALARS:
            return _Known(name, kind)
        full = self._all.resolved(kind, scope)
        if full in self._symbols:
            return _Known(name, _ENUM, symbols=self._symbols[full])
        if full in self._all.messages:
            return _Known(name, _MESSAGE, message=full)
        return _Known(name, "bytes")  # of a file that everybody has, but for us

    # -- bytes

    def _read(
        self, fields: _Fields, source: Source, into: _Values, depth: int, group: int = 0
    ) -> _Values:
        """Fill `into` up to the end of the source, or of the group that has that number."""
        check_depth(depth)
        source.spend()
        for each, cost in fields.zeros:
            source.spend(cost)
            into.setdefault(each.name, each.zero)
        while source.at < source.end:
            tag = source.varint()
            field_number, wire = tag >> 3, tag & 7
            if wire == GROUP_END:
                if field_number != group:
                    raise Unfit(f"at byte {source.at} a group ends that has not begun")
                return into
            known = fields.by_number.get(field_number)
            if known is None or not self._take(known, wire, field_number, source, into, depth):
                value = self._unknown(field_number, wire, source, depth)
                into.setdefault(str(field_number), []).append(value)
        if group:
            raise Unfit("a group does not end")
        return into

    def _take(
        self,
        known: _Known,
        wire: int,
        field_number: int,
        source: Source,
        into: _Values,
        depth: int,
    ) -> bool:
        """Read a field; nothing, and False, where it is not written as its type is."""
        source.spend(1 + cost_of(known.name))
        name, own = known.name, _WIRES.get(known.kind, VARINT)
        if known.kind == _MESSAGE and wire in (LENGTH, GROUP):
            self._take_message(known, field_number if wire == GROUP else 0, source, into, depth)
        elif wire == own and known.is_repeated:
            into.setdefault(name, []).append(_scalar(known, source))
        elif wire == own:
            into[name] = _scalar(known, source)
        elif wire == LENGTH and known.is_repeated:
            values, packed = into.setdefault(name, []), _Part(source)
            while source.at < source.end:
                source.spend()
                values.append(_scalar(known, source))
            packed.close()
        else:
            return False
        return True

    def _take_message(
        self, known: _Known, group: int, source: Source, into: _Values, depth: int
    ) -> None:
        part = None if group else _Part(source)
        if known.entry is not None:
            pair = self._read(known.entry, source, {}, depth + 1, group)
            key, value = (pair.get(each.name, each.zero) for each in known.entry.by_number.values())
            text = str(key).lower() if isinstance(key, bool) else str(key)
            into.setdefault(known.name, {})[text] = value
        elif known.is_repeated:
            found = self._read(self._fields[known.message], source, {}, depth + 1, group)
            into.setdefault(known.name, []).append(found)
        else:  # what comes twice is put together
            there = into.setdefault(known.name, {})
            self._read(self._fields[known.message], source, there, depth + 1, group)
        if part is not None:
            part.close()

    def _unknown(self, field_number: int, wire: int, source: Source, depth: int) -> object:
        source.spend()
        if not field_number:
            raise Unfit(f"at byte {source.at} there is a field of number 0")
        match wire:
            case 0:
                return source.varint()
            case 1 | 5:
                return int.from_bytes(source.take(8 if wire == FIXED64 else 4), "little")
            case 2:
                return base64_text(source.take(source.varint()))
            case 3:
                return self._read(_NOTHING, source, {}, depth + 1, field_number)
        raise Unfit(f"at byte {source.at} a field is written as nothing is")


_NOTHING = _Fields({})


class _Part:
    """A piece of a source that is read as if it ended there."""

    def __init__(self, source: Source) -> None:
        size = source.varint()
        self._source, self._end = source, source.end
        if source.at + size > source.end:
            raise Unfit(f"at byte {source.at} there are to be {size} bytes more")
        source.end = source.at + size

    def close(self) -> None:
        """Go on behind it."""
        self._source.end = self._end


def _scalar(known: _Known, source: Source) -> object:
    kind = known.kind
    if kind in _FIXED:
        layout = _FIXED[kind]
        (value,) = layout.unpack(source.take(layout.size))
        return number(value) if isinstance(value, float) else value
    if kind == "string":
        return source.text(source.varint())
    if kind == "bytes":
        return base64_text(source.take(source.varint()))
    value = source.varint()
    if kind == _ENUM:
        index = _signed(value, 32)
        symbol = known.symbols.get(index)
        if symbol is None:
            return index
        source.spend(cost_of(symbol))
        return symbol
    return _WHOLE[kind](value)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _unzigzagged(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


_WHOLE: Mapping[str, Callable[[int], object]] = {
    "int32": lambda value: _signed(value, 32),
    "int64": lambda value: _signed(value, 64),
    "uint32": lambda value: value & 0xFFFF_FFFF,
    "uint64": lambda value: value,
    "sint32": lambda value: _unzigzagged(value & 0xFFFF_FFFF),
    "sint64": _unzigzagged,
    "bool": bool,
}


def read_indexes(source: Source) -> list[int]:
    """Which message of its file a record has: they stand before it. Raises Unfit."""
    count = source.zigzag()
    if not 0 <= count <= INDEXES_MAX:
        raise Unfit(f"a message is not {count} deep in others")
    return [source.zigzag() for _ in range(count)] if count else [0]
