"""Compatibility check for Protobuf by the rules that Confluent documents.

Field numbers and wire types matter, names do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from .limits import DIFFERENCES_MAX, Budget
from .parsed import Difference
from .protobuf_types import Declared, Field, Message

# Groups of types that can be read as each other.
_ALIKE = (
    frozenset({"int32", "uint32", "int64", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"string", "bytes"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
)
NEVER_PACKED = frozenset({"string", "bytes"})


class File(Protocol):
    """Declarations of a file itself, and with those of its imports."""

    own: Declared
    known: Declared


class CompatibilityChecker:
    """Compares all messages of two files."""

    def __init__(self, reader: File, writer: File, budget: Budget) -> None:
        self._reader, self._writer, self._budget = reader, writer, budget

    def all(self) -> list[Difference]:
        """Return why the reader cannot read data of the writer; empty if it can."""
        return [*islice(self._differences(), DIFFERENCES_MAX)]

    def _differences(self) -> Iterator[Difference]:
        ours, theirs = self._reader.own, self._writer.own
        for name, message in theirs.messages.items():
            self._budget.spend()
            short = _short(name, theirs.package)
            found = ours.messages.get(f"{ours.package}.{short}" if ours.package else short)
            path = f"#/{short}"
            if found is None:
                yield Difference("MESSAGE_REMOVED", path, "the reader has no such message")
            else:
                yield from self._messages(found, message, path)

    def _messages(self, new: Message, old: Message, path: str) -> Iterator[Difference]:
        for number in sorted(new.fields.keys() | old.fields.keys()):
            self._budget.spend()
            ours, theirs = new.fields.get(number), old.fields.get(number)
            where = f"{path}/{number}"
            if ours is None or theirs is None:
                yield from _one_sided(ours, theirs, old, where)
            else:
                yield from self._fields(new, old, ours, theirs, where)
        yield from _joined_fields(new, old, path)

    def _fields(
        self, new: Message, old: Message, ours: Field, theirs: Field, path: str
    ) -> Iterator[Difference]:
        one, other = self._kind(self._reader, new, ours), self._kind(self._writer, old, theirs)
        if one != other and not _are_alike(one, other):
            kind = "FIELD_KIND_CHANGED"
            if one in _SCALAR and other in _SCALAR:
                kind = "FIELD_SCALAR_KIND_CHANGED"
            elif one.startswith("message ") and other.startswith("message "):
                kind = "FIELD_NAMED_TYPE_CHANGED"
            yield Difference(kind, path, f"the type changed from {other} to {one}")
        if (ours.label == "repeated") != (theirs.label == "repeated") and one not in NEVER_PACKED:
            yield Difference("FIELD_NUMERIC_LABEL_CHANGED", path, "only one of the two is repeated")
        if ours.label == "required" != theirs.label:
            yield Difference("REQUIRED_FIELD_ADDED", path, "the reader requires it")

    def _kind(self, schema: File, message: Message, each: Field) -> str:
        """Return the type of a field: a scalar, an enum, or a message name without the package."""
        if each.map_key:
            value = self._kind(schema, message, type(each)(each.name, each.number, each.type, ""))
            return f"map of {each.map_key} to {value}"
        if each.type in _SCALAR:
            return each.type
        full = schema.known.resolved(each.type, message.name)
        if full in schema.known.enums:
            return "enum"
        return f"message {_short(full, schema.own.package)}"


_SCALAR = frozenset.union(*_ALIKE) - {"enum"} | {"double", "float"}


def _are_alike(one: str, other: str) -> bool:
    return any(one in row and other in row for row in _ALIKE)


def _one_sided(
    ours: Field | None, theirs: Field | None, old: Message, path: str
) -> Iterator[Difference]:
    """Yield the differences for a field that only one of two messages has."""
    if ours is not None and ours.label == "required":
        yield Difference("REQUIRED_FIELD_ADDED", path, "the reader requires it")
    if theirs is not None and theirs.label == "required":
        yield Difference("REQUIRED_FIELD_REMOVED", path, "the reader lacks a required field")
    if theirs is not None and theirs.oneof and len(old.oneofs[theirs.oneof]) > 1:
        yield Difference(
            "ONEOF_FIELD_REMOVED", path, f"the reader's oneof {theirs.oneof} lacks this field"
        )


def _joined_fields(new: Message, old: Message, path: str) -> Iterator[Difference]:
    """Yield the differences for separate fields that are now in one oneof and exclude each other."""
    for name, numbers in new.oneofs.items():
        alone = [each for each in numbers if each in old.fields and not old.fields[each].oneof]
        kept = [each for each in numbers if each in old.fields and old.fields[each].oneof]
        if alone and (len(alone) > 1 or kept):
            kind = "FIELD_MOVED_TO_EXISTING_ONEOF" if kept else "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
            yield Difference(kind, f"{path}/{name}", "separate fields are now in one oneof")


def _short(name: str, package: str) -> str:
    return name.removeprefix(f"{package}.") if package else name
