"""The results table: medians, spread, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .rows import ROWS, Row

OURS = "kbroker"
PEERS = ("Kafka", "kfake")


class Cell(NamedTuple):
    """Results of one broker in one row, in the unit of the row; `cpu` is None if unknown."""

    median: float
    low: float
    high: float
    cpu: float | None


def lines(
    samples: list[dict[str, Any]], durable: bool, peers: Sequence[str] = PEERS
) -> Iterator[str]:
    """Yield the Markdown table for one durability: kbroker, then each peer with its ratio."""
    known = {sample["broker"] for sample in samples}
    brokers = [OURS, *(peer for peer in peers if peer in known)]
    heads = [f"{broker}: median (min to max)" for broker in brokers]
    columns = ["row", heads[0]]
    for head in heads[1:]:
        columns += [head, "ratio"]
    yield _joined([*columns, f"broker CPU, {' / '.join(brokers)}", f"{OURS} busy"])
    yield "|---" + "|--:" * (len(columns) + 1) + "|"
    for name, row in ROWS.items():
        cells = [cell(matching(samples, name, broker, durable)) for broker in brokers]
        if any(cells):
            yield _line(row, cells)


def ratio(row: Row, ours: Cell | None, peer: Cell | None) -> float | None:
    """Return how many times better kbroker is; above 1 is better, whatever the unit.

    Returns:
        None if one of them was not measured, or is not positive.
    """
    if ours is None or peer is None or min(ours.median, peer.median) <= 0:
        return None
    return ours.median / peer.median if row.more_is_better else peer.median / ours.median


def matching(
    samples: Iterable[dict[str, Any]], row: str, broker: str, durable: bool
) -> list[dict[str, Any]]:
    """Return the samples of one row of one broker."""
    wanted = (row, broker, durable)
    return [one for one in samples if (one["row"], one["broker"], one["durable"]) == wanted]


def cell(samples: Iterable[dict[str, Any]]) -> Cell | None:
    """Summarise the samples of one row and broker; None if there are none."""
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


def _line(row: Row, cells: Sequence[Cell | None]) -> str:
    ours = cells[0]
    columns = [row.title, _cell(ours, row.unit)]
    for peer in cells[1:]:
        times = ""
        if (value := ratio(row, ours, peer)) is not None:
            times = f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"
        columns += [_cell(peer, row.unit), times]
    cpu = ""
    if row.cpu_unit:
        figures = (_number(one.cpu) if one and one.cpu else "-" for one in cells)
        cpu = f"{' / '.join(figures)} {row.cpu_unit}"
    return _joined([*columns, cpu, _busy(row, ours)])


def _busy(row: Row, ours: Cell | None) -> str:
    if ours is None or not ours.cpu:
        return ""
    part = row.busy(ours.median, ours.cpu)
    return "" if part is None else f"{part:.0%}"


def _joined(columns: Iterable[str]) -> str:
    return f"| {' | '.join(columns)} |"


def _cell(found: Cell | None, unit: str) -> str:
    if found is None:
        return "-"
    spread = f" ({_number(found.low)} to {_number(found.high)})"
    return f"{_number(found.median)} {unit}{spread}"


def _number(value: float) -> str:
    """Format a number with three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"
