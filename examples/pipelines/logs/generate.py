"""Generator of logs of a shop's services, reproducible by seed.

Two services write free text, with stack traces of several lines; two write JSON. Some entries are
invalid, each for one of the `REASONS`.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from . import LEVELS

# 2026-01-05T10:00:00Z; the logs cover the next 40 minutes.
START_MS = 1_767_607_200_000
_SPAN_MS = 40 * 60_000
TEXT_SERVICES, JSON_SERVICES = ("billing", "checkout"), ("gateway", "search")
REASONS = ("not UTF-8", "no JSON object", "no time", "unknown level")
_BAD_SHARE = 0.03
_SHARES = {"DEBUG": 10, "INFO": 70, "WARN": 12, "ERROR": 7, "FATAL": 1}
_MESSAGES = ("order taken", "card refused", "basket emptied", "no answer", "cache is cold")
_TRACE = (
    "java.lang.IllegalStateException: no answer from the bank",
    "\tat shop.Payments.charge(Payments.java:120)",
    "\tat shop.Orders.close(Orders.java:77)",
    "Caused by: java.net.SocketTimeoutException: Read timed out",
    "\t... 14 more",
)


class Entry(NamedTuple):
    """One log entry, and the expected result of parsing it."""

    service: str
    time_ms: int
    level: str
    message: str
    # Lines of a stack trace; empty without one.
    detail: str
    # Why the entry cannot be parsed; None for a valid entry.
    reason: str | None
    # The original entry: one or several lines.
    raw: bytes


def entries(seed: int, count: int) -> list[Entry]:
    """Return `count` entries of all services, in time order."""
    chosen = random.Random(seed)
    times = sorted(START_MS + chosen.randrange(_SPAN_MS) for _ in range(count))
    return [_entry(chosen, number, time_ms) for number, time_ms in enumerate(times)]


def _entry(chosen: random.Random, number: int, time_ms: int) -> Entry:
    service = chosen.choice(TEXT_SERVICES + JSON_SERVICES)
    level = chosen.choices(LEVELS, [_SHARES[name] for name in LEVELS])[0]
    message = f"{chosen.choice(_MESSAGES)}, request {number}"
    has_trace = level in ("ERROR", "FATAL") and chosen.random() < 0.7
    detail = "\n".join(_TRACE) if has_trace else ""
    form = _json if service in JSON_SERVICES else _text
    good = Entry(service, time_ms, level, message, detail, None, b"")
    if chosen.random() >= _BAD_SHARE:
        return good._replace(raw=form(good).encode())
    reasons = REASONS if service in JSON_SERVICES else [r for r in REASONS if "JSON" not in r]
    reason = chosen.choice(reasons)
    return good._replace(reason=reason, raw=_corrupted(form(good), reason, level))


def _text(entry: Entry) -> str:
    time = datetime.fromtimestamp(entry.time_ms / 1000, UTC)
    stamp = f"{time:%Y-%m-%d %H:%M:%S},{entry.time_ms % 1000:03d}"
    first = f"{stamp} {entry.level:<5} [{entry.service}-3] {entry.message}"
    return f"{first}\n{entry.detail}" if entry.detail else first


def _json(entry: Entry) -> str:
    time = datetime.fromtimestamp(entry.time_ms / 1000, UTC)
    fields = {
        "time": f"{time:%Y-%m-%dT%H:%M:%S}.{entry.time_ms % 1000:03d}Z",
        "level": entry.level,
        "message": entry.message,
    }
    return json.dumps(fields | ({"detail": entry.detail} if entry.detail else {}))


def _corrupted(good: str, reason: str, level: str) -> bytes:
    if reason == "not UTF-8":
        return good.replace("request", "café").encode("latin-1")
    if reason == "no JSON object":
        return good[: len(good) * 2 // 3].encode()
    if reason == "no time":
        return good.replace("2026-01-05", "2026-13-45", 1).encode()
    return good.replace(level, "LOUD", 1).encode()


def log_files(made: Iterable[Entry]) -> dict[str, list[bytes]]:
    """Return the lines of each service's log file."""
    lines: defaultdict[str, list[bytes]] = defaultdict(list)
    for entry in made:
        lines[entry.service] += entry.raw.split(b"\n")
    return dict(lines)
