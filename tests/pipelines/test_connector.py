"""The connector for an installed PySpark, and the directory of jars."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kbroker.spark import connector
from kbroker.spark.connector import JARS_VARIABLE, ConnectorError


@pytest.fixture
def pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like an installed PySpark 4.1.3."""
    home = tmp_path / "pyspark"
    (home / "jars").mkdir(parents=True)
    (home / "version.py").write_text("__version__: str = '4.1.3'\n")
    (home / "jars" / "scala-library-2.13.17.jar").touch()

    class Spec:
        submodule_search_locations = (str(home),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec())
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    return home


def test_package_name_contains_spark_and_scala_versions(pyspark: Path) -> None:
    found = connector.installed()
    assert found == connector.Installed("4.1.3", pyspark, "2.13")
    name = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3"
    assert connector.connector_settings() == {"spark.jars.packages": name}


def test_spark_home_is_used_without_pip_installation(
    pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pyspark / "jars").rename(tmp_path / "jars")
    with pytest.raises(ConnectorError, match="contains no Scala library"):
        connector.installed()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert connector.installed().home == tmp_path


def test_missing_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConnectorError, match=r"pip install 'kbroker\[spark\]'"):
        connector.installed()


def test_pyspark_without_version_is_rejected(pyspark: Path) -> None:
    (pyspark / "version.py").write_text("")
    with pytest.raises(ConnectorError, match="contains no version"):
        connector.installed()


def test_jar_directory_without_connector_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ConnectorError, match="contains no spark-sql-kafka jar"):
        connector.connector_settings()
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-4.0.0.jar"
    jar.touch()
    (tmp_path / "readme.txt").touch()
    assert connector.connector_settings() == {"spark.jars": str(jar)}
