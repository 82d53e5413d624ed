"""The processors of the machine, which the host of a virtual one may give to others now and then."""

from __future__ import annotations

import os
from pathlib import Path


def processors() -> tuple[int, int]:
    """Ticks of all processors, and how many of them the host gave to others (proc(5)).

    Both are 0 where the system does not tell.
    """
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0, 0
    ticks = [int(word) for word in first.split()[1:9]]
    return sum(ticks), ticks[7]


def stolen_part(before: tuple[int, int]) -> float:
    """The part of all processors' time that was given to others since `processors` said this."""
    total, stolen = (now - then for now, then in zip(processors(), before, strict=True))
    return stolen / total if total else 0.0


def stolen_seconds() -> float:
    """Processor time that the host gave to others since the start of the machine."""
    stolen = processors()[1]
    return stolen / os.sysconf("SC_CLK_TCK") if stolen else 0.0
