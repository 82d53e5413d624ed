"""Tests of the doctor's checks and of `kbroker spark`."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.spark import connector, doctor, jars, java
from kbroker.spark.connector import JARS_VARIABLE, ConnectorError, Installed
from kbroker.spark.doctor import Result

NAMES = [
    "spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-token-provider-kafka-0-10_2.13-4.2.0.jar",
    "kafka-clients-3.9.2.jar", "commons-pool2-2.13.1.jar",
]  # fmt: skip


@pytest.fixture(autouse=True)
def pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Simulate an installed PySpark 4.2.0 and an empty environment."""
    home = tmp_path / "pyspark"
    (home / "jars").mkdir(parents=True)
    found = Installed("4.2.0", home, "2.13")
    for module in (connector, doctor):
        monkeypatch.setattr(module, "installed", lambda: found)
    monkeypatch.setattr(java, "default_java", lambda: java.Java(Path("/java"), 17))
    variables = ("SPARK_HOME", "SPARK_LOCAL_IP", "JAVA_TOOL_OPTIONS")
    for name in (*variables, "JDK_JAVA_OPTIONS", JARS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    monkeypatch.setattr(jars, "newest", registry_with("4.2.0", "4.2.0"))
    versions = json.dumps({"python": here, "pandas": "2.3.3", "pyarrow": "20.0.0"})
    monkeypatch.setenv("PYSPARK_PYTHON", str(program(tmp_path / "python", versions)))
    return found


def registry_with(connector: str, provider: str) -> Callable[[Installed, Path], jars.Available]:
    return lambda pyspark, directory: jars.Available(pyspark, connector, provider)


def program(path: Path, prints: str) -> Path:
    """Create an interpreter that only prints its versions."""
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


def results(subject: str) -> list[Result]:
    return [result for result in doctor.run() if result.subject == subject]


def wrong(subject: str) -> list[str]:
    return [result.text for result in results(subject) if result.wrong]


def put(directory: Path, *names: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).touch()
    return directory


def test_different_spark_home_is_reported(
    monkeypatch: pytest.MonkeyPatch, pyspark: Installed
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(pyspark.home))
    assert wrong("PySpark") == []
    monkeypatch.setenv("SPARK_HOME", "/opt/spark-3.5")
    assert "SPARK_HOME=/opt/spark-3.5" in wrong("PySpark")[0]


def test_missing_pyspark_ends_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Installed:
        raise ConnectorError("PySpark is not installed: run pip install 'kbroker[spark]'")

    monkeypatch.setattr(doctor, "installed", missing)
    (result,) = doctor.run()
    assert result.wrong
    assert "pip install" in result.action


def test_incompatible_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results("Java") == [Result("Java", "17 (/java)")]
    monkeypatch.setattr(java, "default_java", lambda: java.Java(Path("/java"), 11))
    monkeypatch.setattr(java, "_DIRECTORIES", ())
    (result,) = results("Java")
    assert result.wrong
    assert result.text == "Spark 4.2.0 does not run on Java 11 (/java), it needs Java 17 or newer"
    assert result.action.startswith("install a JDK 17")


def test_jars_of_directory_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(put(tmp_path / "jars", *NAMES[:3])))
    assert wrong("Jars") == [f"commons-pool2 is missing ({JARS_VARIABLE})"]
    put(tmp_path / "jars", NAMES[3])
    assert results("Jars") == [Result("Jars", f"all four are in {JARS_VARIABLE}")]
    monkeypatch.setenv(JARS_VARIABLE, str(put(tmp_path / "empty")))
    assert "contains no spark-sql-kafka jar" in wrong("Jars")[0]


def test_repository_is_queried_for_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    package = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    assert results("Jars") == [Result("Jars", f"the Maven repository has {package}")]
    monkeypatch.setattr(jars, "newest", registry_with("4.2.0", "4.0.0"))
    (result,) = results("Jars")
    assert result.wrong
    assert result.text == (
        "the Maven repository has no version 4.2.0 of spark-token-provider-kafka-0-10 (but 4.0.0)"
    )
    assert result.action.startswith("download these with kbroker spark packages --jars-dir DIR")
    monkeypatch.setattr(jars, "newest", registry_with("4.1.0", "4.0.0"))
    (result,) = results("Jars")
    assert result.action == "pip install 'pyspark==4.1.0', or use format(\"kbroker\")"


def test_unreachable_repository_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(pyspark: Installed, directory: Path) -> jars.Available:
        raise ConnectorError("mvn could not fetch it")

    monkeypatch.setattr(jars, "newest", away)
    (result,) = results("Jars")
    assert result.wrong
    assert result.text == "mvn could not fetch it"
    assert JARS_VARIABLE in result.action


def test_jars_in_pyspark_directory_are_checked(pyspark: Installed) -> None:
    put(pyspark.home / "jars", "spark-sql-kafka-0-10_2.12-3.5.1.jar", "commons-pool-1.5.4.jar")
    found = wrong("Jars")
    assert any("is for Scala 2.12, PySpark has 2.13" in text for text in found)
    assert any("kafka-clients is missing" in text for text in found)


def test_jars_in_both_directories_are_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pyspark: Installed
) -> None:
    put(pyspark.home / "jars", *NAMES)
    monkeypatch.setenv(JARS_VARIABLE, str(put(tmp_path / "jars", *NAMES)))
    assert len(wrong("Jars")) == 4
    assert "present 2 times" in wrong("Jars")[0]


def test_workers_with_other_python_version_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = '{"python": "3.8", "pandas": null, "pyarrow": "1.0.0"}'
    monkeypatch.setenv("PYSPARK_PYTHON", str(program(tmp_path / "old", versions)))
    monkeypatch.setattr(doctor, "_oldest", lambda library: "18.0.0")
    assert "would run Python 3.8" in wrong("Workers")[0]
    assert "is not installed for the workers" in wrong("pandas")[0]
    assert wrong("pyarrow") == ["1.0.0 is older than 18.0.0, which PySpark 4.2.0 requires"]


@pytest.mark.parametrize("setting", ["/nowhere/python", "/bin/false"])
def test_worker_interpreter_that_fails_is_reported(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", setting)
    (result,) = results("Workers")
    assert result.wrong
    assert f"export PYSPARK_PYTHON={sys.executable}" in result.action


def test_default_interpreter_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert wrong("Workers") == []
    assert wrong("pandas") == []


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("2.2.0", "2.10.0", False),
        ("2.2.0", "2.1.9", True),
        ("18.0.0", "18.0.0", False),
        ("15", "14.0.1", True),
        ("2.2.0", "2.2.0rc1", False),
    ],
)
def test_versions_are_compared_by_number(one: str, other: str, newer: bool) -> None:
    assert doctor.newer(one, other) is newer


def test_pandas_3_is_harmless(pyspark: Installed) -> None:
    result = doctor._library(pyspark, "pandas", "3.1.1", "python", harmless=False)
    assert not result.wrong
    assert str(result).startswith("note  pandas")


def test_proxy_unknown_to_java_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not results("Proxy")[0].action
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert "JAVA_TOOL_OPTIONS" in results("Proxy")[0].action
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=proxy")
    assert not results("Proxy")[0].action
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    monkeypatch.setenv(JARS_VARIABLE, str(put(tmp_path / "jars", *NAMES)))
    assert not results("Proxy")[0].action


def test_host_name_with_loopback_address_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise OSError

    monkeypatch.setattr(socket, "gethostname", lambda: "me")
    for look_up, text in ((lambda name: "127.0.1.1", "127.0.1.1"), (unknown, "no address")):
        monkeypatch.setattr(socket, "gethostbyname", look_up)
        (result,) = results("Host")
        assert (result.text, result.wrong) == (f"me is {text}", False)
        assert "SPARK_LOCAL_IP" in result.action
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    assert results("Host") == [Result("Host", "me is 10.1.2.3")]
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert results("Host") == [Result("Host", "SPARK_LOCAL_IP=127.0.0.1")]


def kbroker(*words: str, typed: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(main, ["spark", *words], input=typed)
    return done.exit_code, done.output


def test_packages_prints_coordinates_or_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    assert kbroker("packages") == (0, f"{name}\n")
    assert kbroker("packages", "--submit") == (0, f"--packages {name}\n")
    assert kbroker("packages", "--conf") == (0, f"spark.jars.packages={name}\n")
    directory = put(tmp_path / "jars", NAMES[0])
    monkeypatch.setenv(JARS_VARIABLE, str(directory))
    assert kbroker("packages", "--submit") == (0, f"--jars {directory / NAMES[0]}\n")
    assert kbroker("packages", "--conf") == (0, f"spark.jars={directory / NAMES[0]}\n")
    put(directory, *NAMES)
    status, output = kbroker("packages", "--jars-dir", str(directory))
    assert (status, output.splitlines()[-1]) == (0, f"export {JARS_VARIABLE}={directory}")


def test_packages_reports_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pyspark: Installed, directory: Path) -> list[str]:
        raise ConnectorError("no registry")

    monkeypatch.setattr(jars, "gather", fails)
    assert kbroker("packages", "--jars-dir", str(tmp_path)) == (1, "Error: no registry\n")


@pytest.fixture
def without_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run", lambda: iter([Result("Java", "17")]))


@pytest.mark.usefixtures("without_problems")
def test_doctor_exit_status_reflects_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kbroker("doctor") == (0, "ok    Java        17\n")
    log = tmp_path / "job.log"
    log.write_text("all is well\n")
    status, output = kbroker("doctor", str(log))
    assert (status, output.splitlines()[0]) == (0, "No known failure found in 1 lines.")
    status, output = kbroker("doctor", "-", typed="x\nFailed to find data source: kafka.\n")
    assert status == 1
    assert output.startswith("line 2: Failed to find data source: kafka.\n  Spark has no Kafka")
    noise = "Unable to load native-hadoop library for your platform\n"
    assert kbroker("doctor", "-", typed=noise)[0] == 0
    monkeypatch.setattr(doctor, "run", lambda: iter([Result("Java", "11", "install 17")]))
    assert kbroker("doctor") == (1, "WRONG Java        11\n                  -> install 17\n")
