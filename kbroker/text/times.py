"""Times of records as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kbroker.protocol.records import NO_TIMESTAMP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_of(ms: int) -> datetime | None:
    """The date of a time in ms since the epoch.

    None where there is none: records may be of any 64 bits, dates are of the years 1 to 9999, and
    -1 says that a record has no time.
    """
    if ms == NO_TIMESTAMP:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def iso_time(ms: int | None) -> str | None:
    """A time in ms as RFC 3339; the number where it has no date, None for None."""
    if ms is None:
        return None
    when = date_of(ms)
    if when is None:
        return str(ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
