"""Decoder of Protobuf messages to JSON.

Fields keep the names that they have in the file. Unknown fields appear under their number. Bytes become
base64. Enum values become their names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .byte_reader import InvalidValue, Source, base64_text, check_depth, cost_of, number
from .protobuf import ProtobufSchema
from .protobuf_known import well_known_messages
from .protobuf_syntax import SCALARS
from .protobuf_types import Declared, Field, Message

# Maximum number of message indexes: nesting depth of a record's message type.
INDEXES_MAX = 64
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
# Wire types by field type; all other types are varints.
_WIRES = {name: FIXED64 if each.size == 8 else FIXED32 for name, each in _FIXED.items()} | {
    "string": LENGTH,
    "bytes": LENGTH,
    _MESSAGE: LENGTH,
}
_DEFAULTS: Mapping[str, object] = {
    "bool": False,
    "string": "",
    "bytes": "",
    "float": 0.0,
    "double": 0.0,
}

# A decoded message: scalars, lists and other messages by field name.
_Values: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class _FieldInfo:
    """Decoding rule of a field.

    Attributes:
        kind: A scalar type, `message` or `enum`.
        has_default: True if the JSON contains a default value for a missing field.
        message: Name of the message type; empty for scalars and enums.
        symbols: Names of enum values by number.
        entry: Fields for the key and the value of a map; None for other fields.
    """

    name: str
    kind: str
    is_repeated: bool = False
    has_default: bool = False
    message: str = ""
    symbols: Mapping[int, str] = field(default_factory=dict)
    entry: _Fields | None = None

    @property
    def default(self) -> object:
        """JSON value of a missing field."""
        if self.entry is not None or (self.kind == _MESSAGE and not self.is_repeated):
            return {}
        if self.is_repeated:
            return []
        return self.symbols.get(0, 0) if self.kind == _ENUM else _DEFAULTS.get(self.kind, 0)


class _Fields:
    """Fields of a message by number."""

    __slots__ = ("by_number", "defaults")

    def __init__(self, by_number: dict[int, _FieldInfo]) -> None:
        self.by_number = by_number
        defaults = [each for each in by_number.values() if each.has_default]
        # Fields with a default value, each with the number of steps that this value costs.
        self.defaults = [
            (each, 1 + cost_of(each.name) + cost_of(str(each.default))) for each in defaults
        ]


class ProtobufValues:
    """Decoder for the messages of one file."""

    def __init__(self, schema: ProtobufSchema) -> None:
        known, common = schema.known, well_known_messages()
        self._all = Declared(
            messages=common.messages | known.messages, enums=common.enums | known.enums
        )
        self._package = schema.own.package
        # Names of the messages that are declared directly in a message or package, by its name.
        self._declared: dict[str, list[str]] = {}
        for name, each in schema.own.messages.items():
            if not each.is_group:
                self._declared.setdefault(name.rpartition(".")[0], []).append(name)
        self._symbols = {
            name: {number: symbol for symbol, number in reversed(values.items())}
            for name, values in self._all.enums.items()
        }
        self._fields = {name: self._field_infos(each) for name, each in self._all.messages.items()}

    def message_at(self, indexes: list[int]) -> str:
        """Return the name of the message at nested indexes in the file. Raises InvalidValue."""
        scope = self._package
        for index in indexes:
            messages = self._declared.get(scope, ())
            if not 0 <= index < len(messages):
                index_path = "/".join(map(str, indexes))
                raise InvalidValue(f"the file has no message at index {index_path}")
            scope = messages[index]
        return scope

    def read(self, message: str, source: Source) -> _Values:
        """Decode all bytes of a source. Raises InvalidValue or LimitExceeded."""
        return self._read(self._fields[message], source, {}, 0)

    # -- declarations

    def _field_infos(self, message: Message) -> _Fields:
        fields = message.fields.values()
        return _Fields({each.number: self._field(each, message) for each in fields})

    def _field(self, each: Field, message: Message) -> _FieldInfo:
        is_repeated = each.label == "repeated"
        info = self._info_for_type(each.name, each.type, message.name)
        if each.map_key:
            entry = _Fields({1: _FieldInfo("key", each.map_key), 2: info})
            return _FieldInfo(each.name, _MESSAGE, True, message.has_defaults, entry=entry)
        info.is_repeated = is_repeated
        info.has_default = message.has_defaults and (
            is_repeated or (info.kind != _MESSAGE and not each.label and not each.oneof)
        )
        return info

    def _info_for_type(self, name: str, kind: str, scope: str) -> _FieldInfo:
        if kind in SCALARS:
            return _FieldInfo(name, kind)
        full_name = self._all.resolved(kind, scope)
        if full_name in self._symbols:
            return _FieldInfo(name, _ENUM, symbols=self._symbols[full_name])
        if full_name in self._all.messages:
            return _FieldInfo(name, _MESSAGE, message=full_name)
        return _FieldInfo(name, "bytes")  # a well-known type without a built-in definition

    # -- decoding

    def _read(
        self, fields: _Fields, source: Source, into: _Values, depth: int, group: int = 0
    ) -> _Values:
        """Decode a message into a dictionary.

        Args:
            fields: Fields of the message.
            source: Source that ends with the message or contains the end of a group.
            into: Dictionary to which the fields are added.
            depth: Nesting depth of the message.
            group: Field number of the group to read; 0 to read up to the end of the source.

        Returns:
            The dictionary `into`.
        """
        check_depth(depth)
        source.spend()
        for each, cost in fields.defaults:
            source.spend(cost)
            into.setdefault(each.name, each.default)
        while source.at < source.end:
            tag = source.varint()
            field_number, wire = tag >> 3, tag & 7
            if wire == GROUP_END:
                if field_number != group:
                    raise InvalidValue(f"byte {source.at}: unexpected end of a group")
                return into
            known = fields.by_number.get(field_number)
            if known is None or not self._read_field(
                known, wire, field_number, source, into, depth
            ):
                value = self._read_unknown(field_number, wire, source, depth)
                into.setdefault(str(field_number), []).append(value)
        if group:
            raise InvalidValue("missing end of a group")
        return into

    def _read_field(
        self,
        known: _FieldInfo,
        wire: int,
        field_number: int,
        source: Source,
        into: _Values,
        depth: int,
    ) -> bool:
        """Decode a field; return False without reading if its wire type does not match its type."""
        source.spend(1 + cost_of(known.name))
        name, expected_wire = known.name, _WIRES.get(known.kind, VARINT)
        if known.kind == _MESSAGE and wire in (LENGTH, GROUP):
            self._read_message(known, field_number if wire == GROUP else 0, source, into, depth)
        elif wire == expected_wire and known.is_repeated:
            into.setdefault(name, []).append(_scalar(known, source))
        elif wire == expected_wire:
            into[name] = _scalar(known, source)
        elif wire == LENGTH and known.is_repeated:
            values, packed = into.setdefault(name, []), _Slice(source)
            while source.at < source.end:
                source.spend()
                values.append(_scalar(known, source))
            packed.close()
        else:
            return False
        return True

    def _read_message(
        self, known: _FieldInfo, group: int, source: Source, into: _Values, depth: int
    ) -> None:
        slice_ = None if group else _Slice(source)
        if known.entry is not None:
            entry = self._read(known.entry, source, {}, depth + 1, group)
            key, value = (
                entry.get(each.name, each.default) for each in known.entry.by_number.values()
            )
            text = str(key).lower() if isinstance(key, bool) else str(key)
            into.setdefault(known.name, {})[text] = value
        elif known.is_repeated:
            found = self._read(self._fields[known.message], source, {}, depth + 1, group)
            into.setdefault(known.name, []).append(found)
        else:  # merge repeated occurrences of a message
            earlier = into.setdefault(known.name, {})
            self._read(self._fields[known.message], source, earlier, depth + 1, group)
        if slice_ is not None:
            slice_.close()

    def _read_unknown(self, field_number: int, wire: int, source: Source, depth: int) -> object:
        source.spend()
        if not field_number:
            raise InvalidValue(f"byte {source.at}: invalid field number 0")
        match wire:
            case 0:
                return source.varint()
            case 1 | 5:
                return int.from_bytes(source.take(8 if wire == FIXED64 else 4), "little")
            case 2:
                return base64_text(source.take(source.varint()))
            case 3:
                return self._read(_NO_FIELDS, source, {}, depth + 1, field_number)
        raise InvalidValue(f"byte {source.at}: invalid wire type {wire}")


_NO_FIELDS = _Fields({})


class _Slice:
    """Limits a source to a length-prefixed slice until `close`."""

    def __init__(self, source: Source) -> None:
        size = source.varint()
        self._source, self._end = source, source.end
        if source.at + size > source.end:
            raise InvalidValue(f"byte {source.at}: expected {size} more bytes")
        source.end = source.at + size

    def close(self) -> None:
        """Restore the end of the source."""
        self._source.end = self._end


def _scalar(known: _FieldInfo, source: Source) -> object:
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
    return _INTEGER[kind](value)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _unzigzagged(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


_INTEGER: Mapping[str, Callable[[int], object]] = {
    "int32": lambda value: _signed(value, 32),
    "int64": lambda value: _signed(value, 64),
    "uint32": lambda value: value & 0xFFFF_FFFF,
    "uint64": lambda value: value,
    "sint32": lambda value: _unzigzagged(value & 0xFFFF_FFFF),
    "sint64": _unzigzagged,
    "bool": bool,
}


def read_indexes(source: Source) -> list[int]:
    """Read the message indexes in front of a record. Raises InvalidValue."""
    count = source.zigzag()
    if not 0 <= count <= INDEXES_MAX:
        raise InvalidValue(f"invalid number of message indexes: {count}")
    return [source.zigzag() for _ in range(count)] if count else [0]
