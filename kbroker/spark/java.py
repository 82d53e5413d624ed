"""The Java that Spark would run on, and whether it can."""

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
    major: int
    """Its version's first number; 0 when the program does not say one."""


def suiting(spark: str) -> Java:
    """The Java that a Spark of this version starts on: that of JAVA_HOME, or the first on the path.

    Raises:
        ConnectorError: there is none, or it does not suit; the message names what does.
    """
    java = chosen()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is none on the path"
        raise ConnectorError(
            f"Spark {spark} needs a Java runtime, {wanted(spark)}, but {where}: {advice(spark)}"
        )
    if not suits(spark, java.major):
        raise ConnectorError(
            f"Spark {spark} does not run on Java {java.major} ({java.program}), it needs "
            f"{wanted(spark)}: {advice(spark)}"
        )
    return java


def chosen() -> Java | None:
    """The Java that Spark takes, as its start script chooses."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return _ask(Path(program)) if program and Path(program).exists() else None


def suits(spark: str, java: int) -> bool:
    """Whether a Spark version runs on a Java version.

    Spark 4.0 calls ``Subject.getSubject``, which Java has removed from 23 on.
    """
    newest = _NEWEST_OF_SPARK_4_0 if spark.startswith("4.0.") else java
    return _OLDEST <= java <= newest


def wanted(spark: str) -> str:
    """The Java versions that suit, in words."""
    return "17 or 21" if spark.startswith("4.0.") else "17 or newer"


def advice(spark: str) -> str:
    """What to do about a Java that does not suit: name one that is installed, or install one."""
    for java in all_installed():
        if suits(spark, java.major):
            return f"export JAVA_HOME={java.program.parent.parent}"
    return "install a JDK 17 (apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"


def major_in(text: str) -> int:
    """The major version in what ``java -version`` prints; 0 if it prints something else."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _ask(program: Path) -> Java:
    try:
        command = [str(program), "-version"]
        said = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Java(program, 0)
    return Java(program, major_in(said.stderr))


def all_installed() -> Iterator[Java]:
    for directory in _DIRECTORIES:
        for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
            yield from map(_ask, sorted(directory.glob(pattern)))
