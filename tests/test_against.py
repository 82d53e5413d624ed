"""Benchmark comparison with another commit: its checkout, and the slower rows."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.against import checkout, kbroker_at, slower_rows, verdict
from benchmarks.brokers import BenchmarkFailed
from benchmarks.picture import PICTURED, dots
from benchmarks.table import lines


def git(directory: Path, *arguments: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *name, *arguments]
    return subprocess.check_output(command, cwd=directory, text=True).strip()


def test_checkout_of_commit_exists_during_measurement(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for text in ("old", "new"):
        (tmp_path / "file").write_text(text)
        git(tmp_path, "add", "file")
        git(tmp_path, "commit", "-q", "-m", text)
    with checkout("HEAD~1", tmp_path) as directory:
        assert (directory / "file").read_text() == "old"
        assert (tmp_path / "file").read_text() == "new"
        before = kbroker_at(directory)
        assert (before.name, before.root) == (
            git(directory, "rev-parse", "--short", "HEAD"),
            directory,
        )
    assert not directory.exists()
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1
    with pytest.raises(BenchmarkFailed, match="nowhere"), checkout("nowhere", tmp_path):
        pass


def samples(broker: str, row: str, *values: float, durable: bool = True) -> list[dict[str, Any]]:
    return [
        {"broker": broker, "row": row, "value": value, "cpu": None, "durable": durable}
        for value in values
    ]


def test_slower_rows_are_listed_worst_first() -> None:
    found = [
        # More is better; then less is better; then within the tolerance.
        *samples("kbroker", "pipelined", 90, 93, 99),
        *samples("abc", "pipelined", 98, 100, 103),
        *samples("kbroker", "ping p50", 120, 121, 119, durable=False),
        *samples("abc", "ping p50", 100, 101, 99, durable=False),
        *samples("kbroker", "join", 103),
        *samples("abc", "join", 100.1),
        *samples("kbroker", "start", 0.1),
        *samples("abc", "start", 0.2),
        *samples("kbroker", "memory", 50),
    ]
    slower = slower_rows(found, "abc")
    assert verdict(slower, "abc").splitlines() == [
        "More than 3% slower than at abc (median of the rounds):",
        "  0.83  one record per request, sequential: p50, without fsync (in every round)",
        "  0.93  one record per request, pipelined, with fsync (rounds overlap)",
    ]
    table = "\n".join(lines(found, True, ["abc"]))
    assert "| row | kbroker: median (min to max) | abc: median (min to max) | ratio |" in table
    assert "| **0.93** |" in table
    assert verdict([], "abc") == "No row is more than 3% slower than at abc."


def test_chart_has_dot_for_each_ratio() -> None:
    found = [
        *samples("kbroker", "ping p50", 50),
        *samples("Kafka", "ping p50", 100),
        *samples("kfake", "ping p50", 25),
        *samples("kbroker", "pipelined", 30, durable=False),
        *samples("Kafka", "pipelined", 10, durable=False),
        *samples("kbroker", "start", 0.1),
        *samples("kbroker", "idle connections", 3),
        *samples("Kafka", "idle connections", -2),
    ]
    drawn = {(PICTURED[dot.line], dot.peer, dot.durable): dot.times for dot in dots(found)}
    assert drawn == {
        ("ping p50", "Kafka", True): 2,
        ("ping p50", "kfake", True): 0.5,
        ("pipelined", "Kafka", False): 3,
    }


def test_negative_value_has_no_ratio() -> None:
    """A JVM may release memory while connections are opened."""
    found = [
        *samples("kbroker", "idle connections", 3),
        *samples("Kafka", "idle connections", -2),
    ]
    row = [*lines(found, True, ["Kafka"])][-1]
    assert "| -2.000 kB" in row
    assert "**" not in row
    assert slower_rows(found, "Kafka") == []


def test_write_requires_matplotlib_before_measurements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.__main__.find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--write"])
    with pytest.raises(SystemExit):
        main()
    assert "pip install 'matplotlib" in capsys.readouterr().err
