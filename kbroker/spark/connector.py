"""Spark's Kafka connector for the installed PySpark: its name, version and jars."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

# Prefix of the connector's artifact name, before the Scala version.
CONNECTOR = "spark-sql-kafka-0-10_"
# Environment variable with a directory of the connector's jars, for machines without access to a
# Maven repository.
JARS_VARIABLE = "KBROKER_SPARK_JARS"


class ConnectorError(Exception):
    """The connector cannot be used; the message names the next action."""


class NoConnectorError(ConnectorError):
    """No Maven repository has the connector; a session without the connector still works."""


@dataclass(frozen=True)
class Installed:
    """The PySpark installation of this Python environment."""

    version: str
    # Directory that contains Spark's ``jars`` directory.
    home: Path
    # Scala version without the patch number, such as ``2.13``: part of the connector's name.
    scala: str

    @property
    def package(self) -> str:
        """Maven coordinates of the connector."""
        return f"org.apache.spark:{CONNECTOR}{self.scala}:{self.version}"

    @property
    def limits_python_sources(self) -> bool:
        """True if Spark passes batch size limits to Python sources (PySpark 4.2 and newer)."""
        return tuple(map(int, self.version.split(".")[:2])) >= (4, 2)


def installed() -> Installed:
    """Return the PySpark installation of this environment.

    Raises:
        ConnectorError: PySpark is not installed or incomplete.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConnectorError("PySpark is not installed: run pip install 'kbroker[spark]'")
    module = Path(spec.submodule_search_locations[0])
    # If Spark was not installed with pip, its jars are in SPARK_HOME, not in the package.
    spark_home = os.environ.get("SPARK_HOME")
    home = module if (module / "jars").is_dir() or not spark_home else Path(spark_home)
    return Installed(_version(module), home, _scala(home))


def _version(module: Path) -> str:
    text = (module / "version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__.*=\s*[\"']([^\"']+)", text)
    if found is None:
        raise ConnectorError(f"{module} contains no version: reinstall PySpark")
    return found[1]


def _scala(home: Path) -> str:
    """Return the Scala version, read from the name of the bundled library."""
    for jar in (home / "jars").glob("scala-library-*.jar"):
        if found := re.match(r"scala-library-(\d+\.\d+)\.", jar.name):
            return found[1]
    raise ConnectorError(
        f"{home} contains no Scala library: reinstall PySpark (pip install --force-reinstall "
        "pyspark)"
    )


def local_jars() -> list[Path]:
    """Return the jars of the directory in KBROKER_SPARK_JARS; empty if the variable is not set.

    Raises:
        ConnectorError: The directory does not contain the connector.
    """
    setting = os.environ.get(JARS_VARIABLE)
    if not setting:
        return []
    jars = sorted(Path(setting).resolve().glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka-") for jar in jars):
        raise ConnectorError(
            f"{JARS_VARIABLE}={setting} contains no spark-sql-kafka jar: set it to a directory "
            "with the connector's jars (kbroker spark packages --jars-dir DIR creates one), or "
            "unset it."
        )
    return jars


def connector_settings() -> dict[str, str]:
    """Return the Spark settings that add the connector to the class path.

    Raises:
        ConnectorError: PySpark is missing, or KBROKER_SPARK_JARS names a directory without a
            connector.
    """
    if jars := local_jars():
        return {"spark.jars": ",".join(map(str, jars))}
    return {"spark.jars.packages": installed().package}
