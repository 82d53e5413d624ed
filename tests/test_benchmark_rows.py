"""How much of the time a broker computes, from what a row says."""

from __future__ import annotations

import pytest

from benchmarks.processes import Ack, longest_gap
from benchmarks.rows import ROWS


@pytest.mark.parametrize(
    ("row", "value", "cpu", "busy"),
    [
        ("produce 1 kB", 500, 1.0, 0.5),  # MB/s, s/GB
        ("produce 100 B", 1000, 2.0, 0.2),  # thousands of 100 bytes
        ("pipelined", 40, 25, 1.0),  # thousands a second, µs each
        ("ping p50", 100, 80, 0.8),  # µs, one after the other
        ("produce at rate p50", 0.2, 150, 0.15),  # 1,000 a second
        ("transactions 1", 500, 1.0, 0.5),  # a second, ms each
        ("start", 0.3, 1.0, None),
    ],
)
def test_busy(row: str, value: float, cpu: float, busy: float | None) -> None:
    assert ROWS[row].busy(value, cpu) == (None if busy is None else pytest.approx(busy))


def test_every_row_with_processor_time_says_how_busy_that_is() -> None:
    known = [row for row in ROWS.values() if row.cpu_unit]
    assert len(known) > 30
    assert all(row.busy(1.0, 1.0) is not None for row in known)


def test_a_gap_begins_with_the_last_ack_before_what_happens() -> None:
    acks = [Ack(sent, sent + 0.1) for sent in (0.0, 0.9, 1.0, 4.0, 4.1)]
    assert longest_gap(acks, 1.05) == pytest.approx(3.0)
    assert longest_gap(acks[:3], 0.5) == pytest.approx(0.9)
