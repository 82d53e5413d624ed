"""Tests of the requirement checks: each error is one sentence with the next action."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kbroker.demo import StartError, requirements
from kbroker.spark import connector, java


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an environment with all modules, PySpark 4.0.0 and Java 17."""
    spark = connector.Installed("4.0.0", Path("/spark"), "2.13")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(connector, "installed", lambda: spark)
    monkeypatch.setattr(java, "default_java", lambda: java.Java(Path("/java"), 17))
    monkeypatch.delenv(connector.JARS_VARIABLE, raising=False)


@pytest.mark.usefixtures("installed")
def test_complete_requirements_pass() -> None:
    assert requirements.check() == requirements.Spark("4.0.0", 17)


def test_missing_modules_are_named_with_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name)
    )
    with pytest.raises(StartError, match=r"\(pyspark.*pip install '\.\[demo\]'"):
        requirements.check()


@pytest.mark.usefixtures("installed")
def test_incompatible_java_or_jars_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(connector.JARS_VARIABLE, str(tmp_path))
    with pytest.raises(StartError, match="contains no spark-sql-kafka jar"):
        requirements.check()
    monkeypatch.delenv(connector.JARS_VARIABLE)
    monkeypatch.setattr(java, "default_java", lambda: java.Java(Path("/java"), 25))
    with pytest.raises(StartError, match=r"Spark 4\.0\.0 does not run on Java 25"):
        requirements.check()
