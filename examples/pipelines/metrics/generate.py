"""Generator of metrics of a few hosts, one reading per second, reproducible by seed.

Readings arrive slightly out of order. Sometimes a host sends nothing for some minutes, so some
windows are missing. All values are integers, so that sums and means are exact in any order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from topics import Record

# 2026-01-05T09:30:00Z.
START_MS = 1_767_605_400_000
HOSTS = ("ash", "elm")
NAMES = ("cpu_permille", "requests")


class Reading(NamedTuple):
    """One value of a metric of a host."""

    host: str
    name: str
    time_ms: int
    value: int


def readings(seed: int, count: int) -> list[Reading]:
    """Return about `count` readings in order of arrival, up to 30 s late."""
    chosen = random.Random(seed)
    made = []
    for host in HOSTS:
        level = dict.fromkeys(NAMES, 500)
        away_until = 0
        for second in range(count // (len(HOSTS) * len(NAMES))):
            if chosen.random() < 0.001:
                away_until = second + chosen.randrange(5, 300)
            for name in NAMES:
                level[name] = max(0, level[name] + chosen.randint(-20, 20))
                reading = Reading(host, name, START_MS + second * 1_000, level[name])
                if second >= away_until:
                    made.append((reading.time_ms + chosen.randrange(30_000), reading))
    return [reading for _, reading in sorted(made)]


def records(made: list[Reading]) -> Iterator[Record]:
    """Yield readings as records, keyed by host."""
    for reading in made:
        value = json.dumps(reading._asdict(), separators=(",", ":"))
        yield Record(reading.host.encode(), value.encode(), reading.time_ms)
