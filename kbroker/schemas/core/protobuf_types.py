"""Declarations of Protobuf files."""

from __future__ import annotations

from dataclasses import dataclass, field

from .limits import RESOLUTIONS_MAX, Budget


@dataclass(slots=True)
class Field:
    """A field; `oneof` is the name of its oneof, empty if it has none."""

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
    """Declarations of one or more files, by full name."""

    package: str = ""
    syntax: str = "proto2"
    imports: list[str] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    _budget: Budget = field(default_factory=lambda: Budget(RESOLUTIONS_MAX))

    def resolved(self, name: str, scope: str) -> str:
        """Return the full name of a type used in a scope; the name itself if it is unknown.

        Raises:
            RegistryError: Too many scopes were searched.
        """
        if name.startswith("."):
            return name[1:]
        while True:
            self._budget.spend()
            tried = f"{scope}.{name}" if scope else name
            if tried in self.messages or tried in self.enums:
                return tried
            if not scope:
                return name
            scope = scope.rpartition(".")[0]
