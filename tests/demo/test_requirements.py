"""What is missing is said in one sentence with the command that helps."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kbroker.demo import StartError, requirements

JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


@pytest.mark.parametrize(
    ("text", "major"),
    [
        (JAVA_17, 17),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ('java version "1.8.0_402"', 8),
        ("", 0),
        ("bash: java: not found", 0),
    ],
)
def test_the_major_version_of_java(text: str, major: int) -> None:
    assert requirements.java_major(text) == major


@pytest.mark.parametrize(
    ("spark", "java", "suits"),
    [
        ("4.0.0", 17, True),
        ("4.0.0", 21, True),
        ("4.0.1", 25, False),
        ("4.0.0", 11, False),
        ("4.2.0", 25, True),
        ("4.2.0", 8, False),
        ("4.2.0", 0, False),
    ],
)
def test_which_java_suits_which_spark(spark: str, java: int, suits: bool) -> None:
    assert requirements.suits(spark, java) is suits


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every module were there, with PySpark 4.0.0."""

    class Spec:
        submodule_search_locations = ("/spark",)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.0.0")
    monkeypatch.delenv("KBROKER_SPARK_JARS", raising=False)


def java(folder: Path, version: str) -> Path:
    """A folder such as JAVA_HOME names, whose java prints a version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.usefixtures("installed")
def test_everything_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "17.0.15")))
    spark = requirements.check()
    assert spark == requirements.Spark("4.0.0", Path("/spark"), 17, None)
    assert spark.package == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def test_missing_modules_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name)
    )
    with pytest.raises(StartError, match=r"\(pyspark.*pip install '\.\[demo\]'"):
        requirements.check()


@pytest.mark.usefixtures("installed")
def test_the_wrong_java_is_named_with_one_that_suits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "wrong", "25.0.1")))
    java(tmp_path / "jvm" / "jdk-11", "11.0.2")
    right = java(tmp_path / "jvm" / "jdk-21", "21.0.2")
    monkeypatch.setattr(requirements, "_JVM_FOLDERS", (tmp_path / "jvm",))
    with pytest.raises(StartError) as caught:
        requirements.check()
    text = str(caught.value)
    assert text.startswith("Spark 4.0.0 does not run on Java 25")
    assert text.endswith(f"JAVA_HOME={right} kbroker demo")


@pytest.mark.usefixtures("installed")
def test_without_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requirements, "_JVM_FOLDERS", ())
    with pytest.raises(StartError, match=r"needs a Java runtime, 17 or 21: install a JDK 17"):
        requirements.check()


@pytest.mark.usefixtures("installed")
def test_a_folder_of_jars_must_hold_the_connector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "17")))
    monkeypatch.setenv("KBROKER_SPARK_JARS", str(tmp_path))
    with pytest.raises(StartError, match="holds no spark-sql-kafka jar"):
        requirements.check()
    (tmp_path / "spark-sql-kafka-0-10_2.13-4.0.0.jar").touch()
    assert requirements.check().jars == tmp_path
