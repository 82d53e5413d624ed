"""What a schema of Avro is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

ABSENT = object()
"""In place of a default where there is none: null is one."""


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record; `default` is `ABSENT` where it has none."""

    name: str
    type: Type
    default: object
    aliases: tuple[str, ...]
    doc: str | None
    order: str | None
    more: dict[str, object]

    @property
    def has_default(self) -> bool:
        """Whether readers know what to take where a writer has no such field."""
        return self.default is not ABSENT


@dataclass(slots=True, eq=False)
class Type:
    """One type. Named ones that refer to themselves are circles of these."""

    kind: str
    name: str = ""
    """With its namespace."""
    fields: list[Field] = field(default_factory=list)
    items: list[Type] = field(default_factory=list)
    """The branches of a union; the one type of an array or of the values of a map."""
    symbols: tuple[str, ...] = ()
    default: object = ABSENT
    size: int = 0
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    more: dict[str, object] = field(default_factory=dict)

    @property
    def simple_name(self) -> str:
        """Without its namespace."""
        return self.name.rpartition(".")[2]

    @property
    def space(self) -> str:
        """Its namespace."""
        return self.name.rpartition(".")[0]

    @property
    def has_default(self) -> bool:
        """Whether an enum knows what to take for symbols that it does not have."""
        return self.default is not ABSENT
