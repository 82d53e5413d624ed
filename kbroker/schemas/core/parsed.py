"""What the registry asks of a schema of any type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

from .limits import Budget


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a reader cannot read what was written with another schema, and where."""

    kind: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.kind}', description:'{self.reason} (at {self.path or '/'})'}}"


class Parsed(Protocol):
    """A schema that is well-formed."""

    @property
    def canonical(self) -> str:
        """The text by which it is stored: two that differ in white space alone have the same."""

    @property
    def normalized(self) -> str:
        """The text of all schemas that mean the same."""

    def differences(self, writer: Self, budget: Budget) -> Iterator[Difference]:
        """Why this one cannot read what was written with `writer`, which is of the same type."""
