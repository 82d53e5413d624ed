"""Change capture: the tables of a database in topics, and rebuilt from them."""

from __future__ import annotations

from typing import NamedTuple

POSITIONS = "changes.positions"
"""Where the capture process keeps how far it is; one partition."""


class Table(NamedTuple):
    """A table of the database."""

    name: str
    key: str
    columns: dict[str, str]
    """SQL types by name; Spark has them under the same names, but `STRING` for `TEXT`."""

    @property
    def topic(self) -> str:
        """Where its changes go."""
        return f"changes.{self.name}"


TABLES = (
    Table("airlines", "carrier", {"carrier": "TEXT", "name": "TEXT"}),
    Table(
        "airports",
        "faa",
        {
            "faa": "TEXT",
            "name": "TEXT",
            "lat": "DOUBLE",
            "lon": "DOUBLE",
            "alt": "BIGINT",
            "tz": "BIGINT",
            "dst": "TEXT",
            "tzone": "TEXT",
        },
    ),
    Table(
        "planes",
        "tailnum",
        {
            "tailnum": "TEXT",
            "year": "BIGINT",
            "type": "TEXT",
            "manufacturer": "TEXT",
            "model": "TEXT",
            "engines": "BIGINT",
            "seats": "BIGINT",
            "speed": "BIGINT",
            "engine": "TEXT",
        },
    ),
)
