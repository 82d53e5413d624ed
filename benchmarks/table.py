"""From samples to the table: medians, spread, ratio."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .rows import ROWS, Row

OURS, PEER = "kbroker", "Kafka"
FLOOR = 0.7


class Cell(NamedTuple):
    """What one broker did in one row; values in the unit of the row, `cpu` None where unknown."""

    median: float
    low: float
    high: float
    cpu: float | None


def lines(samples: list[dict[str, Any]], durable: bool, peer: str = PEER) -> Iterator[str]:
    """A Markdown table of all samples with this durability."""
    yield (
        f"| row | {OURS}: median (min to max) | {peer}: median (min to max) | ratio "
        f"| broker CPU, {OURS} / {peer} |"
    )
    yield "|---|--:|--:|--:|--:|"
    for name, row in ROWS.items():
        cells = [cell(matching(samples, name, broker, durable)) for broker in (OURS, peer)]
        if any(cells):
            yield _line(row, *cells)


def ratio(row: Row, ours: Cell, peer: Cell) -> float:
    """How many times better we are; above 1 is ahead, whatever the unit."""
    return ours.median / peer.median if row.more_is_better else peer.median / ours.median


def matching(
    samples: Iterable[dict[str, Any]], row: str, broker: str, durable: bool
) -> list[dict[str, Any]]:
    """The samples of one row of one broker."""
    wanted = (row, broker, durable)
    return [one for one in samples if (one["row"], one["broker"], one["durable"]) == wanted]


def cell(samples: Iterable[dict[str, Any]]) -> Cell | None:
    """Sum up the samples of one row and broker; None without any."""
    found = list(samples)
    if not found:
        return None
    values = [sample["value"] for sample in found]
    cpus = [sample["cpu"] for sample in found if sample["cpu"] is not None]
    return Cell(
        statistics.median(values),
        min(values),
        max(values),
        statistics.median(cpus) if cpus else None,
    )


def _line(row: Row, ours: Cell | None, peer: Cell | None) -> str:
    times = ""
    if ours and peer:
        value = ratio(row, ours, peer)
        times = f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"
    cpu = ""
    if row.cpu_unit:
        pair = " / ".join(_number(one.cpu) if one and one.cpu else "-" for one in (ours, peer))
        cpu = f"{pair} {row.cpu_unit}"
    return f"| {row.title} | {_cell(ours, row.unit)} | {_cell(peer, row.unit)} | {times} | {cpu} |"


def _cell(found: Cell | None, unit: str) -> str:
    if found is None:
        return "-"
    spread = f" ({_number(found.low)} to {_number(found.high)})"
    return f"{_number(found.median)} {unit}{spread}"


def _number(value: float) -> str:
    """Three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"
