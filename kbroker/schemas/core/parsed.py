"""Interface of a parsed schema of any type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

from .limits import Budget


@dataclass(frozen=True, slots=True)
class Difference:
    """A reason why a reader cannot read data that was written with another schema.

    Attributes:
        kind: Error type, as in Confluent's registry.
        path: Location in the schema, such as `/fields/0/type`.
        reason: Text for the client.
    """

    kind: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.kind}', description:'{self.reason} (at {self.path or '/'})'}}"


class ParsedSchema(Protocol):
    """A well-formed schema."""

    @property
    def canonical(self) -> str:
        """Text to store. Schemas that differ only in white space have the same text."""

    @property
    def normalized(self) -> str:
        """Normalized text; equal for all schemas with the same meaning."""

    def differences(self, writer: Self, budget: Budget) -> Iterator[Difference]:
        """Return why this schema cannot read data of `writer`, a schema of the same type.

        Args:
            writer: Schema that the data is written with.
            budget: Limits the number of comparison steps.

        Raises:
            RegistryError: The comparison exceeds the budget.
        """
