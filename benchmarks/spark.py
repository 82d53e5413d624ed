"""Benchmark of Spark's connector and `format("kbroker")`: `python -m benchmarks.spark`.

`format("kbroker")` reads over the network and from segment files; all read the same records of one
broker. Run it with the interpreter of an environment with PySpark (`make spark-environment`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.spark.source.stored import DataDirectories, FilesError

from .brokers import ROOT, BenchmarkFailed, Kbroker, output
from .spark_way import PARTITIONS, SIZES, WAYS, Stage, topic_of

DOCUMENT = ROOT / "docs/how-to/spark.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
STORED_SECONDS = 60
ROUND_SECONDS = 1800


class Sample(NamedTuple):
    """Wall time, and CPU time of Spark, its JVM and its workers, of one run."""

    seconds: float
    cpu_seconds: float


# Samples by row and way.
Samples = dict[str, dict[str, list[Sample]]]


def main() -> None:
    options = _options()
    samples: Samples = defaultdict(lambda: defaultdict(list))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        broker = Kbroker(Path(directory) / "broker", durable=False)
        try:
            data = Path(directory) / "broker/data"
            for size in SIZES.values():
                fill(broker, data, size, options.records)
            for number in range(options.repeat):
                for way in rotated(options.ways, number):
                    measure(Stage(way, broker.address, str(data), options.records, ""), samples)
                    minutes = (time.monotonic() - began) / 60
                    print(f"{minutes:4.1f} min: {way}, round {number + 1}", file=sys.stderr)
        except BenchmarkFailed as error:
            sys.exit(f"benchmarks: {error}")
        finally:
            broker.stop()
    text = "".join(f"{line}\n" for line in report(samples, options))
    print(text)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="number of records of each size"
    )
    parser.add_argument(
        "--repeat", type=int, default=3, help="number of rounds; the table has their medians"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--directory", type=Path, help="directory for temporary data")
    parser.add_argument(
        "--write", action="store_true", help=f"write the table into {DOCUMENT.name}"
    )
    return parser.parse_args()


def rotated(ways: list[str], number: int) -> list[str]:
    """Return the ways in the order of a round, so that the first way differs between rounds."""
    first = number % len(ways)
    return ways[first:] + ways[:first]


def fill(broker: Kbroker, data: Path, size: int, records: int) -> None:
    """Write the records, and wait until the segment files contain all of them."""
    address = {"bootstrap.servers": broker.address}
    topic = topic_of(size)
    admin = AdminClient(address)
    new = [NewTopic(name, PARTITIONS) for name in (topic, f"written-of-{size}")]
    for made in admin.create_topics(new).values():
        made.result()
    producer = Producer({**address, "linger.ms": 20, "queue.buffering.max.messages": 100_000})
    value = os.urandom(size)
    for number in range(records):
        if len(producer) >= 90_000:
            producer.flush()
        producer.produce(topic, value, b"%08d" % number, number % PARTITIONS)
    producer.flush()
    deadline = time.monotonic() + STORED_SECONDS
    while _stored(data, topic) != records:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{topic} is not complete in the files after {STORED_SECONDS} s")
        time.sleep(0.5)


def _stored(data: Path, topic: str) -> int:
    """Return the number of records according to the broker's checkpoint, or -1."""
    try:
        logs = DataDirectories([str(data)]).logs()
    except FilesError:
        return -1
    return sum(log.high_watermark for (name, _), log in logs.items() if name == topic)


def measure(stage: Stage, samples: Samples) -> None:
    """Run all measurements of one way, in a process with its own JVM."""
    with tempfile.TemporaryDirectory() as directory:
        argument = json.dumps(stage._replace(directory=directory))
        command = [sys.executable, "-m", "benchmarks.spark_way", argument]
        printed = output(command, stage.way, seconds=ROUND_SECONDS)
    for line in printed.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            sample = Sample(found["seconds"], found["cpu"])
            samples[found["row"]][found["way"]].append(sample)


def report(samples: Samples, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield textwrap.fill(
        f"{options.records:,} records of each size in {PARTITIONS} partitions, median of "
        f"{options.repeat}; PySpark {version('pyspark')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, which the broker shares. Each way uses its own JVM in each round. "
        "The unit is thousands of records per second; the CPU time of Spark and its workers per "
        "record is in brackets. Ratios compare records per second.",
        width=110,
    )
    yield ""
    yield "| | connector | over the wire | from files | wire / connector | files / connector |"
    yield "|---|--:|--:|--:|--:|--:|"
    for row, of_ways in samples.items():
        cells = [_cell(of_ways[way], options.records) for way in WAYS]
        ratios = [_ratio(of_ways[way], of_ways[WAYS[0]]) for way in WAYS[1:]]
        yield f"| {' | '.join((row, *cells, *ratios))} |"


def _cell(samples: list[Sample], records: int) -> str:
    if not samples:
        return ""
    cpu = statistics.median(sample.cpu_seconds for sample in samples) / records
    return f"{records / _seconds(samples) / 1000:,.0f} k/s ({cpu * 1e6:.1f} µs)"


def _ratio(samples: list[Sample], peer: list[Sample]) -> str:
    return f"{_seconds(peer) / _seconds(samples):.2f}" if samples and peer else ""


def _seconds(samples: list[Sample]) -> float:
    return statistics.median(sample.seconds for sample in samples)


if __name__ == "__main__":
    main()
