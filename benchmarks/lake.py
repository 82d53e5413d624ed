"""Benchmark of the lake archiver and of plain Spark jobs with the same output.

python -m benchmarks.lake

Run it with the interpreter of an environment with PySpark. It uses one broker, one topic of JSON
records and one Spark session; the jobs run in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow.dataset

from kbroker.pipelines.lake.archiver import Conf, build
from kbroker.spark import session

TOPIC = "orders"
PARTITIONS = 4
SCHEMA = "id bigint, customer string, city string, amount double, pieces bigint, paid boolean, note string"
HOURS = 6
START_MS = 1_772_323_200_000


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="kbroker-lake-", dir=options.dir) as name:
        directory = Path(name)
        broker, address = _start_broker(directory)
        try:
            _produce(address, options.rows)
            _compare(address, directory, options)
        finally:
            broker.kill()
            broker.wait()


def _compare(address: str, directory: Path, options: argparse.Namespace) -> None:
    spark = session("benchmark", settings={"spark.driver.memory": "1g"})
    jobs: dict[str, Callable[..., None]] = {
        "kbroker lake": archiver,
        "plain streaming job": plain_stream,
        "plain batch job": plain_batch,
    }
    rates: dict[str, list[float]] = {name: [] for name in jobs}
    work: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(options.repeat + 1):
        for name, job in jobs.items():
            target = directory / f"{name.replace(' ', '-')}-{turn}"
            began, used = time.perf_counter(), _cpu_seconds(spark)
            job(spark, address, target)
            seconds, worked = time.perf_counter() - began, _cpu_seconds(spark) - used
            _check(target, options.rows)
            if turn:  # the first turn warms up the JVM
                rates[name].append(options.rows / seconds)
                work[name].append(worked)
            print(f"turn {turn}: {name} {seconds:.1f} s, CPU {worked:.1f} s", file=sys.stderr)
    spark.stop()
    print(table(rates, work, options.rows))


def archiver(spark: Any, address: str, target: Path) -> None:
    """Run the archiver with all its exactly-once guarantees."""
    conf = Conf(target, TOPIC, address, once=True, schema=SCHEMA)
    build(spark, conf).awaitTermination()


def plain_stream(spark: Any, address: str, target: Path) -> None:
    """Run a streaming query with Spark's own file sink."""
    source = spark.readStream.format("kafka").option("startingOffsets", "earliest")
    source = source.option("includeHeaders", "true")
    rows = _parsed(
        source.option("kafka.bootstrap.servers", address).option("subscribe", TOPIC).load()
    )
    rows.writeStream.partitionBy("date", "hour").option(
        "checkpointLocation", f"{target}-checkpoint"
    ).trigger(availableNow=True).start(f"{target}/{TOPIC}", format="parquet").awaitTermination()


def plain_batch(spark: Any, address: str, target: Path) -> None:
    """Run a job that reads and writes all records."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    source = source.option("includeHeaders", "true")
    rows = _parsed(source.option("subscribe", TOPIC).load())
    rows.write.partitionBy("date", "hour").parquet(f"{target}/{TOPIC}")


def _parsed(rows: Any) -> Any:
    from pyspark.sql import functions as F

    value = F.from_json(F.col("value").cast("string"), SCHEMA).alias("parsed")
    kept = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "headers")
    return (
        rows.select(value, "timestamp", F.struct(*kept).alias("record"))
        .select("parsed.*", "timestamp", "record")
        .withColumn("date", F.to_date("timestamp"))
        .withColumn("hour", F.hour("timestamp"))
        .drop("timestamp")
    )


def table(rates: dict[str, list[float]], work: dict[str, list[float]], rows: int) -> str:
    """Return the medians as a Markdown table; CPU is that of driver and JVM."""
    ours = statistics.median(rates["kbroker lake"])
    lines = [
        f"{rows:,} records",
        "",
        "| job | rows/s, median (min to max) | lake / job | CPU seconds |",
        "|---|--:|--:|--:|",
    ]
    for name, each in rates.items():
        median = statistics.median(each)
        lines.append(
            f"| {name} | {median:,.0f} ({min(each):,.0f} to {max(each):,.0f}) "
            f"| {ours / median:.2f} | {statistics.median(work[name]):.1f} |"
        )
    return "\n".join(lines)


def _cpu_seconds(spark: Any) -> float:
    """Return the CPU time of this process and of Spark's JVM so far."""
    own = os.times()
    stat = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return own.user + own.system + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _check(target: Path, rows: int) -> None:
    """Exit if a job has not written every row."""
    found = pyarrow.dataset.dataset(target / TOPIC, partitioning="hive").count_rows()
    if found != rows:
        sys.exit(f"{target} has {found:,} rows, not {rows:,}")


def _produce(address: str, rows: int) -> None:
    settings = {"bootstrap.servers": address, "compression.type": "lz4", "linger.ms": 50}
    producer = confluent_kafka.Producer(settings)
    for number in range(rows):
        record = {
            "id": number,
            "customer": f"customer-{number % 5003}",
            "city": f"city {number % 97}",
            "amount": number % 1009 / 8,
            "pieces": number % 7,
            "paid": number % 3 == 0,
            "note": "left at the door of the neighbours" if number % 5 else None,
        }
        time_ms = START_MS + number * HOURS * 3_600_000 // rows
        value = json.dumps(record)
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _start_broker(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    port_file = directory / "port"
    words = [
        "serve",
        "--port",
        "0",
        "--port-file",
        str(port_file),
        "--data-dir",
        str(directory / "data"),
    ]
    words += ["--topic", f"{TOPIC}:{PARTITIONS}:retention.ms=-1"]
    with open(directory / "broker.log", "wb") as log:
        broker = subprocess.Popen(
            [sys.executable, "-m", "kbroker", *words], stdout=log, stderr=subprocess.STDOUT
        )
    for _ in range(600):
        if port_file.exists() and port_file.read_text().strip():
            return broker, port_file.read_text().strip()
        time.sleep(0.1)
    sys.exit("the broker did not start: " + (directory / "broker.log").read_text())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lake", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3, help="number of measured turns")
    parser.add_argument("--dir", help="directory for temporary data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
