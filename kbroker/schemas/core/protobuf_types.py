"""What a file of Protobuf declares."""

from __future__ import annotations

from dataclasses import dataclass, field

from .limits import RESOLUTIONS_MAX, Budget


@dataclass(slots=True)
class Field:
    """A field; `oneof` is the name of the choice that it is of, empty for none."""

    name: str
    number: int
    type: str
    label: str
    oneof: str = ""
    map_key: str = ""


@dataclass(slots=True)
class Message:
    """A message, with its full name in its file's package left out."""

    name: str
    fields: dict[int, Field] = field(default_factory=dict)
    oneofs: dict[str, set[int]] = field(default_factory=dict)
    is_group: bool = False
    """Whether it was declared together with the one field that has it."""
    has_defaults: bool = False
    """Whether a field of its own that was not written is zero or empty, as proto3 says it."""


@dataclass(slots=True)
class Declared:
    """What files declare, by names that have the package in front."""

    package: str = ""
    syntax: str = "proto2"
    imports: list[str] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    _budget: Budget = field(default_factory=lambda: Budget(RESOLUTIONS_MAX))

    def resolved(self, name: str, scope: str) -> str:
        """Return the full name of a type inside a message; the name itself if the type is unknown.

        Raises RegistryError if too many scopes were searched.
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
