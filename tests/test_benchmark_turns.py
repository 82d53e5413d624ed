"""Checks before measurements, and repetition of disturbed measurements."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import turns
from benchmarks.rows import Sample


class Processors:
    """CPU cores of which `parts` are stolen during each measurement."""

    def __init__(self, *parts: float) -> None:
        self._parts = iter(parts)
        self._ticks = self._stolen = 0
        self.measured = 0

    def ticks(self) -> tuple[int, int]:
        return self._ticks, self._stolen

    def measure(self) -> Iterator[Sample]:
        self.measured += 1
        self._ticks += 1000
        self._stolen += int(1000 * next(self._parts))
        time.sleep(0.02)
        yield Sample("ping p50", self.measured)


@pytest.mark.parametrize(
    ("parts", "patience", "kept", "measured"),
    [
        ([0.02], 60, 1, 1),
        ([0.5, 0.03, 0.01], 60, 3, 3),
        ([0.5, 0.1, 0.3], 0.03, 2, 3),  # always disturbed: keep the best one
        ([0.5], 0, 1, 1),
    ],
)
def test_disturbed_row_is_repeated_until_patience_is_used_up(
    parts: list[float],
    patience: float,
    kept: int,
    measured: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processors = Processors(*parts)
    monkeypatch.setattr(turns, "cpu_ticks", processors.ticks)
    monkeypatch.setattr("tests.processors.cpu_ticks", processors.ticks)
    monkeypatch.setattr(turns, "PROBE_SECONDS", 0)
    monkeypatch.setattr("os.sync", lambda: None)  # a disk may be slow
    machine = turns.Machine(patience)
    assert machine.undisturbed(processors.measure) == [Sample("ping p50", kept)]
    assert processors.measured == measured


@pytest.mark.parametrize(
    ("rows", "durable", "is_checked"),
    [
        ([], [True], True),
        (["spark"], [True], True),
        (["ping"], [True], False),
        ([], [], False),  # no rows
    ],
)
def test_missing_spark_is_reported_before_measurements(
    rows: list[str],
    durable: list[bool],
    is_checked: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    measured: list[object] = []

    def measure(*given: object) -> list[object]:
        measured.append(given)
        return []

    monkeypatch.setattr("benchmarks.spark_client.ENVIRONMENT", tmp_path)
    monkeypatch.setattr(program, "describe_conditions", lambda repeat: {})
    monkeypatch.setattr(program, "_measure_policies", measure)
    monkeypatch.setattr(program, "_save_report", lambda report: None)
    options = Namespace(brokers=[], rows=rows, durable=durable, repeat=1, processes=None)
    if is_checked:
        with pytest.raises(SystemExit, match=f"no Spark in {tmp_path}; run 'make spark-env"):
            program.run(options, {})
    else:
        program.run(options, {})
    assert bool(measured) is not is_checked
