"""Which Kafka connector belongs to the installed PySpark, and where it comes from."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

CONNECTOR = "spark-sql-kafka-0-10_"
"""Prefix of the connector's package name, before the Scala version."""
JARS_VARIABLE = "KBROKER_SPARK_JARS"
"""Names a directory with the connector's jars, for machines that reach no Java registry."""


class ConnectorError(Exception):
    """The connector cannot be used as things are; the message says what helps."""


class NoConnectorError(ConnectorError):
    """No registry delivers the connector; a session without it works."""


@dataclass(frozen=True)
class Installed:
    """The PySpark of this environment."""

    version: str
    home: Path
    """Where its jars directory is."""
    scala: str
    """Scala's version without its last number, such as ``2.13``: part of the connector's name."""

    @property
    def package(self) -> str:
        """The connector's name in the Java registry."""
        return f"org.apache.spark:{CONNECTOR}{self.scala}:{self.version}"

    @property
    def limits_python_sources(self) -> bool:
        """Whether it tells a source in Python how much a batch may hold: since 4.2."""
        return tuple(map(int, self.version.split(".")[:2])) >= (4, 2)


def installed() -> Installed:
    """Find the PySpark of this environment.

    Raises:
        ConnectorError: there is none.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConnectorError("PySpark is not installed here: pip install 'kbroker[spark]'")
    module = Path(spec.submodule_search_locations[0])
    # A Spark that pip has not installed has its Python beside its jars.
    elsewhere = os.environ.get("SPARK_HOME")
    home = module if (module / "jars").is_dir() or not elsewhere else Path(elsewhere)
    return Installed(_version(module), home, _scala(home))


def _version(module: Path) -> str:
    text = (module / "version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__.*=\s*[\"']([^\"']+)", text)
    if found is None:
        raise ConnectorError(f"{module} does not say its version: install PySpark again")
    return found[1]


def _scala(home: Path) -> str:
    """Scala's version, read from the library that the wheel carries."""
    for jar in (home / "jars").glob("scala-library-*.jar"):
        if found := re.match(r"scala-library-(\d+\.\d+)\.", jar.name):
            return found[1]
    raise ConnectorError(
        f"{home} carries no Scala library: install PySpark again (pip install --force-reinstall "
        "pyspark)"
    )


def local_jars() -> list[Path]:
    """The jars of the directory that KBROKER_SPARK_JARS names; empty when it is not set.

    Raises:
        ConnectorError: the directory holds no connector.
    """
    setting = os.environ.get(JARS_VARIABLE)
    if not setting:
        return []
    jars = sorted(Path(setting).resolve().glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka-") for jar in jars):
        raise ConnectorError(
            f"{JARS_VARIABLE}={setting} holds no spark-sql-kafka jar: name the directory that has "
            "the connector's jars (kbroker spark packages --jars-dir DIR makes one), or unset it."
        )
    return jars


def connector_settings() -> dict[str, str]:
    """The Spark settings that put the connector on the class path.

    Raises:
        ConnectorError: PySpark is missing, or the directory of KBROKER_SPARK_JARS holds no connector.
    """
    if jars := local_jars():
        return {"spark.jars": ",".join(map(str, jars))}
    return {"spark.jars.packages": installed().package}
