"""The command in each example's README works as documented, on a few rows."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing import LocalBroker

from .conftest import EXAMPLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = re.compile(r"^kbroker run -- python -m (\w+)\b", re.MULTILINE)
ROWS = {"changes": 40, "clicks": 2_000, "logs": 1_500, "metrics": 4_000}
PAGE = EXAMPLES.parents[1] / "docs/tutorials/examples.md"


def command_of(name: str) -> str:
    """Return the command in an example's README. The tutorial page has it too."""
    (found,) = COMMAND.findall((EXAMPLES / name / "README.md").read_text())
    assert isinstance(found, str)
    return found


def test_every_example_is_tested() -> None:
    pages = list(EXAMPLES.glob("*/README.md"))
    assert {command_of(page.parent.name) for page in pages} == set(ROWS)
    assert set(COMMAND.findall(PAGE.read_text())) == set(ROWS)


def supports_available_now() -> bool:
    """Return True if this PySpark supports the trigger availableNow for Python sources."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def arguments(name: str, directory: Path) -> list[str]:
    source = "kbroker" if name == "changes" and supports_available_now() else "kafka"
    return [f"--rows={ROWS[name]}", f"--directory={directory}", f"--format={source}"]


def check(printed: str) -> None:
    assert " rows/s" in printed
    assert "all equal to plain Python's" in printed


@pytest.mark.parametrize("name", ["changes", "clicks", "metrics"])
def test_command_results_equal_plain_python(
    name: str,
    spark: SparkSession,
    broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command runs in this process and uses its Spark session."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    monkeypatch.setattr(sys, "argv", [name, *arguments(name, tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(command_of(name), run_name="__main__", alter_sys=True)
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    check(printed)


def test_whole_command_runs_in_its_own_processes(tmp_path: Path) -> None:
    python = sys.executable
    command = [python, "-m", "kbroker", "run", "--", python, "-m", command_of("logs")]
    with subprocess.Popen(
        [*command, *arguments("logs", tmp_path)],
        cwd=EXAMPLES,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=600)
        except BaseException:
            # including the example and its JVM
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, printed
    check(printed)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a": 1, "b": 2}, ("things: 2, all equal to plain Python's", 0)),
        ({"a": 1}, ("things: 1 missing, 0 unexpected, 0 different, such as b", 1)),
        ({"a": 1, "b": 2, "c": 3}, ("things: 0 missing, 1 unexpected, 0 different, such as c", 1)),
        ({"a": 1, "b": 0}, ("things: 0 missing, 0 unexpected, 1 different, such as b", 1)),
    ],
)
def test_verdict_reports_differences(
    found: dict[str, int], expected: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    import program

    status = program.verdict({"things": found}, {"things": {"a": 1, "b": 2}})
    assert (capsys.readouterr().out.strip(), status) == expected
