"""One Spark session for all tests, and a Kafka broker for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from kbroker.testing.spark import KafkaUtils

QUIET = Path(__file__).with_name("log4j2.properties")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a session that prints only errors, uses two cores, and retries failed tasks.

    KBROKER_SPARK_JARS may name a directory with the connector's jars, if no Maven repository is
    reachable.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2,4]").appName("tests of invoices")
    jars = os.environ.get("KBROKER_SPARK_JARS")
    if jars:
        files = sorted(str(path) for path in Path(jars).glob("*.jar"))
        builder = builder.config("spark.jars", ",".join(files))
    else:
        connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        builder = builder.config("spark.jars.packages", connector)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{QUIET}",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def kafka() -> Iterator[KafkaUtils]:
    """Return a broker that keeps records for a day."""
    utils = KafkaUtils(
        topics={"orders": 2, "invoices": 1, "orders.rejected": 1},
        config={"log.retention.hours": "24"},
    )
    utils.setup()
    yield utils
    utils.teardown()
