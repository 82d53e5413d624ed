"""Sections and tables of the page about cluster size."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.brokers import ROOT, commit

DOCUMENT = ROOT / "docs/how-to/size-a-cluster.md"


class Row(NamedTuple):
    """One line of a table."""

    title: str
    unit: str


def cell(row: Row, values: Sequence[float]) -> str:
    """Return the median, with minimum and maximum if there are several values."""
    if not values:
        return "-"
    text = f"{number(statistics.median(values))} {row.unit}".strip()
    spread = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
    return text + spread


def number(value: float) -> str:
    """Format a number with its significant digits."""
    digits = 0 if value >= 100 or value == round(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def describe_conditions(rounds: int) -> str:
    """Return the conditions of the measurements, without anything that identifies the machine."""
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    load = os.getloadavg()[2] if hasattr(os, "getloadavg") else 0.0
    return (
        f"{datetime.date.today()}; commit {commit()}; {rounds} round{'s' * (rounds != 1)}; "
        f"{os.cpu_count()} cores, {gigabytes:.0f} GB, Python {platform.python_version()}; "
        f"load average at the end {load:.1f}."
    )


def write(section: str, text: str) -> None:
    """Replace a section of the page."""
    begin, end = f"<!-- {section} -->\n", f"<!-- /{section} -->\n"
    page = DOCUMENT.read_text()
    before, rest = page.split(begin)
    DOCUMENT.write_text(before + begin + text + end + rest.split(end)[1])
