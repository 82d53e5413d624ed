"""Declarations of Protobuf files."""

from __future__ import annotations

from dataclasses import dataclass, field

from .limits import RESOLUTIONS_MAX, Budget


@dataclass(slots=True)
class Field:
    """A field.

    Attributes:
        type: Type as written in the file; for a map, the type of its values.
        label: `optional`, `required`, `repeated`, or empty.
        oneof: Name of the oneof that contains the field; empty if none does.
        map_key: Key type of a map; empty for other fields.
    """

    name: str
    number: int
    type: str
    label: str
    oneof: str = ""
    map_key: str = ""


@dataclass(slots=True)
class Message:
    """A message.

    Attributes:
        name: Full name with the package.
        fields: Fields by number.
        oneofs: Numbers of the fields of each oneof, by name of the oneof.
        is_group: True for the message of a group field.
        has_defaults: True if missing fields have default values (proto3).
    """

    name: str
    fields: dict[int, Field] = field(default_factory=dict)
    oneofs: dict[str, set[int]] = field(default_factory=dict)
    is_group: bool = False
    has_defaults: bool = False


@dataclass(slots=True)
class Declared:
    """Declarations of one or more files, by full name.

    Attributes:
        package: Package of the first file.
        imports: Paths of imported files.
        enums: Numbers of the values of each enum, by name of the value.
    """

    package: str = ""
    syntax: str = "proto2"
    imports: list[str] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    _budget: Budget = field(default_factory=lambda: Budget(RESOLUTIONS_MAX))

    def resolved(self, name: str, scope: str) -> str:
        """Return the full name of a type that is used in a scope, or an unknown name unchanged.

        Raises:
            RegistryError: Too many scopes were searched.
        """
        if name.startswith("."):
            return name[1:]
        while True:
            self._budget.spend()
            candidate = f"{scope}.{name}" if scope else name
            if candidate in self.messages or candidate in self.enums:
                return candidate
            if not scope:
                return name
            scope = scope.rpartition(".")[0]
