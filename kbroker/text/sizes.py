"""Sizes for people."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")
# Bytes per unit: kB and MB are powers of 1000, KiB and MiB powers of 1024.
BYTES_PER_UNIT: Final[Mapping[str, int]] = MappingProxyType(
    {
        "B": 1,
        **{unit: 1000**power for power, unit in enumerate(UNITS[:4], 1)},
        **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)},
    }
)


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
