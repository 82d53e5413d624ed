"""Generator of a click stream, reproducible by seed.

Visitors come several times a day and view some pages. Most clicks arrive at once. Some arrive a few
minutes later and out of order (a phone in a tunnel), some hours later (a laptop that was closed).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from topics import PARTITIONS, Record

from . import GAP_MINUTES, LATE_MINUTES

# Start of the stream: 2026-01-05T00:00:00Z.
DAY_MS = 1_767_571_200_000
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_PAGES = ["/", "/search", "/basket", "/checkout", *(f"/item/{number}" for number in range(40))]


class Click(NamedTuple):
    """A page view."""

    # ID of the click.
    number: int
    visitor: str
    page: str
    # Time of the click.
    time_ms: int
    # Time at which the click was sent: the record's timestamp.
    arrival_ms: int


def clicks(seed: int, count: int) -> list[Click]:
    """Return `count` clicks in order of arrival."""
    chosen = random.Random(seed)
    made: list[Click] = []
    while len(made) < count:
        visitor = f"visitor-{len(made) % 997:03d}"
        for time_ms in _visit(chosen):
            arrival_ms = time_ms + _delay_ms(chosen)
            made.append(Click(len(made), visitor, chosen.choice(_PAGES), time_ms, arrival_ms))
    return sorted(made[:count], key=lambda click: click.arrival_ms)


def _visit(chosen: random.Random) -> Iterator[int]:
    """Yield the times of one visit's clicks, sometimes close to the session gap."""
    time_ms = DAY_MS + chosen.randrange(20 * _HOUR)
    for _ in range(chosen.randint(1, 12)):
        yield time_ms
        if chosen.random() < 0.05:
            time_ms += GAP_MINUTES * _MINUTE + chosen.choice((-1, 0, 1))
        else:
            time_ms += chosen.randrange(_SECOND, 4 * _MINUTE)


def _delay_ms(chosen: random.Random) -> int:
    kind = chosen.random()
    if kind < 0.90:
        return chosen.randrange(2 * _SECOND)
    if kind < 0.97:
        return chosen.randrange(LATE_MINUTES * _MINUTE + 1)
    return LATE_MINUTES * _MINUTE + chosen.choice((0, 1, chosen.randrange(3 * _HOUR)))


def records(stream: list[Click]) -> Iterator[Record]:
    """Yield clicks as records, keyed by visitor."""
    for click in stream:
        value = {
            "number": click.number,
            "visitor": click.visitor,
            "page": click.page,
            "time_ms": click.time_ms,
        }
        yield Record(click.visitor.encode(), json.dumps(value).encode(), click.arrival_ms)


def heartbeats(stream: list[Click]) -> Iterator[Record]:
    """Yield a record without a visitor for each partition, a day later, which advances time."""
    time_ms = max(click.arrival_ms for click in stream) + 24 * _HOUR
    value = json.dumps({"number": -1, "visitor": None, "page": None, "time_ms": time_ms}).encode()
    for partition in range(PARTITIONS):
        yield Record(None, value, time_ms, partition)
