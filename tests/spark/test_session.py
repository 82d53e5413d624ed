"""A session connects to Kafka, prints nothing, and leaves no files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.spark.connector import CONNECTOR
from kbroker.spark.session import _merge_connector_settings
from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_reads_and_writes_topic(spark: SparkSession, broker: LocalBroker) -> None:
    broker.create_topic("numbers", partitions=2)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    rows = spark.range(10).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("kafka").options(**options, topic="numbers").save()

    read = spark.read.format("kafka").options(**options, subscribe="numbers").load()

    assert sorted(int(row.value) for row in read.collect()) == list(range(10))
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize(
    ("own", "joined"),
    [
        ("", "ours_2.13:4.2.0"),
        ("org.x:y:1, org.x:z:2", "ours_2.13:4.2.0,org.x:y:1,org.x:z:2"),
        (f"org.x:y:1,a:{CONNECTOR}2.13:4.1.0", f"org.x:y:1,a:{CONNECTOR}2.13:4.1.0"),
    ],
)
def test_packages_of_user_are_merged_with_connector(own: str, joined: str) -> None:
    name = "spark.jars.packages"
    assert _merge_connector_settings({name: "ours_2.13:4.2.0"}, {name: own} if own else {}) == {
        name: joined
    }


TWICE = """
import sys
from pyspark.sql.functions import udf
from kbroker.spark import session

own = {"spark.driver.extraJavaOptions": "-Dmine=1", "spark.sql.shuffle.partitions": "3"}
spark = session("first", connector=False, quick=True, settings=own)
worker = udf(lambda _: __import__("sys").executable)
assert spark.range(1).select(worker("id")).first()[0] == sys.executable
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
options = spark.conf.get("spark.driver.extraJavaOptions")
assert options.endswith("-XX:TieredStopAtLevel=1 -Dmine=1"), options
assert spark.sparkContext._jvm.System.getProperty("mine") == "1"
spark.sql("create table kept using parquet as select 1 as one")
spark.stop()
spark = session("second", connector=False)
assert (spark.sparkContext.appName, spark.range(5).count()) == ("second", 5)
print("done")
"""


def test_session_prints_nothing_and_leaves_no_files(tmp_path: Path) -> None:
    """The environment also names another Spark and another Python."""
    temporary, directory = tmp_path / "temporary", tmp_path / "directory"
    temporary.mkdir()
    directory.mkdir()
    variables = {"TMPDIR": str(temporary), "SPARK_HOME": "/nowhere", "PYSPARK_PYTHON": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        cwd=directory,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert list(temporary.iterdir()) == []
    # Spark 4.0 creates a directory for artifacts in the working directory.
    assert {each.name for each in directory.iterdir()} <= {"artifacts"}
