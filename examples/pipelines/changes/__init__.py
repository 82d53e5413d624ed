"""Change data capture: changes of database tables in topics, and tables rebuilt from them."""

from __future__ import annotations

from typing import NamedTuple

# Topic with the progress of the capture process; one partition.
POSITIONS = "changes.positions"


class Table(NamedTuple):
    """A table of the database."""

    name: str
    key: str
    # SQL types by column name; Spark has the same names, but `STRING` for `TEXT`.
    columns: dict[str, str]

    @property
    def topic(self) -> str:
        """Topic with the table's changes."""
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
