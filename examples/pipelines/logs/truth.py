"""Expected results, computed in plain Python from the generator's data without parsing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from . import ERROR_LEVELS
from .generate import Entry


def errors(made: Iterable[Entry]) -> dict[str, Any]:
    """Return entries and errors by service and minute."""
    entries: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for entry in made:
        if entry.reason is None:
            minute = datetime.fromtimestamp(entry.time_ms // 1000, UTC)
            key = f"{entry.service}|{minute:%Y-%m-%dT%H:%MZ}"
            entries[key] += 1
            errors[key] += entry.level in ERROR_LEVELS
    return {
        key: {"entries": count, "errors": errors[key], "rate": errors[key] / count}
        for key, count in entries.items()
    }


def bad(made: Iterable[Entry]) -> Counter[tuple[str, bytes]]:
    """Return how often each invalid entry occurs, with its reason."""
    return Counter((entry.reason, entry.raw) for entry in made if entry.reason is not None)
