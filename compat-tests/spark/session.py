"""A Spark session with Spark's Kafka connector, without log output, on local interfaces only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent


def open_session(
    environment: Path,
    jars: Path | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Open a session with two cores.

    Args:
        environment: Directory of the virtual environment, which contains the connector's Ivy cache.
        jars: Directory of jars to use instead of `spark.jars.packages`.
        more: Further settings.
    """
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    import pyspark
    from pyspark.sql import SparkSession

    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile=file:{HERE / 'log4j2.properties'} -XX:+UseSerialGC"
        ),
    }
    if jars is None:
        connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        settings["spark.jars.packages"] = connector
        settings["spark.jars.ivy"] = str(environment / "ivy")
    else:
        settings["spark.jars"] = ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    builder = SparkSession.builder.appName("kbroker-compat")
    for key, value in {**settings, **more}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
