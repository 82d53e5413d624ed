"""Parsed Avro types."""

from __future__ import annotations

from dataclasses import dataclass, field

# Marks a missing default, because null is a valid default.
ABSENT = object()


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record.

    Attributes:
        default: Default value; `ABSENT` if the field has none.
        other_properties: Further JSON properties of the field, which are stored unchanged.
    """

    name: str
    type: Type
    default: object
    aliases: tuple[str, ...]
    doc: str | None
    order: str | None
    other_properties: dict[str, object]

    @property
    def has_default(self) -> bool:
        """True if readers have a default for data without this field."""
        return self.default is not ABSENT


@dataclass(slots=True, eq=False)
class Type:
    """An Avro type; recursive named types contain themselves.

    Attributes:
        name: Full name with namespace; empty for unnamed types.
        items: Branches of a union, or the one element type of an array or map.
        other_properties: Further JSON properties of the type, such as `logicalType`.
    """

    kind: str
    name: str = ""
    fields: list[Field] = field(default_factory=list)
    items: list[Type] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: object = ABSENT
    size: int = 0
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    other_properties: dict[str, object] = field(default_factory=dict)

    @property
    def simple_name(self) -> str:
        """Name without the namespace."""
        return self.name.rpartition(".")[2]

    @property
    def space(self) -> str:
        """Namespace."""
        return self.name.rpartition(".")[0]

    @property
    def has_default(self) -> bool:
        """True if an enum has a default for unknown symbols."""
        return self.default is not ABSENT
