"""Read a topic with Spark's Kafka source twice, and print the seconds of the second read.

Run it in the environment of the Spark tests: `python -m benchmarks.spark_reader BOOTSTRAP TOPIC
RECORDS`. The first read warms up the JVM.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from kbroker.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 4


def main() -> None:
    bootstrap, topic, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    spark = session("benchmark", settings={"spark.driver.memory": "1g"})
    for _ in range(2):
        began = time.perf_counter()
        read = _read(spark, bootstrap, topic)
        seconds = time.perf_counter() - began
        if read != records:
            sys.exit(f"Spark read {read} of {records} records")
    print(seconds)
    spark.stop()


def _read(spark: SparkSession, bootstrap: str, topic: str) -> int:
    """Return the number of records, reading the value of each."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    values = source.option("minPartitions", TASKS).load().selectExpr("value")
    return int(values.where("length(value) > 0").count())


if __name__ == "__main__":
    main()
