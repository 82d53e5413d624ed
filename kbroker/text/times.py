"""Formatting of record timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kbroker.protocol.records import NO_TIMESTAMP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_of(ms: int) -> datetime | None:
    """Convert ms since the epoch to a date.

    Returns:
        The date, or None for -1 (no timestamp) and for times outside of the years 1 to 9999.
    """
    if ms == NO_TIMESTAMP:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def utc_text(ms: int) -> str:
    """Format ms since the epoch as `2026-01-31 12:00:00 UTC`; as "N ms" if it has no date."""
    when = date_of(ms)
    if when is None:
        return f"{ms} ms"
    shown = when.replace(tzinfo=None)
    return f"{shown.isoformat(' ', 'milliseconds' if ms % 1000 else 'seconds')} UTC"


def iso_time(ms: int | None) -> str | None:
    """Format ms since the epoch as RFC 3339; the plain number if it has no date, None for None."""
    if ms is None:
        return None
    when = date_of(ms)
    if when is None:
        return str(ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
