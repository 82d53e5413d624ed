"""CPU time of the machine, part of which a hypervisor may take away."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_ticks() -> tuple[int, int]:
    """Return the ticks of all cores, and the number of stolen ticks (proc(5)).

    Both are 0 if unknown.
    """
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0, 0
    ticks = [int(word) for word in first.split()[1:9]]
    return sum(ticks), ticks[7]


def stolen_share(before: tuple[int, int]) -> float:
    """Return the share of CPU time that was stolen since `cpu_ticks` returned `before`."""
    total, stolen = (now - earlier for now, earlier in zip(cpu_ticks(), before, strict=True))
    return stolen / total if total else 0.0


def stolen_seconds() -> float:
    """Return the stolen CPU time since the machine started."""
    stolen = cpu_ticks()[1]
    return stolen / os.sysconf("SC_CLK_TCK") if stolen else 0.0
