"""Expected windows, computed in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from .generate import Reading

WIDTHS_MS = {"metrics.10s": 10_000, "metrics.1m": 60_000, "metrics.1h": 3_600_000}


def windows(readings: Iterable[Reading]) -> dict[str, dict[str, Any]]:
    """Return the windows of each topic, by key."""
    ordered = sorted(readings, key=lambda reading: reading.time_ms)
    return {topic: _windows(ordered, width_ms) for topic, width_ms in WIDTHS_MS.items()}


def _windows(ordered: list[Reading], width_ms: int) -> dict[str, Any]:
    values = defaultdict(list)
    for reading in ordered:
        start_ms = reading.time_ms - reading.time_ms % width_ms
        values[f"{reading.host}|{reading.name}|{start_ms}"].append(reading.value)
    return {
        key: {
            "min": min(seen),
            "max": max(seen),
            "avg": sum(seen) / len(seen),
            "last": seen[-1],
            "count": len(seen),
        }
        for key, seen in values.items()
    }
