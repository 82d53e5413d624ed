"""Expected sessions and late clicks, computed in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from . import GAP_MINUTES, LATE_MINUTES
from .generate import Click


def is_late(click: Click) -> bool:
    """Return True if a click arrived too late to count in a session."""
    return click.arrival_ms - click.time_ms > LATE_MINUTES * 60_000


def late(clicks: Iterable[Click]) -> dict[str, Any]:
    """Return the late clicks, by number."""
    return {
        str(click.number): {
            "number": click.number,
            "visitor": click.visitor,
            "page": click.page,
            "time_ms": click.time_ms,
        }
        for click in clicks
        if is_late(click)
    }


def sessions(clicks: Iterable[Click]) -> dict[str, Any]:
    """Return all sessions, by visitor and start."""
    visitors = defaultdict(list)
    for click in clicks:
        if not is_late(click):
            visitors[click.visitor].append((click.time_ms, click.number, click.page))
    found: dict[str, Any] = {}
    for visitor, seen in visitors.items():
        session: dict[str, Any] | None = None
        for time_ms, _, page in sorted(seen):
            if session is None or time_ms - session["end_ms"] > GAP_MINUTES * 60_000:
                session = {"visitor": visitor, "start_ms": time_ms, "clicks": 0, "entry": page}
                found[f"{visitor}|{time_ms}"] = session
            session |= {"end_ms": time_ms, "exit": page, "clicks": session["clicks"] + 1}
    return found
