"""Who somebody is, as access rules, quotas and the audit log name it."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """A name, and of what kind it is; ``User`` is the only kind that Kafka has."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Who shows nothing of itself."""
