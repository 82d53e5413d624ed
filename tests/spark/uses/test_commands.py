"""The command in each example's README does what stands there, on a few rows."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing import LocalBroker

from .conftest import EXAMPLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = re.compile(r"^kbroker run -- python -m (\w+) ", re.MULTILINE)
ROWS = {"changes": 40, "clicks": 2_000, "logs": 1_500, "metrics": 4_000}


def test_every_example_is_tested() -> None:
    assert {page.parent.name for page in EXAMPLES.glob("*/README.md")} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_the_command_finds_what_plain_python_finds(
    name: str,
    spark: SparkSession,
    broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, whose Spark session the example takes; `kbroker run` is tested elsewhere."""
    found = COMMAND.search((EXAMPLES / name / "README.md").read_text())
    assert found
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    monkeypatch.setattr(sys, "argv", [found[1], f"--rows={ROWS[name]}", f"--folder={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(found[1], run_name="__main__", alter_sys=True)
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert " rows/s" in printed
    assert "all as plain Python has them" in printed
