"""The chart of the demo."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.demo import chart
from kbroker.demo.truth import Figures, Hour


def figures(departed: int, total: int) -> Figures:
    return {"flights": departed, "departed": departed, "delay_sum": total}


HOURS: dict[Hour, Figures] = {
    (5, "rain"): figures(100, 500),
    (6, "rain"): figures(49, 4_900),
    (7, "rain"): figures(50, 400),
    (5, "dry"): figures(1_000, -1_000),
    (5, "no_weather"): figures(100, 0),
}


def test_means_leave_out_hours_with_few_flights() -> None:
    assert chart.mean_delays(HOURS, "rain") == {5: 5.0, 7: 8.0}
    assert chart.mean_delays(HOURS, "dry") == {5: -1.0}


@pytest.mark.spark
@pytest.mark.parametrize("hours", [HOURS, {}, {(5, "dry"): figures(100, 0)}], ids=len)
def test_chart_is_drawn_from_little_data(tmp_path: Path, hours: dict[Hour, Figures]) -> None:
    path = tmp_path / "chart.png"
    chart.save(hours, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1350, 750)
