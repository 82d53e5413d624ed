"""Principals: the identities in ACLs, quotas and the audit log."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """A type and a name; ``User`` is Kafka's only type."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# Principal of a client that does not authenticate.
ANONYMOUS = Principal(USER, "ANONYMOUS")
