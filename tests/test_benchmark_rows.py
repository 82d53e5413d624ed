"""CPU use of a broker, computed from a row of the benchmark."""

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
        ("ping p50", 100, 80, 0.8),  # µs, sequential
        ("produce at rate p50", 0.2, 150, 0.15),  # 1,000 a second
        ("transactions 1", 500, 1.0, 0.5),  # a second, ms each
        ("start", 0.3, 1.0, None),
    ],
)
def test_row_computes_busy_share_of_core(
    row: str, value: float, cpu: float, busy: float | None
) -> None:
    assert ROWS[row].busy(value, cpu) == (None if busy is None else pytest.approx(busy))


def test_every_row_with_cpu_time_has_busy_share() -> None:
    known = [row for row in ROWS.values() if row.cpu_unit]
    assert len(known) > 30
    assert all(row.busy(1.0, 1.0) is not None for row in known)


def test_longest_gap_starts_at_last_ack_before_event() -> None:
    acks = [Ack(sent, sent + 0.1) for sent in (0.0, 0.9, 1.0, 4.0, 4.1)]
    assert longest_gap(acks, 1.05) == pytest.approx(3.0)
    assert longest_gap(acks[:3], 0.5) == pytest.approx(0.9)
