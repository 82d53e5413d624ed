"""A Spark session that talks to Kafka, on the first try."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .connector import connector_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def session(
    app_name: str = "kbroker",
    *,
    master: str = "local[2]",
    connector: bool = True,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session with the Kafka connector of the installed PySpark.

    It is quiet (errors only), its time zone is UTC, its workers run this interpreter, and it opens
    local interfaces only. The connector's jars come from the folder that KBROKER_SPARK_JARS names, or
    else by their name from the Java registry.

    Parameters: `master` is Spark's; without `connector` no jar is asked for, which is enough for
    ``format("kbroker")``; `settings` are Spark settings that win over those made here.

    Resource handling: stop it with ``stop()``. When the process has a session already, Spark returns
    that one.

    Raises:
        ConnectorError: PySpark is missing, or the folder of jars holds no connector.
    """
    chosen = _quiet() | (connector_settings() if connector else {}) | dict(settings or {})
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _quiet() -> dict[str, str]:
    """Local, quiet and in UTC."""
    folder = Path(tempfile.mkdtemp(prefix="kbroker-spark-"))
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J, encoding="utf-8")
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log4j.as_uri()} -XX:+UseSerialGC"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
