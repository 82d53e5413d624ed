"""Tests of the choice of Java for a Spark version, and of the error for an incompatible one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.spark import java
from kbroker.spark.connector import ConnectorError

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
def test_major_version_is_parsed(text: str, major: int) -> None:
    assert java.major_in(text) == major


@pytest.mark.parametrize(
    ("spark", "major", "suits"),
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
def test_java_support_depends_on_spark_version(spark: str, major: int, suits: bool) -> None:
    assert java.is_supported(spark, major) is suits


def create_java_home(directory: Path, version: str) -> Path:
    """Create a JAVA_HOME whose java prints a version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return directory


def test_java_home_has_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = create_java_home(tmp_path, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_suitable("4.0.0") == java.Java(home / "bin" / "java", 17)


def test_incompatible_java_error_names_installed_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(create_java_home(tmp_path / "wrong", "25.0.1")))
    create_java_home(tmp_path / "jvm" / "jdk-11", "11.0.2")
    right = create_java_home(tmp_path / "jvm" / "jdk-21", "21.0.2")
    monkeypatch.setattr(java, "_DIRECTORIES", (tmp_path / "jvm",))
    with pytest.raises(ConnectorError) as caught:
        java.find_suitable("4.0.0")
    text = str(caught.value)
    assert text.startswith("Spark 4.0.0 does not run on Java 25")
    assert text.endswith(f"export JAVA_HOME={right}")


def test_missing_java_error_names_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_DIRECTORIES", ())
    with pytest.raises(ConnectorError, match=r"17 or 21, but there is none.*: install a JDK 17"):
        java.find_suitable("4.0.0")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConnectorError, match="JAVA_HOME=/nowhere has no bin/java"):
        java.find_suitable("4.2.0")
