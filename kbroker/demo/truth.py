"""Expected results of the demo, computed from the data set's files with csv and dict.

This module shares no code with the pipeline: no Spark, no pandas, and no producer code. The checks
use only `digest` from it for the records that they read back.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

# Values of the columns that identify a record.
Identity = tuple[object, ...]
# UTC day, carrier, airport.
Group = tuple[str, str, str]
# Scheduled hour of day (local time), weather.
Hour = tuple[int, str]
Figures = dict[str, int | None]

WEATHERS = ("rain", "dry", "no_weather")
CLASSES = ("all", *WEATHERS)
DELAYED_MINUTES = 15

DEPARTURE_IDENTITY = ("time_hour", "carrier", "flight")
WEATHER_IDENTITY = ("time_hour", "origin")

_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(slots=True)
class Tally:
    """Departure-delay statistics of a set of flights."""

    flights: int = 0
    # Flights with a known departure delay.
    departed: int = 0
    # Flights that departed at least 15 minutes late.
    delayed: int = 0
    # Minutes; early departures are negative.
    delay_sum: int = 0
    delay_max: int | None = None

    def add(self, delay: int | None) -> None:
        """Add one flight with its delay in minutes."""
        self.flights += 1
        if delay is None:
            return
        self.departed += 1
        self.delayed += delay >= DELAYED_MINUTES
        self.delay_sum += delay
        if self.delay_max is None or delay > self.delay_max:
            self.delay_max = delay

    def figures(self) -> Figures:
        """Return the statistics as a dict."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Truth:
    """Expected results."""

    # Digest of each record.
    departures: dict[Identity, bytes]
    weather: dict[Identity, bytes]
    groups: dict[Group, dict[str, Figures]]
    hours: dict[Hour, Figures]


def compute(flights: Path, weather: Path, limit: int | None = None) -> Truth:
    """Compute digests and statistics of the data set.

    Args:
        flights: Zip archive with ``flights.csv``.
        weather: ``weather.csv``.
        limit: Maximum number of departures, in order of scheduled hour.

    Returns:
        The expected results.
    """
    sky: dict[tuple[str, str], str] = {}
    weather_digests: dict[Identity, bytes] = {}
    with weather.open(encoding="utf-8") as file:
        for row in _rows(file):
            hour, origin = row["time_hour"], row["origin"]
            sky[hour, origin] = "rain" if row["precip"] > 0 else "dry"
            weather_digests[hour, origin] = digest(origin, epoch_ms(hour), row)

    with zipfile.ZipFile(flights) as archive, archive.open("flights.csv") as member:
        lines = io.TextIOWrapper(member, encoding="utf-8").readlines()
    header, body = lines[0], sorted(lines[1:], key=lambda line: line.split(",")[-1])
    return _tally(_rows([header, *body[:limit]]), sky, weather_digests)


def _tally(
    rows: Iterable[dict[str, Any]],
    sky: dict[tuple[str, str], str],
    weather_digests: dict[Identity, bytes],
) -> Truth:
    departures: dict[Identity, bytes] = {}
    groups: defaultdict[Group, dict[str, Tally]] = defaultdict(
        lambda: {name: Tally() for name in CLASSES}
    )
    hours: defaultdict[Hour, Tally] = defaultdict(Tally)
    for row in rows:
        hour, carrier, origin = row["time_hour"], row["carrier"], row["origin"]
        departures[hour, carrier, row["flight"]] = digest(carrier, epoch_ms(hour), row)
        weather = sky.get((hour, origin), "no_weather")
        group = groups[hour[:10], carrier, origin]
        for tally in (group["all"], group[weather], hours[row["hour"], weather]):
            tally.add(row["dep_delay"])
    return Truth(
        departures=departures,
        weather=weather_digests,
        groups={
            group: {name: tally.figures() for name, tally in tallies.items()}
            for group, tallies in groups.items()
        },
        hours={hour: tally.figures() for hour, tally in hours.items()},
    )


def digest(key: str | None, timestamp_ms: int, values: dict[str, object]) -> bytes:
    """Return an eight-byte digest of a record's key, timestamp and columns."""
    content = repr((key, timestamp_ms, *values.items()))
    return blake2b(content.encode(), digest_size=8).digest()


def epoch_ms(hour: str) -> int:
    """Return the milliseconds since 1970 of an hour such as ``2013-01-01T10:00:00Z``."""
    return int(datetime.fromisoformat(hour).timestamp()) * 1000


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    reader = csv.reader(lines)
    columns: Sequence[str] = next(reader)
    for cells in reader:
        yield {column: _value(column, cell) for column, cell in zip(columns, cells, strict=True)}


def _value(column: str, cell: str) -> str | int | float | None:
    if cell == "NA":
        return None
    if column in _TEXT:
        return cell
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
