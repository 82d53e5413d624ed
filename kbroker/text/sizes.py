"""Sizes for people."""

from __future__ import annotations

UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def human_size(size: int | None) -> str:
    """Return a size in decimal units, such as "830 B" or "1.2 GB"; "-" if it is not known.

    Args:
        size: Size in bytes, less than 2**64; None if it is not known.
    """
    if size is None:
        return "-"
    if size < 1000:
        return f"{size} B"
    value, units = size / 1000, iter(UNITS)
    unit = next(units)
    while value >= 999.95:  # would be rounded to 1000.0
        value, unit = value / 1000, next(units)
    return f"{value:.1f} {unit}"
