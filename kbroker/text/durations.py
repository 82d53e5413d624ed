"""Durations as text, such as 500ms, 30s, 10m, 2h or 7d."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MS_PER_UNIT: Final[Mapping[str, int]] = MappingProxyType(
    {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)?")


def parse_duration(text: str) -> float:
    """Parse a duration such as 500ms, 30s, 10m or 2h; a number without unit is in seconds.

    A space before the unit is allowed.

    Raises:
        ValueError: The text is invalid.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid duration {text!r}; expected one such as 500ms, 30s or 10m")
    return float(match[1]) * MS_PER_UNIT[match[2] or "s"] / 1000
