"""The Java runtime that Spark would use, and its compatibility with the Spark version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .connector import ConnectorError

_DIRECTORIES = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
_OLDEST = 17
_NEWEST_OF_SPARK_4_0 = 22


@dataclass(frozen=True)
class Java:
    """A Java runtime."""

    program: Path
    # Major version, or 0 if the program did not print one.
    major: int


def find_suitable(spark: str) -> Java:
    """Return the Java runtime for a Spark version: that of JAVA_HOME, or the first one on PATH.

    Args:
        spark: Version of Spark, such as "4.0.1".

    Returns:
        The Java runtime.

    Raises:
        ConnectorError: Java is missing or incompatible. The message names compatible versions.
    """
    java = default_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is none on PATH"
        raise ConnectorError(
            f"Spark {spark} needs a Java runtime, version {wanted(spark)}, but {where}: "
            f"{advice(spark)}"
        )
    if not is_supported(spark, java.major):
        raise ConnectorError(
            f"Spark {spark} does not run on Java {java.major} ({java.program}), it needs "
            f"Java {wanted(spark)}: {advice(spark)}"
        )
    return java


def default_java() -> Java | None:
    """Return the Java runtime that Spark's start script would choose, or None."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return _probe(Path(program)) if program and Path(program).exists() else None


def is_supported(spark: str, java: int) -> bool:
    """Return True if a Spark version runs on a Java version.

    Spark 4.0 calls ``Subject.getSubject``, which Java 23 and newer do not support.
    """
    newest = _NEWEST_OF_SPARK_4_0 if spark.startswith("4.0.") else java
    return _OLDEST <= java <= newest


def wanted(spark: str) -> str:
    """Return the supported Java versions as text."""
    return "17 or 21" if spark.startswith("4.0.") else "17 or newer"


def advice(spark: str) -> str:
    """Return the next action if Java is missing or incompatible."""
    for java in all_installed():
        if is_supported(spark, java.major):
            return f"export JAVA_HOME={java.program.parent.parent}"
    return "install a JDK 17 (apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"


def major_in(text: str) -> int:
    """Return the major version in the output of ``java -version``, or 0 if not found."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _probe(program: Path) -> Java:
    try:
        command = [str(program), "-version"]
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Java(program, 0)
    return Java(program, major_in(done.stderr))


def all_installed() -> Iterator[Java]:
    for directory in _DIRECTORIES:
        for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
            yield from map(_probe, sorted(directory.glob(pattern)))
