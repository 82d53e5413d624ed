"""Compatibility check for Protobuf by the rules that Confluent documents.

The rules compare field numbers and wire types. They ignore the names of fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from .limits import DIFFERENCES_MAX, Budget
from .parsed import Difference
from .protobuf_types import Declared, Field, Message

# Groups of types whose encodings are compatible with each other.
_COMPATIBLE = (
    frozenset({"int32", "uint32", "int64", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"string", "bytes"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
)
NEVER_PACKED = frozenset({"string", "bytes"})


class File(Protocol):
    """Declarations of a file.

    Attributes:
        own: Declarations of the file itself.
        known: Declarations of the file and of its imports.
    """

    own: Declared
    known: Declared


class CompatibilityChecker:
    """Compares all messages of two files."""

    def __init__(self, reader: File, writer: File, budget: Budget) -> None:
        self._reader, self._writer, self._budget = reader, writer, budget

    def differences(self) -> list[Difference]:
        """Return why the reader cannot read data of the writer; empty if the reader can read it."""
        return [*islice(self._compare_files(), DIFFERENCES_MAX)]

    def _compare_files(self) -> Iterator[Difference]:
        reader, writer = self._reader.own, self._writer.own
        for full_name, message in writer.messages.items():
            self._budget.spend()
            name = _without_package(full_name, writer.package)
            found = reader.messages.get(f"{reader.package}.{name}" if reader.package else name)
            path = f"#/{name}"
            if found is None:
                yield Difference("MESSAGE_REMOVED", path, "the reader has no such message")
            else:
                yield from self._messages(found, message, path)

    def _messages(self, new: Message, old: Message, path: str) -> Iterator[Difference]:
        for number in sorted(new.fields.keys() | old.fields.keys()):
            self._budget.spend()
            new_field, old_field = new.fields.get(number), old.fields.get(number)
            field_path = f"{path}/{number}"
            if new_field is None or old_field is None:
                yield from _one_sided(new_field, old_field, old, field_path)
            else:
                yield from self._fields(new, old, new_field, old_field, field_path)
        yield from _compare_oneofs(new, old, path)

    def _fields(
        self, new: Message, old: Message, new_field: Field, old_field: Field, path: str
    ) -> Iterator[Difference]:
        new_type = self._type_name(self._reader, new, new_field)
        old_type = self._type_name(self._writer, old, old_field)
        if new_type != old_type and not _are_compatible(new_type, old_type):
            kind = "FIELD_KIND_CHANGED"
            if new_type in _SCALAR and old_type in _SCALAR:
                kind = "FIELD_SCALAR_KIND_CHANGED"
            elif new_type.startswith("message ") and old_type.startswith("message "):
                kind = "FIELD_NAMED_TYPE_CHANGED"
            yield Difference(kind, path, f"the type changed from {old_type} to {new_type}")
        label_changed = (new_field.label == "repeated") != (old_field.label == "repeated")
        if label_changed and new_type not in NEVER_PACKED:
            yield Difference(
                "FIELD_NUMERIC_LABEL_CHANGED", path, "only one of the two fields is repeated"
            )
        if new_field.label == "required" != old_field.label:
            yield Difference("REQUIRED_FIELD_ADDED", path, "the reader requires this field")

    def _type_name(self, schema: File, message: Message, each: Field) -> str:
        """Return a scalar type, `enum`, or the word `message` and a message name without the package.

        For a map field, return a text with the types of its keys and values.
        """
        if each.map_key:
            value_field = type(each)(each.name, each.number, each.type, "")
            return f"map of {each.map_key} to {self._type_name(schema, message, value_field)}"
        if each.type in _SCALAR:
            return each.type
        full_name = schema.known.resolved(each.type, message.name)
        if full_name in schema.known.enums:
            return "enum"
        return f"message {_without_package(full_name, schema.own.package)}"


_SCALAR = frozenset.union(*_COMPATIBLE) - {"enum"} | {"double", "float"}


def _are_compatible(new_type: str, old_type: str) -> bool:
    return any(new_type in group and old_type in group for group in _COMPATIBLE)


def _one_sided(
    new_field: Field | None, old_field: Field | None, old: Message, path: str
) -> Iterator[Difference]:
    """Yield the differences for a field that only one of two messages has.

    Args:
        new_field: The reader's field, or None.
        old_field: The writer's field, or None.
        old: The writer's message.
        path: Location of the field.
    """
    if new_field is not None and new_field.label == "required":
        yield Difference("REQUIRED_FIELD_ADDED", path, "the reader requires this field")
    if old_field is not None and old_field.label == "required":
        yield Difference("REQUIRED_FIELD_REMOVED", path, "the reader lacks a required field")
    if old_field is not None and old_field.oneof and len(old.oneofs[old_field.oneof]) > 1:
        yield Difference(
            "ONEOF_FIELD_REMOVED", path, f"the reader's oneof {old_field.oneof} lacks this field"
        )


def _compare_oneofs(new: Message, old: Message, path: str) -> Iterator[Difference]:
    """Yield the differences for separate fields that are now in one oneof and exclude each other."""
    for name, numbers in new.oneofs.items():
        separate = [each for each in numbers if each in old.fields and not old.fields[each].oneof]
        kept = [each for each in numbers if each in old.fields and old.fields[each].oneof]
        if separate and (len(separate) > 1 or kept):
            kind = "FIELD_MOVED_TO_EXISTING_ONEOF" if kept else "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
            yield Difference(kind, f"{path}/{name}", "separate fields are now in one oneof")


def _without_package(name: str, package: str) -> str:
    return name.removeprefix(f"{package}.") if package else name
