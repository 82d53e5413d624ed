"""Tests of the demo's output on a terminal and to a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kbroker.demo import report, truth
from kbroker.demo.data import Files
from kbroker.demo.verify import Check


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "produced", "full", "ahead"),
    [(0, 0, 0, 0), (0, 100, 0, 28), (50, 75, 14, 7), (100, 100, 28, 0), (60, 50, 16, 0)],
)
def test_bar_shows_processed_and_produced_rows(
    done: int, produced: int, full: int, ahead: int
) -> None:
    bar = report.bar(done, produced, 100)
    assert len(bar) == 28
    assert bar == "█" * full + "▒" * ahead + "░" * (28 - full - ahead)


def test_pipe_gets_only_plain_lines() -> None:
    out = io.StringIO()
    console = report.Console(out)
    console.transient_line("Spark", "starts")
    console.progress(5, 7, 10, 3.0, 1)
    console.progress(6, 8, 10, 3.0, 1)
    console.check(Check("late rows", "none dropped"))
    assert out.getvalue() == (
        "  departures          5 of 10 rows · 3 rows/s · batch 1 · producer at 7\n"
        "  ✓ late rows         none dropped\n"
    )


def test_terminal_line_replaces_passing_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    console = report.Console(out)
    console.transient_line("Spark", "x" * 100)
    console.line("Spark", "streams")
    passing, _, rest = out.getvalue().partition("\r\x1b[K  Spark       x")[2].partition("\r")
    assert len("  Spark       x" + passing) == 39
    assert rest == "\x1b[K  Spark       streams\n"


def test_colour_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    report.Console(out).verdict(True, "right")
    assert out.getvalue() == "right\n"


def test_failed_check_shows_differences() -> None:
    out = io.StringIO()
    report.Console(out).check(Check("topic", "equal", [f"record {n}" for n in range(5)]))
    assert out.getvalue().splitlines() == [
        "  ✗ topic             5 differences",
        "      record 0",
        "      record 1",
        "      record 2",
        "      and 2 more",
    ]


def test_table_sums_all_groups(files: Files) -> None:
    rows = list(report.table(truth.compute(*files).groups))
    assert [" ".join(row.split()) for row in rows[2:]] == [
        "rain 2 50.0% 8.5 min 15 min",
        "dry 4 33.3% 7.7 min 25 min",
        "not known 1 100.0% 60.0 min 60 min",
        "all flights 7 50.0% 16.7 min 60 min",
    ]
    assert len({len(row) for row in rows}) == 1


def test_paths_are_shown_relative_to_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report.shown(tmp_path / "a" / "b") == "a/b"
    assert report.shown(Path("/elsewhere")) == "/elsewhere"
